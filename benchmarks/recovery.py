"""Recovery from a lost device: Plait, torchft and torchrun elastic under the same faults, in one interleaved run.

Four workers, 100 ms of slept compute a step, an MLP of 137 thousand parameters, Adam. The faults: SIGKILL, SIGSTOP (of
the worker's process alone or with all it started) and a pulled cable (workers in network namespaces); any rank, rank 0
included; at a random instant of a step, exchange included, or at a named point within it. After each fault the victim
of a freeze or a pulled cable is let go again, a new member joins, and the epoch runs to its end.

``kill_median_s``, ``kill_worst_s``: the delay beyond the running step. The running step begins with the commit before
it and would have ended after the median duration of the last ten steps; the delay runs from that moment (from the
fault, where the fault is later) until the last survivor has committed the step. It contains the work of the lost
device, which survivors do again in the same step. ``freeze_worst_s_over_timeout``: the worst such delay of freezes and
pulled cables together, minus the heartbeat time-out of 1 s. ``steps_lost_max``: how far any member went back.
``samples_lost``, ``samples_repeated``: over the whole epoch, read from a ledger among the parameters themselves, to
which every sample adds its own gradient; sums over all trials. ``join_gap_s``: the longest gap between two commits of a
survivor, from the start of the new member's process to its second commit, minus a normal step; the worst of all trials.
Workers are forked with torch imported, since on real hosts a new member's import does not take the survivors' cores.

torchft and torchrun are optional: ``pip install torchft-nightly``, into this interpreter or another one named by
``--peer-python``. torchrun's times contain the start of its processes, which is how it recovers.
"""

import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from fault_trial import MEMBERS, Outcome, draw_fault, run_trial
from fleet import TORCH_MODULES, Nursery, Ports, clean_end
from links import Hosts, NoNamespaces
from recovery_peers import PeerOutcome, has_module, run_torchft, run_torchrun
from report import BenchmarkFailed, arguments, finish

HEARTBEAT_TIMEOUT_S = 1.0
PLAN = {"full": {"kill": 20, "freeze": 20, "link": 20}, "quick": {"kill": 3, "freeze": 2, "link": 1}}
PEER_PLAN = {
    "full": [
        ("torchft", "defaults", "kill", 2),
        ("torchft", "tuned, 1 s", "kill", 5),
        ("torchft", "tuned, 1 s", "freeze", 3),
        ("torchrun", "tuned", "kill", 2),
        ("torchrun", "defaults", "kill", 1),
    ],
    "quick": [("torchft", "tuned, 1 s", "kill", 1)],
}
Figures = dict[str, float | None]
Peers = dict[tuple[str, str, str], list[PeerOutcome]]


class Stage:
    """Where all trials happen: the nurseries, the ports, the hosts, the scratch directory."""

    def __init__(self, stack: ExitStack, peer_python: str, seed: int) -> None:
        self.directory = stack.enter_context(clean_end())
        self.seed = seed
        self.peer_python = peer_python
        self.ports = Ports()
        self.nursery = stack.enter_context(Nursery([*TORCH_MODULES, "plait.train.session"]))
        self.torchft_version = has_module(peer_python, "torchft")
        self.torch_version = has_module(peer_python, "torch")
        self._peers: Nursery | None = None
        self._stack = stack
        self.hosts: Hosts | None = None
        self.no_hosts = ""
        try:
            self.hosts = stack.enter_context(Hosts(MEMBERS + 1))
        except NoNamespaces as refusal:
            self.no_hosts = str(refusal)

    @property
    def peers(self) -> Nursery:
        """Returns the nursery of the peers, started when first needed."""
        if self._peers is None:
            self._peers = self._stack.enter_context(Nursery([*TORCH_MODULES, "torchft"], self.peer_python))
        return self._peers

    def plait_trial(self, kind: str, turn: int) -> Outcome:
        fault = draw_fault(kind, self.seed, turn)
        hosts = self.hosts if kind == "link" else None
        outcome = run_trial(self.nursery, self.directory / f"{kind}{turn}", self.ports, fault, seed=turn, hosts=hosts)
        print(_line(outcome), flush=True)
        return outcome

    def peer_trial(self, peer: str, settings: str, kind: str, turn: int) -> PeerOutcome:
        chance = random.Random(f"{peer} {settings} {kind} {self.seed} {turn}")
        directory = self.directory / f"{peer}-{settings.partition(',')[0]}-{kind}{turn}"
        victim = (turn + self.seed) % MEMBERS
        if peer == "torchft":
            outcome = run_torchft(self.peers, directory, settings, kind=kind, victim=victim, chance=chance)
        else:
            outcome = run_torchrun(self.peer_python, directory, self.ports, settings, victim=victim, chance=chance)
        print(f"  {peer:9s} {settings:11s} {kind:7s} r{victim}  {_peer_cells(outcome)}", flush=True)
        return outcome


def _line(outcome: Outcome) -> str:
    found = outcome.delay
    cells = (
        "no new step" if found is None else f"since fault {found.since_fault_s:6.3f} s  beyond {found.beyond_s:6.3f} s"
    )
    gap = "  join gap   none " if outcome.join_gap_s is None else f"  join gap {outcome.join_gap_s:6.3f} s"
    books = f"  lost {outcome.lost} repeated {outcome.repeated} redone {outcome.redone} unequal {len(outcome.unequal)}"
    problem = f"\n    PROBLEM {outcome.problem}" if outcome.problem else ""
    code = f"  victim's exit {outcome.victim_code}"
    return f"  {'Plait':9s} {outcome.fault.title:28s}  {cells}{gap}{books}{code}{problem}"


def _peer_cells(outcome: PeerOutcome) -> str:
    if outcome.since_fault_s is None or outcome.beyond_s is None:
        return f"never ({outcome.note})"
    gap = "" if outcome.join_gap_s is None else f"  join gap {outcome.join_gap_s:6.3f} s"
    return f"since fault {outcome.since_fault_s:6.3f} s  beyond {outcome.beyond_s:6.3f} s  redone {outcome.redone}{gap}"


def schedule(stage: Stage, size: str) -> list[tuple[str, ...]]:
    """Returns all trials of Plait and of the peers, mixed, so that all meet the same machine."""
    own = [("plait", kind, str(turn)) for kind, count in PLAN[size].items() for turn in range(count)]
    if stage.hosts is None:
        own = [trial for trial in own if trial[1] != "link"]
    peers = [
        (peer, settings, kind, str(turn))
        for peer, settings, kind, count in PEER_PLAN[size]
        for turn in range(count)
        if (stage.torchft_version if peer == "torchft" else stage.torch_version)
    ]
    trials: list[tuple[str, ...]] = [*own, *peers]
    random.Random(stage.seed).shuffle(trials)
    return trials


def run_all(stage: Stage, size: str) -> tuple[list[Outcome], Peers]:
    outcomes: list[Outcome] = []
    peers: Peers = {}
    for trial in schedule(stage, size):
        if trial[0] == "plait":
            outcomes.append(stage.plait_trial(trial[1], int(trial[2])))
            continue
        peer, settings, kind, turn = trial
        try:
            outcome = stage.peer_trial(peer, settings, kind, int(turn))
        except BenchmarkFailed as failure:
            print(f"  {peer} {settings} {kind}: {failure}")
            outcome = PeerOutcome(None, None, note="did not start")
        peers.setdefault((peer, settings, kind), []).append(outcome)
    return outcomes, peers


def recovered(outcome: Outcome) -> bool:
    """Returns whether the group went on, came to the end of its epoch, and stayed one and the same."""
    return outcome.delay is not None and not outcome.problem and not outcome.unequal


def plait_figures(outcomes: Sequence[Outcome], no_hosts: str) -> tuple[Figures, dict[str, str]]:
    kills = [outcome.delay.beyond_s for outcome in outcomes if outcome.fault.kind == "kill" and outcome.delay]
    silent = [outcome.delay.beyond_s for outcome in outcomes if outcome.fault.kind != "kill" and outcome.delay]
    gaps = [outcome.join_gap_s for outcome in outcomes if outcome.join_gap_s is not None]
    figures: Figures = {
        "kill_median_s": median(kills) if kills else None,
        "kill_worst_s": max(kills, default=None),
        "freeze_worst_s_over_timeout": max(silent) - HEARTBEAT_TIMEOUT_S if silent else None,
        "steps_lost_max": max(max(outcome.redone, outcome.skipped) for outcome in outcomes),
        "samples_lost": sum(outcome.lost for outcome in outcomes),
        "samples_repeated": sum(outcome.repeated for outcome in outcomes),
        "recovered_share": sum(map(recovered, outcomes)) / len(outcomes),
        "join_gap_s": max(gaps, default=None),
        "unequal_replica_steps": sum(len(outcome.unequal) for outcome in outcomes),
    }
    reasons = {name: "no trial came that far" for name, value in figures.items() if value is None}
    if no_hosts:
        print(f"no pulled cables: {no_hosts}; freeze_worst_s_over_timeout holds freezes alone")
        reasons["freeze_worst_s_over_timeout"] = f"without pulled cables: {no_hosts}"
    if gaps:
        print(f"\nPlait: join gap median {median(gaps):.3f} s, worst {max(gaps):.3f} s, n={len(gaps)}")
    return figures, reasons


PEER_FIGURES = {
    "torchft_kill_median_s": ("torchft", "tuned, 1 s", "kill"),
    "torchft_defaults_kill_median_s": ("torchft", "defaults", "kill"),
    "torchft_freeze_worst_s": ("torchft", "tuned, 1 s", "freeze"),
    "torchrun_kill_median_s": ("torchrun", "tuned", "kill"),
    "torchrun_defaults_kill_s": ("torchrun", "defaults", "kill"),
}


def peer_figures(stage: Stage, peers: Peers) -> tuple[Figures, dict[str, str]]:
    figures: Figures = {}
    reasons: dict[str, str] = {}
    for name, key in PEER_FIGURES.items():
        found = [outcome.beyond_s for outcome in peers.get(key, []) if outcome.beyond_s is not None]
        figures[name] = (max(found) if name.endswith("worst_s") else median(found)) if found else None
        if found:
            continue
        missing = key[0] == "torchft" and not stage.torchft_version
        notes = sorted({outcome.note for outcome in peers.get(key, [])})
        not_run = f"torchft is not installed for {Path(stage.peer_python).name}" if missing else "not run with --quick"
        reasons[name] = f"never: {', '.join(notes)}" if notes else not_run
    return figures, reasons


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH", help="an interpreter that has torchft")
    options = parser.parse_args()
    size = "quick" if options.quick else "full"
    try:
        with ExitStack() as stack:
            stage = Stage(stack, options.peer_python, options.seed)
            print(f"peers: torchft {stage.torchft_version or 'not installed'}, torchrun of torch {stage.torch_version}")
            outcomes, peers = run_all(stage, size)
            figures, reasons = plait_figures(outcomes, stage.no_hosts)
            theirs, their_reasons = peer_figures(stage, peers)
    except BenchmarkFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    finish("recovery", options.quick, figures | theirs, reasons | their_reasons, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
