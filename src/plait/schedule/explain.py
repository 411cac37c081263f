"""Why a job is where it is: what it waits for, why it was placed so, why its split is so, what happened before."""

from dataclasses import dataclass

from plait.schedule.constraints import Constraint, binding
from plait.schedule.gates import cheap_in_s, left_s_of
from plait.schedule.knowledge import Knowledge
from plait.schedule.phrases import of_workers, span
from plait.schedule.policy import Policy
from plait.schedule.quarantine import trouble_told, troubles_of
from plait.schedule.rehearsal import Forecast, forecast
from plait.schedule.state import ENDED, AttemptSummary, ClusterState, JobRecord, TaskRecord
from plait.words import did_you_mean

MOST_DEVICES_TOLD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Reasons of one task.

    ``waiting``, ``starts`` and ``split`` are empty where there is nothing to say. ``constraint`` is None for tasks that
    do not wait; ``starts_in_s`` is None where no start is expected or known.
    """

    task: str
    state: str
    waiting: str
    placement: tuple[str, ...]
    split: str
    history: tuple[str, ...]
    constraint: Constraint | None = None
    starts_in_s: float | None = None
    starts: str = ""


def explain(
    state: ClusterState, job_id: str, policy: Policy | None = None, knowledge: Knowledge | None = None
) -> tuple[str, ...]:
    """Returns everything that is known about why the job is as it is, a line each."""
    job = state.jobs.get(job_id)
    if job is None:
        return (f"there is no job {job_id!r}{did_you_mean(job_id, state.jobs)}",)
    lines = [f"{job.id} is {job.state}" + (f": {job.reason}" if job.reason else "")]
    for told in explain_job(state, job, policy, knowledge):
        lines.extend(_lines(told))
    return tuple(lines)


def explain_job(
    state: ClusterState,
    job: JobRecord,
    policy: Policy | None = None,
    knowledge: Knowledge | None = None,
    expected: Forecast | None = None,
) -> tuple[Explanation, ...]:
    """Returns the reasons of all tasks of the job.

    Args:
        state: The cluster as it is.
        job: One of its jobs.
        policy: Who decides; None takes the one that the cluster's file names.
        knowledge: What is known of tasks beyond their files.
        expected: The forecast of this state, where it has been made.
    """
    waits = any(task.state in ("waiting", "blocked") for task in job.tasks.values())
    if waits and expected is None:
        expected = forecast(state, policy, knowledge)
    return tuple(
        explain_task(state, job, task, expected, binding(state, task.key, policy, knowledge))
        for task in job.tasks.values()
    )


def explain_task(
    state: ClusterState,
    job: JobRecord,
    task: TaskRecord,
    expected: Forecast | None = None,
    constraint: Constraint | None = None,
) -> Explanation:
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
        constraint=constraint,
        starts_in_s=_starts_in_s(state, task, expected) if constraint is not None else None,
        starts=_starts(state, job, task, expected, constraint) if constraint is not None else "",
    )


def _starts_in_s(state: ClusterState, task: TaskRecord, expected: Forecast | None) -> float | None:
    at_s = expected.starts_at_s.get(task.key) if expected is not None else None
    return None if at_s is None else max(0.0, at_s - state.now_s)


def _starts(
    state: ClusterState, job: JobRecord, task: TaskRecord, expected: Forecast | None, constraint: Constraint
) -> str:
    """Says when the task will probably start, if all goes as expected."""
    in_s = _starts_in_s(state, task, expected)
    if in_s is not None:
        return f"expected to start in {span(in_s)}, if all goes on as it is"
    if expected is not None and expected.is_cut:
        return f"not expected to start within {span(expected.until_s - state.now_s)}; further was not looked"
    spec = job.job.task(task.key.task)
    names = [request.accelerator for request in spec.resources.any_of]
    if constraint.kind == "price" and not constraint.also and cheap_in_s(state, spec, names) is None:
        return f"not known: no price window says when {' or '.join(dict.fromkeys(names))} will be cheaper"
    open_ends = [attempt.id for attempt in state.attempts.values() if not left_s_of(state, attempt)]
    if open_ends and not task.is_impossible:
        more = f" and {len(open_ends) - 3} others" if len(open_ends) > 3 else ""
        return f"not known: nobody knows when {', '.join(open_ends[:3])}{more} will be done"
    return "not expected to start as things are"


def _lines(told: Explanation) -> list[str]:
    lines = [f"task {told.task} is {told.state}" + (f": {told.waiting}" if told.waiting else "")]
    if told.constraint is not None:
        lines.append(f"  waits for: {constraint_told(told.constraint)}")
        lines.append(f"  when: {told.starts}")
    lines.extend(f"  placed: {reason}" for reason in told.placement)
    if told.split:
        lines.append(f"  split: {told.split}")
    lines.extend(f"  before: {line}" for line in told.history)
    return lines


def constraint_told(constraint: Constraint) -> str:
    """Returns a constraint as one line."""
    also = f" (so would it without: {', '.join(constraint.also)})" if constraint.also else ""
    return f"{constraint.kind}: {constraint.reason}{also}"


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
    parts.extend(told_of_devices(state, job, task))
    return "; ".join(parts)


def told_of_devices(state: ClusterState, job: JobRecord, task: TaskRecord) -> list[str]:
    """Returns which devices that a waiting task could use take no work, why, and when they are tried again."""
    if task.state != "waiting":
        return []
    wanted = frozenset(request.accelerator for request in job.job.task(task.key.task).resources.any_of)
    found = [trouble_told(device, trouble, state.now_s) for device, trouble in troubles_of(state, wanted).items()]
    more = [f"{len(found) - MOST_DEVICES_TOLD} devices more take no work"] if len(found) > MOST_DEVICES_TOLD else []
    return found[:MOST_DEVICES_TOLD] + more


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
    left = left_s_of(state, state.attempts[attempt_id])
    return f", done in about {left[0]:.0f} s" if left else ", end not known"
