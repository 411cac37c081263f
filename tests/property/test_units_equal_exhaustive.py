"""Islands follow from libraries, nodes and fast links; units of up to 16 islands equal exhaustive search."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from plait.hardware.grouping import GroupImpossible
from plait.hardware.islands import Member, islands
from plait.hardware.units import divide, island_bytes_per_s

Matrix = NDArray[np.float64]


def machine(counts: Sequence[tuple[str, str, int]]) -> tuple[Member, ...]:
    return tuple(
        Member(name=f"{node}/{i}", node=node, vendor=vendor) for node, vendor, count in counts for i in range(count)
    )


def links(devices: Sequence[Member], between: float, inside: float) -> Matrix:
    same = np.array([[a.node == b.node for b in devices] for a in devices])
    return np.where(same, inside, between)


def partitions(items: tuple[int, ...], count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    if count == 1:
        yield (items,)
        return
    first, rest = items[0], items[1:]
    for size in range(len(rest) - count + 2):
        for chosen in itertools.combinations(rest, size):
            left = tuple(x for x in rest if x not in chosen)
            for others in partitions(left, count - 1):
                yield ((first, *chosen), *others)


def ring(matrix: Matrix, part: Sequence[int]) -> float:
    if len(part) == 1:
        return np.inf
    first, *rest = part
    return max(
        min(float(matrix[a, b]) for a, b in itertools.pairwise((first, *order, first)))
        for order in itertools.permutations(rest)
    )


def test_islands_of_mixed_nodes() -> None:
    devices = machine([("n0", "NVIDIA", 2), ("n0", "AMD", 2), ("n1", "NVIDIA", 1), ("n1", "any", 1)])
    slow = islands(devices, links(devices, between=3e9, inside=20e9))
    assert [(i.library, i.members, i.nodes) for i in slow] == [
        ("nccl", (0, 1), ("n0",)),
        ("rccl", (2, 3), ("n0",)),
        ("nccl", (4,), ("n1",)),
        ("gloo", (5,), ("n1",)),
    ]
    assert slow[0].reason == "nccl joins n0/0, n0/1 in node n0; the slowest link of its ring has 20 GB/s"
    fast = islands(devices, links(devices, between=12.5e9, inside=20e9))
    assert [i.members for i in fast] == [(0, 1, 4), (2, 3), (5,)]
    assert fast[0].nodes == ("n0", "n1")
    assert "on 2 nodes, over links of at least 10 GB/s" in fast[0].reason


def test_a_named_fabric_joins_nodes_and_an_unknown_link_does_not() -> None:
    devices = [Member(name=str(i), node=f"n{i}", vendor="NVIDIA", fabric="clique" if i < 2 else None) for i in range(3)]
    found = islands(devices, np.full((3, 3), np.nan))
    assert [i.members for i in found] == [(0, 1), (2,)]
    assert "in the fabric clique" in found[0].reason
    assert found[0].ring_bytes_per_s is None


def test_two_islands_are_linked_by_their_best_pair() -> None:
    devices = machine([("n0", "NVIDIA", 2), ("n1", "AMD", 2)])
    matrix = links(devices, between=1e9, inside=50e9)
    matrix[0, 3], matrix[3, 0] = 7e9, 6e9
    between = island_bytes_per_s(islands(devices, matrix), matrix)
    assert between[0, 1] == between[1, 0] == 6e9


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 6), data=st.data())
def test_units_equal_exhaustive_search(seed: int, n: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    speeds = rng.integers(1, 5, n).astype(float)
    devices = [Member(name=str(i), node=f"n{i}", vendor="NVIDIA", speed=s) for i, s in enumerate(speeds)]
    matrix = rng.integers(1, 9, (n, n)) * 1e9
    matrix = np.minimum(matrix, matrix.T)
    count = data.draw(st.integers(1, n))
    ratio = data.draw(st.sampled_from([0.0, 0.5, 0.8]))
    floor = ratio * speeds.sum() / count
    best: tuple[float, float] | None = None
    for parts in partitions(tuple(range(n)), count):
        slowest = min(float(speeds[list(part)].sum()) for part in parts)
        if slowest >= floor - 1e-9:
            rank = (min(ring(matrix, part) for part in parts), slowest)
            best = rank if best is None else max(best, rank)
    found = islands(devices, matrix)
    assert len(found) == n
    if best is None:
        with pytest.raises(GroupImpossible, match="allow less even units"):
            divide(found, matrix, count, evenness_ratio=ratio)
        return
    division = divide(found, matrix, count, evenness_ratio=ratio)
    assert division.is_exact
    assert sorted(d for unit in division.units for d in unit.devices) == list(range(n))
    assert (division.value_bytes_per_s or np.inf) == best[0]
    assert min(unit.speed for unit in division.units) == pytest.approx(best[1])


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 5))
def test_many_islands_are_divided_evenly_within_the_bound(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    n = 20
    devices = [Member(name=str(i), node=f"n{i}", vendor="AMD", speed=float(rng.integers(1, 4))) for i in range(n)]
    matrix = rng.choice(np.array([1.0, 3.0, 9.0]), (n, n)) * 1e9
    matrix = np.minimum(matrix, matrix.T)
    division = divide(islands(devices, matrix), matrix, count)
    mean = sum(d.speed for d in devices) / count
    assert sorted(d for unit in division.units for d in unit.devices) == list(range(n))
    assert all(unit.speed >= 0.8 * mean - 1e-9 for unit in division.units)
    assert division.value_bytes_per_s is not None
    assert division.bound_bytes_per_s is not None
    assert division.value_bytes_per_s <= division.bound_bytes_per_s
    assert division.is_exact == (division.value_bytes_per_s == division.bound_bytes_per_s)


def test_an_island_is_never_split() -> None:
    devices = machine([("n0", "NVIDIA", 6), ("n1", "AMD", 2)])
    found = islands(devices, links(devices, between=1e9, inside=50e9))
    with pytest.raises(GroupImpossible, match="2 islands cannot make 3 units"):
        divide(found, links(devices, between=1e9, inside=50e9), 3)
    with pytest.raises(GroupImpossible, match="allow less even units"):
        divide(found, links(devices, between=1e9, inside=50e9), 2)
    uneven = divide(found, links(devices, between=1e9, inside=50e9), 2, evenness_ratio=0.5)
    assert [unit.devices for unit in uneven.units] == [(0, 1, 2, 3, 4, 5), (6, 7)]
    assert uneven.value_bytes_per_s is None
    assert uneven.reason == "every unit is one island; the slowest unit has 50% of the mean speed"
