"""The model of PyTorch's caching allocator against the rules that its source and its documentation state."""

import pytest

from plait.hardware.memory.caching_allocator import CachingAllocator, DeviceMemoryExhausted, replay
from plait.hardware.memory.caching_blocks import MIB, CachingRules, segment_bytes
from plait.hardware.memory.trace import TraceBuilder


@pytest.mark.parametrize(
    ("requested", "rounded", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
        (33 * MIB + 5, 33 * MIB + 512, 34 * MIB),
    ],
)
def test_sizes_and_segments(requested: int, rounded: int, segment: int) -> None:
    assert CachingRules().round_size(requested) == rounded
    assert segment_bytes(rounded) == segment


def test_roundup_power2_divisions() -> None:
    # The documentation's own example: 1200 with 4 divisions lies between 1024 and 2048, steps of 256, and becomes 1280.
    # Below 512 bytes times the divisions, plain rounding stays.
    rules = CachingRules(roundup_power2_divisions=4)
    assert rules.round_size(1200 * 1024) == 1280 * 1024
    assert rules.round_size(1200) == 1536
    assert rules.round_size(4 * MIB) == 4 * MIB


def test_small_requests_share_a_segment_and_large_ones_do_not_use_it() -> None:
    model = CachingAllocator()
    for _ in range(4):
        model.allocate(512 * 1024)
    assert model.reserved_bytes == 2 * MIB
    model.allocate(1)
    assert model.reserved_bytes == 4 * MIB
    model.allocate(2 * MIB)
    assert model.reserved_bytes == 24 * MIB


def test_the_rest_of_a_large_block_is_split_off_only_above_one_mebibyte() -> None:
    model = CachingAllocator()
    model.allocate(19 * MIB + 1)
    assert model.allocated_bytes == 20 * MIB
    model = CachingAllocator()
    model.allocate(9 * MIB)
    assert (model.allocated_bytes, model.reserved_bytes) == (9 * MIB, 20 * MIB)
    model.allocate(9 * MIB)
    assert model.reserved_bytes == 20 * MIB
    # The 2 MiB that are left would fit, and leave nothing.
    model.allocate(2 * MIB)
    assert (model.allocated_bytes, model.reserved_bytes) == (20 * MIB, 20 * MIB)


def test_the_tightest_block_wins_and_ties_go_to_the_lower_address() -> None:
    model = CachingAllocator()
    blocks = [model.allocate(size * MIB) for size in (16, 12, 12, 14)]
    for address in reversed(blocks):
        model.free(address)
    assert model.allocate(12 * MIB) == blocks[1]
    assert model.allocate(12 * MIB) == blocks[2]
    assert model.allocate(12 * MIB) == blocks[3]


def test_neighbours_join_when_freed() -> None:
    model = CachingAllocator()
    blocks = [model.allocate(5 * MIB) for _ in range(4)]
    for address in (blocks[1], blocks[3], blocks[0], blocks[2]):
        model.free(address)
    assert model.allocate(20 * MIB - 512) == blocks[0]
    assert model.reserved_bytes == 20 * MIB


def test_streams_have_blocks_of_their_own() -> None:
    model = CachingAllocator()
    model.free(model.allocate(30 * MIB, stream=1))
    model.allocate(30 * MIB, stream=2)
    assert model.reserved_bytes == 60 * MIB


def test_max_split_size_keeps_large_blocks_whole() -> None:
    model = CachingAllocator(CachingRules(max_split_bytes=64 * MIB))
    model.free(model.allocate(100 * MIB))
    # A small request may not nibble at it, and a large one only if little is left over.
    model.free(model.allocate(30 * MIB))
    assert model.reserved_bytes == 130 * MIB
    model.allocate(79 * MIB)
    assert model.reserved_bytes == 210 * MIB
    model.allocate(81 * MIB)
    assert (model.reserved_bytes, model.allocated_bytes) == (210 * MIB, 180 * MIB)


def test_on_a_full_device_cached_blocks_are_given_back_and_then_it_is_an_error() -> None:
    model = CachingAllocator(capacity_bytes=100 * MIB)
    model.free(model.allocate(60 * MIB))
    model.allocate(70 * MIB)
    assert (model.num_retries, model.reserved_bytes, model.peak_reserved_bytes) == (1, 70 * MIB, 70 * MIB)
    with pytest.raises(DeviceMemoryExhausted, match=f"no room for {31 * MIB} bytes"):
        model.allocate(31 * MIB)


def test_an_oversized_block_is_given_back_before_all_the_others() -> None:
    model = CachingAllocator(CachingRules(max_split_bytes=20 * MIB), capacity_bytes=100 * MIB)
    cached = [model.allocate(size * MIB) for size in (50, 30, 10)]
    for address in cached:
        model.free(address)
    model.allocate(25 * MIB + 1)
    # The 30 MiB block serves, being little larger. For the next request the 50 MiB one is too large to be used whole,
    # and there is room for another segment only once it is given back; the 10 MiB one stays.
    assert model.reserved_bytes == 90 * MIB
    model.allocate(28 * MIB)
    assert (model.reserved_bytes, model.num_retries) == (68 * MIB, 1)


def test_garbage_collection_gives_old_segments_back() -> None:
    rules = CachingRules(garbage_collection_ratio=0.5)
    model = CachingAllocator(rules, capacity_bytes=100 * MIB)
    old, young = model.allocate(30 * MIB), model.allocate(30 * MIB)
    model.free(old)
    for _ in range(3):
        model.free(model.allocate(1 * MIB))
    model.free(young)
    model.allocate(32 * MIB)
    assert model.reserved_bytes <= 66 * MIB


def test_expandable_segments_grow_in_place() -> None:
    model = CachingAllocator(CachingRules(expandable_segments=True))
    first = model.allocate(15 * MIB)
    assert model.reserved_bytes == 20 * MIB
    second = model.allocate(15 * MIB)
    assert (second - first, model.reserved_bytes) == (15 * MIB, 40 * MIB)
    model.free(first)
    model.free(second)
    # The whole range is one block again, and grows by what is missing.
    assert model.allocate(45 * MIB) == first
    assert model.reserved_bytes == 60 * MIB


def test_expandable_segments_prefer_inner_holes_to_the_growing_end() -> None:
    model = CachingAllocator(CachingRules(expandable_segments=True))
    blocks = [model.allocate(size * MIB) for size in (10, 2, 18, 2)]
    model.free(blocks[0])
    model.free(blocks[2])
    # 8 MiB are free at the end, which is tighter; but the end can grow, so the hole of 10 MiB is taken.
    assert model.allocate(7 * MIB) == blocks[0]


def test_expandable_segments_give_inner_granules_back() -> None:
    model = CachingAllocator(CachingRules(expandable_segments=True), capacity_bytes=100 * MIB)
    blocks = [model.allocate(size * MIB) for size in (50, 30)]
    model.free(blocks[0])
    model.allocate(60 * MIB)
    assert (model.num_retries, model.reserved_bytes) == (1, 100 * MIB)


def test_a_replay_counts_peaks_and_skips_empty_blocks() -> None:
    builder = TraceBuilder()
    block = builder.allocate(3 * MIB)
    builder.allocate(0)
    builder.free(block)
    builder.end_step()
    found = replay(builder.build())
    assert (found.reserved_bytes, found.allocated_bytes, found.live_bytes) == (20 * MIB, 3 * MIB, 3 * MIB)
    assert found.utilisation == pytest.approx(0.15)
