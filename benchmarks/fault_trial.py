"""One trial of a fault under Plait: four members start, one is hit, a new one joins, and the epoch runs to its end."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

from fleet import (
    Nursery,
    Ports,
    Worker,
    plait_environment,
    signal_session,
    signal_worker,
    tails,
    wait_for,
)
from links import Hosts
from report import BenchmarkFailed
from step_records import (
    Delay,
    Records,
    delay,
    longest_gap_s,
    normal_step_s,
    read,
    steps_redone,
    steps_skipped,
    unequal_steps,
)

MEMBERS = 4
GLOBAL_BATCH = 96
MICRO_BATCHES = 24
STEP_S = 0.1
STEPS = 40
RECOVERY_DEADLINE_S = 30.0
POINTS = ("instant", "compute", "instant", "exchange", "commit")
"""Where the fault comes: at a random instant from outside, or at a point of the step from within the victim."""


@dataclass(frozen=True)
class Fault:
    """What is done to whom; ``kind`` is kill, freeze or link."""

    kind: str
    victim: int
    point: str
    step: int
    whole_session: bool

    @property
    def title(self) -> str:
        whom = f"w{self.victim}" + ("+children" if self.whole_session and self.point == "instant" else "")
        return f"{self.kind} {whom}@{self.step}:{self.point}"

    def as_environment(self) -> dict[str, str]:
        if self.point == "instant":
            return {}
        return {"PLAIT_FAULTS": f"{self.kind} w{self.victim}@{self.step}:{self.point}"}


@dataclass
class Outcome:
    """What one trial showed; ``problem`` is empty when all went as it must."""

    fault: Fault
    delay: Delay | None = None
    redone: int = 0
    skipped: int = 0
    lost: int = 0
    repeated: int = 0
    unequal: list[int] = field(default_factory=list)
    join_gap_s: float | None = None
    normal_s: float = 0.0
    victim_code: int | None = None
    problem: str = ""


def draw_fault(kind: str, seed: int, turn: int) -> Fault:
    """Draws a fault; the victim rotates over all ranks, the point over all points, the rest is random."""
    chance = random.Random(f"{kind} {seed} {turn}")
    point = "instant" if kind == "link" else POINTS[(turn + seed) % len(POINTS)]
    return Fault(kind, (turn + seed) % MEMBERS, point, chance.randrange(8, 14), chance.random() < 0.5)


class Trial:
    """The processes of one trial and what they have written so far."""

    def __init__(self, nursery: Nursery, directory: Path, ports: Ports, fault: Fault, hosts: Hosts | None) -> None:
        self.fault = fault
        self.workers: dict[str, Worker] = {}
        self._nursery = nursery
        self._directory = directory
        self._ports = ports
        self._hosts = hosts
        self._addresses: dict[str, str] = {}

    def start(self, seed: int) -> None:
        names = [f"w{index}" for index in range(MEMBERS)]
        self._addresses = {name: self._address(index) for index, name in enumerate(names)}
        for index, name in enumerate(names):
            self._spawn(name, index, self._addresses, seed, joins=False)

    def join(self, seed: int) -> Worker:
        """Starts a new member that knows the survivors."""
        name = f"w{MEMBERS}"
        living = {member: self._addresses[member] for member in self._addresses if member != self.victim}
        living[name] = self._address(MEMBERS)
        return self._spawn(name, MEMBERS, living, seed, joins=True)

    @property
    def victim(self) -> str:
        return f"w{self.fault.victim}"

    def records(self, names: Sequence[str]) -> list[Records]:
        return [read(self._steps_file(name)) for name in names]

    def delay(self, fault_at_s: float) -> Delay | None:
        return delay(self.records(self.survivors), self.records([self.victim])[0], fault_at_s)

    @property
    def survivors(self) -> list[str]:
        return [f"w{index}" for index in range(MEMBERS) if index != self.fault.victim]

    def _environment(self, name: str) -> dict[str, str]:  # noqa: ARG002 - for trials of other kinds
        """What one worker is told besides."""
        return {}

    def _steps_file(self, name: str) -> Path:
        return self._directory / f"{name}.steps"

    def _address(self, index: int) -> str:
        host = "127.0.0.1" if self._hosts is None else self._hosts.address(index)
        return f"{host}:{self._ports.pair()}"

    def _spawn(self, name: str, index: int, seeds: dict[str, str], seed: int, joins: bool) -> Worker:
        known = {member: address for member, address in seeds.items() if not joins or member != name}
        environment = {
            **plait_environment(name, seeds[name], known, self._directory / "run", joins),
            **self.fault.as_environment(),
            **self._environment(name),
            "BENCH_STEPS": str(self._steps_file(name)),
            "BENCH_BATCH": str(GLOBAL_BATCH),
            "BENCH_MICRO": str(MICRO_BATCHES),
            "BENCH_STEPS_TOTAL": str(STEPS),
            "BENCH_SAMPLE_S": str(STEP_S * MEMBERS / GLOBAL_BATCH),
            "BENCH_SEED": str(seed),
        }
        if self._hosts is not None:
            environment["GLOO_SOCKET_IFNAME"] = "eth0"
        namespace = None if self._hosts is None else self._hosts.namespace(index)
        log = self._directory / f"{name}.log"
        worker = self._launch(name, environment, log, namespace)
        self.workers[name] = worker
        return worker

    def _launch(self, name: str, environment: dict[str, str], log: Path, namespace: str | None) -> Worker:
        full_name = f"{self._directory.name}-{name}"
        return self._nursery.spawn(full_name, "recovery_plait.py", environment, log, namespace)

    def strike(self, chance: random.Random) -> float:
        """Waits for the moment, does the fault, and returns when it was, in monotonic seconds."""
        victim = self.workers[self.victim]
        if self.fault.point != "instant":
            struck = (
                (lambda: victim.exited_at_s is not None)
                if self.fault.kind == "kill"
                else (lambda: victim.stopped_at_s is not None)
            )
            self.require(wait_for(struck, 40.0, 0.002), "the fault point was not reached")
            at_s = victim.exited_at_s if self.fault.kind == "kill" else victim.stopped_at_s
            assert at_s is not None
            return at_s
        reached = wait_for(lambda: self.records(["w0"])[0].last_step >= self.fault.step, 40.0, 0.005)
        self.require(reached, f"step {self.fault.step} was not reached")
        time.sleep(chance.uniform(0.0, 1.1 * STEP_S))
        at_s = time.monotonic()
        if self.fault.kind == "link":
            assert self._hosts is not None
            self._hosts.pull(self.fault.victim)
        else:
            send = signal_session if self.fault.whole_session else signal_worker
            send(victim, SIGKILL if self.fault.kind == "kill" else SIGSTOP)
        return at_s

    def mend(self) -> None:
        """Lets the victim go on, which must not harm anyone."""
        if self.fault.kind == "freeze":
            signal_session(self.workers[self.victim], SIGCONT)
        elif self.fault.kind == "link" and self._hosts is not None:
            self._hosts.plug(self.fault.victim)

    def require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise BenchmarkFailed(f"{problem}\n{tails(list(self.workers.values()))}")


def run_trial(
    nursery: Nursery, directory: Path, ports: Ports, fault: Fault, *, seed: int, hosts: Hosts | None = None
) -> Outcome:
    """Runs one trial; a failure of the training is an outcome, not an exception."""
    directory.mkdir()
    trial = Trial(nursery, directory, ports, fault, hosts)
    outcome = Outcome(fault)
    try:
        trial.start(seed)
        _go_through(trial, outcome, seed)
    except BenchmarkFailed as failure:
        outcome.problem = str(failure)
    finally:
        if hosts is not None:
            hosts.plug(fault.victim)
        nursery.end(list(trial.workers.values()))
    return outcome


def _go_through(trial: Trial, outcome: Outcome, seed: int) -> None:
    chance = random.Random(f"instant {seed} {trial.fault.title}")
    fault_at_s = trial.strike(chance)
    survivors = trial.survivors

    def recovered() -> bool:
        return trial.delay(fault_at_s) is not None or any(trial.workers[name].exited.is_set() for name in survivors)

    wait_for(recovered, RECOVERY_DEADLINE_S)
    outcome.delay = trial.delay(fault_at_s)
    trial.require(outcome.delay is not None, "the survivors did not commit a new step")
    assert outcome.delay is not None
    resumed = outcome.delay.new_step
    wait_for(lambda: min(record.last_step for record in trial.records(survivors)) >= resumed + 3, 10.0)
    trial.mend()
    spawned_at_s = time.monotonic()
    joiner = trial.join(seed)
    members = [*survivors, "w4"]
    ended = wait_for(lambda: all(trial.workers[name].exited.is_set() for name in members), 45.0)
    outcome.problem = "" if ended else "not all members came to the end of the epoch"
    codes = {name: trial.workers[name].exit_code for name in members}
    if ended and any(codes.values()):
        outcome.problem = f"members ended with {codes}"
    _join_gap(trial, outcome, spawned_at_s, joiner)
    fill_books(trial, outcome)
    if outcome.problem:
        outcome.problem += "\n" + tails(list(trial.workers.values()))
    _victim_end(trial, outcome)


def _join_gap(trial: Trial, outcome: Outcome, spawned_at_s: float, joiner: Worker) -> None:
    survivors = trial.records(trial.survivors)
    joined = trial.records(["w4"])[0]
    if len(joined.commits) < 2:
        outcome.problem = outcome.problem or f"the new member did not join\n{joiner.log_tail()}"
        return
    outcome.normal_s = normal_step_s(survivors, spawned_at_s, last=3)
    gap_s = longest_gap_s(survivors, spawned_at_s, joined.commits[1].at_s)
    outcome.join_gap_s = gap_s - outcome.normal_s


def fill_books(trial: Trial, outcome: Outcome) -> None:
    """Fills in the samples lost and repeated, the steps redone and whether all replicas were the same."""
    names = [name for name in (*trial.survivors, trial.victim, "w4") if name in trial.workers]
    records = trial.records(names)
    outcome.redone, outcome.skipped = steps_redone(records), steps_skipped(records)
    outcome.unequal = unequal_steps(records)
    ends = [record.end for record in trial.records(trial.survivors) if record.end is not None]
    if ends:
        outcome.lost = max(GLOBAL_BATCH * STEPS - int(end["used"]) for end in ends)
        outcome.repeated = max(int(end["again"]) for end in ends)
        if any(end["step"] != STEPS for end in ends):
            outcome.problem = outcome.problem or f"the epoch ended at step {[end['step'] for end in ends]}, not {STEPS}"


def _victim_end(trial: Trial, outcome: Outcome) -> None:
    """A victim that was let go must end by itself; it is no longer part of the group."""
    victim = trial.workers[trial.victim]
    if not victim.exited.wait(5.0) and trial.fault.kind != "kill":
        outcome.problem = outcome.problem or f"the victim runs on after its return\n{victim.log_tail()}"
    outcome.victim_code = victim.exit_code
