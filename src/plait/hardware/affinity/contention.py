"""What many copies at once get: each shared group's load over its capacity, and the worst group decides."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from plait.hardware.topology import CapacityGroup

Direction = Literal["out", "in"]


@dataclass(frozen=True, slots=True)
class Flow:
    """A copy of so many bytes from one device to another, by their keys; reads are told from writes."""

    source: str
    target: str
    size_bytes: float = 1.0
    is_read: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """A group that a flow loads, and in which of its two directions."""

    group: str
    direction: Direction


@dataclass(frozen=True, slots=True)
class Achievable:
    """What a set of concurrent flows reaches.

    Attributes:
        bytes_per_s: All flows together.
        time_s: Until the last is done.
        limited_by: The group, or the pair, that decides.
        reason: The same in words.
        is_scattered: Whether scattered writes were counted (see :class:`~plait.hardware.topology.CapacityGroup`).
    """

    bytes_per_s: float
    time_s: float
    limited_by: str
    reason: str
    is_scattered: bool = False


@dataclass(slots=True)
class _Traffic:
    out_bytes: float = 0.0
    in_bytes: float = 0.0
    out_flows: int = 0
    in_flows: int = 0
    writers: set[str] = field(default_factory=set)
    far_roots: set[str] = field(default_factory=set)


def group_times(
    flows: Sequence[Flow],
    routes: Mapping[tuple[str, str], tuple[Load, ...]],
    groups: Mapping[str, CapacityGroup],
    roots: Mapping[str, str],
) -> list[tuple[float, str, str, bool]]:
    """Returns for every loaded group ``(time_s, id, reason, is_scattered)``.

    Args:
        flows: What runs at once.
        routes: The groups that each ordered pair of devices loads.
        groups: By id.
        roots: Of each device, the root port that its traffic enters the processors at.

    A group of unknown capacity decides nothing; it is left out.
    """
    traffic: dict[str, _Traffic] = defaultdict(_Traffic)
    for flow in flows:
        for load in routes.get((flow.source, flow.target), ()):
            seen = traffic[load.group]
            if load.direction == "out":
                seen.out_bytes += flow.size_bytes
                seen.out_flows += 1
                if not flow.is_read:
                    seen.writers.add(flow.source)
                    seen.far_roots.add(roots.get(flow.target, flow.target))
            else:
                seen.in_bytes += flow.size_bytes
                seen.in_flows += 1
    times = (_time(groups[name], seen) for name, seen in sorted(traffic.items()) if name in groups)
    return [found for found in times if found is not None]


def _time(group: CapacityGroup, seen: _Traffic) -> tuple[float, str, str, bool] | None:
    capacity = group.bytes_per_s.value
    if not capacity:
        return None
    if seen.out_flows > 1 and seen.in_flows > 1:
        capacity *= group.crowded_ratio
    scattered = group.scatter_bytes_per_s.value
    is_scattered = scattered is not None and len(seen.writers) > 1 and len(seen.far_roots) > 1
    out_capacity = min(capacity, scattered) if is_scattered and scattered is not None else capacity
    time_s = max(
        seen.out_bytes / out_capacity,
        seen.in_bytes / capacity,
        (seen.out_bytes + seen.in_bytes) / (capacity * group.duplex_factor),
    )
    reason = f"{group.id} carries {capacity / 1e9:.3g} GB/s a direction"
    if is_scattered:
        reason = (
            f"writes scattered from {group.id} to {len(seen.far_roots)} root ports get {out_capacity / 1e9:.3g} GB/s"
        )
    return time_s, group.id, reason, is_scattered
