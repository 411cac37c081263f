"""The pool: repeating steps, changed steps, pages that move, reasons."""

import random

import pytest

from plait.hardware.memory.pool import MemoryPool, NotAllocated, PoolExhausted, PoolSettings, serve
from plait.hardware.memory.trace import MemoryTrace, TraceBuilder

KIB = 1024
PAGE = 4 * KIB
SETTINGS = PoolSettings(page_bytes=PAGE, small_bytes=KIB, slack_ratio=0.0)


def training(scales: list[int], layers: int = 12, seed: int = 1) -> MemoryTrace:
    """Steps of forward and backward: activations live from one to the other, gradients until the next step's start."""
    rng = random.Random(seed)
    widths = [rng.randrange(1, 40) * 512 for _ in range(layers)]
    builder = TraceBuilder("steps")
    for width in widths:
        builder.allocate(width)
    gradients: list[int] = []
    for scale in scales:
        for block in gradients:
            builder.free(block)
        batch = builder.allocate(scale * 700)
        kept = []
        for width in widths:
            scratch = builder.allocate(width * scale // 2)
            kept.append(builder.allocate(width * scale))
            builder.free(scratch)
        gradients = []
        for width, block in zip(reversed(widths), reversed(kept), strict=True):
            scratch = builder.allocate(width * scale)
            gradients.append(builder.allocate(width))
            builder.free(block)
            builder.free(scratch)
        builder.free(batch)
        builder.end_step()
    return builder.build()


def shares(trace: MemoryTrace, pool: MemoryPool) -> list[tuple[int, int, int]]:
    """Serves a trace; returns planned, covered and fallback allocations of each step."""
    found, addresses = [], {}
    before = (0, 0, 0)
    for event in trace:
        if event.block < 0:
            pool.end_step()
            now = pool.statistics()
            counts = (now.num_planned, now.num_covered, now.num_fallback)
            found.append(tuple(after - early for after, early in zip(counts, before, strict=True)))
            before = counts
        elif event.kind == 0:
            addresses[event.block] = pool.allocate(event.size_bytes)
        else:
            pool.free(addresses.pop(event.block))
    return [(planned, covered, fallback) for planned, covered, fallback in found]


def test_a_repeating_step_is_served_from_its_plan() -> None:
    found = shares(training([2] * 10), MemoryPool(SETTINGS))
    assert found[1][0] == 0
    assert found[-1] == (49, 0, 0)


def test_with_some_slack_a_planned_step_moves_no_page() -> None:
    settings = PoolSettings(page_bytes=PAGE, small_bytes=KIB, slack_ratio=0.1)
    short, long = MemoryPool(settings), MemoryPool(settings)
    shares(training([2] * 12), short)
    shares(training([2] * 20), long)
    assert short.statistics().num_remapped_pages == long.statistics().num_remapped_pages


def test_reserved_bytes_stay_near_the_peak_of_live_ones() -> None:
    pool = MemoryPool(SETTINGS)
    found = serve(training([2] * 10, layers=30), pool)
    assert found.peak_live_bytes <= found.peak_reserved_bytes <= 1.06 * found.peak_live_bytes
    assert found.utilisation >= 0.94


def test_each_shape_has_its_plan_and_the_first_size_tells_which() -> None:
    pool = MemoryPool(SETTINGS)
    found = shares(training([2, 3] * 10), pool)
    assert found[-2:] == [(49, 0, 0), (49, 0, 0)]
    assert pool.statistics().num_plans >= 2


def test_a_smaller_step_uses_the_places_of_a_larger_one() -> None:
    pool = MemoryPool(SETTINGS)
    planned, covered, fallback = shares(training([4] * 8 + [3]), pool)[-1]
    assert fallback <= 3
    assert covered > 10
    assert planned + covered + fallback == 49


def test_a_larger_step_than_any_before_grows_the_pool_and_is_planned_next() -> None:
    pool = MemoryPool(SETTINGS)
    found = shares(training([2] * 6 + [5] * 6), pool)
    assert found[6][2] > 10
    assert found[-1] == (49, 0, 0)


def test_reasons_are_sentences_with_figures() -> None:
    pool = MemoryPool(SETTINGS)
    reasons = []
    addresses: dict[int, int] = {}
    for event in training([2] * 8):
        if event.block < 0:
            reasons.append(pool.end_step())
        elif event.kind == 0:
            addresses[event.block] = pool.allocate(event.size_bytes)
        else:
            pool.free(addresses.pop(event.block))
    assert reasons[0] == "step 0 is recorded; its plan follows when the next step has freed what it left"
    assert reasons[1].startswith("step 0 is planned, for it is the first: ")
    assert "of the least possible" in reasons[1]
    assert reasons[-1] == "step 6 is not planned: its plan served all but 0.0% of its bytes"


def test_a_rehearsal_gives_the_plan_before_the_first_step() -> None:
    pool = MemoryPool(SETTINGS)
    trace = training([2] * 4)
    assert pool.learn(trace).endswith("from 4 recorded steps")
    found = shares(trace, pool)
    # Parameters come before the steps and belong to the first.
    assert found[1][2] <= 3


def test_idle_pages_move_before_the_pool_grows() -> None:
    pool = MemoryPool(SETTINGS)
    blocks = [pool.allocate(PAGE) for _ in range(8)]
    for address in blocks[::2]:
        pool.free(address)
    # Four single holes of a page each hold one block of four pages.
    pool.allocate(4 * PAGE)
    found = pool.statistics()
    assert (found.reserved_bytes, found.num_remapped_pages) == (8 * PAGE, 4)
    still = MemoryPool(PoolSettings(page_bytes=PAGE, small_bytes=KIB, stitches=False))
    blocks = [still.allocate(PAGE) for _ in range(8)]
    for address in blocks[::2]:
        still.free(address)
    still.allocate(4 * PAGE)
    assert still.statistics().reserved_bytes == 12 * PAGE


def test_streams_share_pages_only_when_idle() -> None:
    pool = MemoryPool(SETTINGS)
    first = pool.allocate(PAGE // 2, stream=0)
    second = pool.allocate(PAGE // 2, stream=1)
    assert pool.statistics().reserved_bytes == 2 * PAGE
    assert abs(first - second) >= PAGE


def test_a_full_pool_refuses_and_goes_on() -> None:
    pool = MemoryPool(PoolSettings(page_bytes=PAGE, small_bytes=0, capacity_bytes=4 * PAGE))
    block = pool.allocate(3 * PAGE)
    with pytest.raises(PoolExhausted, match=f"no room for {2 * PAGE} bytes more: {3 * PAGE} live"):
        pool.allocate(2 * PAGE)
    pool.allocate(PAGE)
    pool.free(block)
    pool.allocate(3 * PAGE)


def test_a_wrong_free_is_refused() -> None:
    pool = MemoryPool(SETTINGS)
    address = pool.allocate(10)
    pool.free(address)
    with pytest.raises(NotAllocated, match="no live block begins at address"):
        pool.free(address)


def test_trim_gives_idle_pages_back() -> None:
    pool = MemoryPool(SETTINGS)
    kept, gone = pool.allocate(PAGE), pool.allocate(5 * PAGE)
    pool.free(gone)
    assert pool.trim() == 5 * PAGE
    assert pool.statistics().reserved_bytes == PAGE
    pool.free(kept)
