"""The same faults under torchft and under torchrun elastic."""

import json
import os
import random
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from fault_trial import GLOBAL_BATCH, MEMBERS, STEP_S
from fleet import (
    QUIET_THREADS,
    WORKERS,
    Nursery,
    Ports,
    Worker,
    python_path,
    signal_session,
    tails,
    wait_for,
)
from report import BenchmarkFailed
from step_records import Delay, delay, longest_gap_s, normal_step_s, read

PEER_STEPS = 100_000
TORCHFT_SETTINGS = {
    "defaults": {"BENCH_GROUP_TIMEOUT_S": "5", "BENCH_HEARTBEAT_TIMEOUT_MS": "5000"},
    "tuned, 1 s": {"BENCH_GROUP_TIMEOUT_S": "1", "BENCH_HEARTBEAT_TIMEOUT_MS": "1000"},
}


@dataclass(frozen=True)
class PeerOutcome:
    """Seconds from the fault to the first new step, and beyond the running step; None: not within the deadline."""

    since_fault_s: float | None
    beyond_s: float | None
    redone: int = 0
    join_gap_s: float | None = None
    note: str = ""


def has_module(python: str, module: str) -> str:
    """Returns the version of a package that ``python`` can import, or an empty text."""
    code = (
        "import importlib.metadata as m, importlib.util as u, sys\n"
        "found = u.find_spec(sys.argv[1])\n"
        "names = m.packages_distributions().get(sys.argv[1], [])\n"
        "print((m.version(names[0]) if names else 'unknown') if found else '')"
    )
    done = subprocess.run([python, "-c", code, module], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _common(batch: int) -> dict[str, str]:
    return {
        "BENCH_BATCH": str(batch),
        "BENCH_STEPS_TOTAL": str(PEER_STEPS),
        "BENCH_SAMPLE_S": str(STEP_S / batch),
        "GLOO_SOCKET_IFNAME": "lo",
    }


class TorchftTrial:
    """Four replica groups of one worker each, and a lighthouse."""

    def __init__(self, nursery: Nursery, directory: Path, settings: dict[str, str]) -> None:
        directory.mkdir()
        self._nursery = nursery
        self._directory = directory
        address = directory / "lighthouse"
        environment = {**settings, "BENCH_ADDRESS_FILE": str(address), "BENCH_JOIN_TIMEOUT_MS": "60000"}
        log = directory / "lighthouse.log"
        self.all = [nursery.spawn(f"{directory.name}-lighthouse", "torchft_lighthouse.py", environment, log)]
        if not wait_for(address.exists, 30.0):
            raise BenchmarkFailed(f"no lighthouse\n{self.all[0].log_tail()}")
        self._environment = {
            **_common(GLOBAL_BATCH // MEMBERS),
            **settings,
            "BENCH_LIGHTHOUSE": address.read_text(encoding="utf-8"),
        }
        self.replicas = [self.start(index) for index in range(MEMBERS)]

    def start(self, index: int) -> Worker:
        name = f"{self._directory.name}-r{index}"
        environment = {**self._environment, "BENCH_NAME": f"r{index}", "BENCH_STEPS": str(self.steps(index))}
        worker = self._nursery.spawn(name, "recovery_torchft.py", environment, self._directory / f"r{index}.log")
        self.all.append(worker)
        return worker

    def steps(self, index: int) -> Path:
        return self._directory / f"r{index}.steps"


def run_torchft(
    nursery: Nursery, directory: Path, settings: str, *, kind: str, victim: int, chance: random.Random
) -> PeerOutcome:
    """Hits one of four replicas at a random instant; after a kill a new replica joins in its place."""
    trial = TorchftTrial(nursery, directory, TORCHFT_SETTINGS[settings])
    survivors = [trial.steps(index) for index in range(MEMBERS) if index != victim]
    try:
        started = wait_for(lambda: all(_full_steps(trial.steps(index)) >= 12 for index in range(MEMBERS)), 60.0)
        if not started:
            raise BenchmarkFailed(f"torchft did not start\n{tails(trial.all)}")
        time.sleep(chance.uniform(0.0, 1.1 * STEP_S))
        at_s = time.monotonic()
        signal_session(trial.replicas[victim], SIGKILL if kind == "kill" else SIGSTOP)

        def found_delay() -> Delay | None:
            return delay([read(path) for path in survivors], read(trial.steps(victim)), at_s)

        wait_for(lambda: found_delay() is not None, 30.0)
        found = found_delay()
        if found is None:
            return PeerOutcome(None, None, note="no new step in 30 s")
        gap_s = _torchft_join(trial, survivors, victim + MEMBERS) if kind == "kill" else None
        return PeerOutcome(found.since_fault_s, found.beyond_s, join_gap_s=gap_s)
    finally:
        nursery.end(trial.all)


def _full_steps(path: Path) -> int:
    return sum(commit.world == MEMBERS for commit in read(path).commits)


def _torchft_join(trial: TorchftTrial, survivors: list[Path], index: int) -> float | None:
    time.sleep(5 * STEP_S)
    spawned_at_s = time.monotonic()
    trial.start(index)
    if not wait_for(lambda: len(read(trial.steps(index)).commits) >= 2, 30.0):
        return None
    time.sleep(2 * STEP_S)
    records = [read(path) for path in survivors]
    joined_at_s = read(trial.steps(index)).commits[1].at_s
    return longest_gap_s(records, spawned_at_s, joined_at_s) - normal_step_s(records, spawned_at_s, last=4)


TORCHRUN_SETTINGS: dict[str, tuple[dict[str, str], list[str]]] = {
    "defaults": ({}, []),
    "tuned": (
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        ["--monitor-interval=0.1", "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1"],
    ),
}


class TorchrunTrial:
    """Four elastic agents with one worker each, as four hosts would run them."""

    def __init__(self, python: str, directory: Path, ports: Ports, settings: str) -> None:
        directory.mkdir()
        self._directory = directory
        extra, options = TORCHRUN_SETTINGS[settings]
        environment = {
            **os.environ,
            **QUIET_THREADS,
            **_common(GLOBAL_BATCH // MEMBERS),
            **extra,
            "PYTHONPATH": python_path(),
            "BENCH_CHECKPOINT": str(directory / "checkpoint.pt"),
        }
        port = ports.pair()
        self.agents = []
        for index in range(MEMBERS):
            command = [python, "-m", "torch.distributed.run", f"--nnodes=2:{MEMBERS}", "--nproc-per-node=1"]
            command += ["--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=b"]
            command += ["--local-addr=127.0.0.1", *options, str(WORKERS / "recovery_torchrun.py")]
            with (directory / f"a{index}.log").open("wb") as log:
                agent = subprocess.Popen(
                    command,
                    env=environment | {"BENCH_STEPS": str(self.steps(index))},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.agents.append(agent)

    def steps(self, index: int) -> Path:
        return self._directory / f"a{index}.steps"

    def worker_pid(self, index: int) -> int:
        """Returns the process of the worker that agent ``index`` started last."""
        lines = self.steps(index).read_text(encoding="utf-8").split("\n")[:-1]
        return int([row for row in map(json.loads, lines) if row["event"] == "process"][-1]["pid"])

    def end(self) -> None:
        pids = []
        for index in range(MEMBERS):
            with suppress(OSError, IndexError, ValueError):
                pids.append(self.worker_pid(index))
        for agent in self.agents:
            with suppress(ProcessLookupError):
                os.killpg(agent.pid, SIGKILL)
            agent.wait()
        for pid in pids:  # torchrun gives each worker a session of its own; they die with their agent, this is for sure
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)

    def tail(self) -> str:
        log = self._directory / "a0.log"
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def run_torchrun(
    python: str, directory: Path, ports: Ports, settings: str, *, victim: int, chance: random.Random
) -> PeerOutcome:
    """Kills the worker of one of four agents; the time ends with the first step of the restarted group."""
    trial = TorchrunTrial(python, directory, ports, settings)
    paths = [trial.steps(index) for index in range(MEMBERS)]
    try:
        if not wait_for(lambda: all(read(path).last_step >= 14 for path in paths), 120.0, 0.05):
            raise BenchmarkFailed(f"torchrun did not start\n{trial.tail()}")
        time.sleep(chance.uniform(0.0, 1.1 * STEP_S))
        at_s = time.monotonic()
        normal_s = normal_step_s([read(path) for path in paths], at_s)
        last = max(read(path).last_step for path in paths)
        os.kill(trial.worker_pid(victim), SIGKILL)

        def first_new() -> tuple[float, int] | None:
            commits = [
                (commit.at_s, commit.step)
                for record in map(read, paths)
                for commit in record.commits
                if any(at_s < started < commit.at_s for started in record.started_at_s)
            ]
            return min(commits, default=None)

        def over() -> bool:
            return first_new() is not None or all(agent.poll() is not None for agent in trial.agents)

        wait_for(over, 75.0, 0.05)
        found = first_new()
        if found is None:
            gone = all(agent.poll() is not None for agent in trial.agents)
            return PeerOutcome(None, None, note="all agents gave up" if gone else "no new step in 75 s")
        return PeerOutcome(found[0] - at_s, found[0] - at_s - normal_s, redone=last - found[1] + 1)
    finally:
        trial.end()
