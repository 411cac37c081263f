"""The shapes of the HTTP API's JSON, shared by the server and the client. Times are Unix seconds."""

from typing import Literal, TypedDict


class RangeAnswer(TypedDict):
    """An elastic range."""

    min: int
    max: int


class ProgressAnswer(TypedDict):
    """The newest progress line of an attempt.

    ``device_speeds_sum`` adds the predicted speeds of its devices, ``device_samples_per_s`` their measured ones (None
    where no session reported them).
    """

    attempt_id: str
    task: str
    step: int
    total_steps: int | None
    samples_per_s: float
    loss: float | None
    generation: str
    split: dict[str, int]
    reason: str
    elastic: bool
    device_speeds_sum: float
    device_samples_per_s: float | None
    at_s: float


class WorkerAnswer(TypedDict):
    """One worker of a task's newest attempt.

    ``state`` is starting, running, stopping, or how it ended: finished, stopped, failed, lost.
    """

    worker_id: str
    rank: int
    node: str
    device_ids: list[str]
    accelerator_type: str
    state: str
    exit_code: int | None
    detail: str


class FailureAnswer(TypedDict):
    """Why a task failed last."""

    cause: str
    detail: str


class TaskAnswer(TypedDict):
    """One task of a job. ``reason`` says why it is in this state."""

    task: str
    state: str
    needs: list[str]
    workers: RangeAnswer
    attempt_id: str | None
    attempts: int
    reason: str
    failure: FailureAnswer | None
    exit_code: int | None
    placement: list[WorkerAnswer]


class JobAnswer(TypedDict):
    """A job with its tasks; ``exit_code`` is that of the first task that failed, or 0, once the job has ended."""

    job_id: str
    name: str
    project: str
    priority: int
    state: str
    submitted_at_s: float
    finished_at_s: float | None
    reason: str
    exit_code: int | None
    checkpoint: str | None
    tasks: list[TaskAnswer]


class DeviceAnswer(TypedDict):
    """One device; ``worker`` is ``ATTEMPT WORKER`` of who holds it.

    ``reason`` says why it takes no work, empty where it does; ``tested_in_s`` when it will be tested, None where no
    test is due or one is under way.
    """

    device: str
    accelerator_type: str
    memory_bytes: int | None
    state: str
    speed: float
    worker: str | None
    reason: str
    tested_in_s: float | None


class NodeAnswer(TypedDict):
    """One node; ``silent_s`` is the time since its agent was heard, None where it is not connected."""

    node: str
    address: str
    state: Literal["up", "drained", "lost"]
    is_connected: bool
    silent_s: float | None
    devices: list[DeviceAnswer]


class ControllerAnswer(TypedDict):
    """The controller itself.

    ``limitations`` says what of the cluster file the engine cannot do here; ``last_event`` is the id of the newest
    journal record, from which on a follower may ask for events.
    """

    pid: int
    started_at_s: float
    policy: str
    engine: str
    limitations: list[str]
    last_event: int


class StatusAnswer(TypedDict):
    """Everything at a glance."""

    controller: ControllerAnswer
    nodes: list[NodeAnswer]
    jobs: list[JobAnswer]


class SubmitAnswer(TypedDict):
    """The job is durable. ``is_new`` is False where this request was answered before."""

    job_id: str
    is_new: bool


class TaskExplanation(TypedDict):
    """Why a task waits, why it was placed so, why its split is what it is, and what happened to it.

    ``constraint`` and ``starts`` are empty for tasks that do not wait; ``starts_in_s`` is None where it is not known.
    """

    task: str
    state: str
    waiting: str
    constraint: str
    constraint_reason: str
    starts: str
    starts_in_s: float | None
    placement: list[str]
    split: str
    history: list[str]


class ExplainAnswer(TypedDict):
    """Reasons of a job, task by task."""

    job_id: str
    state: str
    tasks: list[TaskExplanation]


class PlannedTask(TypedDict):
    """What would happen to one task if the job were submitted now; ``after`` names tasks that must succeed first."""

    task: str
    starts_now: bool
    is_impossible: bool
    after: list[str]
    workers: list[WorkerAnswer]
    reasons: list[str]


class PlanAnswer(TypedDict):
    """What would run where now; nothing was changed. ``preempts`` names attempts that would stop or shrink."""

    tasks: list[PlannedTask]
    preempts: list[str]


class EventsAnswer(TypedDict):
    """Journal records after an id: each the event with its commands. ``next`` is the id to ask after."""

    events: list[dict[str, object]]
    next: int


class ProgressesAnswer(TypedDict):
    """The newest progress of each of a job's attempts that reported any."""

    job_id: str
    progress: list[ProgressAnswer]
