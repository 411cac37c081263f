"""The timeline of a run: what each step did, who was in the group, how the work was split, and why.

Every member appends JSON lines to ``timeline/{member}.jsonl`` in the run's directory. All members write the same rows,
so a reader needs any one of them; reading all of them covers members that came late or were killed while writing.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plait.errors import PlaitError


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStep:
    """One member's part in a step: ``micro_batches`` of it, done in ``compute_s`` without waiting for others."""

    member: str
    micro_batches: int
    samples: int
    compute_s: float
    accelerator_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One committed global step; ``at_s`` is the Unix time of its end, ``loss`` the mean over all its samples."""

    at_s: float
    step: int
    loss: float | None
    samples: int
    step_s: float
    generation: str
    members: tuple[MemberStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRow:
    """The group changed to ``members``; ``gap_s`` is the longest time that a member's work stood still for it.

    ``is_forming`` says that none of the members was in a group before: the start of an attempt.
    """

    at_s: float
    step: int
    generation: str
    members: tuple[str, ...]
    lost: tuple[str, ...]
    joined: tuple[str, ...]
    reason: str
    gap_s: float | None
    is_forming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """From this step on each member computes so many micro-batches, for this reason."""

    at_s: float
    step: int
    split: tuple[tuple[str, int], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All rows of a run in order of time, each once. ``unreadable_lines`` were cut off when their writer was killed."""

    steps: tuple[StepRow, ...]
    memberships: tuple[MembershipRow, ...]
    splits: tuple[SplitRow, ...]
    unreadable_lines: int = 0


def read_timeline(run_dir: Path) -> Timeline:
    """Reads and merges the files of all members; raises :class:`PlaitError` where there are none."""
    files = sorted((run_dir / "timeline").glob("*.jsonl"))
    if not files:
        raise PlaitError(f"no timeline under {run_dir}: has the job run a step of plait.session() yet?")
    steps: list[StepRow] = []
    memberships: list[MembershipRow] = []
    splits: list[SplitRow] = []
    unreadable_lines = 0
    for path in files:
        generations: dict[str, int] = {}
        for line in _lines(path):
            try:
                row = _parse(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                unreadable_lines += 1
                continue
            match row:
                case StepRow():
                    steps.append(row)
                case MembershipRow():
                    memberships.append(_as_told_by(path.stem, row, generations))
                case SplitRow():
                    splits.append(row)
    return Timeline(
        steps=_merge_steps(steps),
        memberships=_merge_memberships(memberships),
        splits=_merge_splits(splits),
        unreadable_lines=unreadable_lines,
    )


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line for line in file if line.strip())


def _parse(data: Mapping[str, Any]) -> StepRow | MembershipRow | SplitRow | None:
    match data["kind"]:
        case "step":
            return _parse_step(data)
        case "membership":
            return _parse_membership(data)
        case "split":
            split = tuple(sorted((str(member), int(count)) for member, count in data["split"].items()))
            return SplitRow(at_s=float(data["at"]), step=int(data["step"]), split=split, reason=str(data["reason"]))
        case _:  # a newer writer may say more than this reader knows
            return None


def _parse_step(data: Mapping[str, Any]) -> StepRow:
    members = tuple(
        MemberStep(
            member=str(name),
            micro_batches=int(part["k"]),
            samples=int(part["samples"]),
            compute_s=float(part["compute_s"]),
            accelerator_type=str(part.get("accelerator_type") or "device"),
        )
        for name, part in sorted(data["members"].items())
    )
    loss = data.get("loss")
    return StepRow(
        at_s=float(data["at"]),
        step=int(data["step"]),
        loss=None if loss is None else float(loss),
        samples=int(data["samples"]),
        step_s=float(data["step_s"]),
        generation=str(data["generation"]),
        members=members,
    )


def _parse_membership(data: Mapping[str, Any]) -> MembershipRow:
    gap_s = data.get("gap_s")
    return MembershipRow(
        at_s=float(data["at"]),
        step=int(data["step"]),
        generation=str(data["generation"]),
        members=tuple(map(str, data["members"])),
        lost=tuple(map(str, data["lost"])),
        joined=tuple(map(str, data["joined"])),
        reason=str(data["reason"]),
        gap_s=None if gap_s is None else float(gap_s),
    )


def _as_told_by(writer: str, row: MembershipRow, generations: dict[str, int]) -> MembershipRow:
    """Returns the row seen from outside: who comes into a group takes the others for joiners, not itself.

    ``generations`` holds those of the writer's file so far with their steps: one that comes again at another step is
    that of a new attempt.
    """
    arrives = not row.lost and (not generations or generations.get(row.generation, row.step) != row.step)
    generations[row.generation] = row.step
    if not arrives:
        return row
    # What went before the writer's own start is no gap in the work of those who went on.
    return replace(row, joined=(writer,), gap_s=None, is_forming=True)


def _merge_steps(rows: Iterable[StepRow]) -> tuple[StepRow, ...]:
    """Keeps the latest row of each step: a step redone after a restart counts as it was done in the end."""
    latest: dict[int, StepRow] = {}
    for row in sorted(rows, key=lambda row: row.at_s):
        latest[row.step] = row
    return tuple(sorted(latest.values(), key=lambda row: row.at_s))


def _merge_memberships(rows: Iterable[MembershipRow]) -> tuple[MembershipRow, ...]:
    merged: dict[tuple[str, int, tuple[str, ...]], MembershipRow] = {}
    for row in sorted(rows, key=lambda row: row.at_s):
        key = (row.generation, row.step, row.members)
        first = merged.get(key)
        if first is None:
            merged[key] = row
            continue
        told = row if first.is_forming and not row.is_forming else first
        gaps = [gap_s for gap_s in (first.gap_s, row.gap_s) if gap_s is not None]
        merged[key] = replace(
            told,
            at_s=first.at_s,
            lost=tuple(sorted({*first.lost, *row.lost}, key=member_order)),
            joined=tuple(sorted({*first.joined, *row.joined}, key=member_order)),
            gap_s=max(gaps, default=None),
            is_forming=first.is_forming and row.is_forming,
        )
    return tuple(merged.values())


def _merge_splits(rows: Iterable[SplitRow]) -> tuple[SplitRow, ...]:
    merged: dict[tuple[int, tuple[tuple[str, int], ...]], SplitRow] = {}
    for row in sorted(rows, key=lambda row: row.at_s):
        merged.setdefault((row.step, row.split), row)
    return tuple(merged.values())


def member_order(name: str) -> tuple[int, str]:
    """Sort key that puts ``w2`` before ``w10``."""
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyz")
    return (int(digits), name) if digits.isdigit() else (-1, name)
