"""Four ranks behind slow links: DDP, its bf16 and PowerSGD hooks, and Plait's 1-bit Adam, steps timed in turn.

Each rank is a host of its own (a network namespace) whose link is shaped in both directions. All methods run in one
go: blocks of a few steps take turns, the order rotates from round to round, medians over rounds count. 1-bit Adam is
measured in its compressed phase; what a whole run sends, warm-up included, is ``comm_traffic.py``'s figure. PowerSGD
(rank 1) gets one bucket, since it hangs over gloo with several.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from fleet import HERE, QUIET_THREADS, Control, clean_end, plait_environment, python_path
from lanes import spread
from report import BenchmarkFailed, run
from testbed import Host, Testbed

WORLD = 4
METHODS = {
    "ddp": "DDP, fp32",
    "bf16": "DDP, bf16 hook",
    "powersgd": "DDP, PowerSGD rank 1",
    "plait": "Plait, 1-bit Adam",
}
MBIT = 1e6 / 8
RATES: dict[str, float | None] = {"100m": 100 * MBIT, "1g": 1000 * MBIT, "unshaped": None}
WARM_UP_STEPS = {"plait": 5, "powersgd": 4}
Seconds = dict[str, list[float]]


class Lane:
    """The ranks of one method, each running a worker's script."""

    def __init__(self, bed: Testbed, directory: Path, method: str, number: int, script: str = "comm_rank.py") -> None:
        self._control = Control(directory, method)
        self._names = [f"{method}-{rank}" for rank in range(WORLD)]
        seeds = {
            f"w{rank}": f"{bed.address(f'h{rank}')}:{bed.ports(f'h{rank}')[0] + 10 * number}" for rank in range(WORLD)
        }
        for rank, name in enumerate(self._names):
            environment = {
                **os.environ,
                **QUIET_THREADS,
                **plait_environment(f"w{rank}", seeds[f"w{rank}"], seeds, directory / f"{method}-run"),
                "PYTHONPATH": python_path(),
                "GLOO_SOCKET_IFNAME": "eth0",
                "MASTER_ADDR": bed.address("h0"),
                "MASTER_PORT": str(bed.ports("h0")[0] + 10 * number + 5),
                "BENCH_METHOD": method,
                "BENCH_NAME": name,
                "BENCH_CONTROL": str(self._control.path),
            }
            log = (directory / f"{name}.log").open("wb")
            words = [sys.executable, str(HERE / "workers" / script)]
            bed.popen(f"h{rank}", words, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._directory = directory

    def wait_until_ready(self) -> None:
        try:
            self._control.accept(self._names, [], 240.0)
            for name in self._names:
                self._control.hear(name, [], 180.0)
        except BenchmarkFailed as failure:
            raise BenchmarkFailed(f"{failure}\n{self._log()}") from failure

    def _log(self) -> str:
        return (self._directory / f"{self._names[0]}.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def step_s(self, steps: int, **how: str) -> tuple[float, float]:
        """Returns seconds and bytes sent a rank, for one of ``steps`` steps; ``how`` goes to the ranks."""
        order = {"do": "run", "steps": steps, **how}
        try:
            answers = self._control.ask(dict.fromkeys(self._names, order), [], 300.0)
        except BenchmarkFailed as failure:
            raise BenchmarkFailed(f"{failure}\n{self._log()}") from failure
        told: Sequence[dict[str, Any]] = list(answers.values())
        span_s = max(a["end_s"] for a in told) - min(a["start_s"] for a in told)
        return span_s / steps, sum(a["sent_bytes"] for a in told) / WORLD / steps


@contextmanager
def lanes(bed: Testbed, directory: Path) -> Iterator[dict[str, Lane]]:
    made = {}
    for number, method in enumerate(METHODS):  # one after the other: each start is as much as the machine can do
        made[method] = Lane(bed, directory, method, number)
        made[method].wait_until_ready()
    yield made


def at_rate(made: dict[str, Lane], rounds: int, steps: int) -> tuple[Seconds, dict[str, float]]:
    """Returns seconds a step by method and round, and the bytes that a rank sends in one."""
    names = list(made)
    seconds: Seconds = {name: [] for name in names}
    sent: dict[str, float] = {}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            few = 1 if name in {"ddp", "bf16"} else steps
            taken_s, sent[name] = made[name].step_s(few)
            seconds[name].append(taken_s)
    return seconds, sent


def measure(quick: bool) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    ahead: list[float] = []
    with clean_end() as directory, Testbed([Host(name=f"h{rank}") for rank in range(WORLD)]) as bed:
        for limitation in bed.limitations:
            print(limitation)
        with lanes(bed, directory) as made:
            for name, lane in made.items():
                lane.step_s(WARM_UP_STEPS.get(name, 2))
            for rate, bytes_per_s in RATES.items():
                for rank in range(WORLD):
                    bed.reshape(f"h{rank}", bytes_per_s, bytes_per_s)
                slow = rate == "100m"
                rounds = (2 if slow else 3) if quick else (5 if slow else 9)
                seconds, sent = at_rate(made, rounds, 2 if quick else 4)
                print(f"\n{rate}: seconds a step, median [lowest .. highest]; MB sent a rank and step")
                for name, label in METHODS.items():
                    print(f"  {label:24s} {spread(seconds[name])}   {sent[name] / 1e6:8.2f}")
                middle = {name: median(values) for name, values in seconds.items()}
                ahead.append(middle["powersgd"] / middle["plait"])
                figures[f"ddp_over_plait_{rate}"] = middle["ddp"] / middle["plait"]
                figures[f"bf16_over_plait_{rate}"] = middle["bf16"] / middle["plait"]
                figures[f"powersgd_over_plait_{rate}"] = middle["powersgd"] / middle["plait"]
    figures["powersgd_over_plait_min"] = min(ahead)
    return figures


if __name__ == "__main__":
    raise SystemExit(run("comm_flat", __doc__, lambda options: measure(options.quick)))
