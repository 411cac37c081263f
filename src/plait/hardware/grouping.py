"""Which devices of many should work together: the group whose slowest link on its best ring is the fastest.

A collective over a group runs at the speed of the slowest link that its ring has to pass, so that is what is maximised;
sums of scores, as device plug-ins use them, count links that no ring passes. A link counts by its slower direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.hardware.free_devices import FreeDevices, GroupImpossible, Unknown, free_devices, known, told_speed
from plait.hardware.ring_search import search_ring
from plait.hardware.rings import MOST_DEVICES, RingTable, Weights, best_table, members, sets_by_size, slowest

__all__ = ["Alternative", "Group", "GroupImpossible", "best_group", "best_ring", "told_speed"]

_MOST_CELLS = 2**24
"""Of the table in which equally fast pairs of very many devices are compared; above it the first pair is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to choose, and why it lost (or that it chooses the same).

    Attributes:
        name: How it chooses.
        devices: Their indices, ascending.
        value_bytes_per_s: The slowest link of its best ring; ``None`` where that link is unknown.
        reason: One sentence.
    """

    name: str
    devices: tuple[int, ...]
    value_bytes_per_s: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The chosen devices. Indices are rows of the matrix that was given.

    Attributes:
        devices: Ascending.
        ring: The same devices in the order of the ring.
        bottleneck: The slowest link of that ring, ``None`` for a single device.
        value_bytes_per_s: Its bandwidth; ``None`` for a single device, or where it is unknown.
        bound_bytes_per_s: No group of this size has a faster slowest link; ``None`` as for the value.
        total_bytes_per_s: Over all pairs of the group whose bandwidth is known.
        is_exact: Whether no group has a faster slowest link.
        reason: Why this one, in one sentence.
        alternatives: Other ways to choose, and why they lost; empty where the group is searched for, not found exactly.
    """

    devices: tuple[int, ...]
    ring: tuple[int, ...]
    bottleneck: tuple[int, int] | None
    value_bytes_per_s: float | None
    bound_bytes_per_s: float | None
    total_bytes_per_s: float
    is_exact: bool
    reason: str
    alternatives: tuple[Alternative, ...] = ()

    @property
    def bound_ratio(self) -> float | None:
        """The value over the bound, 1.0 where nothing better can exist; ``None`` where one of them is unknown."""
        if self.is_exact:
            return 1.0
        if self.value_bytes_per_s is None or not self.bound_bytes_per_s:
            return None
        return self.value_bytes_per_s / self.bound_bytes_per_s


@dataclass(frozen=True, slots=True)
class _Found:
    """A ring over places of free devices, and what is known of all groups that are as fast (0: nothing)."""

    ring: tuple[int, ...]
    bound: float
    num_equal: int = 0
    second: tuple[int, ...] | None = None


def best_group(
    bytes_per_s: NDArray[np.float64],
    free: Sequence[int],
    k: int,
    *,
    labels: Sequence[str] | None = None,
    unknown: Unknown = "pessimistic",
    seed: int = 0,
) -> Group:
    """Returns the ``k`` free devices whose best ring has the fastest slowest link.

    Of equal groups the one with the larger total bandwidth is taken, then the one that leaves the other free devices
    better connected, then the one with the lowest indices. Up to 16 free devices the answer is exact: dynamic
    programming over sets (Held and Karp 1962) at the speeds that the blocks of the graph allow. Above that a seeded
    search (``plait.hardware.ring_search``) stands beside the bound.

    Args:
        bytes_per_s: Shape (n, n), row to column, one direction; NaN is unknown. The slower direction of a pair counts.
        free: Indices of the devices that may be chosen.
        k: Devices in the group.
        labels: Names of all n devices for the reasons; their indices unless given.
        unknown: An unknown pair is passed only where no other ring exists (``pessimistic``), or refused (``raise``).
        seed: Of the search above 16 devices.

    Raises:
        GroupImpossible: there are fewer than ``k`` free devices, or a pair is unknown and ``unknown`` is ``raise``.
        ValueError: the matrix is no square, or holds a negative bandwidth.
    """
    candidates = free_devices(bytes_per_s, free, labels, unknown)
    n = len(candidates.names)
    if not 1 <= k <= n:
        raise GroupImpossible(f"a group of {k} devices cannot be made: {n} {'is' if n == 1 else 'are'} free")
    found = _found(candidates, k, seed)
    ring = found.ring
    value = slowest(candidates.weights, ring) if k > 1 else -1.0
    link = candidates.bottleneck(ring)
    is_exact = n <= MOST_DEVICES or k == 1 or value >= found.bound
    return Group(
        devices=candidates.indices(sorted(ring)),
        ring=candidates.indices(ring),
        bottleneck=(int(candidates.at[link[0]]), int(candidates.at[link[1]])) if link else None,
        value_bytes_per_s=known(value),
        bound_bytes_per_s=known(found.bound),
        total_bytes_per_s=candidates.total(ring),
        is_exact=is_exact,
        reason=_reason(candidates, found, is_exact=is_exact),
        alternatives=_alternatives(candidates, found) if n <= MOST_DEVICES and 1 < k < n else (),
    )


def best_ring(
    bytes_per_s: NDArray[np.float64], devices: Sequence[int], *, seed: int = 0
) -> tuple[tuple[int, ...], float | None]:
    """Returns the ring over exactly these devices whose slowest link is the fastest, and that link's bandwidth.

    Exact up to 16 devices. The bandwidth is ``None`` for a single device, or where it is unknown.

    Raises:
        ValueError: the matrix is no square, or holds a negative bandwidth.
    """
    group = best_group(bytes_per_s, devices, len(set(devices)), seed=seed)
    return group.ring, group.value_bytes_per_s


def _found(candidates: FreeDevices, k: int, seed: int) -> _Found:
    weights, n = candidates.weights, len(candidates.weights)
    if k < 3:
        return _one_or_two(candidates, k)
    if n > MOST_DEVICES:
        return _Found(*search_ring(weights, k, seed))
    value, table = best_table(weights, k)
    sets = members(table.masks, n)
    order = candidates.ranked(sets)
    second = tuple(np.flatnonzero(sets[order[1]]).tolist()) if len(order) > 1 else None
    return _Found(_canonical(table, int(table.masks[order[0]])), value, len(order), second)


def _one_or_two(candidates: FreeDevices, k: int) -> _Found:
    """Groups without a ring: one device, or the two ends of a link."""
    weights, n = candidates.weights, len(candidates.weights)
    if k == 1:
        value, at = -1.0, np.arange(n)[:, None]
    else:
        pairs = np.argwhere(np.triu(np.ones_like(weights, dtype=bool), 1))
        speeds = weights[pairs[:, 0], pairs[:, 1]]
        value, at = float(speeds.max()), pairs[speeds == speeds.max()]
    if len(at) * n > _MOST_CELLS:
        return _Found(tuple(at[0].tolist()), value, len(at))
    sets = np.zeros((len(at), n))
    sets[np.arange(len(at))[:, None], at] = 1.0
    order = candidates.ranked(sets)
    second = tuple(at[order[1]].tolist()) if len(order) > 1 else None
    return _Found(tuple(at[order[0]].tolist()), value, len(order), second)


def _canonical(table: RingTable, mask: int) -> tuple[int, ...]:
    ring = table.ring(mask)
    return ring if ring[1] < ring[-1] else (ring[0], *ring[:0:-1])


def _reason(candidates: FreeDevices, found: _Found, *, is_exact: bool) -> str:
    n, k = len(candidates.weights), len(found.ring)
    link = candidates.bottleneck(found.ring)
    if link is None:
        return "a single device passes no link; this one leaves the others best connected"
    if candidates.weights[link] < 0 and is_exact:
        which = "its best ring" if k == n else f"every ring of {k} of {n}"
        return f"{which} has to pass a pair whose bandwidth is unknown, here {candidates.link_name(link)}"
    what = f"its slowest link {candidates.link_name(link)} has {told_speed(known(candidates.weights[link]))}"
    if k == n:
        return f"all {n} free devices are asked for; {what} on {'the best' if is_exact else 'a good'} ring"
    if not is_exact:
        return f"{what}; no group of {k} of {n} has more than {told_speed(known(found.bound))}"
    if found.num_equal < 2:
        rivals = (
            (f"no other group of {k} of {n}", "as much") if found.num_equal else (f"no group of {k} of {n}", "more")
        )
        return f"{what}, and {rivals[0]} has {rivals[1]}"
    others = f"{found.num_equal - 1} other group{'s' if found.num_equal > 2 else ''}"
    return (
        f"{what}, as much as in {others} of {k} of {n}; of equals the largest total bandwidth is taken, then what"
        " leaves the others best connected, then the lowest numbers"
    )


def _alternatives(candidates: FreeDevices, found: _Found) -> tuple[Alternative, ...]:
    k = len(found.ring)
    choices = [("the first free devices", tuple(range(k))), ("the largest sum of all links", _largest(candidates, k))]
    if found.second is not None and found.second not in {places for _, places in choices}:
        choices.append(("the next of the equals", found.second))
    return tuple(_compared(candidates, found, name, places) for name, places in choices)


def _largest(candidates: FreeDevices, k: int) -> tuple[int, ...]:
    """Returns the set with the largest total of known links, as a plug-in that adds up scores would choose."""
    n = len(candidates.weights)
    sets = members(sets_by_size(n)[k], n)
    totals = candidates.totals(sets)
    sets = sets[totals == totals.max()]
    return tuple(np.flatnonzero(sets[np.lexsort(-sets[:, ::-1].T)[0]]).tolist())


def _compared(candidates: FreeDevices, found: _Found, name: str, places: tuple[int, ...]) -> Alternative:
    ring = _ring_over(candidates.weights, places)
    value = slowest(candidates.weights, ring)
    return Alternative(
        name=name,
        devices=candidates.indices(places),
        value_bytes_per_s=known(value),
        reason=_why_lost(candidates, found.ring, ring, value),
    )


def _ring_over(weights: Weights, places: tuple[int, ...]) -> tuple[int, ...]:
    if len(places) < 3:
        return places
    _, table = best_table(weights[np.ix_(places, places)], len(places))
    return tuple(places[p] for p in _canonical(table, int(table.masks[0])))


def _why_lost(candidates: FreeDevices, chosen: Sequence[int], ring: Sequence[int], value: float) -> str:
    if set(ring) == set(chosen):
        return "the same group"
    link = candidates.bottleneck(ring)
    assert link is not None
    if value < slowest(candidates.weights, chosen):
        return f"its best ring has to pass {candidates.link_name(link)} at {told_speed(known(value))}"
    comparisons = (
        ("total bandwidth", candidates.total(chosen), candidates.total(ring)),
        (
            "bandwidth among the devices left over",
            candidates.total(candidates.others(chosen)),
            candidates.total(candidates.others(ring)),
        ),
    )
    for what, mine, its in comparisons:
        if its < mine:
            return f"as fast, but its {what} is {its / 1e9:.4g} GB/s, that of the chosen group {mine / 1e9:.4g} GB/s"
    return "equal in everything; the chosen group has the lower numbers"
