"""Recovery by cause: what each kind of fault costs a group of four, and whether the run always comes to its end.

Four workers train an MLP with Adam, 100 ms of slept compute a step. In each trial one fault strikes a random member at
a random instant: memory that runs out (a real limit on the address space of the process), a pulled cable, a cable that
flaps, SIGKILL, SIGSTOP, SIGTERM as a notice, and a node that is gone (worker and all it started killed, cable out).

A trial is finished if all members that can go on reach the end of the epoch with exit code 0, hold the same parameters
bit for bit after every step, and the books show each sample exactly once. ``finished_share`` is over all trials;
``steps_lost_max`` is the furthest that any member went back or skipped. The table tells, for each cause, the time from
the fault until the last survivor had committed a new step; for ``oom`` the fault is the begin of the step in which
memory runs out. Pulled and flapping cables need root, for network namespaces; without, these are left out and told.
"""

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from statistics import median

from fault_trial import MEMBERS, RECOVERY_DEADLINE_S, STEP_S, Fault, Outcome, Trial, fill_books
from fleet import (
    TORCH_MODULES,
    Nursery,
    Ports,
    clean_end,
    signal_session,
    signal_worker,
    tails,
    wait_for,
)
from links import Hosts, NoNamespaces
from report import BenchmarkFailed, arguments, finish

CAUSES = ("oom", "kill", "freeze", "notice", "node", "link", "flapping")
NEED_HOSTS = {"node", "link", "flapping"}
STAYS = {"oom"}
"""Causes after which the victim goes on as a member."""

FLAPS, FLAP_S = 4, 0.25
ROOM_MB, SAMPLE_MB = 96, 10


@dataclass(frozen=True)
class Result:
    """What one trial showed."""

    cause: str
    outcome: Outcome
    victim_code: int | None

    @property
    def steps_lost(self) -> int:
        return max(self.outcome.redone, self.outcome.skipped)

    @property
    def is_finished(self) -> bool:
        found = self.outcome
        return not (found.problem or found.unequal or found.lost or found.repeated)


class CauseTrial(Trial):
    """A trial whose fault is one of the causes."""

    cause = ""

    def _environment(self, name: str) -> dict[str, str]:
        if self.cause != "oom" or name != self.victim:
            return {}
        return {
            "BENCH_OOM_STEP": str(self.fault.step),
            "BENCH_ROOM_MB": str(ROOM_MB),
            "BENCH_SAMPLE_MB": str(SAMPLE_MB),
        }

    def strike(self, chance: random.Random) -> float:
        reached = wait_for(lambda: self.records(["w0"])[0].last_step >= self.fault.step, 60.0, 0.005)
        self.require(reached, f"step {self.fault.step} was not reached")
        if self.cause == "oom":
            at_s = self.records([self.victim])[0].when(self.fault.step)
            return at_s if at_s is not None else time.monotonic()
        time.sleep(chance.uniform(0.0, 1.1 * STEP_S))
        at_s = time.monotonic()
        victim = self.workers[self.victim]
        if self.cause in {"kill", "node"}:
            send = signal_session if self.cause == "node" or self.fault.whole_session else signal_worker
            send(victim, SIGKILL)
        elif self.cause == "freeze":
            signal_worker(victim, SIGSTOP)
        elif self.cause == "notice":
            signal_worker(victim, SIGTERM)
        if self.cause in {"node", "link"}:
            assert self._hosts is not None
            self._hosts.pull(self.fault.victim)
        for _ in range(FLAPS if self.cause == "flapping" else 0):
            assert self._hosts is not None
            self._hosts.pull(self.fault.victim)
            time.sleep(FLAP_S)
            self._hosts.plug(self.fault.victim)
            time.sleep(FLAP_S)
        return at_s

    def mend(self) -> None:
        if self.cause == "freeze":
            signal_session(self.workers[self.victim], SIGCONT)
        elif self.cause == "link" and self._hosts is not None:
            self._hosts.plug(self.fault.victim)


def run_one(nursery: Nursery, directory: Path, ports: Ports, hosts: Hosts | None, *, cause: str, seed: int) -> Result:
    """Runs one trial; a failure of the training is an outcome, not an exception."""
    chance = random.Random(f"{cause} {seed}")
    fault = Fault(cause, chance.randrange(MEMBERS), "instant", chance.randrange(8, 14), chance.random() < 0.5)
    directory.mkdir()
    trial = CauseTrial(nursery, directory, ports, fault, hosts if cause in NEED_HOSTS else None)
    trial.cause = cause
    outcome = Outcome(fault)
    try:
        trial.start(seed)
        _go_through(trial, outcome, chance)
    except BenchmarkFailed as failure:
        outcome.problem = str(failure)
    finally:
        if hosts is not None and cause in NEED_HOSTS:
            hosts.plug(fault.victim)
        nursery.end(list(trial.workers.values()))
    return Result(cause, outcome, trial.workers[trial.victim].exit_code)


def _go_through(trial: CauseTrial, outcome: Outcome, chance: random.Random) -> None:
    fault_at_s = trial.strike(chance)
    survivors = trial.survivors

    def recovered() -> bool:
        return trial.delay(fault_at_s) is not None or any(trial.workers[name].exited.is_set() for name in survivors)

    wait_for(recovered, RECOVERY_DEADLINE_S)
    outcome.delay = trial.delay(fault_at_s)
    trial.require(outcome.delay is not None, "the survivors did not commit a new step")
    assert outcome.delay is not None
    resumed = outcome.delay.new_step
    wait_for(lambda: min(record.last_step for record in trial.records(survivors)) >= resumed + 3, 20.0)
    trial.mend()
    members = [*survivors, trial.victim] if trial.cause in STAYS else survivors
    ended = wait_for(lambda: all(trial.workers[name].exited.is_set() for name in members), 60.0)
    codes = {name: trial.workers[name].exit_code for name in members}
    if not ended or any(codes.values()):
        outcome.problem = f"members ended with {codes}\n{tails(list(trial.workers.values()))}"
    victim = trial.workers[trial.victim]
    if not victim.exited.wait(10.0):
        outcome.problem = outcome.problem or f"the victim runs on\n{victim.log_tail()}"
    if trial.cause == "notice" and victim.exit_code != 0:
        outcome.problem = outcome.problem or f"the member that was given notice ended with {victim.exit_code}"
    if trial.cause == "oom" and "memory ran out" not in victim.log_tail(400):
        outcome.problem = outcome.problem or "the victim never ran out of memory"
    fill_books(trial, outcome)


def table(results: list[Result]) -> None:
    """Prints a line for each cause."""
    heads = f"{'trials':>6s} {'finished':>8s} {'new step after: median':>23s} {'worst':>8s} {'steps lost':>11s}"
    print(f"\n  {'cause':9s} {heads}")
    for cause in CAUSES:
        mine = [result for result in results if result.cause == cause]
        if not mine:
            continue
        times = [result.outcome.delay.since_fault_s for result in mine if result.outcome.delay]
        cells = f"{median(times):21.3f} s {max(times):6.3f} s" if times else f"{'none':>32s}"
        done = sum(result.is_finished for result in mine)
        print(f"  {cause:9s} {len(mine):6d} {done:8d} {cells} {max(r.steps_lost for r in mine):11d}")


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--per-cause", type=int, default=None, metavar="N", help="trials of each cause; 50")
    parser.add_argument("--causes", nargs="+", choices=CAUSES, default=list(CAUSES), help="only these")
    options = parser.parse_args()
    count = options.per_cause or (1 if options.quick else 50)
    results: list[Result] = []
    with ExitStack() as stack:
        directory = stack.enter_context(clean_end())
        ports = Ports()
        nursery = stack.enter_context(Nursery([*TORCH_MODULES, "plait.train.session"]))
        hosts: Hosts | None = None
        causes = [cause for cause in CAUSES if cause in options.causes]
        if NEED_HOSTS & set(causes):
            try:
                hosts = stack.enter_context(Hosts(MEMBERS))
            except NoNamespaces as refusal:
                print(f"without {', '.join(sorted(NEED_HOSTS))}: {refusal}")
                causes = [cause for cause in causes if cause not in NEED_HOSTS]
        trials = [(cause, turn) for turn in range(count) for cause in causes]
        for cause, turn in trials:
            place = directory / f"{cause}{turn}"
            result = run_one(nursery, place, ports, hosts, cause=cause, seed=options.seed * 1000 + turn)
            results.append(result)
            found = result.outcome
            after = "no new step" if found.delay is None else f"new step after {found.delay.since_fault_s:6.3f} s"
            books = f"lost {found.lost} repeated {found.repeated} redone {found.redone} unequal {len(found.unequal)}"
            mark = "" if result.is_finished else f"\n    PROBLEM {found.problem}"
            whom = f"w{found.fault.victim}@{found.fault.step}"
            print(f"  {cause:9s} {whom:7s} {after}  {books}  victim's exit {result.victim_code}{mark}", flush=True)
    table(results)
    figures: dict[str, float | None] = {
        "trials": len(results),
        "finished_share": sum(result.is_finished for result in results) / len(results),
        "steps_lost_max": max(result.steps_lost for result in results),
    }
    for cause in CAUSES:
        times = [r.outcome.delay.since_fault_s for r in results if r.cause == cause and r.outcome.delay]
        figures[f"{cause}_downtime_median_s"] = median(times) if times else None
    reasons = {name: "not run here" for name, value in figures.items() if value is None}
    finish("recovery_by_cause", options.quick, figures, reasons, options.json)
    return 0 if all(result.is_finished for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
