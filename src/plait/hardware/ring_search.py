"""Rings over some of many devices: a seeded search, judged by the bound of :func:`plait.hardware.rings.ring_bound`.

At a given speed the question is whether the graph of the links that are at least so fast has a ring over exactly k
devices. Paths are grown greedily from several seeds (along the fastest link, or to the neighbour with the fewest ways
on, Warnsdorff 1823), turned where they are stuck (Posa 1976), and closed by a chord that spans k devices; a ring
of another length is shortened by chords or takes devices in between neighbours. Halving finds the fastest speed.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from plait.hardware.blocks import Adjacency, bit_rows, blocks
from plait.hardware.rings import Weights, at_least, ring_bound, slowest

_SEEDS = 4
_MOST_TURNS = 400
_MOST_SWAPS = 64


@dataclass(frozen=True, slots=True)
class _Graph:
    """The links of at least one speed: as a matrix, as bits, and how fast each is."""

    adjacent: Adjacency
    rows: Sequence[int]
    weights: Weights


def search_ring(weights: Weights, size: int, seed: int) -> tuple[tuple[int, ...], float]:
    """Returns a ring over ``size`` devices (at least 3) and a bandwidth that no such ring exceeds.

    Args:
        weights: Bandwidth of each pair, symmetric; -1 for a pair that nobody knows.
        size: Devices in the ring.
        seed: Of the random choices; the same seed gives the same ring.
    """
    bound = ring_bound(weights, size)
    levels = np.unique(weights[np.triu_indices(len(weights), 1)])
    high = int(np.searchsorted(levels, bound))
    low, ring = 0, _ring_at(weights, levels[0], size, seed)
    assert ring is not None, "all links together hold a ring of any size"
    guess = high
    while low < high:
        found = _ring_at(weights, levels[guess], size, seed)
        if found is not None:
            low, ring = max(guess, int(np.searchsorted(levels, slowest(weights, found)))), found
        else:
            high = guess - 1
        guess = (low + high + 1) // 2
    return _swapped(weights, ring), bound


def _ring_at(weights: Weights, level: float, size: int, seed: int) -> tuple[int, ...] | None:
    adjacent = at_least(weights, level)
    rng = random.Random(seed)
    for block in blocks(adjacent):
        if len(block) < size:
            break
        at = np.array(block)
        inner = adjacent[np.ix_(at, at)]
        graph = _Graph(inner, bit_rows(inner), np.where(inner, weights[np.ix_(at, at)], -np.inf))
        for start in _starts(graph, rng):
            for by_speed in (True, False):
                ring = _ring_from(graph, start, size, by_speed=by_speed, rng=rng)
                if ring is not None:
                    return tuple(block[v] for v in ring)
    return None


def _starts(graph: _Graph, rng: random.Random) -> Iterator[int]:
    """Yields the device with the fastest links, then random ones."""
    total = np.where(graph.adjacent, graph.weights, 0.0).sum(axis=1)
    first = int(total.argmax())
    yield first
    yield from rng.sample([v for v in range(len(total)) if v != first], min(_SEEDS - 1, len(total) - 1))


def _ring_from(graph: _Graph, start: int, size: int, *, by_speed: bool, rng: random.Random) -> list[int] | None:
    rows = graph.rows
    path, unused = [start], ((1 << len(rows)) - 1) ^ (1 << start)
    turns = min(4 * size, _MOST_TURNS)
    while True:
        if len(path) >= size and rows[path[-1]] >> path[-size] & 1:
            return path[-size:]
        onward = rows[path[-1]] & unused
        if onward:
            step = _fastest(graph, path[-1], onward) if by_speed else _narrowest(rows, onward, unused)
            path.append(step)
            unused ^= 1 << step
            continue
        found = _closed(rows, path, size, unused)
        if found is not None:
            return found
        turns -= 1
        if turns < 0 or not _turn(rows, path, unused, rng):
            return None


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _fastest(graph: _Graph, end: int, onward: int) -> int:
    """Returns the neighbour over the fastest link; of equals the one with the fewest fast ways, so islands fill up."""
    n = len(graph.rows)
    allowed = np.unpackbits(np.frombuffer(onward.to_bytes((n + 7) // 8, "little"), np.uint8), bitorder="little")[:n]
    return int(np.where(allowed, graph.weights[end], -np.inf).argmax())


def _narrowest(rows: Sequence[int], onward: int, unused: int) -> int:
    return min(_bits(onward), key=lambda v: ((rows[v] & unused).bit_count(), v))


def _turn(rows: Sequence[int], path: list[int], unused: int, rng: random.Random) -> bool:
    """Reverses the part of the path behind a neighbour of its end, preferring a new end that leads on."""
    ways = [i for i, v in enumerate(path[:-2]) if rows[path[-1]] >> v & 1]
    if not ways:
        return False
    leading = [i for i in ways if rows[path[i + 1]] & unused]
    i = rng.choice(leading or ways)
    path[i + 1 :] = path[:i:-1]
    return True


def _closed(rows: Sequence[int], path: Sequence[int], size: int, unused: int) -> list[int] | None:
    """Makes a ring of exactly ``size`` devices from a path that is stuck, ``None`` where no chord serves."""
    for i in range(len(path) - size + 1):
        if rows[path[i]] >> path[i + size - 1] & 1:
            return list(path[i : i + size])
    back = rows[path[-1]]
    first = next((i for i, v in enumerate(path[:-2]) if back >> v & 1), None)
    if first is None:
        return None
    ring = list(path[first:])
    if len(ring) > size:
        return _shortened(rows, ring, size)
    return _filled(rows, ring, size, unused | sum(1 << v for v in path[:first]))


def _shortened(rows: Sequence[int], ring: list[int], size: int) -> list[int] | None:
    """Leaves out devices between the two ends of a chord, the longest fitting stretch first."""
    while (spare := len(ring) - size) > 0:
        n = len(ring)
        cut = next(
            ((i, gap) for gap in range(spare, 0, -1) for i in range(n) if rows[ring[i]] >> ring[(i + gap + 1) % n] & 1),
            None,
        )
        if cut is None:
            return None
        i, gap = cut
        ring = [ring[(i + gap + 1 + j) % n] for j in range(n - gap)]
    return ring


def _filled(rows: Sequence[int], ring: list[int], size: int, unused: int) -> list[int] | None:
    """Puts unused devices between two neighbours on the ring that both link to them."""
    i = 0
    while len(ring) < size and i < len(ring):
        between = rows[ring[i]] & rows[ring[(i + 1) % len(ring)]] & unused
        if not between:
            i += 1
            continue
        bit = between & -between
        unused ^= bit
        ring.insert(i + 1, bit.bit_length() - 1)
    return ring if len(ring) == size else None


def _swapped(weights: Weights, ring: Sequence[int]) -> tuple[int, ...]:
    """Exchanges devices of the ring for others while that adds bandwidth inside it and slows none of its links."""
    found, floor = list(ring), slowest(weights, ring)
    known = np.maximum(weights, 0.0)
    np.fill_diagonal(known, 0.0)
    for _ in range(_MOST_SWAPS):
        at = np.array(found)
        outside = np.setdiff1d(np.arange(len(weights)), at)
        if not len(outside):
            break
        to_group = known[:, at].sum(axis=1)
        gain = to_group[outside, None] - known[np.ix_(outside, at)] - to_group[at][None, :]
        fits = (weights[np.ix_(outside, np.roll(at, 1))] >= floor) & (
            weights[np.ix_(outside, np.roll(at, -1))] >= floor
        )
        gain = np.where(fits, gain, -np.inf)
        best = int(gain.argmax())
        row, column = divmod(best, len(at))
        if gain[row, column] <= 1e-9 * max(float(to_group.max()), 1.0):
            break
        found[column] = int(outside[row])
    return tuple(found)
