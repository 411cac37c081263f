"""The interface of a scheduling policy: a pure function of a view of the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from plait.schedule.domain import Allocation, Decision, TaskKey, TaskState
from plait.spec.job import Resources, WorkerRange


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """What a policy may know of one task that waits or runs."""

    key: TaskKey
    project: str
    priority: int
    submitted_at_s: float
    state: TaskState
    workers: WorkerRange
    resources: Resources
    allocation: Allocation | None = None
    attained_service_s: float = 0.0
    window_open: bool = True
    speeds: Mapping[str, float] = field(default_factory=dict)
    """Predicted samples/s of one worker by accelerator type (up to a common factor)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What a policy may know of the cluster: healthy, undrained devices by type, and how many are free."""

    now_s: float
    total: Mapping[str, int]
    free: Mapping[str, int]
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)


class Policy(Protocol):
    """Decides how much of which type each task gets now; placement picks the devices afterwards."""

    name: str

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task, in the order in which placement should try them."""
        ...
