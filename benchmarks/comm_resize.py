"""What becomes of the loss of 1-bit Adam when its group changes: 4 -> 3 -> 4 members, and a restart on 3.

Three kinds of runs of one small task, over some seeds, all past the warm-up when something happens:

- undisturbed: four members from start to end;
- resized: at 40 % of the steps a member is asked to leave (SIGTERM), and as soon as it has, another one joins;
- restored: half of the steps by four members, the rest from the checkpoint by three.

What members owe after one-bit encodings is sent before a member leaves and before a state is saved. Printed are the
mean losses of tenths of the runs, and the loss of held-out samples at the end over that of the undisturbed run of the
same seed. The noise of that is what undisturbed runs of other seeds differ by. After each step all members that have
the state have the same momenta bit for bit, or the script fails. All members run on this host; times mean nothing.
"""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fleet import TORCH_MODULES, Nursery, Ports, Worker, clean_end, plait_environment, signal_worker, tails, wait_for
from report import BenchmarkFailed, run

FOUR = ("w0", "w1", "w2", "w3")
LEAVER, JOINER = "w2", "w4"
TASK = "perceptron"
STEPS, QUICK_STEPS = 1000, 120
SEEDS, QUICK_SEEDS = 5, 1
TIME_OUT_S = 900.0
KINDS = ("undisturbed", "resized", "restored")


@dataclass
class Bench:
    """What all runs share."""

    nursery: Nursery
    ports: Ports
    folder: Path
    steps: int


class Group:
    """The members of one run, all on this host."""

    def __init__(self, bench: Bench, name: str, told: Mapping[str, str]) -> None:
        self._bench, self._told = bench, dict(told)
        self._folder = bench.folder / name
        self._folder.mkdir()
        self._seeds: dict[str, str] = {}
        self._workers: dict[str, Worker] = {}

    def start(self, names: Sequence[str], *, joins: bool = False) -> None:
        addresses = {name: f"127.0.0.1:{self._bench.ports.pair()}" for name in names}
        if not joins:
            self._seeds = addresses
        for name in names:
            environment = {
                **plait_environment(name, addresses[name], self._seeds, self._folder, joins),
                **self._told,
                "BENCH_RESULT": str(self._folder / f"{name}.json"),
            }
            label = f"{self._folder.name}-{name}"
            log = self._folder / f"{name}.log"
            self._workers[name] = self._bench.nursery.spawn(label, "comm_member.py", environment, log)

    def rows(self, member: str, kind: str) -> list[dict[str, Any]]:
        """Returns the rows of a kind in a member's timeline, so far."""
        path = self._folder / "timeline" / f"{member}.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [row for line in lines if (row := json.loads(line))["kind"] == kind]

    def wait_for_step(self, step: int) -> None:
        self._wait(lambda: any(row["step"] >= step for row in self.rows("w0", "step")), f"step {step}")

    def lose(self, member: str) -> None:
        """Asks a member to leave, and waits until the others have gone on without it."""
        signal_worker(self._workers[member], signal.SIGTERM)
        self._wait(lambda: any(member in row["lost"] for row in self.rows("w0", "membership")), f"the end of {member}")

    def _wait(self, condition: Any, what: str) -> None:
        if not wait_for(condition, TIME_OUT_S, poll_s=0.05):
            raise BenchmarkFailed(f"waited {TIME_OUT_S:g} s for {what}\n{tails(list(self._workers.values()))}")

    def results(self, gone: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
        """Waits for the end; returns what those who stayed have written, whose momenta must be the same."""
        for name, worker in self._workers.items():
            if not worker.exited.wait(TIME_OUT_S) or worker.exit_code != 0:
                raise BenchmarkFailed(f"{name} ended with {worker.exit_code}\n{worker.log_tail()}")
        stayed = [name for name in self._workers if name not in gone]
        found = {name: json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8")) for name in stayed}
        first = found["w0"]["momenta"]
        for name, each in found.items():
            if not each["momenta"] or not each["momenta"].items() <= first.items():
                raise BenchmarkFailed(f"the momenta of {name} are not those of w0 after every step")
        return found


def one_run(bench: Bench, kind: str, seed: int) -> tuple[float, list[float]]:
    """Returns the loss of held-out samples at the end, and the losses of all steps."""
    steps = bench.steps
    told = {"BENCH_TASK": TASK, "BENCH_SEED": str(seed), "BENCH_STEPS": str(steps), "BENCH_UNTIL": str(steps)}
    if kind == "restored":
        told["BENCH_SAVE"] = str(bench.folder / f"saved{seed}")
        first = Group(bench, f"{kind}{seed}-first", {**told, "BENCH_UNTIL": str(steps // 2)})
        first.start(FOUR)
        before = first.results()["w0"]["losses"]
        second = Group(bench, f"{kind}{seed}-second", told)
        second.start(FOUR[:3])
        end = second.results()["w0"]
        return end["final"], _by_step({**before, **end["losses"]}, steps)
    group = Group(bench, f"{kind}{seed}", told)
    group.start(FOUR)
    if kind == "resized":
        group.wait_for_step(round(0.4 * steps))
        group.lose(LEAVER)
        group.start([JOINER], joins=True)
    end = group.results([LEAVER] if kind == "resized" else [])["w0"]
    if kind == "resized" and JOINER not in end["worked"]:
        raise BenchmarkFailed(f"the run was over before {JOINER} had a share")
    return end["final"], _by_step(end["losses"], steps)


def _by_step(losses: Mapping[str, float], steps: int) -> list[float]:
    if sorted(map(int, losses)) != list(range(steps)):
        raise BenchmarkFailed(f"{len(losses)} of {steps} steps have a loss")
    return [losses[str(step)] for step in range(steps)]


def measure(quick: bool, first_seed: int) -> dict[str, float | None]:
    steps, seeds = (QUICK_STEPS, QUICK_SEEDS) if quick else (STEPS, SEEDS)
    finals: dict[str, list[float]] = {kind: [] for kind in KINDS}
    curves: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        folder = stack.enter_context(clean_end())
        nursery = stack.enter_context(Nursery([*TORCH_MODULES, "plait.train.session", "sklearn.datasets"]))
        bench = Bench(nursery, Ports(), folder, steps)
        for seed in range(first_seed, first_seed + seeds + (1 if quick else 0)):
            for kind in KINDS if seed < first_seed + seeds else KINDS[:1]:
                final, losses = one_run(bench, kind, seed)
                finals[kind].append(final)
                curves[kind].append(losses)
                print(f"seed {seed}  {kind:12s} held-out loss {final:.4f}", flush=True)
    print(f"{'mean loss of each tenth':12s}")
    tenth = steps // 10
    for kind in KINDS:
        means = [fmean(fmean(c[i * tenth : (i + 1) * tenth]) for c in curves[kind][:seeds]) for i in range(10)]
        print(f"{kind:12s}" + "".join(f"{value:9.4f}" for value in means))
    mean = fmean(finals["undisturbed"])
    return {
        "resized_over_undisturbed_max": max(_ratios(finals["resized"], finals["undisturbed"])),
        "restored_over_undisturbed_max": max(_ratios(finals["restored"], finals["undisturbed"])),
        "noise_of_seeds_max": max(abs(final / mean - 1.0) for final in finals["undisturbed"]),
    }


def _ratios(disturbed: Sequence[float], undisturbed: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(disturbed, undisturbed, strict=False)]


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    raise SystemExit(run("comm_resize", __doc__, lambda options: measure(options.quick, options.seed)))
