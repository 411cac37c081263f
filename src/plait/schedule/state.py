"""What the scheduler knows, as one frozen value.

Every record is immutable and made of JSON types, so ``plait.wire.Codec(ClusterState)`` takes a snapshot. Mappings are
never changed in place: a transition works on a ``Draft`` and hands back new ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from plait.hardware.device import Device, DeviceState, Node
from plait.schedule.domain import Allocation, JobState, TaskKey, TaskState, WorkerPlacement, WorkerState
from plait.spec.cluster import PolicyChoice, PriceWindow, Project, Quarantine, Reservation
from plait.spec.job import FailureCause, Job, WorkerRange

AttemptPhase = Literal["starting", "running", "stopping"]
Outcome = Literal["succeeded", "requeue", "retry", "fail", "cancel"]

ENDED: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfig:
    """What the administrator sets, taken from the cluster's file.

    ``backoff_base_s`` doubles with each restart up to ``backoff_max_s``; ``grace_s`` is the time between SIGTERM and
    SIGKILL of a worker that has to stop. For ``settle_s`` after a node joined, a task that would start with fewer
    workers than it may have waits for the nodes that join right behind. ``racks`` gives the rack of each node.
    """

    policy: PolicyChoice = field(default_factory=PolicyChoice)
    windows: tuple[PriceWindow, ...] = ()
    projects: tuple[Project, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    racks: Mapping[str, str] = field(default_factory=dict)
    quarantine: Quarantine = field(default_factory=Quarantine)
    backoff_base_s: float = 1.0
    backoff_max_s: float = 60.0
    grace_s: float = 10.0
    settle_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrouble:
    """Why a device takes no work.

    Attributes:
        state: ``lost`` (its node says so), ``quarantined`` (a worker failed on it), or ``probation`` (it is tested).
        reason: What happened.
        since_s: When it happened.
        until_s: When it will be tested, or during probation until when the answer must be there; None: never, so that
            it waits for its node or a person.
        test: Which test it is that runs: the id of the event that led to it.
        last_test: How the last test ended; empty before the first.
    """

    state: DeviceState
    reason: str
    since_s: float = 0.0
    until_s: float | None = None
    test: int | None = None
    last_test: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFaults:
    """What a device has been through.

    Attributes:
        times_s: When it failed, as far back as faults count together, since it last passed a test.
        cool_down_s: How long its last quarantine was to last before its test; 0 where there was none that counts.
        watched_until_s: A fault before this time quarantines it at once, for twice as long.
    """

    times_s: tuple[float, ...] = ()
    cool_down_s: float = 0.0
    watched_until_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node that joined at least once. ``next_port`` is where the search for free ports starts."""

    node: Node
    is_alive: bool = True
    is_draining: bool = False
    lost_reason: str = ""
    next_port: int = 0
    troubles: Mapping[str, DeviceTrouble] = field(default_factory=dict)
    faults: Mapping[str, DeviceFaults] = field(default_factory=dict)

    @property
    def takes_work(self) -> bool:
        """Whether new workers may go there."""
        return self.is_alive and not self.is_draining

    def healthy(self) -> tuple[Device, ...]:
        """Returns the devices that work may go to, as far as their own state counts."""
        return tuple(d for d in self.node.devices if d.state == "healthy" and d.id not in self.troubles)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker that is not known to have exited.

    ``is_leaving``: it was asked to go or was given up; it counts no longer as part of the gang but holds its devices
    until its exit is known.
    """

    placement: WorkerPlacement
    started_at_s: float
    state: WorkerState = "starting"
    is_leaving: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the worker counts as part of the gang."""
        return not self.is_leaving


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The last report of an attempt."""

    at_s: float
    step: int
    total_steps: int | None
    samples_per_s: float
    split: tuple[tuple[str, int], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What happens once the last worker of an attempt is gone."""

    outcome: Outcome
    reason: str
    cause: FailureCause | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One gang that has workers. ``floor`` is the number of workers below which it is stopped.

    ``num_finished`` counts workers that exited with 0 unasked; ``num_losses`` those that were lost while the others
    went on, which delays replacements (``grow_after_s``).
    """

    id: str
    task: TaskKey
    started_at_s: float
    floor: int
    next_worker: int
    workers: Mapping[str, WorkerRecord]
    phase: AttemptPhase = "starting"
    is_elastic: bool = False
    num_finished: int = 0
    num_losses: int = 0
    grow_after_s: float = 0.0
    progress: Progress | None = None
    ending: Ending | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def can_resize(self) -> bool:
        """Whether workers may be added or removed in process now."""
        return self.phase == "running" and self.is_elastic and self.num_finished == 0

    def active(self) -> tuple[WorkerRecord, ...]:
        """Returns the workers that count as part of the gang, in the order in which they were started."""
        return tuple(w for w in self.workers.values() if w.is_active)

    def allocation(self) -> Allocation:
        """Returns how many active workers run on each type."""
        counts: dict[str, int] = {}
        for worker in self.active():
            counts[worker.placement.accelerator_type] = counts.get(worker.placement.accelerator_type, 0) + 1
        return Allocation(counts=tuple(sorted(counts.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """What remains of an attempt that is over. ``num_workers`` counts all that it ever had."""

    attempt_id: str
    started_at_s: float
    ended_at_s: float
    num_workers: int
    outcome: Outcome
    reason: str
    cause: FailureCause | None = None
    exit_code: int | None = None
    notes: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task of a job.

    ``restarts`` counts those that used up budget; ``ready_at_s`` is when a restart may be tried; ``service_s`` is the
    worker-seconds of workers that ended. After a worker ran out of memory, devices with at most ``memory_above_bytes``
    and those in ``avoid_devices`` are not used again by this task. ``is_impossible``: the nodes there are could not
    hold it even when idle.
    """

    key: TaskKey
    workers: WorkerRange
    state: TaskState = "blocked"
    attempt_id: str | None = None
    next_attempt: int = 0
    restarts: int = 0
    ready_at_s: float = 0.0
    service_s: float = 0.0
    memory_above_bytes: int | None = None
    avoid_devices: tuple[str, ...] = ()
    is_impossible: bool = False
    reason: str = ""
    exit_code: int | None = None
    history: tuple[AttemptSummary, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job that was accepted. ``number`` is its place in the order of submission.

    ``fate`` is set as soon as the job is bound to end badly; ``state`` follows when nothing of it runs any more.
    """

    id: str
    number: int
    job: Job
    submitted_at_s: float
    tasks: Mapping[str, TaskRecord]
    state: JobState = "waiting"
    fate: Literal["failed", "cancelled"] | None = None
    reason: str = ""
    exit_code: int | None = None
    ended_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All that decides what happens next. ``open_jobs`` are those that have not ended, in order of submission.

    ``joined_at_s`` is when a node joined last; ``next_test_s`` when the next quarantined device is due for its test;
    ``round_at_s`` when the policy's last round began; ``memory`` what the policy wants to know in its next one.
    """

    config: MachineConfig = field(default_factory=MachineConfig)
    last_event_id: int = -1
    now_s: float = 0.0
    joined_at_s: float | None = None
    tick_at_s: float = 0.0
    tick_day_s: int | None = None
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    open_jobs: tuple[str, ...] = ()
    attempts: Mapping[str, AttemptRecord] = field(default_factory=dict)
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)
    round_at_s: float | None = None
    next_test_s: float | None = None
    memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def task(self, key: TaskKey) -> TaskRecord:
        """Returns the record of this task; raises ``KeyError`` where there is none."""
        return self.jobs[key.job_id].tasks[key.task]

    def day_s(self) -> float | None:
        """Returns seconds after midnight, or None before the first tick."""
        if self.tick_day_s is None:
            return None
        return (self.tick_day_s + self.now_s - self.tick_at_s) % 86400
