"""Recovery by cause: what each kind of fault costs a group of four, and whether the run always comes to its end.

Four workers train an MLP with Adam, 100 ms of slept compute a step. In each trial one fault strikes a random member at
a random instant: memory that runs out (a real limit on the address space of the process), a pulled cable, a cable that
flaps, SIGKILL, SIGSTOP, SIGTERM as a notice, a killed agent (of a worker that a real agent runs), and a node that is
gone (worker and all it started killed, its network namespace deleted).

A trial is finished if all members that can go on reach the end of the epoch with exit code 0, hold the same parameters
bit for bit after every step, and the books show each sample exactly once. ``finished_share`` is over all trials;
``steps_lost_max`` is the furthest that any member went back or skipped. All trials train the same model on the same
data, as runs without a fault do that come first. Every other trial sums gradients in fixed point: its final weights are
compared with the undisturbed ones bit for bit (``equal_share_same_members`` where nobody left, ``equal_share_changed``
where somebody did). The others, whose sums differ in the last bits from run to run, and all where memory runs out (in
fixed point each pass is as small as can be), are compared by loss over all data: ``loss_over_undisturbed_max``, beside
``loss_noise``, the same ratio between runs without a fault.

The table tells, for each cause, when the group knew of the fault and had agreed on who goes on; how much later than
without the fault the last survivor had committed a new step (the downtime), and the steps lost; for ``oom`` the fault
is the begin of the step in which memory runs out. ``CAUSE_new_step_median_s`` counts from the fault itself. Pulled and
flapping cables and lost nodes need root, for network namespaces; without, these are left out and told.

``--trials FILE`` writes each trial down, so that an interrupted run is gone on with; ``--also FILE ...`` counts those
of other runs in, and ``--causes`` with nothing behind it only sums up.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from statistics import median

from agent_member import AgentMember
from cause_results import CAUSES, Result, Undisturbed, compared, joined, read_back, table, told, written
from fault_trial import MEMBERS, STEP_S, Fault, Outcome, Trial, fill_books
from fleet import (
    TORCH_MODULES,
    Nursery,
    Ports,
    Worker,
    clean_end,
    signal_session,
    signal_worker,
    tails,
    wait_for,
)
from links import Hosts, NoNamespaces
from report import BenchmarkFailed, arguments, finish

NEED_HOSTS = {"node", "link", "flapping"}
STAYS = {"oom"}
"""Causes after which the victim goes on as a member."""

FLAPS, FLAP_S = 4, 0.25
PATIENCE_S = 180.0
"""Waits that end nothing but the trial; a busy machine takes its time."""
SAMPLE_MB = 10
REFERENCES = 3
"""Runs without a fault whose losses tell how far runs lie apart anyway."""


class CauseTrial(Trial):
    """A trial whose fault is one of the causes."""

    cause = ""
    is_bitwise = False
    heartbeat_timeout_s = 1.0
    agent: AgentMember | None = None

    def _environment(self, name: str) -> dict[str, str]:
        mode = {
            "BENCH_HEARTBEAT_S": str(self.heartbeat_timeout_s),
            **({"BENCH_BITWISE": "1"} if self.is_bitwise else {}),
        }
        if self.cause != "oom" or name != self.victim:
            return mode
        return {
            **mode,
            "BENCH_OOM_STEP": str(self.fault.step),
            "BENCH_SAMPLE_MB": str(SAMPLE_MB),
        }

    def _launch(self, name: str, environment: dict[str, str], log: Path, namespace: str | None) -> Worker:
        if self.cause != "agent" or name != self.victim:
            return super()._launch(name, environment, log, namespace)
        self.agent = AgentMember(name, "recovery_plait.py", environment, self._directory)
        return self.agent.worker

    def strike(self, chance: random.Random) -> float:
        reached = wait_for(lambda: self.records(["w0"])[0].last_step >= self.fault.step, PATIENCE_S, 0.005)
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
        elif self.cause == "agent":
            assert self.agent is not None
            self.agent.kill_agent()
        if self._hosts is not None and self.cause == "node":
            self._hosts.lose(self.fault.victim)
        elif self._hosts is not None and self.cause == "link":
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


def run_undisturbed(nursery: Nursery, directory: Path, ports: Ports, options: argparse.Namespace) -> Undisturbed:
    """Runs the group without a fault, once in fixed point and a few times as usual."""
    found = Undisturbed()
    for turn in range(1 + REFERENCES):
        place = directory / f"undisturbed{turn}"
        place.mkdir()
        trial = CauseTrial(nursery, place, ports, Fault("none", 0, "instant", 0, whole_session=False), None)
        trial.is_bitwise, trial.heartbeat_timeout_s = turn == 0, options.heartbeat_timeout
        trial.start(options.seed)
        members = list(trial.workers)
        for worker in trial.workers.values():
            worker.exited.wait(PATIENCE_S)
        ends = [record.end for record in trial.records(members)]
        nursery.end(list(trial.workers.values()))
        end = ends[0]
        if end is None or None in ends:
            raise BenchmarkFailed(f"a run without a fault did not end\n{tails(list(trial.workers.values()))}")
        print(f"  undisturbed {turn}: loss {end['loss']:.6f}, weights {end['hash']}", flush=True)
        if turn == 0:
            found.hash = end["hash"]
        else:
            found.losses.append(end["loss"])
    return found


def run_one(
    nursery: Nursery,
    directory: Path,
    ports: Ports,
    hosts: Hosts | None,
    *,
    cause: str,
    options: argparse.Namespace,
    turn: int,
) -> Result:
    """Runs one trial; a failure of the training is an outcome, not an exception.

    Args:
        nursery: Starts the members.
        directory: Of this trial.
        ports: Hands out ports.
        hosts: Hosts with cables, where they can be made.
        cause: The fault.
        options: Of the command line; the seed is that of the training, the same for all trials.
        turn: Of the trials of this cause; the fault's place and moment follow from it.
    """
    chance = random.Random(f"{cause} {options.seed} {turn}")
    fault = Fault(cause, chance.randrange(MEMBERS), "instant", chance.randrange(8, 14), chance.random() < 0.5)
    directory.mkdir()
    trial = CauseTrial(nursery, directory, ports, fault, hosts if cause in NEED_HOSTS else None)
    trial.cause, trial.heartbeat_timeout_s = cause, options.heartbeat_timeout
    trial.is_bitwise = turn % 2 == 0 and cause != "oom"
    fault_at_s = None
    outcome = Outcome(fault)
    try:
        trial.start(options.seed)
        fault_at_s = trial.strike(chance)
        _go_through(trial, outcome, fault_at_s)
    except BenchmarkFailed as failure:
        outcome.problem = str(failure)
    finally:
        if hosts is not None and cause in {"link", "flapping"}:
            hosts.plug(fault.victim)
        nursery.end(list(trial.workers.values()))
        if trial.agent is not None:
            trial.agent.end()
        if hosts is not None:
            hosts.bring_back(fault.victim)
    records = trial.records(trial.survivors)
    ends = [record.end for record in records if record.end is not None]
    return Result(
        cause,
        turn,
        outcome,
        trial.workers[trial.victim].exit_code if trial.victim in trial.workers else None,
        trial.is_bitwise,
        has_changed=any(commit.world != MEMBERS for record in records for commit in record.commits),
        known_s=None if fault_at_s is None else known_after_s(directory / "run", fault_at_s),
        loss=ends[0]["loss"] if ends else None,
        hash=ends[0]["hash"] if ends else "",
    )


def known_after_s(run_directory: Path, fault_at_s: float) -> float | None:
    """Returns when the last survivor knew who goes on, after the fault; None where the group did not change."""
    since_boot_s = time.time() - time.monotonic()
    known = []
    for timeline in run_directory.glob("timeline/*.jsonl"):
        for line in timeline.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["kind"] == "membership" and row["lost"]:
                known.append(row["known_at"] - since_boot_s - fault_at_s)
    return max(known, default=None)


def _go_through(trial: CauseTrial, outcome: Outcome, fault_at_s: float) -> None:
    survivors = trial.survivors

    def recovered() -> bool:
        return trial.delay(fault_at_s) is not None or any(trial.workers[name].exited.is_set() for name in survivors)

    wait_for(recovered, PATIENCE_S)
    outcome.delay = trial.delay(fault_at_s)
    trial.require(outcome.delay is not None, "the survivors did not commit a new step")
    assert outcome.delay is not None
    resumed = outcome.delay.new_step
    wait_for(lambda: min(record.last_step for record in trial.records(survivors)) >= resumed + 3, PATIENCE_S)
    trial.mend()
    members = [*survivors, trial.victim] if trial.cause in STAYS else survivors
    ended = wait_for(lambda: all(trial.workers[name].exited.is_set() for name in members), PATIENCE_S)
    codes = {name: trial.workers[name].exit_code for name in members}
    if not ended or any(codes.values()):
        outcome.problem = f"members ended with {codes}\n{tails(list(trial.workers.values()))}"
    victim = trial.workers[trial.victim]
    if not victim.exited.wait(PATIENCE_S / 3):
        outcome.problem = outcome.problem or f"the victim runs on\n{victim.log_tail()}"
    if trial.cause == "notice" and victim.exit_code != 0:
        outcome.problem = outcome.problem or f"the member that was given notice ended with {victim.exit_code}"
    if trial.cause == "oom" and "memory ran out" not in victim.log_tail(400):
        outcome.problem = outcome.problem or "the victim never ran out of memory"
    fill_books(trial, outcome)


def figures_of(results: list[Result], undisturbed: Undisturbed, heartbeat_timeout_s: float) -> dict[str, float | None]:
    """Returns what all trials say together."""
    figures: dict[str, float | None] = {
        "trials": len(results),
        "heartbeat_timeout_s": heartbeat_timeout_s,
        "finished_share": sum(result.is_finished for result in results) / len(results),
        "steps_lost_max": max(result.steps_lost for result in results),
        **compared(results, undisturbed),
    }
    for cause in CAUSES:
        mine = [result for result in results if result.cause == cause]
        times = [result.outcome.delay.since_fault_s for result in mine if result.outcome.delay]
        known = [result.known_s for result in mine if result.known_s is not None]
        figures[f"{cause}_trials"] = len(mine)
        figures[f"{cause}_known_median_s"] = median(known) if known else None
        figures[f"{cause}_new_step_median_s"] = median(times) if times else None
    return figures


def run_all(options: argparse.Namespace, before: list[Result]) -> Iterator[Result | Undisturbed]:
    """Yields runs without a fault, then the trials that are not there yet."""
    count = options.per_cause or (1 if options.quick else 50)
    end_s = time.monotonic() + (options.minutes * 60.0 if options.minutes is not None else float("inf"))
    done = {(result.cause, result.turn) for result in before}
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
        yield run_undisturbed(nursery, directory, ports, options)
        for turn in range(count):
            for cause in causes if time.monotonic() < end_s else ():
                if (cause, turn) not in done:
                    place = directory / f"{cause}{turn}"
                    yield run_one(nursery, place, ports, hosts, cause=cause, options=options, turn=turn)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--per-cause", type=int, default=None, metavar="N", help="trials of each cause; 50")
    parser.add_argument("--causes", nargs="*", choices=CAUSES, default=list(CAUSES), help="only these; none, to sum up")
    parser.add_argument("--heartbeat-timeout", type=float, default=1.0, metavar="S", help="silence that is death; 1")
    parser.add_argument("--minutes", type=float, default=None, help="begin no more rounds of trials after so long")
    parser.add_argument("--trials", type=Path, help="file to which each trial is written; what it has is not run again")
    parser.add_argument("--also", type=Path, nargs="+", default=[], help="such files of other runs, counted with these")
    options = parser.parse_args()
    files = [file for file in (options.trials, *options.also) if file is not None and file.exists()]
    results, undisturbed = read_back(files)
    for result in run_all(options, results) if options.causes else ():
        if options.trials is not None:
            with options.trials.open("a", encoding="utf-8") as file:
                file.write(written(result))
        if isinstance(result, Undisturbed):
            undisturbed.append(result)
        else:
            results.append(result)
            print(told(result), flush=True)
    table(results)
    figures = figures_of(results, joined(undisturbed), options.heartbeat_timeout)
    reasons = {name: "not run here, or nobody left" for name, value in figures.items() if value is None}
    if "equal_share_same_members" in reasons and results:
        reasons["equal_share_same_members"] = "no trial in fixed point in which everybody stayed"
    finish("recovery_by_cause", options.quick, figures, reasons, options.json)
    return 0 if all(result.is_finished for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
