"""Jobs: accepted, cancelled, resized; tasks move along the DAG; a job ends when nothing of it runs any more."""

from collections.abc import Mapping
from dataclasses import replace

from plait.schedule.attempts import finish_task, stop
from plait.schedule.domain import JobState, TaskKey
from plait.schedule.draft import Draft
from plait.schedule.events import JobCancelled, JobSubmitted, ResizeRequested
from plait.schedule.state import ENDED, JobRecord, TaskRecord
from plait.spec.job import Job

CANCELLED_EXIT_CODE = 130


def submitted(draft: Draft, event: JobSubmitted) -> None:
    """Takes a job in; one that cannot be run at all fails at once and says why."""
    if event.job_id in draft.state.jobs:
        return
    tasks = {
        task.name: TaskRecord(key=TaskKey(job_id=event.job_id, task=task.name), workers=task.workers)
        for task in event.job.tasks
    }
    record = JobRecord(
        id=event.job_id, number=len(draft.state.jobs), job=event.job, submitted_at_s=draft.now_s, tasks=tasks
    )
    draft.put_job(record)
    draft.set_state(replace(draft.state, open_jobs=(*draft.state.open_jobs, event.job_id)))
    fault = _fault(event.job)
    if fault is not None:
        draft.put_job(replace(record, fate="failed", reason=fault, exit_code=1))


def cancelled(draft: Draft, event: JobCancelled) -> None:
    """Ends a job at a person's wish; one that is failing or has ended stays what it is."""
    job = draft.state.jobs.get(event.job_id)
    if job is None or job.state in ENDED or job.fate is not None:
        return
    draft.put_job(replace(job, fate="cancelled", reason="cancelled by request", exit_code=CANCELLED_EXIT_CODE))


def resized(draft: Draft, event: ResizeRequested) -> None:
    """Gives one task another elastic range; a range that makes no sense changes nothing."""
    job = draft.state.jobs.get(event.job_id)
    task = job.tasks.get(event.task) if job is not None else None
    if task is None or task.state in ENDED or not 1 <= event.workers.min <= event.workers.max:
        return
    draft.put_task(replace(task, workers=event.workers))
    attempt = draft.state.attempts.get(task.attempt_id or "")
    if attempt is not None:
        draft.put_attempt(replace(attempt, floor=min(event.workers.min, len(attempt.active()) or attempt.floor)))


def settle(draft: Draft) -> None:
    """Moves jobs on as far as they can go by themselves: ends what is doomed, unblocks what is ready.

    Only jobs that changed are looked at: what one job's tasks do depends on no other job.
    """
    ended = set()
    for record in draft.take_touched():
        if record.state in ENDED:
            continue
        if record.fate is not None:
            _end_tasks(draft, record.id)
        else:
            _unblock(draft, record.id)
        _conclude(draft, record.id)
        if draft.state.jobs[record.id].state in ENDED:
            ended.add(record.id)
    if ended:
        draft.set_state(replace(draft.state, open_jobs=tuple(i for i in draft.state.open_jobs if i not in ended)))


def _end_tasks(draft: Draft, job_id: str) -> None:
    job = draft.state.jobs[job_id]
    for task in job.tasks.values():
        if task.attempt_id is not None:
            stop(draft, task.attempt_id, "cancel", job.reason, cause="cancelled")
        elif task.state not in ENDED:
            finish_task(draft, task.key, "cancelled", job.reason)


def _unblock(draft: Draft, job_id: str) -> None:
    job = draft.state.jobs[job_id]
    for spec in job.job.tasks:
        task = job.tasks[spec.name]
        if task.state != "blocked":
            continue
        missing = [need for need in spec.needs if job.tasks[need].state != "succeeded"]
        if missing:
            reason = f"needs {', '.join(missing)} to have succeeded"
            draft.put_task(replace(task, reason=reason))
        else:
            draft.put_task(replace(task, state="waiting", reason="not tried yet"))


def _conclude(draft: Draft, job_id: str) -> None:
    job = draft.state.jobs[job_id]
    states = {task.state for task in job.tasks.values()}
    if states <= ENDED:
        code = 0 if job.fate is None else job.exit_code
        draft.put_job(replace(job, state=job.fate or "succeeded", exit_code=code, ended_at_s=draft.now_s))
        return
    is_idle = states <= {"blocked", "waiting"} and all(task.next_attempt == 0 for task in job.tasks.values())
    state: JobState = "waiting" if is_idle else "running"
    if job.state != state:
        draft.put_job(replace(job, state=state))


def _fault(job: Job) -> str | None:
    """Returns why the job's DAG makes no sense, should a job come in that no spec reader has seen."""
    names = [task.name for task in job.tasks]
    if not names or len(set(names)) != len(names):
        return f"job {job.name!r} needs tasks with distinct names; got {', '.join(names) or 'none'}"
    for task in job.tasks:
        unknown = [need for need in task.needs if need not in names]
        if unknown:
            return f"task {task.name!r} needs {unknown[0]!r}, which the job does not have"
        if not 1 <= task.workers.min <= task.workers.max:
            return f"task {task.name!r} has an impossible range of workers: {task.workers.min} to {task.workers.max}"
        if any(request.count < 1 for request in task.resources.any_of):
            return f"task {task.name!r} asks for less than one device a worker"
    return _cycle({task.name: task.needs for task in job.tasks})


def _cycle(needs: Mapping[str, tuple[str, ...]]) -> str | None:
    left = dict(needs)
    while left:
        ready = [name for name, wanted in left.items() if not any(need in left for need in wanted)]
        if not ready:
            return f"these tasks wait for each other: {', '.join(sorted(left))}"
        for name in ready:
            del left[name]
    return None
