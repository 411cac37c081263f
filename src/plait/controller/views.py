"""What people see of the state: pure functions from the scheduler's state and the ledger to the API's answers."""

from collections.abc import Iterator, Mapping
from typing import Literal

from plait.controller.answers import (
    DeviceAnswer,
    ExplainAnswer,
    FailureAnswer,
    JobAnswer,
    NodeAnswer,
    ProgressAnswer,
    TaskAnswer,
    TaskExplanation,
    WorkerAnswer,
)
from plait.controller.ledger import Gang, Ledger
from plait.controller.progress import Latest
from plait.hardware.device import Device
from plait.schedule.domain import WorkerPlacement
from plait.schedule.explain import Explanation, explain_job, told_of_devices
from plait.schedule.quarantine import trouble_told
from plait.schedule.state import AttemptSummary, ClusterState, JobRecord, NodeRecord, TaskRecord

_END_STATES: Mapping[str | None, str] = {None: "finished", "cancelled": "stopped", "lost": "lost"}


def job_answer(state: ClusterState, ledger: Ledger, job_id: str) -> JobAnswer:
    """Returns one job that exists."""
    record = state.jobs[job_id]
    return JobAnswer(
        job_id=job_id,
        name=record.job.name,
        project=record.job.project,
        priority=record.job.priority,
        state=record.state,
        submitted_at_s=record.submitted_at_s,
        finished_at_s=record.ended_at_s,
        reason=record.reason,
        exit_code=record.exit_code,
        checkpoint=record.job.checkpoint.url if record.job.checkpoint is not None else None,
        tasks=[_task_answer(record, task, ledger) for task in record.tasks.values()],
    )


def worker_answer(worker: WorkerPlacement, state: str, exit_code: int | None = None, detail: str = "") -> WorkerAnswer:
    """Returns one worker."""
    return WorkerAnswer(
        worker_id=worker.worker_id,
        rank=worker.rank,
        node=worker.node,
        device_ids=list(worker.device_ids),
        accelerator_type=worker.accelerator_type,
        state=state,
        exit_code=exit_code,
        detail=detail,
    )


def node_answer(state: ClusterState, ledger: Ledger, node: str, silent_s: float | None) -> NodeAnswer:
    """Returns one node that exists; ``silent_s`` is None where its agent is not connected."""
    record = state.nodes[node]
    holders = {
        device: f"{order.attempt_id} {order.worker.worker_id}"
        for order in ledger.of_node(node)
        for device in order.worker.device_ids
    }
    return NodeAnswer(
        node=node,
        address=record.node.address,
        state=_node_state(record),
        is_connected=silent_s is not None,
        silent_s=silent_s,
        devices=[_device_answer(state, record, device, holders.get(device.id)) for device in record.node.devices],
    )


def _device_answer(state: ClusterState, record: NodeRecord, device: Device, worker: str | None) -> DeviceAnswer:
    trouble = record.troubles.get(device.id)
    is_due = trouble is not None and trouble.state != "probation"
    until_s = trouble.until_s if trouble is not None and is_due else None
    return DeviceAnswer(
        device=device.id,
        accelerator_type=device.accelerator_type,
        memory_bytes=device.memory_bytes,
        state=trouble.state if trouble is not None else device.state,
        speed=device.speed,
        worker=worker,
        reason=trouble_told(device.id, trouble, state.now_s) if trouble is not None else "",
        tested_in_s=None if until_s is None else max(0.0, until_s - state.now_s),
    )


def progress_answer(state: ClusterState, ledger: Ledger, latest: Latest) -> ProgressAnswer:
    """Returns the newest progress of an attempt."""
    line = latest.line
    task = line.attempt_id.rsplit("/", 2)[1]
    return ProgressAnswer(
        attempt_id=line.attempt_id,
        task=task,
        step=line.step,
        total_steps=line.total_steps,
        samples_per_s=line.samples_per_s,
        loss=line.loss,
        generation=line.generation,
        split=dict(line.split),
        reason=line.reason,
        elastic=line.elastic,
        device_speeds_sum=_device_speeds_sum(state, ledger, line.attempt_id),
        device_samples_per_s=line.device_samples_per_s,
        at_s=latest.at_s,
    )


def explain_answer(state: ClusterState, job_id: str) -> ExplainAnswer:
    """Returns the reasons of one job that exists."""
    record = state.jobs[job_id]
    told = explain_job(state, record)
    tasks = [_explanation(state, record, record.tasks[one.task], one) for one in told]
    return ExplainAnswer(job_id=job_id, state=record.state, tasks=tasks)


def _task_answer(record: JobRecord, task: TaskRecord, ledger: Ledger) -> TaskAnswer:
    gang = ledger.gangs.get(str(task.key))
    return TaskAnswer(
        task=task.key.task,
        state=task.state,
        needs=list(record.job.task(task.key.task).needs),
        workers={"min": task.workers.min, "max": task.workers.max},
        attempt_id=gang.attempt_id if gang is not None else None,
        attempts=ledger.starts.get(str(task.key), 0),
        reason=task.reason,
        failure=_failure(task, gang),
        exit_code=task.exit_code,
        placement=list(_placement(gang, ledger)) if gang is not None else [],
    )


def _failure(task: TaskRecord, gang: Gang | None) -> FailureAnswer | None:
    """Returns the first bad end of the newest attempt, or how the one before it ended."""
    for end in gang.ends.values() if gang is not None else ():
        if end.failure is not None and end.failure != "cancelled":
            return FailureAnswer(cause=end.failure, detail=end.detail)
    if task.history and task.history[-1].cause is not None:
        return FailureAnswer(cause=task.history[-1].cause, detail=task.history[-1].reason)
    return None


def _placement(gang: Gang, ledger: Ledger) -> Iterator[WorkerAnswer]:
    orders = ledger.of_attempt(gang.attempt_id)
    for worker in (*gang.founders, *gang.joiners):
        end = gang.ends.get(worker.worker_id)
        if end is not None:
            yield worker_answer(worker, _END_STATES.get(end.failure, "failed"), end.exit_code, end.detail)
        elif (order := orders.get(worker.worker_id)) is not None:
            state = "stopping" if order.stop else "running" if order.is_up else "starting"
            yield worker_answer(worker, state)
        else:
            yield worker_answer(worker, "lost")


def _node_state(record: NodeRecord) -> Literal["up", "drained", "lost"]:
    if not record.is_alive:
        return "lost"
    return "drained" if record.is_draining else "up"


def _device_speeds_sum(state: ClusterState, ledger: Ledger, attempt_id: str) -> float:
    speeds = {device.id: device.speed for record in state.nodes.values() for device in record.node.devices}
    gang = ledger.gangs.get(attempt_id.rpartition("/")[0])
    if gang is None or gang.attempt_id != attempt_id:
        return 0.0
    workers = [worker for worker in (*gang.founders, *gang.joiners) if worker.worker_id not in gang.ends]
    return sum(speeds.get(device, 0.0) for worker in workers for device in worker.device_ids)


def _explanation(state: ClusterState, record: JobRecord, task: TaskRecord, told: Explanation) -> TaskExplanation:
    attempt = state.attempts.get(task.attempt_id) if task.attempt_id is not None else None
    split = ""
    if attempt is not None and attempt.progress is not None:
        parts = ", ".join(f"{member} {count}" for member, count in attempt.progress.split)
        split = f"{parts}: {attempt.progress.reason}" if parts else attempt.progress.reason
    if attempt is not None and attempt.phase == "running" and not attempt.is_elastic and not split:
        split = "its workers have not reported: either they have not come so far, or they do not use plait.session()"
    last = task.history[-1] if task.history else None
    placed = attempt.reasons if attempt is not None else last.placed if last is not None else ()
    history = [line for summary in task.history for line in (*summary.notes, _told(summary))]
    return TaskExplanation(
        task=task.key.task,
        state=task.state,
        waiting="; ".join((task.reason or record.reason, *told_of_devices(state, record, task))),
        constraint=told.constraint.kind if told.constraint is not None else "",
        constraint_reason=told.constraint.reason if told.constraint is not None else "",
        starts=told.starts,
        starts_in_s=told.starts_in_s,
        placement=list(placed),
        split=split,
        history=[*history, *(attempt.notes if attempt is not None else ())],
    )


def _told(summary: AttemptSummary) -> str:
    seconds = summary.ended_at_s - summary.started_at_s
    number = summary.attempt_id.rpartition("/")[2]
    return (
        f"attempt {number}: {summary.outcome} after {seconds:.0f}s on {summary.num_workers} workers: {summary.reason}"
    )
