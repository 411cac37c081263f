"""A moment of a cluster on paper, as frozen values: the domain side of a scenario file."""

from dataclasses import dataclass, field
from typing import Literal

from plait.spec.cluster import Cluster
from plait.spec.job import Job

ConstraintKind = Literal[
    "dependency",
    "window",
    "price",
    "quota",
    "reservation",
    "priority",
    "topology",
    "memory",
    "gang",
    "devices",
    "restart",
]
"""What a waiting task can wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioJob:
    """A job that was submitted ``ago_s`` before the moment; None: just now. ``elastic`` names tasks that regroup."""

    job: Job
    ago_s: float | None = None
    elastic: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """What else happened: to a node, to JOB or JOB/TASK, or to prices per device and hour."""

    what: Literal["drain", "resume", "lose", "finish", "fail", "cancel", "price"]
    about: str = ""
    prices: tuple[tuple[str, float], ...] = ()
    ago_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What one task is expected to wait for, and in how many seconds it should start (None: not looked at)."""

    job: str
    task: str | None
    constraint: ConstraintKind
    starts_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The cluster, its jobs, and the moment: ``time_s`` after midnight."""

    name: str
    cluster: Cluster
    jobs: tuple[ScenarioJob, ...]
    time_s: int = 0
    happenings: tuple[Happening, ...] = ()
    expect: tuple[Expectation, ...] = field(default=())
