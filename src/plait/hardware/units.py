"""Heterogeneous units: islands put together so that each unit trains together and none has a needlessly slow link.

An island is never split. Between two islands counts the best link that any two of their devices have, and a unit is as
good as the slowest link on the best ring over its islands. Units must be about equally fast, since they wait for each
other; of the divisions that are, the one is taken whose worst unit is the best, then the most even one.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plait.hardware.blocks import bit_rows, blocks
from plait.hardware.free_devices import GroupImpossible, free_devices, known, told_speed
from plait.hardware.islands import Island
from plait.hardware.ring_search import search_ring
from plait.hardware.rings import MOST_DEVICES, Weights, at_least, best_table, ring_sets, slowest

_MOST_LOOKS = 400
"""Divisions that the search above 16 islands looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Islands that train together; ``islands`` are indices into the islands that were given, ascending.

    ``ring_bytes_per_s`` is the slowest link between islands on the best ring over them; ``None`` for a single island,
    or where it is unknown.
    """

    islands: tuple[int, ...]
    devices: tuple[int, ...]
    ring_bytes_per_s: float | None
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """All islands, divided into units.

    Attributes:
        units: Ordered by their first island.
        value_bytes_per_s: The slowest link between islands of any unit; ``None`` where no unit has two, or unknown.
        bound_bytes_per_s: No division into as even units has a faster one.
        is_exact: Whether none has.
        reason: One sentence.
    """

    units: tuple[Unit, ...]
    value_bytes_per_s: float | None
    bound_bytes_per_s: float | None
    is_exact: bool
    reason: str


def island_bytes_per_s(islands: Sequence[Island], bytes_per_s: NDArray[np.float64]) -> Weights:
    """Returns the best link between any two islands, shape (islands, islands): the slower direction; NaN unknown."""
    matrix = np.asarray(bytes_per_s, dtype=np.float64)
    slower = np.minimum(matrix, matrix.T)
    n = len(islands)
    between = np.full((n, n), np.nan)
    for a in range(n):
        for b in range(a):
            links = slower[np.ix_(islands[a].members, islands[b].members)]
            if not np.isnan(links).all():
                between[a, b] = between[b, a] = np.nanmax(links)
    return between


def divide(
    islands: Sequence[Island], bytes_per_s: NDArray[np.float64], count: int, *, evenness_ratio: float = 0.8
) -> Division:
    """Divides islands into ``count`` units with fast links inside and about equal speed.

    Exact up to 16 islands, by dynamic programming over sets of islands; above that islands are dealt out greedily and
    moved and exchanged between units while that helps, and the bound stands beside the value.

    Args:
        islands: Of :func:`plait.hardware.islands.islands`.
        bytes_per_s: The matrix over all devices that the islands were made of.
        count: Units.
        evenness_ratio: The slowest unit's speed over the mean speed of a unit, at least.

    Raises:
        GroupImpossible: no division (or, above 16 islands, none that the search found) is so even.
    """
    if not 1 <= count <= len(islands):
        raise GroupImpossible(f"{len(islands)} islands cannot make {count} units; an island is not split")
    between = island_bytes_per_s(islands, bytes_per_s)
    weights = free_devices(between, range(len(islands)), None, "pessimistic").weights
    speeds = np.array([island.speed for island in islands])
    floor = evenness_ratio * float(speeds.sum()) / count
    levels = np.unique(weights[np.triu_indices(len(islands), 1)]) if len(islands) > 1 else np.array([-1.0])
    problem = _Problem(weights, speeds, count, floor, levels)
    parts, bound = _exactly(problem) if len(islands) <= MOST_DEVICES else _searched(problem)
    units = tuple(_unit(islands, weights, part) for part in sorted(parts))
    value = problem.value(parts)
    return Division(
        units=units,
        value_bytes_per_s=_finite(value),
        bound_bytes_per_s=_finite(bound),
        is_exact=value >= bound,
        reason=_reason(problem, units, value, bound),
    )


@dataclass(frozen=True, slots=True)
class _Problem:
    weights: Weights
    speeds: Weights
    count: int
    floor: float
    levels: Weights
    values: dict[tuple[int, ...], float] = field(default_factory=dict)

    def value(self, parts: Sequence[Sequence[int]]) -> float:
        """Returns the slowest link between islands in any part; infinite where each part is one island."""
        return min(self.ring_value(part) for part in parts)

    def ring_value(self, part: Sequence[int]) -> float:
        """Returns the slowest link on the best ring over a part; infinite for one island."""
        key = tuple(sorted(part))
        if key not in self.values:
            self.values[key] = _ring_value(self.weights, key)
        return self.values[key]

    def impossible(self) -> GroupImpossible:
        return GroupImpossible(
            f"{len(self.speeds)} islands cannot make {self.count} units of at least {self.floor:.4g} each, of"
            f" {self.speeds.sum():.4g} in all; an island is not split: allow less even units"
        )


def _ring_value(weights: Weights, part: Sequence[int]) -> float:
    if len(part) == 1:
        return np.inf
    if len(part) == 2:
        return float(weights[part[0], part[1]])
    inner = weights[np.ix_(part, part)]
    if len(part) <= MOST_DEVICES:
        return best_table(inner, len(part))[0]
    return slowest(inner, search_ring(inner, len(part), 0)[0])


def _exactly(problem: _Problem) -> tuple[list[tuple[int, ...]], float]:
    """Finds the fastest level, and then the largest speed of the slowest unit, at which a division exists."""
    n = len(problem.speeds)
    mask_speeds = (np.arange(1 << n)[:, None] >> np.arange(n) & 1) @ problem.speeds

    def division(level: float, floor: float) -> list[int] | None:
        sound = ring_sets(bit_rows(at_least(problem.weights, level))) & (mask_speeds >= floor * (1 - 1e-12))
        return _cover(sound, n, problem.count)

    best = division(float(problem.levels[0]), problem.floor)
    if best is None:
        raise problem.impossible()
    low, high = 0, len(problem.levels) - 1
    while low < high:
        middle = (low + high + 1) // 2
        found = division(float(problem.levels[middle]), problem.floor)
        if found is None:
            high = middle - 1
        else:
            low, best = middle, found
    level = float(problem.levels[low])
    floors = np.unique(mask_speeds[(mask_speeds >= problem.floor) & (mask_speeds <= mask_speeds[-1] / problem.count)])
    low, high = -1, len(floors) - 1
    while low < high:
        middle = (low + high + 1) // 2
        found = division(level, float(floors[middle]))
        if found is None:
            high = middle - 1
        else:
            low, best = middle, found
    parts = [tuple(v for v in range(n) if mask >> v & 1) for mask in best]
    return parts, problem.value(parts)


def _cover(sound: NDArray[np.bool_], n: int, count: int) -> list[int] | None:
    """Returns ``count`` disjoint sound sets that cover everything, ``None`` where there are none.

    Sets are taken in the order of their lowest island, so that each division is met once. ``covered[j]`` marks what j
    sets can cover.
    """
    full = (1 << n) - 1
    masks = np.flatnonzero(sound)
    by_lowest = [masks[(masks & -masks) == 1 << v] for v in range(n)]
    covered = [np.array([0], dtype=np.int64)]
    for _ in range(count - 1):
        reached = np.zeros(1 << n, dtype=bool)
        for done in covered[-1].tolist():
            lowest = (~done & (done + 1)).bit_length() - 1
            if lowest < n:
                options = by_lowest[lowest]
                reached[options[(options & done) == 0] | done] = True
        covered.append(np.flatnonzero(reached))
    last = covered[-1][sound[full ^ covered[-1]]]
    if not len(last):
        return None
    done = int(last[0])
    parts = [full ^ done]
    for before in reversed(covered[:-1]):
        one = next(b for b in before.tolist() if b & done == b and sound[done ^ b] and _follows(b, done ^ b))
        parts.append(done ^ one)
        done = one
    return parts


def _follows(done: int, part: int) -> bool:
    return bool(part & (~done & (done + 1)))


def _searched(problem: _Problem) -> tuple[list[tuple[int, ...]], float]:
    """Divides each connected piece at each level by itself, then moves and exchanges single islands if that helps."""
    bound = _bound(problem)
    order, levels = _nearest_order(problem.weights)
    dealt = [
        parts
        for level in sorted({bound, *(min(level, bound) for level in levels)}, reverse=True)
        for parts in _dealt(problem, level, order)
    ]
    rank, parts = max((_rank(problem, parts), parts) for parts in dealt)
    spent = 0
    while spent < _MOST_LOOKS:
        for changed in _neighbours(problem, parts):
            spent += 1
            if (new := _rank(problem, changed)) > rank:
                rank, parts = new, changed
                break
            if spent >= _MOST_LOOKS:
                break
        else:
            break
    if min(problem.speeds[list(part)].sum() for part in parts) < problem.floor * (1 - 1e-12):
        raise problem.impossible()
    return [tuple(sorted(part)) for part in parts], bound


def _nearest_order(weights: Weights) -> tuple[list[int], list[float]]:
    """Returns the islands in the order in which a largest spanning tree grows (Prim 1957), and the links of the tree.

    What fast links join stands together in that order, and pieces of the graph meet at the levels of those links.
    """
    reached = weights[0].copy()
    order, levels = [0], []
    while len(order) < len(weights):
        left = reached.copy()
        left[order] = -np.inf
        order.append(int(left.argmax()))
        levels.append(float(left[order[-1]]))
        reached = np.maximum(reached, weights[order[-1]])
    return order, levels


def _dealt(problem: _Problem, level: float, order: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yields two divisions along the pieces of the graph at a level; none where there are more pieces than units.

    Every piece has a number of units by its speed. One division deals its islands out, the fastest first; the other
    cuts the piece where it is, in the order of nearness.
    """
    pieces = _pieces(at_least(problem.weights, level))
    if len(pieces) > problem.count:
        return
    speeds = [float(problem.speeds[piece].sum()) for piece in pieces]
    shares = [1] * len(pieces)
    for _ in range(problem.count - len(pieces)):  # the next unit goes where units would be the fastest (D'Hondt)
        open_ = [i for i, piece in enumerate(pieces) if shares[i] < len(piece)]
        shares[max(open_, key=lambda i: (speeds[i] / (shares[i] + 1), -i))] += 1
    for divide_piece in (_even, _cut):
        yield [
            part
            for piece, share in zip(pieces, shares, strict=True)
            for part in divide_piece(problem.speeds, [v for v in order if v in piece], share)
        ]


def _even(speeds: Weights, piece: Sequence[int], share: int) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(share)]
    for island in sorted(piece, key=lambda v: (-speeds[v], v)):
        min(parts, key=lambda part: (float(speeds[part].sum()), len(part))).append(island)
    return parts


def _cut(speeds: Weights, piece: Sequence[int], share: int) -> list[list[int]]:
    """Cuts a row of islands where the sums are nearest to even, leaving at least one island for each part."""
    ends = np.cumsum(speeds[list(piece)])
    cuts = [0]
    for part in range(1, share):
        nearest = int(np.abs(ends - ends[-1] * part / share).argmin()) + 1
        cuts.append(min(max(nearest, cuts[-1] + 1), len(piece) - (share - part)))
    return [list(piece[a:b]) for a, b in itertools.pairwise([*cuts, len(piece)])]


def _rank(problem: _Problem, parts: Sequence[Sequence[int]]) -> tuple[float, float, float]:
    """Orders divisions: even enough, then the worst link, then how even."""
    slowest_speed = min(float(problem.speeds[list(part)].sum()) for part in parts)
    return min(slowest_speed / problem.floor, 1.0), problem.value(parts), slowest_speed


def _neighbours(problem: _Problem, parts: Sequence[Sequence[int]]) -> Iterator[list[list[int]]]:
    """Yields divisions in which the worst unit, or the slowest, gives an island away, takes or exchanges one."""
    values = [problem.ring_value(part) for part in parts]
    speeds = [float(problem.speeds[list(part)].sum()) for part in parts]
    for a, b in itertools.product(sorted({values.index(min(values)), speeds.index(min(speeds))}), range(len(parts))):
        if a == b:
            continue
        for x, y in itertools.product((None, *parts[a]), (None, *parts[b])):
            mine = [*(v for v in parts[a] if v != x), *([] if y is None else [y])]
            its = [*(v for v in parts[b] if v != y), *([] if x is None else [x])]
            if mine and its and (x, y) != (None, None):
                yield [mine if i == a else its if i == b else list(part) for i, part in enumerate(parts)]


def _bound(problem: _Problem) -> float:
    """Returns a level above which no division can be."""
    low, high = 0, len(problem.levels) - 1
    while low < high:
        middle = (low + high + 1) // 2
        fits = _may_fit(problem, at_least(problem.weights, float(problem.levels[middle])))
        low, high = (middle, high) if fits else (low, middle - 1)
    return float(problem.levels[low])


def _may_fit(problem: _Problem, adjacent: NDArray[np.bool_]) -> bool:
    """Returns False only where no division has all its links in this graph.

    A unit lies in one connected piece, so every piece must be worth a unit and all together must be worth all of them.
    And every island is in a unit that is fast enough: alone, with one neighbour, or with others of one block.
    """
    floor, speeds = problem.floor * (1 - 1e-12), problem.speeds
    sums = [float(speeds[piece].sum()) for piece in _pieces(adjacent)]
    worth = sum(int(s / problem.floor + 1e-9) if problem.floor else len(speeds) for s in sums)
    if min(sums) < floor or not worth >= problem.count >= len(sums):
        return False
    served = speeds >= floor
    if problem.count == 1:  # one unit of everything
        return any(len(block) == len(speeds) for block in blocks(adjacent))
    best_neighbour = np.where(adjacent, speeds[None, :], -np.inf).max(axis=1)
    served |= speeds + best_neighbour >= floor
    for block in blocks(adjacent):
        if float(speeds[block].sum()) >= floor:
            served[block] = True
    return bool(served.all())


def _pieces(adjacent: NDArray[np.bool_]) -> list[list[int]]:
    """Returns the connected pieces of a graph."""
    rows = bit_rows(adjacent)
    unseen, found = (1 << len(rows)) - 1, []
    while unseen:
        queue, piece = unseen & -unseen, []
        unseen ^= queue
        while queue:
            v = (queue & -queue).bit_length() - 1
            queue &= queue - 1
            piece.append(v)
            fresh = rows[v] & unseen
            unseen ^= fresh
            queue |= fresh
        found.append(piece)
    return found


def _unit(islands: Sequence[Island], weights: Weights, part: Sequence[int]) -> Unit:
    return Unit(
        islands=tuple(part),
        devices=tuple(sorted(m for i in part for m in islands[i].members)),
        ring_bytes_per_s=_finite(_ring_value(weights, part)),
        speed=sum(islands[i].speed for i in part),
    )


def _finite(value: float) -> float | None:
    return known(value) if np.isfinite(value) else None


def _reason(problem: _Problem, units: Sequence[Unit], value: float, bound: float) -> str:
    evenness = min(unit.speed for unit in units) * len(units) / float(problem.speeds.sum())
    even = f"the slowest unit has {evenness:.0%} of the mean speed"
    if not np.isfinite(value):
        return f"every unit is one island; {even}"
    link = f"the slowest link between islands of a unit has {told_speed(_finite(value))}"
    best = "the most possible" if value >= bound else f"where no division has more than {told_speed(_finite(bound))}"
    return f"{link}, {best}; {even}"
