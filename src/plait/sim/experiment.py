"""One trace, one cluster, some policies: runs them and puts their figures side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from plait.errors import PlaitError
from plait.schedule.policies import policy
from plait.schedule.policy import Policy
from plait.sim.beliefs import Beliefs
from plait.sim.checker import problems
from plait.sim.clusters import SimCluster
from plait.sim.jobs import SimJob
from plait.sim.live import run_live
from plait.sim.live_setting import LiveOptions
from plait.sim.outcome import RunOutcome
from plait.sim.rounds.neutral import TICK_S, NeutralSetting, run_neutral

MANY_JOBS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is simulated. ``engine`` is the live state machine, or the simulator of rounds (the neutral setting).

    From ``many_jobs`` jobs on, work is started at rounds only.
    """

    jobs: tuple[SimJob, ...]
    cluster: SimCluster
    engine: Literal["live", "rounds"] = "live"
    round_s: float = 60.0
    restart_s: float = 45.0
    checkpoint_s: float = 0.0
    node_mtbf_s: float | None = None
    repair_s: float = 1800.0
    beliefs: Beliefs = field(default_factory=Beliefs)
    seed: int = 0
    day_s: int = 0
    many_jobs: int = MANY_JOBS


class ScheduleBroken(PlaitError):
    """The independent checker found a fault in a schedule."""


def run(experiment: Experiment, policy_text: str) -> RunOutcome:
    """Runs one policy (``NAME`` or ``NAME:GOAL=WEIGHT,...``) and checks its schedule.

    Raises:
        UnknownPolicy: There is no such policy.
        ScheduleBroken: The checker found a fault.
    """
    chosen = policy(*parse_policy(policy_text))
    if experiment.engine == "rounds":
        outcome = _run_rounds(experiment, chosen)
    else:
        options = LiveOptions(
            round_s=experiment.round_s,
            is_cyclic=len(experiment.jobs) >= experiment.many_jobs,
            restart_s=experiment.restart_s,
            checkpoint_s=experiment.checkpoint_s,
            node_mtbf_s=experiment.node_mtbf_s,
            repair_s=experiment.repair_s,
            prices_per_hour=experiment.cluster.prices_per_hour,
            windows=experiment.cluster.cluster.price_windows,
            projects=experiment.cluster.projects,
            reservations=experiment.cluster.cluster.reservations,
            racks=experiment.cluster.cluster.racks,
            beliefs=experiment.beliefs,
            seed=experiment.seed,
            day_s=experiment.day_s,
            keeps_timeline=True,
        )
        outcome = run_live(experiment.jobs, experiment.cluster.nodes, chosen, options)
    limits = {project.name: dict(project.limit) for project in experiment.cluster.projects if project.limit}
    faults = problems(outcome, limits)
    if faults:
        raise ScheduleBroken(f"the schedule of {policy_text} is wrong: {faults[0]} ({len(faults)} faults in all)")
    return replace(outcome, policy=policy_text)


def _run_rounds(experiment: Experiment, chosen: Policy) -> RunOutcome:
    cluster = experiment.cluster.cluster
    if experiment.node_mtbf_s is not None or cluster.price_windows or cluster.projects or cluster.reservations:
        raise PlaitError(
            "the simulator of rounds knows no failures, price windows, projects or reservations; use --engine live"
        )
    setting = NeutralSetting(
        round_s=max(TICK_S, round(experiment.round_s / TICK_S) * TICK_S),
        restart_s=min(experiment.restart_s, TICK_S),
        beliefs=experiment.beliefs,
        keeps_timeline=True,
    )
    return run_neutral(experiment.jobs, experiment.cluster.machines(), chosen, setting)


def parse_policy(text: str) -> tuple[str, tuple[tuple[str, float], ...]]:
    """Returns name and weights of ``multi_objective:fairness=0.7,throughput=0.3``; raises PlaitError otherwise."""
    name, _, rest = text.partition(":")
    weights = []
    for part in filter(None, rest.split(",")):
        goal, _, value = part.partition("=")
        try:
            weights.append((goal.strip(), float(value)))
        except ValueError as error:
            raise PlaitError(f"no weight: {part!r} of policy {name}; write GOAL=NUMBER") from error
    return name.strip(), tuple(weights)


def fitting(jobs: Sequence[SimJob], cluster: SimCluster) -> tuple[tuple[SimJob, ...], int]:
    """Returns the jobs that the cluster could run when idle, and how many it could not."""
    capacity = cluster.capacity
    kept = tuple(job for job in jobs if _fits(job, capacity))
    return kept, len(jobs) - len(kept)


def _fits(job: SimJob, capacity: dict[str, int]) -> bool:
    fewest = job.size_range[0]
    return any(
        number >= fewest and job.rate(name, fewest) > 0 and (not job.allowed or name in job.allowed)
        for name, number in capacity.items()
    )
