"""Rules that hold in every state; tests look at them after each event."""

from collections import Counter
from collections.abc import Iterator

from plait.schedule.state import ENDED, AttemptRecord, ClusterState, JobRecord, TaskRecord


class InvariantBroken(AssertionError):
    """A state that the scheduler must never reach; the message names the rule."""


def validate(state: ClusterState) -> None:
    """Raises ``InvariantBroken`` with every rule that this state breaks."""
    broken = [*_devices(state), *_ports(state), *_open_jobs(state)]
    for attempt in state.attempts.values():
        broken.extend(_attempt(state, attempt))
        broken.extend(_where(state, attempt))
    for job in state.jobs.values():
        broken.extend(_job(state, job))
    if broken:
        raise InvariantBroken("; ".join(broken))


def _devices(state: ClusterState) -> Iterator[str]:
    held = Counter(
        device
        for attempt in state.attempts.values()
        for w in attempt.workers.values()
        for device in w.placement.device_ids
    )
    for device, number in held.items():
        if number > 1:
            yield f"one holder a device: {device} is held {number} times"


def _ports(state: ClusterState) -> Iterator[str]:
    used = Counter(
        (w.placement.address, port)
        for attempt in state.attempts.values()
        for w in attempt.workers.values()
        for port in (w.placement.port, w.placement.port + 1)
    )
    for (address, port), number in used.items():
        if number > 1:
            yield f"one worker a port: {address}:{port} is used {number} times"


def _open_jobs(state: ClusterState) -> Iterator[str]:
    expected = [job.id for job in state.jobs.values() if job.state not in ENDED]
    if sorted(expected) != sorted(state.open_jobs):
        yield f"open jobs: {state.open_jobs} listed, {tuple(expected)} have not ended"
    for attempt in state.attempts.values():
        task = state.task(attempt.task)
        if task.attempt_id != attempt.id:
            yield f"one live attempt a task: {attempt.id} lives beside {task.attempt_id}"


def _attempt(state: ClusterState, attempt: AttemptRecord) -> Iterator[str]:
    task, number = state.task(attempt.task), len(attempt.active())
    if not attempt.workers:
        yield f"attempts have workers: {attempt.id} has none"
    if task.state != attempt.phase:
        yield f"a task is as its attempt: {attempt.id} is {attempt.phase}, its task {task.state}"
    if (attempt.phase == "stopping") != (attempt.ending is not None):
        yield f"stopping needs a reason: {attempt.id} is {attempt.phase} with ending {attempt.ending}"
    if attempt.phase != "stopping" and attempt.num_finished == 0 and number < attempt.floor:
        yield f"worker range: {attempt.id} has {number} workers, below {attempt.floor}"
    if attempt.can_resize and number > task.workers.max:
        yield f"worker range: {attempt.id} has {number} workers, above {task.workers.max}"
    if int(attempt.id.rpartition("/")[2]) != task.next_attempt - 1:
        yield f"attempt numbers: {attempt.id} is not the last of {task.next_attempt}"
    for worker_id, worker in attempt.workers.items():
        if worker.placement.worker_id != worker_id or not 0 <= int(worker_id[1:]) < attempt.next_worker:
            yield f"worker ids: {worker_id} of {attempt.id} was never given out"
    local = Counter((worker.placement.node, worker.placement.local_rank) for worker in attempt.workers.values())
    if any(count > 1 for count in local.values()):
        yield f"local ranks: {attempt.id} uses one twice on a node"


def _where(state: ClusterState, attempt: AttemptRecord) -> Iterator[str]:
    spec = state.jobs[attempt.task.job_id].job.task(attempt.task.task)
    wanted = {request.accelerator: request for request in reversed(spec.resources.any_of)}
    for worker in attempt.workers.values():
        placement, record = worker.placement, state.nodes.get(worker.placement.node)
        if record is None or not record.is_alive:
            yield f"workers on live nodes: {attempt.id} {placement.worker_id} is on {placement.node}"
            continue
        request = wanted.get(placement.accelerator_type)
        if len(placement.device_ids) != (request.count if request else 1) or (wanted and request is None):
            yield f"devices a worker: {attempt.id} {placement.worker_id} holds {placement.device_ids}"
        if attempt.phase != "stopping" and worker.is_active:
            healthy = {device.id: device for device in record.healthy()}
            for device in placement.device_ids:
                if device not in healthy or healthy[device].accelerator_type != placement.accelerator_type:
                    yield f"healthy devices: {attempt.id} {placement.worker_id} runs on {device}"
    types = {w.placement.accelerator_type for w in attempt.active()}
    if not spec.resources.mix and len(types) > 1:
        yield f"one type where mix is false: {attempt.id} runs on {sorted(types)}"


def _job(state: ClusterState, job: JobRecord) -> Iterator[str]:
    states = {task.state for task in job.tasks.values()}
    if (job.state in ENDED) != (states <= ENDED):
        yield f"a job ends with its tasks: {job.id} is {job.state} with tasks {sorted(states)}"
    if job.state == "succeeded" and states != {"succeeded"}:
        yield f"success of all: {job.id} succeeded with tasks {sorted(states)}"
    if job.state in ENDED and (job.exit_code is None or (job.exit_code == 0) != (job.state == "succeeded")):
        yield f"exit codes: {job.id} {job.state} with {job.exit_code}"
    if job.fate is None and "failed" in states:
        yield f"a failed task dooms its job: {job.id}"
    for task in job.tasks.values():
        yield from _task(state, job, task)


def _task(state: ClusterState, job: JobRecord, task: TaskRecord) -> Iterator[str]:
    is_live = task.state in ("starting", "running", "stopping")
    if is_live != (task.attempt_id is not None) or (is_live and task.attempt_id not in state.attempts):
        yield f"live tasks have an attempt: {task.key} is {task.state} with {task.attempt_id}"
    if task.restarts > job.job.failure.max_restarts:
        yield f"restarts: {task.key} used {task.restarts} of {job.job.failure.max_restarts}"
    if not task.reason and task.state != "blocked":
        yield f"reasons: {task.key} is {task.state} without one"
    if task.state == "cancelled" or job.fate is not None:
        return
    missing = [n for n in job.job.task(task.key.task).needs if job.tasks[n].state != "succeeded"]
    if (task.state == "blocked") != bool(missing):
        yield f"DAG order: {task.key} is {task.state} while {missing} have not succeeded"
