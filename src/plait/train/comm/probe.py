"""Measures the network between members and how long each way of an all-reduce takes on it, in five to ten seconds.

All members take part at the same time, and end with the same numbers bit for bit: everything that somebody measured is
summed over all.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.train.collectives.mesh import Mesh, MeshWork
from plait.train.collectives.plan import direct
from plait.train.collectives.planned import PlannedSum, Route, StageTimes
from plait.train.comm.planner import Candidate, Network, Table, candidates
from plait.train.comm.tuning import read
from plait.train.compression import codec as codec_of
from plait.train.compression import warm_up
from plait.train.compression.message import message_layout

if TYPE_CHECKING:
    from plait.train.comm.engine import CommEngine

_SMALL_VALUES = 256
_LARGE_VALUES = 2**14
_LARGER_VALUES = 2**18
_FAST_S = 0.003
"""Links that carry the large message faster than this are measured with the larger one."""

_STREAM_S = 0.25
_LEAST_STREAM = 30
_WINDOW = 4
_TOGETHER_S = 0.2
_MOST_SUMS = 100
_BATCH_S = 0.05
_MOST_IN_BATCH = 50
_BATCHES = 3
_CODEC_VALUES = 2**18
TRIAL_BYTES = (2**14, 2**17, 2**20, 2**22, 2**24)
LONGEST_TRIAL_S = 0.2
"""Trials that should take longer are left to the formula, except the first two of each candidate."""

HOPELESS = 3.0
FIXED_S = 0.03
"""What the formula takes to be so many times slower than the best, and this much more, is not tried."""


def measured(engine: "CommEngine", codecs: Sequence[str], saved: Path | None = None) -> Table:
    """Measures the network and tries every candidate; all members call it at the same time.

    Args:
        engine: Idle.
        codecs: Those that may be used besides exact ways.
        saved: Where rank 0 may find a table of an earlier run.
    """
    if not set(codecs) - {"fp32"}:
        engine.mesh.steady()
    network = _network(engine, codecs)
    text = _told(engine, saved.read_bytes() if engine.rank == 0 and saved is not None and saved.exists() else b"")
    earlier = read(text.decode(), network, candidates(network, codecs)) if text else None
    if earlier is not None:
        return earlier
    ratios = {name: codec_of(name).wire_bytes(2**20) / 2**22 for name in (*codecs, "fp32")}
    table = Table(network, candidates(network, codecs), ratios)
    for (candidate, size_bytes), seconds in _trials_s(engine, table).items():
        table.measured_s.setdefault(candidate, []).append((size_bytes, seconds))
    table.fix()
    return table


def _trials(table: Table) -> Iterator[tuple[Candidate, int]]:
    """Yields what is worth trying, by size: everything small, and of the large what has a chance."""
    for size_bytes in TRIAL_BYTES:
        best_s = min(table.formula_s(c, size_bytes) for c in table.candidates)
        most_s = min(LONGEST_TRIAL_S, HOPELESS * best_s + FIXED_S)
        for candidate in table.candidates:
            if size_bytes <= TRIAL_BYTES[1] or table.formula_s(candidate, size_bytes) <= most_s:
                yield candidate, size_bytes


def _trials_s(engine: "CommEngine", table: Table) -> dict[tuple[Candidate, int], float]:
    """Returns the seconds of one sum, of several on end, by candidate and size: the median of some batches.

    The sums before them wake threads. A batch lasts long enough to outlive what a rate limit lets through at once. All
    candidates and sizes take turns, so that what disturbs the machine for a while disturbs no median.
    """
    values = {size_bytes: torch.ones(size_bytes // 4) for size_bytes in TRIAL_BYTES}
    counts = {}
    for candidate, size_bytes in _trials(table):
        first_s = min(_batch_s(engine, table, candidate, values[size_bytes], 1) for _ in range(2))
        counts[candidate, size_bytes] = max(1, min(_MOST_IN_BATCH, round(_BATCH_S / first_s)))
    times: dict[tuple[Candidate, int], list[float]] = {trial: [] for trial in counts}
    for _ in range(_BATCHES):
        for (candidate, size_bytes), count in counts.items():
            ones = values[size_bytes].fill_(1.0)
            times[candidate, size_bytes].append(_batch_s(engine, table, candidate, ones, count))
    return {trial: median(seconds) for trial, seconds in times.items()}


def _batch_s(engine: "CommEngine", table: Table, candidate: Candidate, values: Tensor, count: int) -> float:
    """Returns the seconds of each of some sums, one after the other; the same on all members."""
    _meet(engine)
    start_s = time.perf_counter()
    for _ in range(count):
        engine.all_reduce_by(values, candidate, table).wait()
    took_s = (time.perf_counter() - start_s) / count
    return float(_mean(engine, torch.tensor([took_s]))[0])


def _network(engine: "CommEngine", codecs: Sequence[str]) -> Network:
    """Measures latency and bandwidth by pairs of islands, and codecs on this host."""
    island_of = engine.island_of
    number = max(island_of) + 1
    members = [[m for m, island in enumerate(island_of) if island == i] for i in range(number)]
    latency_s, rate = torch.zeros(number, number), torch.zeros(number, number)
    together = torch.zeros(number, number)
    insides = [(island[0], island[1]) for island in members if len(island) > 1]
    rounds = [insides, *([(members[i][0], members[j][0]) for i, j in round_] for round_ in tournament(number))]
    for pairs in rounds:
        _measure(engine, pairs, latency_s, rate)
    for round_ in tournament(number):
        lanes = [pair for i, j in round_ for pair in zip(members[i], members[j], strict=False)]
        if len(lanes) > len(round_):
            _measure_together(engine, lanes, together)
    latency_s, rate, together = (_sum(engine, each) for each in (latency_s, rate, together))
    for i, island in enumerate(members):
        if len(island) < 2:  # nobody to talk to inside
            latency_s[i, i], rate[i, i] = 0.0, torch.inf
    best = torch.maximum(rate.clone().fill_diagonal_(0.0), together).amax(1)
    uplink = [float(b) if float(b) > 0 else float(rate[i, i]) for i, b in enumerate(best)]
    gamma = _mean(engine, torch.tensor([_codec_s_per_byte(name) for name in codecs]))
    return Network(
        island_of=island_of,
        latency_s=tuple(map(tuple, latency_s.tolist())),
        bytes_per_s=tuple(map(tuple, rate.tolist())),
        uplink_bytes_per_s=tuple(uplink),
        codec_s_per_byte=dict(zip(codecs, gamma.tolist(), strict=True)),
    )


def _measure(engine: "CommEngine", pairs: Sequence[tuple[int, int]], latency_s: Tensor, rate: Tensor) -> None:
    """Lets pairs exchange, each as if it were alone; the lower member of each writes down what it found."""
    mine = next((pair for pair in pairs if engine.rank in pair), None)
    if mine is not None:
        _pair_s(engine, mine, torch.ones(_SMALL_VALUES))
        small_s = min(_pair_s(engine, mine, torch.ones(_SMALL_VALUES)) for _ in range(5))
        bytes_per_s = _pair_rate(engine, mine)
        if engine.rank == mine[0]:
            _note(engine, rate, mine, bytes_per_s)
            _note(engine, latency_s, mine, small_s / 2.0)
    _meet(engine)


def _measure_together(engine: "CommEngine", lanes: Sequence[tuple[int, int]], rate: Tensor) -> None:
    """Lets several pairs of the same islands exchange at once, equally much from one moment on; adds up their rates.

    What counts ends with the first of those that share links: the others are faster from then on.
    """
    mine = next((pair for pair in lanes if engine.rank in pair), None)
    values = torch.zeros(_LARGE_VALUES)
    first_s = torch.tensor([0.0 if mine is None else settled_s(_stream(engine, mine, values, _LEAST_STREAM))])
    count = _count_for(_TOGETHER_S, float(_sum(engine, first_s)[0]) / (2 * len(lanes)))
    ends_s = torch.zeros(len(lanes))
    times: list[float] = []
    if mine is not None:
        start_s = time.perf_counter()
        times = [at_s - start_s for at_s in _stream(engine, mine, values, count)]
        if engine.rank == mine[0]:
            ends_s[lanes.index(mine)] = times[-1]
    ends_s = _sum(engine, ends_s)
    if mine is not None and engine.rank == mine[0]:
        beside = [at for at, lane in enumerate(lanes) if _islands(engine, lane) == _islands(engine, mine)]
        _note(engine, rate, mine, values.nbytes * shared_rate(times, float(ends_s[beside].min())))


def _islands(engine: "CommEngine", pair: tuple[int, int]) -> set[int]:
    return {engine.island_of[member] for member in pair}


def shared_rate(times_s: Sequence[float], end_s: float) -> float:
    """Returns how many sums a second of a stream were done until ``end_s``, without the first third, its burst."""
    start_s = end_s / 3.0
    return sum(start_s < at_s <= end_s for at_s in times_s) / (end_s - start_s)


def _pair_rate(engine: "CommEngine", pair: tuple[int, int]) -> float:
    """Returns the bytes a second that two members send each other, both at once, when bursts are over."""
    values = torch.zeros(_LARGE_VALUES)
    each_s = _agreed(engine, pair, settled_s(_stream(engine, pair, values, _LEAST_STREAM)))
    if each_s < _FAST_S:  # too short to tell
        values, each_s = torch.zeros(_LARGER_VALUES), each_s * _LARGER_VALUES / _LARGE_VALUES
        times = _stream(engine, pair, values, _count_for(_STREAM_S, each_s))
        each_s = _agreed(engine, pair, settled_s(times))
    return values.nbytes / each_s


def _count_for(stream_s: float, each_s: float) -> int:
    return max(_LEAST_STREAM, min(_MOST_SUMS, round(stream_s / max(each_s, 1e-4))))


def _stream(engine: "CommEngine", pair: tuple[int, int], values: Tensor, count: int) -> list[float]:
    """Sums zeros, a few at any time under way; returns the moments when they were done."""
    times = []
    under_way: deque[torch.futures.Future[Tensor]] = deque()
    for number in range(count + _WINDOW):
        if number < count:
            under_way.append(_pair_sum(engine, pair, values))  # zeros may share their memory
        if number >= _WINDOW:
            under_way.popleft().wait()
            times.append(time.perf_counter())
    return times


def settled_s(times: Sequence[float]) -> float:
    """Returns the seconds between two sums of a stream, with as much under way at the first moment as at the last.

    A rate limit lets a burst through at first, so what counts begins after a third.
    """
    start, end = len(times) // 3, len(times) - 1 - _WINDOW
    return (times[end] - times[start]) / (end - start)


def _agreed(engine: "CommEngine", pair: tuple[int, int], seconds: float) -> float:
    """Returns the mean of what two members measured: they have to go on alike."""
    both = torch.tensor([seconds])
    _pair_s(engine, pair, both)
    return float(both[0]) / 2.0


def _note(engine: "CommEngine", into: Tensor, pair: tuple[int, int], value: float) -> None:
    i, j = (engine.island_of[member] for member in pair)
    into[i, j] += value
    if i != j:
        into[j, i] += value


def _pair_s(engine: "CommEngine", pair: tuple[int, int], values: Tensor) -> float:
    """Returns the seconds that :func:`_pair_sum` takes."""
    start_s = time.perf_counter()
    _pair_sum(engine, pair, values).wait()
    return time.perf_counter() - start_s


def _pair_sum(engine: "CommEngine", pair: tuple[int, int], values: Tensor) -> torch.futures.Future[Tensor]:
    """Starts to sum values over two members in place, each of which sends all of them once."""
    route = Route(direct(2, len(values)), message_layout([(len(values), 1)]), codec_of("fp32"))

    def begin(mesh: Mesh, times: StageTimes) -> MeshWork:
        return mesh.start(lambda key, ranks: PlannedSum(mesh, key, ranks, values, route, times=times), pair)

    return engine.submit(begin, lambda _: values, values.device)


def _codec_s_per_byte(name: str) -> float:
    """Returns the processor's seconds for each byte of fp32 that is encoded and decoded."""
    codec = codec_of(name)
    warm_up(codec)
    values, error, out = torch.randn(_CODEC_VALUES), torch.zeros(_CODEC_VALUES), torch.zeros(_CODEC_VALUES)
    data = torch.zeros(codec.wire_bytes(_CODEC_VALUES), dtype=torch.uint8)
    times = []
    for _ in range(3):
        start_s = time.thread_time()
        codec.encode(values, error, error, data)
        codec.decode(data, out, add=True)
        times.append(time.thread_time() - start_s)
    return min(times) / (4.0 * _CODEC_VALUES)


def tournament(number: int) -> Iterator[list[tuple[int, int]]]:
    """Yields rounds in which everybody meets somebody else, until all have met (the circle method)."""
    seats = list(range(number)) + ([-1] if number % 2 else [])
    for _ in range(len(seats) - 1 if number > 1 else 0):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in pairs if min(a, b) >= 0]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _meet(engine: "CommEngine") -> None:
    engine.all_reduce(torch.zeros(1), shape="direct").wait()


def _sum(engine: "CommEngine", values: Tensor) -> Tensor:
    return engine.all_reduce(values.clone(), shape="direct").wait()


def _told(engine: "CommEngine", data: bytes) -> bytes:
    """Returns rank 0's bytes on all members."""
    length = int(_sum(engine, torch.tensor([float(len(data))], dtype=torch.float32))[0])
    text = torch.zeros(length)
    if engine.rank == 0 and length:
        text.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return bytes(_sum(engine, text).to(torch.uint8).tolist()) if length else b""


def _mean(engine: "CommEngine", values: Tensor) -> Tensor:
    return _sum(engine, values) / engine.size
