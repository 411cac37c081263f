"""The best group equals exhaustive search; its ties, its rings and its bound are what they claim to be."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from plait.hardware.blocks import blocks
from plait.hardware.grouping import Group, GroupImpossible, best_group, best_ring

Matrix = NDArray[np.float64]


def slower(matrix: Matrix, a: int, b: int) -> float:
    return float(min(matrix[a, b], matrix[b, a]))


def reference_ring(matrix: Matrix, devices: Sequence[int]) -> float:
    """The slowest link of the best ring, by looking at every order of the devices."""
    first, *rest = devices
    if len(devices) == 2:
        return slower(matrix, *devices)
    return max(
        min(slower(matrix, a, b) for a, b in itertools.pairwise((first, *order, first)))
        for order in itertools.permutations(rest)
    )


def held_karp(matrix: Matrix, devices: Sequence[int]) -> float:
    """The same by dynamic programming over (set, end), for more devices than orders can be listed of."""
    k = len(devices)
    if k < 4:
        return reference_ring(matrix, devices)
    speed = [[slower(matrix, a, b) for b in devices] for a in devices]
    best = {(1, 0): math.inf}
    for mask in range(1, 1 << k, 2):
        for end in range(k):
            here = best.get((mask, end))
            if here is None:
                continue
            for onward in range(1, k):
                if not mask >> onward & 1:
                    key = (mask | 1 << onward, onward)
                    best[key] = max(best.get(key, -1.0), min(here, speed[end][onward]))
    full = (1 << k) - 1
    return max(min(best[full, end], speed[end][0]) for end in range(1, k))


def reference_group(matrix: Matrix, free: Sequence[int], k: int) -> tuple[float, tuple[int, ...]]:
    """The best value and, by the documented order of ties, the best devices."""

    def total(devices: Sequence[int]) -> float:
        return sum(slower(matrix, a, b) for a, b in itertools.combinations(devices, 2))

    def rank(devices: tuple[int, ...]) -> tuple[float, float, float, tuple[int, ...]]:
        value = held_karp(matrix, devices) if k > 1 else 0.0
        others = [d for d in free if d not in devices]
        return (-value, -total(devices), -total(others), devices)

    value, _, _, devices = min(rank(s) for s in itertools.combinations(sorted(free), k))
    return -value, devices


@st.composite
def matrices(draw: st.DrawFn, largest: int) -> Matrix:
    n = draw(st.integers(2, largest))
    levels = draw(st.sampled_from([(9, 14, 18, 22, 24, 40), (1, 2), (5,), tuple(range(1, 200)), (0, 3, 7)]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    matrix = rng.choice(np.array(levels, dtype=np.float64), (n, n)) * 1e9
    return matrix if draw(st.booleans()) else np.minimum(matrix, matrix.T)


def check_ring(matrix: Matrix, group: Group) -> None:
    assert sorted(group.ring) == list(group.devices)
    assert group.bottleneck is not None
    pairs = list(zip(group.ring, (*group.ring[1:], group.ring[0]), strict=True))
    assert min(slower(matrix, a, b) for a, b in pairs) == group.value_bytes_per_s == slower(matrix, *group.bottleneck)
    assert group.bottleneck in pairs or group.bottleneck[::-1] in pairs


@settings(max_examples=60)
@given(matrix=matrices(8), data=st.data())
def test_equals_exhaustive_search_with_ties_for_every_k(matrix: Matrix, data: st.DataObject) -> None:
    free = data.draw(st.lists(st.integers(0, len(matrix) - 1), unique=True, min_size=2))
    for k in range(1, len(free) + 1):
        group = best_group(matrix, free, k)
        value, devices = reference_group(matrix, free, k)
        assert group.devices == devices
        assert group.is_exact
        if k > 1:
            assert group.value_bytes_per_s == group.bound_bytes_per_s == value
            check_ring(matrix, group)


@pytest.mark.parametrize("seed", range(4))
def test_equals_exhaustive_search_on_ten_devices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(1, 100 if seed % 2 else 6, (10, 10)).astype(np.float64) * 1e9
    for k in (3, 5, 8, 10):
        assert best_group(matrix, range(10), k).devices == reference_group(matrix, range(10), k)[1]


@settings(max_examples=40)
@given(matrix=matrices(7))
def test_ring_over_given_devices_is_the_best_of_all_orders(matrix: Matrix) -> None:
    ring, value = best_ring(matrix, range(len(matrix)))
    assert sorted(ring) == list(range(len(matrix)))
    assert value == reference_ring(matrix, range(len(matrix)))


@settings(max_examples=40)
@given(matrix=matrices(8), data=st.data())
def test_alternatives_tell_the_truth(matrix: Matrix, data: st.DataObject) -> None:
    k = data.draw(st.integers(2, len(matrix)))
    group = best_group(matrix, range(len(matrix)), k)
    assert group.value_bytes_per_s is not None
    for alternative in group.alternatives:
        value = held_karp(matrix, alternative.devices)
        assert alternative.value_bytes_per_s == value <= group.value_bytes_per_s
        assert (alternative.reason == "the same group") == (alternative.devices == group.devices)
        assert ("has to pass" in alternative.reason) == (value < group.value_bytes_per_s)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(17, 40), data=st.data())
def test_many_devices_get_a_true_ring_within_the_bound(seed: int, n: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.choice(np.array([1.0, 5.0, 25.0, 300.0]), (n, n), p=[0.4, 0.3, 0.2, 0.1]) * 1e9
    k = data.draw(st.integers(1, n))
    group = best_group(matrix, range(n), k)
    assert group == best_group(matrix, range(n), k), "the same seed gives the same group"
    assert len(set(group.devices)) == k
    if k > 1:
        check_ring(matrix, group)
        assert group.value_bytes_per_s is not None
        assert group.bound_bytes_per_s is not None
        assert group.value_bytes_per_s <= group.bound_bytes_per_s
        assert group.is_exact == (group.value_bytes_per_s == group.bound_bytes_per_s)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(3, 12))
def test_bound_of_many_devices_holds_for_the_exact_best_of_some(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(1, 50, (18, 18)).astype(np.float64) * 1e9
    some = sorted(rng.choice(18, 14, replace=False).tolist())
    exact, many = best_group(matrix, some, k), best_group(matrix, range(18), k)
    assert exact.value_bytes_per_s is not None
    assert many.bound_bytes_per_s is not None
    assert exact.value_bytes_per_s <= many.bound_bytes_per_s


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 9), density=st.floats(0.1, 0.9))
def test_two_devices_share_a_block_when_no_single_other_parts_them(seed: int, n: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((n, n)) < density, 1)
    adjacent = upper | upper.T

    def connected(a: int, b: int, without: int | None) -> bool:
        seen, queue = {a}, [a]
        while queue:
            v = queue.pop()
            for w in np.flatnonzero(adjacent[v]).tolist():
                if w not in seen and w != without:
                    seen.add(w)
                    queue.append(w)
        return b in seen

    together = {pair for block in blocks(adjacent) for pair in itertools.combinations(block, 2)}
    for a, b in itertools.combinations(range(n), 2):
        adjacent_alone = adjacent[a, b]
        adjacent[a, b] = adjacent[b, a] = False
        # A link of its own is no ring: without it, no third device may part the two.
        in_ring = connected(a, b, None) if adjacent_alone else False
        adjacent[a, b] = adjacent[b, a] = adjacent_alone
        parted = any(not connected(a, b, c) for c in range(n) if c not in {a, b})
        expected = (in_ring if adjacent_alone else True) and connected(a, b, None) and not parted
        assert ((a, b) in together) == expected


def test_unknown_pairs_are_a_last_resort_or_refused() -> None:
    matrix = np.full((4, 4), 10e9)
    matrix[0, 1] = np.nan  # one direction is enough
    assert best_group(matrix, range(4), 2).devices == (0, 2)
    assert best_group(matrix, range(4), 3).value_bytes_per_s == 10e9
    only = best_group(matrix, (0, 1), 2)
    assert only.value_bytes_per_s is None
    assert only.reason == "its best ring has to pass a pair whose bandwidth is unknown, here 0-1"
    with pytest.raises(GroupImpossible, match="of 1 pairs is unknown, 0-1 first"):
        best_group(matrix, range(4), 3, unknown="raise")


def test_refuses_what_cannot_be() -> None:
    with pytest.raises(GroupImpossible, match="a group of 5 devices cannot be made: 4 are free"):
        best_group(np.ones((4, 4)), range(4), 5)
    with pytest.raises(GroupImpossible, match="no device 4; devices are numbered 0 to 3"):
        best_group(np.ones((4, 4)), (0, 4), 2)
    with pytest.raises(ValueError, match="square"):
        best_group(np.ones((4, 3)), (0, 1), 2)
    with pytest.raises(ValueError, match="negative"):
        best_group(-np.ones((4, 4)), (0, 1), 2)


def test_reasons_name_devices_and_speeds() -> None:
    matrix = np.full((4, 4), 9e9)
    matrix[2, 3] = matrix[3, 2] = 24e9
    group = best_group(matrix, range(4), 2, labels=["GPU0", "GPU1", "GPU2", "GPU3"])
    assert group.devices == (2, 3)
    assert group.reason == "its slowest link GPU2-GPU3 has 24 GB/s, and no other group of 2 of 4 has as much"
    assert group.alternatives[0].reason == "its best ring has to pass GPU0-GPU1 at 9 GB/s"
