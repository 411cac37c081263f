"""Why a job is where it is: what it waits for, why it was placed so, why its split is so, what happened before."""

from dataclasses import dataclass

from plait.schedule.phrases import of_workers
from plait.schedule.state import ENDED, AttemptSummary, ClusterState, JobRecord, TaskRecord
from plait.words import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Reasons of one task. ``waiting`` and ``split`` are empty where there is nothing to say."""

    task: str
    state: str
    waiting: str
    placement: tuple[str, ...]
    split: str
    history: tuple[str, ...]


def explain(state: ClusterState, job_id: str) -> tuple[str, ...]:
    """Returns everything that is known about why the job is as it is, a line each."""
    job = state.jobs.get(job_id)
    if job is None:
        return (f"there is no job {job_id!r}{did_you_mean(job_id, state.jobs)}",)
    lines = [f"{job.id} is {job.state}" + (f": {job.reason}" if job.reason else "")]
    for task in job.tasks.values():
        lines.extend(_lines(explain_task(state, job, task)))
    return tuple(lines)


def explain_task(state: ClusterState, job: JobRecord, task: TaskRecord) -> Explanation:
    """Returns the reasons of one task of the job."""
    attempt = state.attempts.get(task.attempt_id or "")
    placement = attempt.reasons if attempt is not None else task.history[-1].placed if task.history else ()
    progress = attempt.progress if attempt is not None else None
    split = ""
    if progress is not None and progress.split:
        shares = ", ".join(f"{member} {number}" for member, number in progress.split)
        split = f"{shares}" + (f" ({progress.reason})" if progress.reason else "")
    elif attempt is not None and attempt.phase == "running" and len(attempt.workers) > 1:
        split = (
            "no worker has opened a plait.session so far: it runs as under torchrun, without elasticity, and starts"
            " anew when it loses a worker"
        )
    history = [line for summary in task.history for line in _past(summary)]
    if attempt is not None:
        history.extend(f"{attempt.id}: {note}" for note in attempt.notes)
    return Explanation(
        task=task.key.task,
        state=task.state,
        waiting=_waiting(state, job, task),
        placement=placement,
        split=split,
        history=tuple(history),
    )


def _lines(told: Explanation) -> list[str]:
    lines = [f"task {told.task} is {told.state}" + (f": {told.waiting}" if told.waiting else "")]
    lines.extend(f"  placed: {reason}" for reason in told.placement)
    if told.split:
        lines.append(f"  split: {told.split}")
    lines.extend(f"  before: {line}" for line in told.history)
    return lines


def _past(summary: AttemptSummary) -> list[str]:
    lasted_s = summary.ended_at_s - summary.started_at_s
    cause = f", cause {summary.cause}" if summary.cause is not None else ""
    verb = {
        "succeeded": "succeeded",
        "requeue": "was stopped and queued again without using up a restart",
        "retry": "ended and was queued for a restart",
        "fail": "failed",
        "cancel": "was cancelled",
    }[summary.outcome]
    notes = [f"{summary.attempt_id}: {note}" for note in summary.notes]
    return [*notes, f"{summary.attempt_id} {verb} after {lasted_s:.1f} s{cause}: {summary.reason}"]


def _waiting(state: ClusterState, job: JobRecord, task: TaskRecord) -> str:
    if task.state in ENDED or task.state == "stopping":
        return task.reason
    if task.state not in ("blocked", "waiting"):
        return ""
    parts = [task.reason]
    left_s = task.ready_at_s - state.now_s
    if task.state == "waiting" and left_s > 0:
        allowed = job.job.failure.max_restarts
        parts.append(f"restart {task.restarts} of {allowed} may start in {left_s:.1f} s")
    elif task.state == "waiting" and not task.is_impossible:
        parts.extend(_holders(state, job, task))
    return "; ".join(parts)


def _holders(state: ClusterState, job: JobRecord, task: TaskRecord) -> list[str]:
    """Who holds devices that the task could use, and when that ends where it is known."""
    wanted = {request.accelerator for request in job.job.task(task.key.task).resources.any_of}
    told = []
    for attempt in state.attempts.values():
        held = [w for w in attempt.workers.values() if not wanted or w.placement.accelerator_type in wanted]
        if held and attempt.task != task.key:
            types = ", ".join(sorted({w.placement.accelerator_type for w in held}))
            told.append(f"{attempt.id} holds {of_workers(len(held))} on {types}{_when(state, attempt.id)}")
    return told


def _when(state: ClusterState, attempt_id: str) -> str:
    attempt = state.attempts[attempt_id]
    progress, batching = attempt.progress, state.jobs[attempt.task.job_id].job.batching
    if progress is None or batching is None or progress.total_steps is None or progress.samples_per_s <= 0:
        return ", end not known"
    left_s = (progress.total_steps - progress.step) * batching.global_batch_size / progress.samples_per_s
    return f", done in about {max(0.0, left_s - (state.now_s - progress.at_s)):.0f} s"
