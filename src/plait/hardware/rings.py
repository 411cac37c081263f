"""Rings over few devices, exactly: which sets of devices have a ring, how good the best one is, and the ring itself."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.hardware.blocks import bit_rows, blocks

MOST_DEVICES = 16
"""The tables have one entry for each set of devices: 65,536 of them for 16."""

Masks = NDArray[np.int64]
Weights = NDArray[np.float64]
"""Bandwidth of each pair, symmetric; -1 stands for a pair that nobody knows."""


@dataclass(frozen=True, slots=True)
class RingTable:
    """Every set of ``size`` devices that has a ring in a graph of at most 16 vertices.

    Attributes:
        rows: Neighbours of each device, as bits.
        masks: The sets, as bits, ascending.
        reach: For each set, the devices at which a path ends that starts at its lowest one and passes all of it.
    """

    size: int
    rows: Sequence[int]
    masks: Masks
    reach: NDArray[np.uint16]

    def ring(self, mask: int) -> tuple[int, ...]:
        """Returns a ring over one of :attr:`masks`, from its lowest device on."""
        first = (mask & -mask).bit_length() - 1
        path, near = [], self.rows[first]
        while mask & (mask - 1):
            last = _highest(int(self.reach[mask]) & near)
            path.append(last)
            mask ^= 1 << last
            near = self.rows[last]
        return (first, *path)


def _highest(mask: int) -> int:
    return mask.bit_length() - 1


@functools.cache
def sets_by_size(n: int) -> tuple[Masks, ...]:
    """Returns the sets of 0, 1, ... n of n devices as bits, each size ascending."""
    every = np.arange(1 << n, dtype=np.int64)
    size = np.bitwise_count(every)
    return tuple(every[size == p] for p in range(n + 1))


def ring_table(rows: Sequence[int], size: int) -> RingTable:
    """Finds every set of ``size`` devices (at least 3) that a ring can pass: dynamic programming over sets.

    Held and Karp 1962, for all sets and all starts at once: a path starts at the lowest device of its set, so each set
    has one entry; sets of equal size are extended together.
    """
    layer = sets_by_size(len(rows))[size]
    reach = _reach(rows, size, len(rows) - size + 1)  # no set of this size begins higher
    masks = layer[_closes(rows, reach, layer)]
    return RingTable(size, tuple(rows), masks, reach)


def ring_sets(rows: Sequence[int]) -> NDArray[np.bool_]:
    """Returns of every set whether a ring can pass it; a single device and the two ends of a link count as rings."""
    n = len(rows)
    every = np.arange(1 << n, dtype=np.int64)
    sound = _closes(rows, _reach(rows, n, n), every)
    sound[0] = False
    sound[1 << np.arange(n)] = True
    return sound


def _closes(rows: Sequence[int], reach: NDArray[np.uint16], masks: Masks) -> NDArray[np.bool_]:
    """Returns where a path over the set ends at a neighbour of its start."""
    lowest = np.minimum(np.bitwise_count((masks & -masks) - 1), len(rows) - 1)
    closes: NDArray[np.bool_] = (reach[masks] & np.array(rows, dtype=np.uint16)[lowest]) != 0
    return closes


def _reach(rows: Sequence[int], largest: int, num_starts: int) -> NDArray[np.uint16]:
    n = len(rows)
    reach = np.zeros(1 << n, dtype=np.uint16)
    reach[1 << np.arange(num_starts)] = 1 << np.arange(num_starts)
    for layer in sets_by_size(n)[1:largest]:
        ends = reach[layer]
        active = ends != 0
        masks, ends = layer[active], ends[active]
        lowest = masks & -masks
        for w in range(1, n):
            bit = 1 << w
            grows = (lowest < bit) & ((masks & bit) == 0) & ((ends & rows[w]) != 0)
            reach[masks[grows] | bit] |= np.uint16(bit)
    return reach


def best_table(weights: Weights, size: int, floor: float = -np.inf) -> tuple[float, RingTable]:
    """Returns the largest bandwidth at which some set of ``size`` devices has a ring of links, and those sets.

    Args:
        weights: Of at most 16 devices.
        size: At least 3.
        floor: A bandwidth that some ring is known to have; the search does not look below it.
    """
    n = len(weights)
    levels = np.unique(weights[np.triu_indices(n, 1)])
    low = int(np.searchsorted(levels, floor)) if floor > levels[0] else 0
    high = _highest_level(weights, levels, size, low)
    best: tuple[int, RingTable] | None = None
    guess = high  # the bound is nearly always reached, so it is tried before halves are
    while low <= high:
        table = ring_table(bit_rows(at_least(weights, levels[guess])), size)
        if len(table.masks):
            best, low = (guess, table), guess + 1
        else:
            high = guess - 1
        guess = (low + high + 1) // 2
    assert best is not None, "all links together hold a ring of any size"
    return float(levels[best[0]]), best[1]


def members(masks: Masks, n: int) -> Weights:
    """Returns one row a set, 1.0 for each device that is in it."""
    return (masks[:, None] >> np.arange(n) & 1).astype(np.float64)


def slowest(weights: Weights, ring: Sequence[int]) -> float:
    """Returns the bandwidth of the slowest link of a ring over at least two devices."""
    at = np.array(ring)
    return float(weights[at, np.roll(at, -1)].min())


def at_least(weights: Weights, level: float) -> NDArray[np.bool_]:
    """Returns the graph of the links that have at least this bandwidth."""
    adjacent = weights >= level
    np.fill_diagonal(adjacent, val=False)
    return adjacent


def _highest_level(weights: Weights, levels: Weights, size: int, low: int) -> int:
    """Returns the highest level whose graph has a block that holds ``size`` devices: no ring can be better."""
    high = len(levels) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if any(len(block) >= size for block in blocks(at_least(weights, levels[middle]))):
            low = middle
        else:
            high = middle - 1
    return low


def ring_bound(weights: Weights, size: int) -> float:
    """Returns a bandwidth that no ring over ``size`` devices (at least 3) exceeds, for any number of devices.

    A ring lies within one block of the graph of the links that are at least as fast as its slowest one.
    """
    levels = np.unique(weights[np.triu_indices(len(weights), 1)])
    return float(levels[_highest_level(weights, levels, size, 0)])
