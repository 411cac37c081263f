"""Ranks that sum tensors on emulated hosts, for the benchmarks of all-reduces."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from fleet import HERE, QUIET_THREADS, Control, clean_end, python_path
from report import BenchmarkFailed
from testbed import Host, Testbed

MBIT = 1e6 / 8
MOST_ON_END = 50
"""Sums of ones on end, each of which multiplies by the number of ranks: exact in fp32."""


class SumFleet:
    """One process a rank; ``places`` says on which host each of them is."""

    def __init__(self, bed: Testbed, directory: Path, places: Sequence[str], bad_order: Sequence[int] = ()) -> None:
        self.bed = bed
        self.places = tuple(places)
        self._control = Control(directory, "sums")
        self._names = [f"rank-{rank}" for rank in range(len(places))]
        self._log = directory / "rank-0.log"
        for rank, (name, host) in enumerate(zip(self._names, places, strict=True)):
            environment = {
                **os.environ,
                **QUIET_THREADS,
                "PYTHONPATH": python_path(),
                "GLOO_SOCKET_IFNAME": "eth0",
                "MASTER_ADDR": bed.address(places[0]),
                "MASTER_PORT": str(bed.ports(places[0])[0]),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(places)),
                "BENCH_NAME": name,
                "BENCH_CONTROL": str(self._control.path),
                "BENCH_BAD_ORDER": ",".join(map(str, bad_order)),
            }
            log = (directory / f"{name}.log").open("wb")
            words = [sys.executable, str(HERE / "workers" / "sum_rank.py")]
            bed.popen(host, words, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._control.accept(self._names, [], 240.0)
            for name in self._names:
                self._control.hear(name, [], 180.0)
        except BenchmarkFailed as failure:
            raise BenchmarkFailed(f"{failure}\n{self._tail()}") from failure

    def _tail(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def ask(self, **order: object) -> Sequence[dict[str, Any]]:
        """Gives all ranks an order; returns their answers by rank."""
        try:
            answers = self._control.ask(dict.fromkeys(self._names, order), [], 300.0)
        except BenchmarkFailed as failure:
            raise BenchmarkFailed(f"{failure}\n{self._tail()}") from failure
        return [answers[name] for name in self._names]

    def sum_s(self, way: str, size_bytes: int, count: int = 1) -> tuple[float, float]:
        """Returns seconds of one all-reduce of several on end, and the bytes that its busiest host has sent."""
        told = self.ask(do="sum", way=way, bytes=size_bytes, count=count)
        span_s = max(a["end_s"] for a in told) - min(a["start_s"] for a in told)
        return span_s / count, max(a["sent_bytes"] for a in told) / count

    def goodput_bytes_per_s(self, sender: int, receiver: int) -> float:
        """Returns what one plain connection carries from one rank to another."""
        host = self.places[receiver]
        port = self.bed.ports(host)[0] + 500
        order = {"do": "goodput", "from": sender, "to": receiver, "address": self.bed.address(host), "port": port}
        return float(self.ask(**order)[receiver]["bytes_per_s"])

    def in_turn(
        self,
        ways: Sequence[str],
        size_bytes: int,
        rounds: int,
        few: Mapping[str, int] | None = None,
        stretch_s: float = 0.0,
    ) -> dict[str, tuple[list[float], float]]:
        """Runs all ways in rounds, their order rotating; returns seconds and median bytes sent by way.

        ``few`` bounds the rounds of ways that take long; what takes less than ``stretch_s`` is done several times on
        end in each round.
        """
        count = dict.fromkeys(ways, 1)
        for way in ways:  # kernels are compiled and connections opened before anything counts
            self.sum_s(way, 65_536)
            if stretch_s:
                count[way] = max(1, min(MOST_ON_END, round(stretch_s / self.sum_s(way, size_bytes)[0])))
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        sent: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(rounds):
            for place in range(len(ways)):
                way = ways[(turn + place) % len(ways)]
                if turn < (few or {}).get(way, rounds):
                    taken_s, taken_bytes = self.sum_s(way, size_bytes, count[way])
                    seconds[way].append(taken_s)
                    sent[way].append(taken_bytes)
        return {way: (seconds[way], median(sent[way])) for way in ways}


@contextmanager
def fleet_on(hosts: Sequence[Host], places: Sequence[str], bad_order: Sequence[int] = ()) -> Iterator[SumFleet]:
    """Makes hosts and ranks; ends both."""
    with clean_end() as directory, Testbed(hosts) as bed:
        for limitation in bed.limitations:
            print(limitation)
        yield SumFleet(bed, directory, places, bad_order)
