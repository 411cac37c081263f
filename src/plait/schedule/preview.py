"""What would become of a job if it were submitted now: the machine itself decides, on a state that is thrown away."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from plait.hardware.catalog import UnknownAccelerator, capability
from plait.schedule import machine
from plait.schedule.commands import Command, StartTask, TestDevice
from plait.schedule.domain import Placement
from plait.schedule.events import JobSubmitted, WorkerExited, WorkerStarted
from plait.schedule.state import ClusterState, JobRecord
from plait.spec.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedTask:
    """Where a task would run.

    Attributes:
        task: Its name.
        after: Tasks of the job that have to succeed first; empty where it would start at once.
        placement: Its workers, as if the rest of the cluster stayed as it is; None where it would wait.
        reasons: Why there, or why it would wait; also what its devices lack.
        is_impossible: Whether the nodes there are could never hold it.
    """

    task: str
    after: tuple[str, ...]
    placement: Placement | None
    reasons: tuple[str, ...]
    is_impossible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """All tasks of the job, and what the submission would do to other jobs."""

    tasks: tuple[PreviewedTask, ...]
    others: tuple[Command, ...]


def preview(state: ClusterState, job: Job, job_id: str, *, event_id: int, now_s: float) -> Preview:
    """Plays the job through, each task ending well, and returns where each would start.

    Args:
        state: The cluster as it is; it is not changed.
        job: What would be submitted.
        job_id: An id that is not taken.
        event_id: The first event id that is not taken.
        now_s: The time of the submission.
    """
    state = replace(state, joined_at_s=None)  # nobody waits on paper for nodes that may join right behind
    state, first = machine.apply(state, JobSubmitted(id=event_id, at_s=now_s, job_id=job_id, job=job))
    starts = {command.task.task: command for command in _starts(first, job_id)}
    at_once = frozenset(starts)
    queue = list(starts.values())
    while queue:
        command = queue.pop(0)
        for worker in command.placement.workers:
            for event in _played(command.attempt_id, worker.worker_id, event_id, now_s):
                event_id = event.id
                state, commands = machine.apply(state, event)
                fresh = [start for start in _starts(commands, job_id) if start.task.task not in starts]
                starts.update({start.task.task: start for start in fresh})
                queue.extend(fresh)
    tasks = tuple(_told(state.jobs[job_id], task.name, starts.get(task.name), at_once) for task in job.tasks)
    others = tuple(
        command
        for command in first
        if not isinstance(command, TestDevice) and not command.attempt_id.startswith(f"{job_id}/")
    )
    return Preview(tasks=tasks, others=others)


def _starts(commands: Iterable[Command], job_id: str) -> list[StartTask]:
    return [command for command in commands if isinstance(command, StartTask) and command.task.job_id == job_id]


def _played(attempt_id: str, worker_id: str, event_id: int, now_s: float) -> tuple[WorkerStarted | WorkerExited, ...]:
    return (
        WorkerStarted(id=event_id + 1, at_s=now_s, attempt_id=attempt_id, worker_id=worker_id),
        WorkerExited(id=event_id + 2, at_s=now_s, attempt_id=attempt_id, worker_id=worker_id, exit_code=0),
    )


def _told(record: JobRecord, task: str, start: StartTask | None, at_once: frozenset[str]) -> PreviewedTask:
    after = () if task in at_once else record.job.task(task).needs
    if start is None:
        reason = record.tasks[task].reason or record.reason
        why: tuple[str, ...] = (reason,) if reason else ()
        never = record.tasks[task].is_impossible
        return PreviewedTask(task=task, after=after, placement=None, reasons=why, is_impossible=never)
    types = {worker.accelerator_type for worker in start.placement.workers}
    reasons = (*start.placement.reasons, *precision_reasons(record.job, types))
    return PreviewedTask(task=task, after=after, placement=start.placement, reasons=reasons)


def precision_reasons(job: Job, types: Iterable[str]) -> tuple[str, ...]:
    """Returns what each of these accelerator types would compute in, and says where it cannot."""
    able: dict[str, list[str]] = {}
    faults = []
    for name in sorted(types):
        wanted = job.precision.of(name).precision
        fault = _precision_fault(name, wanted)
        if fault is None:
            able.setdefault(wanted, []).append(name)
        else:
            faults.append(fault)
    shares = [f"{', '.join(names)} in {precision}" for precision, names in able.items()]
    meeting = f"; gradients meet in {job.precision.reduce}"
    return (*((f"computes: {'; '.join(shares)}{meeting}",) if shares else ()), *faults)


def _precision_fault(accelerator_type: str, precision: str) -> str | None:
    try:
        has = capability(accelerator_type).precisions
    except UnknownAccelerator:
        return f"{accelerator_type} is not in the catalogue: whether it computes in {precision} shows only when it runs"
    if precision in has:
        return None
    return f"{accelerator_type} does not compute in {precision}: give it an entry in precision.device_specific"
