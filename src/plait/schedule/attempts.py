"""How attempts end: stopped or by themselves, and what that means for their task."""

from dataclasses import replace
from typing import Literal

from plait.schedule.capacity import could_hold
from plait.schedule.commands import ResizeTask, StopTask
from plait.schedule.domain import TaskKey
from plait.schedule.draft import Draft, with_note
from plait.schedule.state import AttemptRecord, AttemptSummary, Ending, MachineConfig, Outcome, TaskRecord
from plait.spec.job import FailureCause

HISTORY_KEPT = 50
"""Attempts of a task that are remembered; pre-empted ones are not bounded by ``max_restarts``."""

NO_MEMORY = "no other devices with more memory can hold the task"

WEIGHT: dict[Outcome, int] = {"succeeded": 0, "requeue": 1, "retry": 2, "fail": 3, "cancel": 4}
"""Where two reasons end an attempt, the heavier one decides what follows."""


def backoff_s(config: MachineConfig, number: int) -> float:
    """Returns the pause before restart ``number`` (from 1): it doubles up to the bound."""
    if number < 1:
        return 0.0
    return min(config.backoff_max_s, config.backoff_base_s * 2.0 ** min(number - 1, 60))


def stop(
    draft: Draft,
    attempt_id: str,
    outcome: Outcome,
    reason: str,
    *,
    cause: FailureCause | None = None,
    exit_code: int | None = None,
) -> None:
    """Stops every worker of a live attempt; ``outcome`` happens once the last one is known to be gone."""
    attempt = draft.state.attempts.get(attempt_id)
    if attempt is None:
        return
    if outcome == "retry":
        outcome, reason = _within_budget(draft, attempt, reason)
    if attempt.ending is not None and WEIGHT[attempt.ending.outcome] >= WEIGHT[outcome]:
        return
    ending = Ending(outcome=outcome, reason=reason, cause=cause, exit_code=exit_code)
    must_tell = attempt.phase != "stopping" and bool(attempt.workers)
    draft.put_attempt(replace(attempt, ending=ending, phase="stopping"))
    draft.put_task(replace(draft.task(attempt.task), state="stopping", reason=reason))
    if must_tell:
        grace_s = draft.state.config.grace_s
        draft.commands.append(StopTask(cause=draft.cause, attempt_id=attempt_id, reason=reason, grace_s=grace_s))
    conclude(draft, attempt_id)


def conclude(draft: Draft, attempt_id: str) -> None:
    """Closes the attempt if none of its workers is left; an attempt that nobody stopped has succeeded."""
    attempt = draft.state.attempts.get(attempt_id)
    if attempt is None or attempt.workers:
        return
    ending = attempt.ending or Ending(outcome="succeeded", reason="every worker finished", exit_code=0)
    task = draft.task(attempt.task)
    summary = AttemptSummary(
        attempt_id=attempt.id,
        started_at_s=attempt.started_at_s,
        ended_at_s=draft.now_s,
        num_workers=attempt.next_worker,
        outcome=ending.outcome,
        reason=ending.reason,
        cause=ending.cause,
        exit_code=ending.exit_code,
        notes=attempt.notes,
        placed=attempt.reasons,
    )
    draft.drop_attempt(attempt_id)
    draft.put_task(replace(task, attempt_id=None, history=(*task.history, summary)[-HISTORY_KEPT:]))
    _follow_up(draft, attempt.task, ending)


def _follow_up(draft: Draft, key: TaskKey, ending: Ending) -> None:
    task = draft.task(key)
    is_again = ending.outcome in ("requeue", "retry")
    if is_again and task.avoid_devices and not could_hold(draft.state, task, with_absent=True):
        reason = f"{ending.reason}; it ran out of memory before, and {NO_MEMORY}"
        finish_task(draft, key, "failed", reason, exit_code=ending.exit_code or 1)
        return
    match ending.outcome:
        case "succeeded":
            finish_task(draft, key, "succeeded", ending.reason, exit_code=0)
        case "fail":
            finish_task(draft, key, "failed", ending.reason, exit_code=ending.exit_code or 1)
        case "cancel":
            finish_task(draft, key, "cancelled", ending.reason)
        case "requeue":
            draft.put_task(replace(task, state="waiting", reason=ending.reason))
        case "retry":
            pause_s = backoff_s(draft.state.config, task.restarts + 1)
            waiting = replace(task, state="waiting", restarts=task.restarts + 1, ready_at_s=draft.now_s + pause_s)
            draft.put_task(replace(waiting, reason=f"starts anew in at most {pause_s:g} s: {ending.reason}"))


def finish_task(
    draft: Draft,
    key: TaskKey,
    state: Literal["succeeded", "failed", "cancelled"],
    reason: str,
    exit_code: int | None = None,
) -> None:
    """Ends a task for good; the first task that fails dooms its job."""
    draft.put_task(replace(draft.task(key), state=state, reason=reason, exit_code=exit_code, is_impossible=False))
    job = draft.state.jobs[key.job_id]
    if state == "failed" and job.fate is None:
        draft.put_job(replace(job, fate="failed", reason=f"task {key.task} failed: {reason}", exit_code=exit_code))


def release(draft: Draft, attempt_id: str, worker_ids: tuple[str, ...], reason: str) -> None:
    """Asks workers of an elastic attempt to leave in process; they hold their devices until they are gone."""
    attempt = draft.state.attempts[attempt_id]
    leaving = {i: replace(attempt.workers[i], is_leaving=True) for i in worker_ids}
    note = f"{', '.join(worker_ids)} asked to leave: {reason}"
    draft.put_attempt(with_note(replace(attempt, workers={**attempt.workers, **leaving}), note))
    draft.commands.append(ResizeTask(cause=draft.cause, attempt_id=attempt_id, remove=worker_ids, reason=reason))


def drop_workers(draft: Draft, attempt_id: str, worker_ids: tuple[str, ...]) -> AttemptRecord:
    """Takes workers that are gone off the attempt and books their worker-seconds."""
    attempt = draft.state.attempts[attempt_id]
    gone = [attempt.workers[i] for i in worker_ids]
    attempt = replace(attempt, workers={i: w for i, w in attempt.workers.items() if i not in worker_ids})
    draft.put_attempt(attempt)
    task: TaskRecord = draft.task(attempt.task)
    service_s = sum(draft.now_s - worker.started_at_s for worker in gone)
    draft.put_task(replace(task, service_s=task.service_s + service_s))
    return attempt


def _within_budget(draft: Draft, attempt: AttemptRecord, reason: str) -> tuple[Outcome, str]:
    allowed = draft.job_spec(attempt.task).failure.max_restarts
    if draft.task(attempt.task).restarts < allowed:
        return "retry", reason
    return "fail", f"{reason}; all {allowed} restarts are used up"
