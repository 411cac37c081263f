"""Groups of real workers: started, watched, and ended by process number; nothing of theirs may stay behind."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60.0
WORKER = Path(__file__).with_name("worker.py")


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition; the test fails where it does not come true."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {DEADLINE_S:g} s for {what}"
        time.sleep(0.02)


def free_port() -> int:
    """Returns a port that is free now and that no outgoing connection will take."""
    while True:
        port = random.randint(15000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Nursery:
    """The process that forks workers."""

    def __init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PLAIT_", "TORCHELASTIC_"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )

    def ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._process.stdout.close()


@dataclass
class Worker:
    """One started worker."""

    member: str
    pid: int
    log: Path
    code: int | None = None


@dataclass
class Fleet:
    """The workers of one group, in a directory of their own."""

    nursery: Nursery
    folder: Path
    scenario: dict[str, Any]
    workers: dict[str, Worker] = field(default_factory=dict)
    seeds: str = ""

    def start(self, members: Sequence[str], **environment: str) -> None:
        """Starts the first members of a group; a single one without seeds is alone."""
        addresses = {member: f"127.0.0.1:{free_port()}" for member in members}
        self.seeds = ",".join(f"{m}@{a}" for m, a in addresses.items()) if len(members) > 1 else ""
        for member in members:
            self._start_one(member, addresses[member], environment)

    def join(self, member: str, **environment: str) -> None:
        """Starts a worker that joins those who run."""
        self._start_one(member, f"127.0.0.1:{free_port()}", {"PLAIT_JOIN": "1", **environment})

    def _start_one(self, member: str, address: str, environment: Mapping[str, str]) -> None:
        log = self.folder / f"{member}.log"
        place = {"PLAIT_MEMBER": member, "PLAIT_LISTEN": address, "PLAIT_RUN_DIR": str(self.folder)}
        if self.seeds:
            place["PLAIT_SEEDS"] = self.seeds
        kinds = self.scenario.get("kinds", {})
        place["PLAIT_ACCELERATOR_TYPE"] = kinds.get(member, "CPU")
        place["PLAIT_ISLAND"] = self.scenario.get("islands", {}).get(member, "")
        order = {"scenario": self.scenario, "environment": {**place, **environment}, "log": str(log)}
        self.workers[member] = Worker(member, self.nursery.ask(order), log)

    def poll(self) -> None:
        """Takes in which workers have ended."""
        waiting = [worker for worker in self.workers.values() if worker.code is None]
        codes = self.nursery.ask({"wait": [worker.pid for worker in waiting]})
        for worker, code in zip(waiting, codes, strict=True):
            worker.code = code

    def codes(self) -> dict[str, int | None]:
        """Waits for the end of all workers; returns how each ended."""

        def all_over() -> bool:
            self.poll()
            return all(worker.code is not None for worker in self.workers.values())

        self._until(all_over, "the end of all workers")
        return {member: worker.code for member, worker in self.workers.items()}

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition; where it does not come true, it is seen why."""
        try:
            until(condition, what)
        except AssertionError:
            self._show()
            raise

    def _show(self) -> None:
        """Prints where the workers are that have not ended, and what all have printed."""
        self.poll()
        for worker in self.workers.values():
            if worker.code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGUSR1)
        time.sleep(0.5)  # for the printing; the test has failed already
        for member, worker in self.workers.items():
            last = [row["step"] for row in self.rows(member, "step")][-1:]
            sys.stderr.write(f"-- {member}: ended {worker.code}, last step {last}\n{self.log(member)}\n")

    def results(self, *members: str) -> list[dict[str, Any]]:
        """Waits for the end; the members named must have ended well, and what they saw is returned."""
        codes = self.codes()
        for member in members:
            assert codes[member] == 0, f"{member} ended with {codes[member]}:\n{self.log(member)}"
        return [json.loads((self.folder / f"{member}.json").read_text()) for member in members]

    def log(self, member: str) -> str:
        """Returns what a worker has printed."""
        path = self.workers[member].log
        return path.read_text() if path.exists() else ""

    def rows(self, member: str, kind: str) -> list[dict[str, Any]]:
        """Returns the rows of one kind in a member's timeline, so far."""
        path = self.folder / "timeline" / f"{member}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [row for line in lines if (row := json.loads(line))["kind"] == kind]

    def wait_for_step(self, member: str, step: int) -> None:
        """Waits until a member has committed a step."""
        self._until(lambda: any(row["step"] >= step for row in self.rows(member, "step")), f"step {step} of {member}")

    def wait_for_leave(self, member: str, gone: str) -> None:
        """Waits until work has gone on at a member after another one was lost or left."""
        self._until(
            lambda: any(gone in row["lost"] for row in self.rows(member, "membership")), f"{member} without {gone}"
        )

    def wardens(self) -> list[int]:
        """Returns the wardens of this group's workers that still live."""
        mark = f"PLAIT_RUN_DIR={self.folder}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                is_warden = b"plait.train.membership.warden" in (entry / "cmdline").read_bytes()
                if is_warden and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        """Ends what still runs; the test fails where a warden outlives its worker."""
        self.poll()
        for worker in self.workers.values():
            if worker.code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
        until(self._all_reaped, "the end of killed workers")
        until(lambda: not self.wardens(), "the end of the wardens")

    def _all_reaped(self) -> bool:
        self.poll()
        return all(worker.code is not None for worker in self.workers.values())


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """One nursery for all tests: PyTorch is imported once."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def fleet_of(nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes groups; what of them still runs at the end of the test is ended."""
    fleets: list[Fleet] = []

    def make(**scenario: Any) -> Fleet:
        folder = tmp_path / f"group{len(fleets)}"
        folder.mkdir()
        fleets.append(Fleet(nursery, folder, scenario))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.end()


@pytest.fixture(scope="session")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Returns what one process sees that runs a scenario alone; each scenario is run once."""
    known: dict[str, dict[str, Any]] = {}

    def run(**scenario: Any) -> dict[str, Any]:
        key = json.dumps(scenario, sort_keys=True)
        if key not in known:
            fleet = Fleet(nursery, tmp_path_factory.mktemp("alone"), scenario)
            fleet.start(["w0"])
            try:
                known[key] = fleet.results("w0")[0]
            finally:
                fleet.end()
        return known[key]

    return run
