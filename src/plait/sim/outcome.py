"""What a simulation yields: one record a job, one a run, and the figures by which policies are compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from plait.sim.jobs import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How one job fared. ``end_s`` is None where it did not finish; ``fair_s`` is its time on an equal share."""

    job: SimJob
    start_s: float | None
    end_s: float | None
    device_s: Mapping[str, float]
    restarts: int
    mean_active: float
    fair_s: float | None

    @property
    def jct_s(self) -> float | None:
        """Seconds from submission to end."""
        return None if self.end_s is None else self.end_s - self.job.submitted_at_s

    @property
    def rho(self) -> float | None:
        """Completion time over that on an equal share of the cluster, as many sharing as were active on average."""
        jct_s = self.jct_s
        return None if jct_s is None or not self.fair_s else jct_s / self.fair_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """All that a run of one policy over one trace yielded.

    ``solve_s`` has the CPU seconds of each decision, ``away`` the failures of nodes.
    """

    policy: str
    jobs: tuple[JobOutcome, ...]
    capacity: Mapping[str, int]
    prices_per_hour: Mapping[str, float]
    started_at_s: float
    ended_at_s: float
    busy_device_s: Mapping[str, float]
    cost: float
    solve_s: tuple[float, ...] = ()
    timeline: tuple["Held", ...] = field(default=(), repr=False)
    away: tuple["Away", ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One task on devices of one node for a while: a bar of the timeline, and what the checker looks at."""

    job_id: str
    node: str
    accelerator_type: str
    devices: tuple[int, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """A node that failed, and when it came back."""

    node: str
    start_s: float
    end_s: float


FIGURES: tuple[str, ...] = (
    "jct_mean_h",
    "jct_median_h",
    "jct_p99_h",
    "makespan_h",
    "utilisation_ratio",
    "cost",
    "rho_mean",
    "rho_p95",
    "rho_max",
    "unfair_ratio",
    "restarts_per_job",
    "unfinished_jobs",
    "solve_ms_mean",
    "solve_ms_max",
)


def figures(run: RunOutcome) -> dict[str, float | None]:
    """Returns the figures of a run by name, in the order of ``FIGURES``; None where nothing finished."""
    jct = [job.jct_s for job in run.jobs if job.jct_s is not None]
    rho = [job.rho for job in run.jobs if job.rho is not None]
    span_s = run.ended_at_s - run.started_at_s
    offered = sum(run.capacity.values()) * span_s
    values: dict[str, float | None] = {
        "jct_mean_h": _hours(np.mean, jct),
        "jct_median_h": _hours(np.median, jct),
        "jct_p99_h": _hours(lambda some: np.percentile(some, 99), jct),
        "makespan_h": span_s / 3600.0,
        "utilisation_ratio": sum(run.busy_device_s.values()) / offered if offered > 0 else None,
        "cost": run.cost,
        "rho_mean": float(np.mean(rho)) if rho else None,
        "rho_p95": float(np.percentile(rho, 95)) if rho else None,
        "rho_max": float(np.max(rho)) if rho else None,
        "unfair_ratio": float(np.mean([value > 1.0 for value in rho])) if rho else None,
        "restarts_per_job": float(np.mean([job.restarts for job in run.jobs])) if run.jobs else None,
        "unfinished_jobs": float(sum(job.end_s is None for job in run.jobs)),
        "solve_ms_mean": 1e3 * float(np.mean(run.solve_s)) if run.solve_s else None,
        "solve_ms_max": 1e3 * float(np.max(run.solve_s)) if run.solve_s else None,
    }
    return {name: values[name] for name in FIGURES}


def _hours(of: Callable[[Sequence[float]], object], seconds: Sequence[float]) -> float | None:
    return float(of(seconds)) / 3600.0 if seconds else None  # type: ignore[arg-type]


def fair_time_s(job: SimJob, capacity: Mapping[str, int], num_active: float) -> float | None:
    """Returns how long the job's work takes on an equal share: ``x_j = W_j / (N s)``, rows scaled down to at most 1.

    None where it runs on no type of the cluster at its size.
    """
    size = job.num_workers
    shares = {name: number / (max(num_active, 1.0) * size) for name, number in capacity.items()}
    over = max(1.0, sum(shares.values()))
    rate = sum(share / over * job.rate(name, size) for name, share in shares.items())
    return job.work / rate if rate > 0 else None
