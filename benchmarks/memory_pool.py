"""Memory pool: how many bytes does it reserve to serve a training run, over the peak of the bytes that live?

Eleven kinds of model are recorded over many steps of forward, backward and optimizer, each twice: small and run for
real on the CPU (every call of PyTorch's CPU allocator, as its profiler reports them), and with the shapes of an
accelerator's job under FakeTensorMode (every storage that an operator returns). Each trace is then served, event by
event and without looking ahead, by the pool and by a model of PyTorch's caching allocator, with and without expandable
segments. All count the peak of what they took from the device over the whole trace, the first steps included.

``reserved_over_live_median`` is the median over all traces; utilisation is the peak of live bytes over that of reserved
ones, and ``utilisation_gain_where_wasteful_min`` the least gain on the traces where the caching allocator's utilisation
is 85 % or less. ``plan_s_100k`` is CPU time for one packing of 100,000 events, of the worst of three kinds.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plait.hardware.memory.caching_allocator import CachingAllocator, replay
from plait.hardware.memory.caching_blocks import CachingRules
from plait.hardware.memory.lifetimes import Lifetimes, lifetimes_of, make_lifetimes
from plait.hardware.memory.packing import check_packing, pack
from plait.hardware.memory.pool import MemoryPool, PoolSettings
from plait.hardware.memory.trace import EventKind, Ints, MemoryTrace
from plait.train.devices.memory_recorder import MemoryRecorder, mark_step, record_cpu_allocator
from report import arguments, finish
from workers.memory_models import WORKLOADS, Workload

STEPS = {"real": 12, "large": 20}
QUICK_STEPS = {"real": 3, "large": 4}
WASTEFUL_UTILISATION = 0.85
EVENTS = 100_000


@dataclass(frozen=True)
class Row:
    """One trace: bytes reserved by each allocator over the peak of live bytes, and what it cost the pool."""

    name: str
    size: str
    changes: str
    live_bytes: int
    caching: float
    expandable: float
    pool: float
    pool_still: float
    planned: float
    moved_bytes_per_step: float

    @property
    def gain(self) -> float:
        """How much better the pool's utilisation is than the caching allocator's."""
        return self.caching / self.pool - 1


def record(workload: Workload, size: str, steps: int, seed: int) -> MemoryTrace:
    torch.manual_seed(seed)
    if size == "real":
        with record_cpu_allocator(workload.name) as traces:
            for _, step in zip(range(steps), workload.build(0, seed), strict=False):
                step()
                mark_step()
        return traces[0]
    recorder = MemoryRecorder(origin=workload.name)
    with FakeTensorMode(), recorder:
        for _, step in zip(range(steps), workload.build(1, seed), strict=False):
            step()
            recorder.end_step()
    return recorder.trace()


def compare(workload: Workload, size: str, trace: MemoryTrace) -> Row:
    live = trace.peak_live_bytes()
    pool, moved = serve_and_watch(trace, MemoryPool())
    still, _ = serve_and_watch(trace, MemoryPool(PoolSettings(stitches=False)))
    for served in (pool, still):
        if served.statistics().peak_live_bytes != live:
            raise RuntimeError(f"{workload.name}: the pool saw other live bytes than the trace has")
    counts = pool.statistics()
    expandable = CachingAllocator(CachingRules(expandable_segments=True))
    return Row(
        name=workload.name,
        size=size,
        changes=workload.changes,
        live_bytes=live,
        caching=replay(trace).reserved_bytes / live,
        expandable=replay(trace, expandable).reserved_bytes / live,
        pool=counts.peak_reserved_bytes / live,
        pool_still=still.statistics().peak_reserved_bytes / live,
        planned=counts.num_planned / (counts.num_planned + counts.num_covered + counts.num_fallback),
        moved_bytes_per_step=moved,
    )


def serve_and_watch(trace: MemoryTrace, pool: MemoryPool) -> tuple[MemoryPool, float]:
    """Serves a trace; returns also the bytes of pages moved per step in its second half."""
    addresses: dict[int, int] = {}
    half, steps, moved = trace.num_steps // 2, 0, 0
    for event in trace:
        if event.kind is EventKind.STEP:
            pool.end_step()
            steps += 1
            if steps == half:
                moved = pool.statistics().num_remapped_pages
        elif event.size_bytes == 0:
            continue
        elif event.kind is EventKind.ALLOCATE:
            addresses[event.block] = pool.allocate(event.size_bytes, event.stream)
        else:
            pool.free(addresses.pop(event.block))
    pages = pool.statistics().num_remapped_pages - moved
    return pool, pages * pool.settings.page_bytes / (steps - half)


def long_traces(recorded: MemoryTrace, seed: int) -> Iterator[tuple[str, Lifetimes]]:
    """Yields lifetimes of 100,000 events: recorded steps repeated, one deep step, and random ones."""
    rows, _ = lifetimes_of(recorded)
    copies = -(-EVENTS // 2 // len(rows))
    shift = np.repeat(np.arange(copies) * len(recorded), len(rows))
    ends = np.minimum(np.tile(rows.ends, copies), len(recorded) - 1) + shift
    repeated = make_lifetimes(np.tile(rows.sizes, copies), np.tile(rows.starts, copies) + shift, ends)
    yield "recorded steps", repeated.select(np.arange(EVENTS // 2))
    rng = np.random.default_rng(seed)
    count = EVENTS // 2
    starts = np.arange(count)
    lengths: Ints = rng.integers(2, 10, count)
    kept = (np.arange(count) < count // 2) & (rng.random(count) < 0.3)
    ends = np.where(kept, count - starts, starts + lengths)
    yield "one deep step", make_lifetimes(rng.lognormal(12, 2, count).astype(np.int64), starts, ends)
    starts = np.sort(rng.integers(0, EVENTS, count))
    ends = starts + 1 + rng.exponential(2000, count).astype(np.int64)
    yield "random lives", make_lifetimes(rng.lognormal(14, 2, count).astype(np.int64), starts, ends)


def time_planning(recorded: MemoryTrace, seed: int) -> float:
    worst = 0.0
    for name, lifetimes in long_traces(recorded, seed):
        began = time.process_time()
        packing = pack(lifetimes)
        took = time.process_time() - began
        check_packing(lifetimes.rounded(512), packing.offsets)
        ratio = packing.height_bytes / packing.lower_bound_bytes
        print(f"planning {EVENTS:,} events, {name:15s} {took:5.2f} s CPU, {ratio:.4f} of the least possible")
        worst = max(worst, took)
    return worst


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    steps = QUICK_STEPS if options.quick else STEPS
    print("reserved over the peak of live bytes; 'no moves' is the pool without moving pages")
    print(
        f"{'model':26s}{'size':6s}{'changes':15s}{'live MiB':>9s}{'caching':>9s}{'expand.':>9s}{'pool':>8s}"
        f"{'no moves':>10s}{'gain':>7s}{'planned':>9s}{'MiB moved/step':>16s}"
    )
    rows = []
    longest: MemoryTrace | None = None
    for size in ("real", "large"):
        for workload in WORKLOADS:
            trace = record(workload, size, steps[size], options.seed)
            trace.validate()
            row = compare(workload, size, trace)
            rows.append(row)
            if longest is None or (size == "large" and len(trace) > len(longest)):
                longest = trace
            print(
                f"{row.name:26s}{row.size:6s}{row.changes:15s}{row.live_bytes / 2**20:9.0f}{row.caching:9.3f}"
                f"{row.expandable:9.3f}{row.pool:8.3f}{row.pool_still:10.3f}{row.gain:7.0%}{row.planned:9.0%}"
                f"{row.moved_bytes_per_step / 2**20:16.0f}",
                flush=True,
            )
    for size in ("real", "large"):
        part = [row for row in rows if row.size == size]
        print(
            f"median of the {size} ones:  caching {statistics.median(row.caching for row in part):.3f}"
            f"  expandable {statistics.median(row.expandable for row in part):.3f}"
            f"  pool {statistics.median(row.pool for row in part):.3f}"
            f"  without moves {statistics.median(row.pool_still for row in part):.3f}"
        )
    assert longest is not None
    plan_s = time_planning(longest, options.seed)
    wasteful = [row for row in rows if 1 / row.caching <= WASTEFUL_UTILISATION]
    for row in rows:
        if row.pool > min(row.caching, row.expandable):
            print(f"the pool reserves more than a peer: {row.name}, {row.size}")
    figures: dict[str, float | None] = {
        "reserved_over_live_median": round(statistics.median(row.pool for row in rows), 4),
        "reserved_over_live_max": round(max(row.pool for row in rows), 4),
        "caching_reserved_over_live_median": round(statistics.median(row.caching for row in rows), 4),
        "expandable_reserved_over_live_median": round(statistics.median(row.expandable for row in rows), 4),
        "no_moves_reserved_over_live_median": round(statistics.median(row.pool_still for row in rows), 4),
        "num_wasteful": len(wasteful),
        "utilisation_gain_where_wasteful_min": round(min(row.gain for row in wasteful), 4) if wasteful else None,
        "plan_s_100k": round(plan_s, 2),
    }
    reasons = {} if wasteful else {"utilisation_gain_where_wasteful_min": "the caching model wastes 15 % on no trace"}
    finish("memory_pool", options.quick, figures, reasons, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
