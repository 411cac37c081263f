"""Packings against brute force, bound and the independent check; the pool and the caching model on random programs."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.hardware.memory.caching_allocator import CachingAllocator, DeviceMemoryExhausted
from plait.hardware.memory.caching_blocks import CachingRules
from plait.hardware.memory.gaps import Gaps
from plait.hardware.memory.lifetimes import Lifetimes, make_lifetimes
from plait.hardware.memory.packing import PackingWrong, check_packing, pack, sweep
from plait.hardware.memory.pool import MemoryPool, PoolExhausted, PoolSettings

KIB = 1024


@st.composite
def lives(draw: st.DrawFn, most: int, most_bytes: int = 4000) -> Lifetimes:
    count = draw(st.integers(1, most))
    sizes, starts, ends, wrapped = [], [], [], []
    for _ in range(count):
        start = draw(st.integers(0, 20))
        wraps = draw(st.integers(0, 4)) == 0
        sizes.append(draw(st.integers(1, most_bytes)))
        starts.append(start)
        ends.append(30 if wraps else start + draw(st.integers(1, 10)))
        wrapped.append(draw(st.integers(0, start)) if wraps else 0)
    return make_lifetimes(np.array(sizes), np.array(starts), np.array(ends), np.array(wrapped))


def lowest_packing(blocks: Lifetimes) -> int:
    """The best height there is: some order of lowest-fit placement gives it, since any packing can be pushed down."""
    intervals = [
        [(int(start), int(end)), (0, int(wrapped))]
        for start, end, wrapped in zip(blocks.starts, blocks.ends, blocks.wrapped_ends, strict=True)
    ]

    def meets(one: int, other: int) -> bool:
        return any(a < d and c < b for a, b in intervals[one] for c, d in intervals[other])

    best = None
    for order in itertools.permutations(range(len(blocks))):
        placed: list[tuple[int, int, int]] = []
        for row in order:
            taken = sorted((low, top) for other, low, top in placed if meets(row, other))
            offset = 0
            for low, top in taken:
                if offset + int(blocks.sizes[row]) <= low:
                    break
                offset = max(offset, top)
            placed.append((row, offset, offset + int(blocks.sizes[row])))
        height = max(top for _, _, top in placed)
        best = height if best is None else min(best, height)
    assert best is not None
    return best


@given(lives(most=30), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_packings_overlap_nowhere_and_respect_the_bound(blocks: Lifetimes, num_walls: int) -> None:
    walls = [(2048 * number + 512, 700) for number in range(num_walls)]
    packing = pack(blocks, obstacles=walls)
    rounded = blocks.rounded(512)
    check_packing(rounded, packing.offsets, walls)
    assert (packing.offsets % 512 == 0).all()
    assert packing.height_bytes >= packing.lower_bound_bytes >= rounded.peak_bytes()
    assert packing.height_bytes >= int((packing.offsets + rounded.sizes).max())


@given(lives(most=5, most_bytes=9))
@settings(max_examples=80, deadline=None)
def test_packings_of_few_blocks_are_near_the_best_there_is(blocks: Lifetimes) -> None:
    packing = pack(blocks, alignment_bytes=1)
    check_packing(blocks, packing.offsets)
    best = lowest_packing(blocks)
    assert packing.lower_bound_bytes <= best <= packing.height_bytes
    assert packing.height_bytes <= best + int(blocks.sizes.max()) // 2 + 1


def test_brute_force_is_met_on_nearly_all_small_cases() -> None:
    rng = np.random.default_rng(5)
    met = 0
    for _ in range(60):
        starts = rng.integers(0, 12, 6)
        blocks = make_lifetimes(rng.integers(1, 9, 6), starts, starts + rng.integers(1, 9, 6))
        found, best = pack(blocks, alignment_bytes=1).height_bytes, lowest_packing(blocks)
        assert found >= best
        met += found == best
    assert met >= 58


@given(lives(most=60))
@settings(max_examples=60, deadline=None)
def test_the_plain_sweep_overlaps_nowhere(blocks: Lifetimes) -> None:
    check_packing(blocks, sweep(blocks))


@pytest.mark.parametrize("count", [3000, 9000])
def test_divided_packings_overlap_nowhere_and_stay_close(count: int) -> None:
    rng = np.random.default_rng(count)
    starts = np.sort(rng.integers(0, 2 * count, count))
    blocks = make_lifetimes(
        rng.lognormal(12, 2, count).astype(np.int64), starts, starts + 1 + rng.exponential(60, count).astype(np.int64)
    )
    packing = pack(blocks)
    check_packing(blocks.rounded(512), packing.offsets)
    assert packing.height_bytes <= 1.1 * packing.lower_bound_bytes


def test_the_check_finds_overlaps() -> None:
    blocks = make_lifetimes(np.array([10, 10]), np.array([0, 3]), np.array([5, 9]))
    check_packing(blocks, np.array([0, 10]))
    with pytest.raises(PackingWrong, match="blocks 1 and 0 overlap at byte 9"):
        check_packing(blocks, np.array([0, 9]))
    with pytest.raises(PackingWrong, match="overlap"):
        check_packing(blocks, np.array([0, 10]), [(15, 2)])
    with pytest.raises(PackingWrong, match="obstacles 0 and 1"):
        check_packing(blocks, np.array([0, 10]), [(50, 9), (55, 2)])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(0, 300)), max_size=120))
@settings(max_examples=150, deadline=None)
def test_gaps_agree_with_a_map_of_bytes(calls: list[tuple[int, int, int]]) -> None:
    gaps, used = Gaps(), np.zeros(8000, dtype=bool)
    live: list[tuple[int, int]] = []
    for what, size, where in calls:
        if what == 0:
            offset = gaps.take(size)
            assert not used[offset : offset + size].any()
        elif what == 1:
            free = not used[where : where + size].any()
            assert gaps.holds(where, size) == free
            assert gaps.take_at(where, size) == free
            if not free:
                continue
            offset = where
        else:
            if live:
                offset, length = live.pop(where % len(live))
                gaps.give(offset, length)
                used[offset : offset + length] = False
            continue
        used[offset : offset + size] = True
        live.append((offset, size))
        for place in gaps.fitting(size, 8):
            assert not used[place : place + size].any()


class PageWatcher:
    """A backing that knows which pages are mapped, and that no page is mapped twice or missing."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.mapped: set[int] = set()
        self.spare = 0
        self.owned = 0

    def map(self, address: int, num_pages: int) -> None:
        pages = set(range(address // self.page_bytes, address // self.page_bytes + num_pages))
        assert not pages & self.mapped
        self.mapped |= pages
        new = max(num_pages - self.spare, 0)
        self.owned += new
        self.spare -= num_pages - new

    def unmap(self, address: int, num_pages: int) -> None:
        pages = set(range(address // self.page_bytes, address // self.page_bytes + num_pages))
        assert pages <= self.mapped
        self.mapped -= pages
        self.spare += num_pages

    def release(self, num_pages: int) -> None:
        assert num_pages <= self.spare
        self.spare -= num_pages
        self.owned -= num_pages


@given(
    seed=st.integers(0, 2**32 - 1),
    stitches=st.booleans(),
    deviation=st.sampled_from([0.0, 0.02, 0.3]),
    capacity=st.sampled_from([None, 60 * KIB]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_two_live_blocks_overlap_whatever_the_step_does(
    seed: int, stitches: bool, deviation: float, capacity: int | None
) -> None:
    rng = np.random.default_rng(seed)
    page = 4 * KIB
    watcher = PageWatcher(page)
    rules = PoolSettings(page_bytes=page, small_bytes=KIB, stitches=stitches, capacity_bytes=capacity, max_plans=3)
    pool = MemoryPool(rules, watcher)
    program = [(int(size), int(life), int(stream)) for size, life, stream in rng.integers(1, (6000, 25, 3), (25, 3))]
    waiting: list[tuple[int, int]] = []
    clock = 0
    for _ in range(7):
        scale = int(rng.integers(1, 4))
        for planned in program:
            size, life, stream = planned
            if rng.random() < deviation:
                size, life = int(rng.integers(1, 9000)), int(rng.integers(1, 90))
            clock += 1
            for end, address in [entry for entry in waiting if entry[0] <= clock]:
                pool.free(address)
                waiting.remove((end, address))
            try:
                waiting.append((clock + life, pool.allocate(size // scale + 1, stream)))
            except PoolExhausted:
                assert capacity is not None
            ranges = pool.live_ranges()
            assert all(low + length <= after for (low, length), (after, _) in itertools.pairwise(ranges))
            for low, length in ranges[:3]:
                assert set(range(low // page, -(-(low + length) // page))) <= watcher.mapped
        pool.end_step()
        found = pool.statistics()
        assert found.live_bytes <= found.reserved_bytes
        assert watcher.owned * page == found.reserved_bytes
        assert capacity is None or found.reserved_bytes <= capacity
    for _, address in waiting:
        pool.free(address)
    assert pool.trim() > 0
    assert pool.statistics().reserved_bytes == 0 == watcher.owned


@given(
    seed=st.integers(0, 2**32 - 1),
    expandable=st.booleans(),
    capacity=st.sampled_from([None, 90 << 20]),
    max_split=st.sampled_from([1 << 62, 21 << 20]),
)
@settings(max_examples=40, deadline=None)
def test_the_caching_model_keeps_its_books(seed: int, expandable: bool, capacity: int | None, max_split: int) -> None:
    rng = np.random.default_rng(seed)
    model = CachingAllocator(CachingRules(expandable_segments=expandable, max_split_bytes=max_split), capacity)
    live: dict[int, int] = {}
    for _ in range(120):
        if live and rng.random() < 0.45:
            address = int(rng.choice(list(live)))
            del live[address]
            model.free(address)
        else:
            size = int(rng.choice([300, 70_000, 1 << 20, 3 << 20, 12 << 20, 30 << 20]) * rng.uniform(0.5, 1.5))
            try:
                address = model.allocate(size, stream=int(rng.integers(0, 2)))
            except DeviceMemoryExhausted:
                assert capacity is not None
                continue
            assert address not in live
            live[address] = size
        segments = list(model.segments())
        assert sum(size for _, size, _ in segments) == model.reserved_bytes
        blocks = [block for _, _, pieces in segments for block in pieces]
        assert sum(size for _, size, allocated in blocks if allocated) == model.allocated_bytes
        assert {address for address, _, allocated in blocks if allocated} == set(live)
        ranges = sorted((address, size) for address, size, _ in blocks)
        assert all(low + size <= after for (low, size), (after, _) in itertools.pairwise(ranges))
        assert all(size >= live[address] for address, size, allocated in blocks if allocated)
        for _, _, pieces in segments:
            neighbours = itertools.pairwise(pieces)
            assert not any(
                not first[2] and not second[2] and first[0] + first[1] == second[0] for first, second in neighbours
            )
    for address in live:
        model.free(address)
    model.empty_cache()
    assert (model.reserved_bytes, model.allocated_bytes) == (0, 0)
