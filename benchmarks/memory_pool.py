"""Memory pool: how many bytes does it reserve to serve a training run, over the peak of the bytes that live?

Eleven kinds of model are recorded over many steps of forward, backward and optimizer. Two sizes are run for real on the
CPU (every call of PyTorch's CPU allocator, as its profiler reports them): ``job`` with about 1 GiB alive, the least
that a job on an accelerator holds, and ``small`` with about 200 MiB, where one page of 2 MiB is 1 % of all. ``large``
has the shapes of an accelerator's job under FakeTensorMode (every storage that an operator returns). Each trace is
served, event by event and without looking ahead, by the pool and by a model of PyTorch's caching allocator, with and
without expandable segments. All count the peak of what they took from the device over the whole trace, the first steps
included.

``reserved_over_live_median`` is the median over the real traces of the size ``job``, of the worst seed; the medians of
the others have their names before it. Utilisation is the peak of live bytes over that of reserved ones, and
``utilisation_gain_where_wasteful_min`` the least gain of all seeds on the traces of ``job`` and ``large`` where the
caching allocator's utilisation is 85 % or less. ``plan_s_100k`` is CPU time for one packing of 100,000 events, of the
worst of three kinds.
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

SIZES = ("small", "job", "large")
STEPS = {"small": 12, "job": 8, "large": 20}
QUICK_STEPS = {"job": 2, "large": 4}
SEEDS = 3
WASTEFUL_UTILISATION = 0.85
EVENTS = 100_000


@dataclass(frozen=True)
class Row:
    """One trace: bytes reserved by each allocator over the peak of live bytes, and what it cost the pool."""

    name: str
    size: str
    seed: int
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
    number = SIZES.index(size)
    if size != "large":
        with record_cpu_allocator(workload.name) as traces:
            for _, step in zip(range(steps), workload.build(number, seed), strict=False):
                step()
                mark_step()
        return traces[0]
    recorder = MemoryRecorder(origin=workload.name)
    with FakeTensorMode(), recorder:
        for _, step in zip(range(steps), workload.build(number, seed), strict=False):
            step()
            recorder.end_step()
    return recorder.trace()


def compare(workload: Workload, size: str, seed: int, trace: MemoryTrace) -> Row:
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
        seed=seed,
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


def median_of(rows: list[Row], size: str, what: str = "pool") -> float | None:
    """Returns the median over the traces of a size, of the seed where it is highest."""
    seeds = {row.seed for row in rows if row.size == size}
    medians = [
        statistics.median(getattr(row, what) for row in rows if (row.size, row.seed) == (size, seed)) for seed in seeds
    ]
    return round(max(medians), 4) if medians else None


def measure(steps: dict[str, int], seeds: range) -> tuple[list[Row], MemoryTrace]:
    rows = []
    longest: MemoryTrace | None = None
    for size, num_steps in steps.items():
        for workload in WORKLOADS:
            for seed in seeds:
                trace = record(workload, size, num_steps, seed)
                trace.validate()
                row = compare(workload, size, seed, trace)
                rows.append(row)
                if longest is None or (size == "large" and len(trace) > len(longest)):
                    longest = trace
                print(
                    f"{row.name:26s}{row.size:6s}{row.seed:5d} {row.changes:15s}{row.live_bytes / 2**20:9.0f}"
                    f"{row.caching:9.3f}{row.expandable:9.3f}{row.pool:8.3f}{row.pool_still:10.3f}{row.gain:7.0%}"
                    f"{row.planned:9.0%}{row.moved_bytes_per_step / 2**20:16.0f}",
                    flush=True,
                )
    assert longest is not None
    return rows, longest


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    steps = QUICK_STEPS if options.quick else STEPS
    print("reserved over the peak of live bytes; 'no moves' is the pool without moving pages")
    print(
        f"{'model':26s}{'size':6s}{'seed':>5s} {'changes':15s}{'live MiB':>9s}{'caching':>9s}{'expand.':>9s}"
        f"{'pool':>8s}{'no moves':>10s}{'gain':>7s}{'planned':>9s}{'MiB moved/step':>16s}"
    )
    rows, longest = measure(steps, range(options.seed, options.seed + (1 if options.quick else SEEDS)))
    for row in rows:
        if row.pool > min(row.caching, row.expandable):
            print(f"the pool reserves more than a peer: {row.name}, {row.size}, seed {row.seed}")
    wasteful = [row for row in rows if row.size != "small" and 1 / row.caching <= WASTEFUL_UTILISATION]
    figures: dict[str, float | None] = {
        "reserved_over_live_median": median_of(rows, "job"),
        "small_reserved_over_live_median": median_of(rows, "small"),
        "large_reserved_over_live_median": median_of(rows, "large"),
        "reserved_over_live_max": round(max(row.pool for row in rows), 4),
        "caching_reserved_over_live_median": median_of(rows, "job", "caching"),
        "expandable_reserved_over_live_median": median_of(rows, "job", "expandable"),
        "no_moves_reserved_over_live_median": median_of(rows, "job", "pool_still"),
        "num_wasteful": len(wasteful),
        "utilisation_gain_where_wasteful_min": round(min(row.gain for row in wasteful), 4) if wasteful else None,
        "small_utilisation_gain_min": min(
            (round(row.gain, 4) for row in rows if row.size == "small" and 1 / row.caching <= WASTEFUL_UTILISATION),
            default=None,
        ),
        "plan_s_100k": round(time_planning(longest, options.seed), 2),
    }
    reasons = {} if wasteful else {"utilisation_gain_where_wasteful_min": "the caching model wastes 15 % on no trace"}
    for name in ("small_reserved_over_live_median", "small_utilisation_gain_min"):
        if figures[name] is None:
            reasons[name] = "small models are measured in full runs only"
    finish("memory_pool", options.quick, figures, reasons, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
