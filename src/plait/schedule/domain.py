"""Words of the scheduler as frozen values: allocations, placements, attempts."""

from dataclasses import dataclass
from typing import Literal

TaskState = Literal["blocked", "waiting", "starting", "running", "stopping", "succeeded", "failed", "cancelled"]
JobState = Literal["waiting", "running", "succeeded", "failed", "cancelled"]
Deed = Literal["kill", "freeze", "notice", "device_fault"]
"""Faults that people may have done to a running worker, to see what follows."""
WorkerState = Literal["starting", "running", "exited", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """A task of a job, cluster-wide."""

    job_id: str
    task: str

    def __str__(self) -> str:
        return f"{self.job_id}/{self.task}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """How much of which accelerator type a task gets: ``((type, workers), ...)``."""

    counts: tuple[tuple[str, int], ...]

    @property
    def num_workers(self) -> int:
        """Workers over all types."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlacement:
    """One worker: which devices it holds and where it listens.

    ``worker_id`` is unique within the attempt and never reused (``w0``, ``w1``, ...); its number is the rank the
    worker is started with.
    """

    worker_id: str
    rank: int
    local_rank: int
    node: str
    device_ids: tuple[str, ...]
    accelerator_type: str
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which devices and ranks an attempt runs on, and why."""

    workers: tuple[WorkerPlacement, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy wants for one task now: ``allocation`` None leaves it waiting. The reason is for people.

    ``max_nodes`` is on how many nodes placement may put it at most (None: as few as possible, as many as needed): a
    policy that counts on a consolidated placement would rather let the task wait than have it split. ``next`` is what a
    waiting task gets as soon as others have given it back.
    """

    task: TaskKey
    allocation: Allocation | None
    reason: str
    max_nodes: int | None = None
    next: Allocation | None = None
