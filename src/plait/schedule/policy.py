"""The interface of a scheduling policy: a pure function of a view of the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from plait.schedule.domain import Allocation, Decision, TaskKey, TaskState
from plait.spec.job import Resources, WorkerRange


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """What a policy may know of one task that waits or runs.

    Attributes:
        speeds: Predicted samples/s of one worker by accelerator type (up to a common factor).
        elastic: Its workers regroup in process, so it can be resized while it runs. Another allocation for a running
            task that is not elastic means: stop it and start it anew.
        ready_at_s: A restart may not be tried earlier; the task keeps its place in the queue meanwhile.
        slots: How many of its workers each type can hold on healthy, undrained nodes when all else is idle. It takes
            memory, devices a worker and node boundaries into account; a type that is missing is not wanted.
        free_slots: The same with the devices that are free now.
    """

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
    elastic: bool = False
    ready_at_s: float = 0.0
    slots: Mapping[str, int] = field(default_factory=dict)
    free_slots: Mapping[str, int] = field(default_factory=dict)

    def devices_per_worker(self, accelerator_type: str) -> int:
        """Returns how many devices of this type one worker takes; without requests any type does, one each."""
        for request in self.resources.any_of:
            if request.accelerator == accelerator_type:
                return request.count
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What a policy may know of the cluster: healthy, undrained devices by type, and how many are free.

    ``releasing`` counts devices that are still held but whose workers were told to go. ``memory_bytes`` is the smallest
    of each type.
    """

    now_s: float
    total: Mapping[str, int]
    free: Mapping[str, int]
    releasing: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)


class Policy(Protocol):
    """Decides how much of which type each task gets now; placement picks the devices afterwards."""

    name: str

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task, in the order in which placement should try them."""
        ...
