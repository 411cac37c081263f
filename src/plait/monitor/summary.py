"""What a timeline amounts to: rates over time, each device's share and utilisation, and the events in words."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from plait.monitor.timeline import MembershipRow, MemberStep, SplitRow, StepRow, Timeline, member_order

EventKind = Literal["formed", "lost", "joined", "left", "split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive steps of one generation taken together; times in seconds since the first step began."""

    start_s: float
    end_s: float
    first_step: int
    last_step: int
    generation: str
    loss: float | None
    samples_per_s: tuple[tuple[str, float], ...]
    speeds: tuple[tuple[str, float], ...]
    micro_batches: tuple[tuple[str, float], ...]

    @property
    def total_samples_per_s(self) -> float:
        """Samples per second that the group committed."""
        return sum(rate for _, rate in self.samples_per_s)

    @property
    def sum_of_speeds(self) -> float:
        """Samples per second that the members of this stretch would reach if none ever waited."""
        return sum(speed for _, speed in self.speeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A member's stay in one generation."""

    member: str
    generation: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    """One member over the whole run. ``speed`` is in samples per second of its own compute time."""

    member: str
    accelerator_type: str
    first_s: float
    last_s: float
    steps: int
    samples: int
    share_ratio: float
    speed: float
    utilisation_ratio: float
    lost_at_s: float | None
    joined_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that changed in the group, with its reason."""

    at_s: float
    step: int
    kind: EventKind
    what: str
    reason: str
    gap_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Everything that a report shows, in seconds since the first step began (``started_at_s``, Unix time)."""

    started_at_s: float
    duration_s: float
    stretches: tuple[Stretch, ...]
    losses: tuple[tuple[float, int, float], ...]
    spans: tuple[Span, ...]
    devices: tuple[DeviceSummary, ...]
    events: tuple[RunEvent, ...]
    num_steps: int
    num_samples: int
    missing_steps: int
    share_of_speed_ratio: float
    unreadable_lines: int

    @property
    def samples_per_s(self) -> float:
        """Samples per second of wall-clock time over the whole run."""
        return self.num_samples / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def num_lost(self) -> int:
        """Members that were lost while the run went on."""
        return sum(device.lost_at_s is not None for device in self.devices)

    @property
    def longest_gap_s(self) -> float | None:
        """Longest time that the group's work stood still for a change of its members."""
        return max((event.gap_s for event in self.events if event.gap_s is not None), default=None)


def summarise(timeline: Timeline, max_stretches: int = 160) -> RunSummary:
    """Returns the summary of a timeline with at least one step; rates are averaged over ``max_stretches`` parts."""
    steps = timeline.steps
    if not steps:
        raise ValueError("a summary needs at least one step")
    start_s = steps[0].at_s - steps[0].step_s
    lengths = _elapsed(steps)
    stretches = _stretches(steps, lengths, start_s, max(1, math.ceil(len(steps) / max_stretches)))
    possible = sum(part.sum_of_speeds * (part.end_s - part.start_s) for part in stretches)
    num_samples = sum(row.samples for row in steps)
    first_step, last_step = min(row.step for row in steps), max(row.step for row in steps)
    return RunSummary(
        started_at_s=start_s,
        duration_s=steps[-1].at_s - start_s,
        stretches=stretches,
        losses=tuple(
            (row.at_s - start_s, row.step, row.loss)
            for row in steps
            if row.loss is not None and math.isfinite(row.loss)
        ),
        spans=_spans(steps, start_s),
        devices=_devices(timeline, lengths, start_s),
        events=_events(timeline, start_s),
        num_steps=len(steps),
        num_samples=num_samples,
        missing_steps=last_step - first_step + 1 - len(steps),
        share_of_speed_ratio=num_samples / possible if possible > 0 else 0.0,
        unreadable_lines=timeline.unreadable_lines,
    )


def _elapsed(steps: tuple[StepRow, ...]) -> tuple[float, ...]:
    """Returns the wall-clock seconds from the end of each step's predecessor to its own end: gaps count too."""
    first_s = max(steps[0].step_s, 1e-9)
    return (first_s, *(max(after.at_s - before.at_s, 1e-9) for before, after in pairwise(steps)))


def _stretches(
    steps: tuple[StepRow, ...], lengths: tuple[float, ...], start_s: float, size: int
) -> tuple[Stretch, ...]:
    groups: list[list[int]] = []
    for index, row in enumerate(steps):
        last = groups[-1] if groups else None
        # A stretch never spans two generations, so that a change of the group stays sharp to the step.
        if last is not None and len(last) < size and steps[last[0]].generation == row.generation:
            last.append(index)
        else:
            groups.append([index])
    return tuple(_stretch([steps[i] for i in group], [lengths[i] for i in group], start_s) for group in groups)


def _stretch(rows: list[StepRow], lengths: list[float], start_s: float) -> Stretch:
    elapsed_s = sum(lengths)
    parts: dict[str, list[MemberStep]] = {}
    for row in rows:
        for part in row.members:
            parts.setdefault(part.member, []).append(part)
    losses = [row.loss for row in rows if row.loss is not None and math.isfinite(row.loss)]
    members = sorted(parts.items(), key=lambda item: member_order(item[0]))
    return Stretch(
        start_s=rows[-1].at_s - start_s - elapsed_s,
        end_s=rows[-1].at_s - start_s,
        first_step=rows[0].step,
        last_step=rows[-1].step,
        generation=rows[0].generation,
        loss=sum(losses) / len(losses) if losses else None,
        samples_per_s=tuple((name, sum(part.samples for part in own) / elapsed_s) for name, own in members),
        speeds=tuple((name, _speed(own)) for name, own in members),
        micro_batches=tuple((name, sum(part.micro_batches for part in own) / len(rows)) for name, own in members),
    )


def _speed(parts: list[MemberStep]) -> float:
    compute_s = sum(part.compute_s for part in parts)
    return sum(part.samples for part in parts) / compute_s if compute_s > 0 else 0.0


def _spans(steps: tuple[StepRow, ...], start_s: float) -> tuple[Span, ...]:
    spans: list[Span] = []
    running: dict[str, Span] = {}
    for row in steps:
        end_s = row.at_s - start_s
        for part in row.members:
            span = running.get(part.member)
            begin_s = end_s - row.step_s
            if span is not None and span.generation == row.generation:
                begin_s = span.start_s
            elif span is not None:
                spans.append(span)
                begin_s = max(begin_s, span.end_s)
            running[part.member] = Span(
                member=part.member, generation=row.generation, start_s=max(0.0, begin_s), end_s=end_s
            )
    return tuple(sorted((*spans, *running.values()), key=lambda span: (member_order(span.member), span.start_s)))


def _devices(timeline: Timeline, lengths: tuple[float, ...], start_s: float) -> tuple[DeviceSummary, ...]:
    parts: dict[str, list[tuple[StepRow, float, MemberStep]]] = {}
    for row, length_s in zip(timeline.steps, lengths, strict=True):
        for part in row.members:
            parts.setdefault(part.member, []).append((row, length_s, part))
    total = sum(part.samples for own in parts.values() for _, _, part in own)
    lost = {name: row.at_s - start_s for row in timeline.memberships for name in row.lost}
    joined = {name: row.at_s - start_s for row in timeline.memberships if not row.is_forming for name in row.joined}
    devices = []
    for name in sorted(parts, key=member_order):
        own = parts[name]
        samples = sum(part.samples for _, _, part in own)
        wall_s = sum(length_s for _, length_s, _ in own)
        devices.append(
            DeviceSummary(
                member=name,
                accelerator_type=own[-1][2].accelerator_type,
                first_s=max(0.0, own[0][0].at_s - own[0][0].step_s - start_s),
                last_s=own[-1][0].at_s - start_s,
                steps=len(own),
                samples=samples,
                share_ratio=samples / total if total else 0.0,
                speed=_speed([part for _, _, part in own]),
                utilisation_ratio=min(1.0, sum(part.compute_s for _, _, part in own) / wall_s) if wall_s > 0 else 0.0,
                lost_at_s=lost.get(name),
                joined_at_s=joined.get(name),
            )
        )
    return tuple(devices)


def _events(timeline: Timeline, start_s: float) -> tuple[RunEvent, ...]:
    events = [_membership_event(row, start_s) for row in timeline.memberships]
    events += [_split_event(row, start_s) for row in timeline.splits]
    return tuple(sorted(events, key=lambda event: event.at_s))


def _membership_event(row: MembershipRow, start_s: float) -> RunEvent:
    kind: EventKind
    if row.lost:
        kind, what = "lost", f"{', '.join(row.lost)} lost"
        if row.joined:
            what += f", {', '.join(row.joined)} joined"
    elif row.is_forming:
        kind, what = "formed", "group formed"
    elif row.joined:
        kind, what = "joined", f"{', '.join(row.joined)} joined"
    else:
        kind, what = "left", "group changed"
    what += f": {len(row.members)} member{'' if len(row.members) == 1 else 's'} in generation {row.generation}"
    gap_s = None if kind == "formed" else row.gap_s  # before the first step no work could stand still
    at_s = max(0.0, row.at_s - start_s)
    return RunEvent(at_s=at_s, step=row.step, kind=kind, what=what, reason=row.reason, gap_s=gap_s)


def _split_event(row: SplitRow, start_s: float) -> RunEvent:
    what = ", ".join(f"{member} {count}" for member, count in sorted(row.split, key=lambda pair: member_order(pair[0])))
    return RunEvent(
        at_s=max(0.0, row.at_s - start_s), step=row.step, kind="split", what=what, reason=row.reason, gap_s=None
    )
