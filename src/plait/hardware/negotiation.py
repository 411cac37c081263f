"""Matching what a job needs to the devices there are: who takes part, in what precision, over what, and why not.

Deterministic: the same requirement and devices give the same agreement. What is unknown of a device is believed, and
its line says so; only what is known to be missing rejects it. Leaving out a requirement never rejects more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plait.hardware.catalog import UnknownAccelerator, capability, predicted_speed_of
from plait.hardware.device import Device, DeviceCapability, Need
from plait.hardware.features import FEATURES, check_features
from plait.hardware.grouping import best_group, told_speed
from plait.hardware.islands import BRIDGE, Island, Member, islands
from plait.hardware.lacks import Judgement, judge, slow_peers

_ACCUMULATES: Mapping[str, str] = {"fp16": "fp32", "bf16": "fp32", "tf32": "fp32", "fp8": "fp32", "int8": "int32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequirement:
    """What a job needs of each device that takes part; ``None`` or empty asks for nothing.

    Attributes:
        count: Devices that take part; all that fit where it is ``None``.
        memory_bytes: At least, a device.
        precisions: What the job may compute in, the best first.
        operators: Operators that the device needs an implementation of (``flash_attention``).
        peer_bytes_per_s: To at least one other device that fits, one direction.
        features: Of the hardware: ``tensor_cores``, ``shared_host_memory``, ``peer_links``, or a kind of link
            (``nvlink``, ``xgmi``, ``hccs``).
        vendors: The job runs on these vendors' devices alone.
        refuses: What a device may ask of a job but this one does not do: ``tensor_cores`` (its work is no matrix
            products, so only the rate in fp32 counts), ``format_conversion``, ``custom_op`` (both reject the device).
    """

    count: int | None = None
    memory_bytes: int | None = None
    precisions: tuple[str, ...] = ()
    operators: frozenset[str] = frozenset()
    peer_bytes_per_s: float | None = None
    features: frozenset[str] = frozenset()
    vendors: frozenset[str] = frozenset()
    refuses: frozenset[Need] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of one device, ``index`` of those that were given.

    Attributes:
        outcome: ``chosen``; ``spare``: it fits but is not needed; ``rejected``.
        precision: What it computes in, ``None`` where nothing is known of it.
        accumulates_in: What its products are added up in.
        share_ratio: Its part of the work among the chosen ones, by sustained rate; ``None`` unless chosen.
        lacks: Everything that it lacks, one phrase each.
        reason: One sentence.
    """

    index: int
    device_id: str
    outcome: Literal["chosen", "spare", "rejected"]
    precision: str | None = None
    accumulates_in: str | None = None
    share_ratio: float | None = None
    lacks: tuple[str, ...] = ()
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How a job runs on these devices.

    Attributes:
        verdicts: One a device, in the order given.
        precision: What all chosen devices compute in; ``None`` where each computes in its own, or nothing is known.
        islands: Of the chosen devices, with their libraries; members are indices into the devices that were given.
        bridge: What joins the islands, ``None`` where there is one or none.
        memory_floor_bytes: The least memory of a chosen device, ``None`` where none is known.
        slowest_link_bytes_per_s: On the best ring over the chosen devices, ``None`` unknown.
        shortfall: What the requirement still lacks, ``None`` where it is met.
    """

    verdicts: tuple[Verdict, ...]
    precision: str | None
    islands: tuple[Island, ...]
    bridge: str | None
    memory_floor_bytes: int | None
    slowest_link_bytes_per_s: float | None
    shortfall: str | None

    @property
    def chosen(self) -> tuple[int, ...]:
        """The chosen devices, ascending."""
        return tuple(v.index for v in self.verdicts if v.outcome == "chosen")

    @property
    def rejected(self) -> tuple[int, ...]:
        """The rejected devices, ascending."""
        return tuple(v.index for v in self.verdicts if v.outcome == "rejected")

    @property
    def lines(self) -> tuple[str, ...]:
        """One line a device."""
        return tuple(f"{v.device_id}: {v.outcome}: {v.reason}" for v in self.verdicts)


@dataclass(frozen=True, slots=True)
class _Talk:
    """Everything that a negotiation is about."""

    requirement: JobRequirement
    devices: Sequence[Device]
    figures: Sequence[DeviceCapability | None]
    links: NDArray[np.float64]
    judgements: Sequence[Judgement] = field(default=())


def negotiate(
    requirement: JobRequirement,
    devices: Sequence[Device],
    *,
    bytes_per_s: NDArray[np.float64] | None = None,
    capabilities: Mapping[str, DeviceCapability] | None = None,
    implementations: Mapping[str, frozenset[str]] | None = None,
) -> Agreement:
    """Decides which devices take part in a job, and how.

    Where all chosen devices share a precision, the first shared one of ``requirement.precisions`` is taken; where they
    do not, each device computes in its own. Shares follow the peak rate times what of it lasts.

    Args:
        requirement: What the job needs.
        devices: The devices to choose from.
        bytes_per_s: Shape (devices, devices), one direction, NaN unknown; all unknown unless given.
        capabilities: Figures by accelerator type, before those of the catalogue.
        implementations: Vendors (lower case; ``any`` for all) by operator; unless given every operator runs everywhere.

    Raises:
        UnknownFeature: a feature of the requirement has no such name.
    """
    check_features(requirement.features)
    links = np.full((len(devices), len(devices)), np.nan) if bytes_per_s is None else np.array(bytes_per_s, dtype=float)
    figures = [_figures(device.accelerator_type, capabilities or {}) for device in devices]
    judgements = [
        judge(
            device,
            figure,
            memory_bytes=requirement.memory_bytes,
            precisions=requirement.precisions,
            operators=requirement.operators,
            features=requirement.features,
            vendors=requirement.vendors,
            refuses=requirement.refuses,
            implementations=implementations,
        )
        for device, figure in zip(devices, figures, strict=True)
    ]
    if requirement.peer_bytes_per_s is not None:
        judgements = _with_peers(judgements, links, requirement.peer_bytes_per_s)
    return _agree(_Talk(requirement, devices, figures, links, judgements))


def _figures(accelerator_type: str, given: Mapping[str, DeviceCapability]) -> DeviceCapability | None:
    if accelerator_type in given:
        return given[accelerator_type]
    try:
        return capability(accelerator_type)
    except UnknownAccelerator:
        return None


def _with_peers(judgements: Sequence[Judgement], links: NDArray[np.float64], wanted: float) -> list[Judgement]:
    """Rejects devices without any link that is fast enough to another one that fits, until none is left to reject."""
    judged = list(judgements)
    while True:
        fits = [i for i, judgement in enumerate(judged) if not judgement.lacks]
        slow = [(i, lack) for i in fits if (lack := slow_peers(links, i, fits, wanted)) is not None]
        if not slow:
            return judged
        for i, lack in slow:
            judged[i] = judged[i].lacking(lack)


def _agree(talk: _Talk) -> Agreement:
    fits = [i for i, judgement in enumerate(talk.judgements) if not judgement.lacks]
    chosen, why_chosen = _choose(talk, fits)
    common = _common(talk, chosen)
    precisions = {i: common or _own(talk, i) for i in chosen}
    speeds = _speeds(talk, precisions)
    total = sum(speed for speed, _ in speeds.values())
    verdicts = []
    for i, judgement in enumerate(talk.judgements):
        if i in speeds:
            speed, why = speeds[i]
            verdicts.append(_chosen(talk, i, precisions[i], share=speed / total, why=why))
        elif judgement.lacks:
            reason = "; ".join(judgement.lacks)
            verdicts.append(_verdict(talk, i, "rejected", reason, judgement.lacks))
        else:
            verdicts.append(_verdict(talk, i, "spare", f"it fits, but {why_chosen}"))
    joined = _islands(talk, chosen)
    memories = [memory for i in chosen if (memory := talk.judgements[i].memory_bytes) is not None]
    slowest = best_group(talk.links, chosen, len(chosen)).value_bytes_per_s if len(chosen) > 1 else None
    return Agreement(
        verdicts=tuple(verdicts),
        precision=common,
        islands=joined,
        bridge=BRIDGE if len(joined) > 1 else None,
        memory_floor_bytes=min(memories, default=None),
        slowest_link_bytes_per_s=slowest,
        shortfall=_shortfall(talk, len(fits), chosen, slowest),
    )


def _choose(talk: _Talk, fits: Sequence[int]) -> tuple[tuple[int, ...], str]:
    count = talk.requirement.count
    if count is None or len(fits) <= count or count < 1:
        return tuple(fits), ""
    group = best_group(talk.links, fits, count, labels=[device.id for device in talk.devices])
    return group.devices, f"{count} devices are enough: {group.reason}"


def _common(talk: _Talk, chosen: Sequence[int]) -> str | None:
    """Returns the first wanted precision that all chosen devices compute in as far as is known, if any is known to."""
    known = [figures.precisions for i in chosen if (figures := talk.figures[i]) is not None and figures.precisions]
    wanted = talk.requirement.precisions
    return next((p for p in wanted if all(p in has for has in known)), None) if chosen else None


def _own(talk: _Talk, i: int) -> str | None:
    figures = talk.figures[i]
    has = figures.precisions if figures is not None else frozenset[str]()
    return next((p for p in talk.requirement.precisions if not has or p in has), None)


def _speeds(talk: _Talk, precisions: Mapping[int, str | None]) -> dict[int, tuple[float, str]]:
    """Returns what each chosen device sustains and where that comes from; one without figures counts as the slowest."""
    found: dict[int, tuple[float, str]] = {}
    for i, precision in precisions.items():
        figures = talk.figures[i]
        if figures is not None:
            is_plain = "tensor_cores" in talk.requirement.refuses and FEATURES["tensor_cores"](figures)
            found[i] = predicted_speed_of(figures, "fp32" if is_plain else precision or "fp32")
    least = min((speed for speed, _ in found.values()), default=1.0)
    return {i: found.get(i, (least, "no figures of it are known: counted as the slowest")) for i in precisions}


def _chosen(talk: _Talk, i: int, precision: str | None, *, share: float, why: str) -> Verdict:
    accumulates = _ACCUMULATES.get(precision or "", precision)
    how = f"computes in {precision}" if precision else "its precision is not known"
    if accumulates != precision:
        how += f" with {accumulates} accumulation"
    notes = "".join(f"; {note}" for note in talk.judgements[i].notes)
    return Verdict(
        index=i,
        device_id=talk.devices[i].id,
        outcome="chosen",
        precision=precision,
        accumulates_in=accumulates,
        share_ratio=share,
        reason=f"{how}, {share:.0%} of the work ({why}){notes}",
    )


def _verdict(
    talk: _Talk, i: int, outcome: Literal["spare", "rejected"], reason: str, lacks: tuple[str, ...] = ()
) -> Verdict:
    return Verdict(index=i, device_id=talk.devices[i].id, outcome=outcome, lacks=lacks, reason=reason)


def _islands(talk: _Talk, chosen: Sequence[int]) -> tuple[Island, ...]:
    members = [
        Member(name=talk.devices[i].id, node=talk.devices[i].node, vendor=figures.vendor if figures else None)
        for i, figures in ((i, talk.figures[i]) for i in chosen)
    ]
    found = islands(members, talk.links[np.ix_(chosen, chosen)]) if members else ()
    return tuple(_renumbered(island, chosen) for island in found)


def _renumbered(island: Island, chosen: Sequence[int]) -> Island:
    return replace(island, members=tuple(chosen[m] for m in island.members))


def _shortfall(talk: _Talk, num_fitting: int, chosen: Sequence[int], slowest: float | None) -> str | None:
    wanted = talk.requirement
    if num_fitting < (wanted.count or 1):
        return f"{num_fitting} of {len(talk.devices)} devices fit, and {wanted.count or 1} are wanted"
    if wanted.peer_bytes_per_s is not None and slowest is not None and slowest < wanted.peer_bytes_per_s:
        return (
            f"the best ring over the {len(chosen)} chosen devices has a link of {told_speed(slowest)}, and"
            f" {told_speed(wanted.peer_bytes_per_s)} are wanted"
        )
    return None
