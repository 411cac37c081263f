"""Everything the scheduler can ask for, as values. ``cause`` is the id of the event that led to the command."""

from dataclasses import dataclass
from typing import Literal

from plait.schedule.domain import Placement, TaskKey, WorkerPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTask:
    """Start all workers of this attempt (a gang). ``attempt_id`` is ``JOB/TASK/N`` and never reused."""

    cause: int
    attempt_id: str
    task: TaskKey
    placement: Placement
    kind: Literal["start_task"] = "start_task"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTask:
    """Add workers to (they join in process) or remove workers from (they leave in process) a running attempt."""

    cause: int
    attempt_id: str
    add: tuple[WorkerPlacement, ...] = ()
    remove: tuple[str, ...] = ()
    reason: str = ""
    kind: Literal["resize_task"] = "resize_task"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTask:
    """Stop every worker of the attempt: SIGTERM, then SIGKILL after ``grace_s``."""

    cause: int
    attempt_id: str
    reason: str
    grace_s: float = 10.0
    kind: Literal["stop_task"] = "stop_task"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortCollectives:
    """Tell the surviving workers that these are gone, so that nobody waits for a time-out."""

    cause: int
    attempt_id: str
    lost: tuple[str, ...]
    reason: str
    kind: Literal["abort_collectives"] = "abort_collectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestDevice:
    """Test a quarantined device on its node and say within ``limit_s`` whether work may go there again."""

    __test__ = False  # pytest takes every class called Test for one of tests

    cause: int
    node: str
    device: str
    limit_s: float
    reason: str
    kind: Literal["test_device"] = "test_device"


Command = StartTask | ResizeTask | StopTask | AbortCollectives | TestDevice
