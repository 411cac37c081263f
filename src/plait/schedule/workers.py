"""Workers: started, gone, heard of; what follows from each cause of failure."""

import signal
from dataclasses import dataclass, replace

from plait.schedule.attempts import NO_MEMORY, backoff_s, conclude, drop_workers, release, stop
from plait.schedule.capacity import could_hold
from plait.schedule.commands import AbortCollectives, ResizeTask
from plait.schedule.draft import Draft, with_note
from plait.schedule.events import FaultInjected, LinkStalled, StepReported, WorkerExited, WorkerStarted
from plait.schedule.phrases import of_workers
from plait.schedule.quarantine import blame
from plait.schedule.state import AttemptRecord, Outcome, Progress, WorkerRecord
from plait.spec.job import FailureCause

SIGNAL_EXIT_CODE = 128
"""A shell's exit code for death by signal N is this plus N."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Workers that are gone though nobody asked them to go, all for one cause.

    ``devices`` are those that failed, where that is known; ``is_transient``: they may be as good as ever.
    """

    worker_ids: tuple[str, ...]
    cause: FailureCause
    reason: str
    exit_code: int | None = None
    devices: tuple[str, ...] = ()
    is_transient: bool = False


def started(draft: Draft, event: WorkerStarted) -> None:
    """Notes that a process runs; the attempt runs once all of its gang do."""
    attempt = draft.state.attempts.get(event.attempt_id)
    worker = attempt.workers.get(event.worker_id) if attempt is not None else None
    if attempt is None or worker is None or worker.state != "starting":
        return
    workers = {**attempt.workers, event.worker_id: replace(worker, state="running")}
    draft.put_attempt(replace(attempt, workers=workers))
    _note_running(draft, attempt.id)


def reported(draft: Draft, event: StepReported) -> None:
    """Keeps the newest progress; the first report tells whether the workers regroup by themselves."""
    attempt = draft.state.attempts.get(event.attempt_id)
    if attempt is None:
        return
    progress = Progress(
        at_s=draft.now_s,
        step=event.step,
        total_steps=event.total_steps,
        samples_per_s=event.samples_per_s,
        split=event.split,
        reason=event.reason,
    )
    if attempt.progress is not None and attempt.progress.step > event.step:
        progress = attempt.progress
    draft.put_attempt(replace(attempt, progress=progress, is_elastic=attempt.is_elastic or event.elastic))
    _note_running(draft, attempt.id, has_stepped=True)


def stalled(draft: Draft, event: LinkStalled) -> None:
    """Keeps for people what held a step up."""
    attempt = draft.state.attempts.get(event.attempt_id)
    if attempt is not None and event.worker_id in attempt.workers:
        kind = "a matter of a moment" if event.is_transient else "the network"
        draft.put_attempt(with_note(attempt, f"{event.worker_id} was held up by {kind}: {event.reason}"))


def injected(draft: Draft, event: FaultInjected) -> None:
    """Keeps for people that what follows was asked for; the fault itself is the agent's business."""
    attempt = draft.state.attempts.get(event.attempt_id)
    if attempt is not None and event.worker_id in attempt.workers:
        draft.put_attempt(with_note(attempt, f"{event.deed} of {event.worker_id} was asked for, as a drill"))


def exited(draft: Draft, event: WorkerExited) -> None:
    """Frees what the worker held and decides what its end means; a second report of the same end changes nothing."""
    attempt = draft.state.attempts.get(event.attempt_id)
    worker = attempt.workers.get(event.worker_id) if attempt is not None else None
    if attempt is None or worker is None:
        return
    cause = _cause(event)
    if attempt.phase == "stopping" or worker.is_leaving or cause is None:
        _gone_as_asked(draft, attempt, event.worker_id, cause)
        return
    exit_code = event.exit_code or (SIGNAL_EXIT_CODE + event.signal if event.signal else None)
    reason = f"{event.worker_id} on {', '.join(worker.placement.device_ids)} {_story(event, cause)}"
    loss = Loss(
        worker_ids=(event.worker_id,),
        cause=cause,
        reason=reason,
        exit_code=exit_code,
        devices=tuple(device for device in event.faulty_devices if device in worker.placement.device_ids),
        is_transient=event.is_transient,
    )
    lose_workers(draft, attempt.id, loss)


def lose_workers(draft: Draft, attempt_id: str, loss: Loss, *, still_there: bool = False) -> None:
    """Applies the failure rules of the job to workers that are lost to their attempt.

    With ``still_there`` their processes exist (their device failed): they are given up but hold what they hold until
    their exit is known.
    """
    attempt = draft.state.attempts[attempt_id]
    lost = [attempt.workers[i] for i in loss.worker_ids]
    if loss.cause == "oom":
        _remember_memory(draft, attempt, lost)
    if loss.cause == "device_fault":
        loss = _blame(draft, attempt, lost, loss)
    if still_there:
        gone = {i: replace(attempt.workers[i], is_leaving=True) for i in loss.worker_ids}
        draft.put_attempt(replace(attempt, workers={**attempt.workers, **gone}))
    else:
        drop_workers(draft, attempt_id, loss.worker_ids)
    outcome, why = _verdict(draft, attempt_id, loss)
    if outcome is None:
        _go_on(draft, attempt_id, loss, why)
        if still_there:
            tell = ResizeTask(cause=draft.cause, attempt_id=attempt_id, remove=loss.worker_ids, reason=loss.reason)
            draft.commands.append(tell)
    else:
        stop(draft, attempt_id, outcome, why, cause=loss.cause, exit_code=loss.exit_code)


def end_workers(draft: Draft, attempt_id: str, worker_ids: tuple[str, ...], story: str) -> None:
    """Ends workers that are gone with their node, whether they were on their way out or not."""
    attempt = draft.state.attempts[attempt_id]
    asked = tuple(i for i in worker_ids if attempt.phase == "stopping" or attempt.workers[i].is_leaving)
    unasked = tuple(i for i in worker_ids if i not in asked)
    if unasked:
        lose_workers(draft, attempt_id, Loss(worker_ids=unasked, cause="lost", reason=f"{', '.join(unasked)} {story}"))
    for worker_id in asked:
        _gone_as_asked(draft, draft.state.attempts[attempt_id], worker_id, "lost")


def _verdict(draft: Draft, attempt_id: str, loss: Loss) -> tuple[Outcome | None, str]:
    """Returns how the attempt has to end, or None where it goes on without the lost workers; and why."""
    attempt = draft.state.attempts[attempt_id]
    rules = draft.job_spec(attempt.task).failure
    rule = {"oom": rules.oom, "network": rules.network, "device_fault": rules.device_fault}.get(loss.cause, "wait")
    if loss.cause == "user" or rule == "fail":
        said = "" if loss.cause == "user" else f" (rule {loss.cause}: fail)"
        return "fail", loss.reason + said
    if attempt.is_elastic and attempt.num_finished > 0:
        return _verdict_at_the_end(attempt, loss)
    if rule == "restart":
        return "retry", f"{loss.reason} (rule {loss.cause}: restart)"
    remaining = len(attempt.active())
    if attempt.is_elastic and remaining >= attempt.floor:
        return None, f"{loss.reason}; the others go on: {of_workers(remaining)}"
    if loss.cause == "oom" and not could_hold(draft.state, draft.task(attempt.task), with_absent=True):
        return "fail", f"{loss.reason}; {NO_MEMORY}"
    short = f"; {remaining} left, at least {attempt.floor} needed" if attempt.is_elastic else ""
    return "retry", loss.reason + short


def _verdict_at_the_end(attempt: AttemptRecord, loss: Loss) -> tuple[Outcome | None, str]:
    """Some workers have finished. Whoever is lost last may have been writing the result, so it is made again.

    A worker that merely lost its peers (``network``) lost nothing: the peers had finished.
    """
    if attempt.active() or loss.cause == "network":
        return None, f"{loss.reason}; others had finished"
    return "retry", f"{loss.reason} after the others had finished"


def _go_on(draft: Draft, attempt_id: str, loss: Loss, why: str) -> None:
    attempt = draft.state.attempts[attempt_id]
    num_losses = attempt.num_losses + 1
    pause_s = backoff_s(draft.state.config, num_losses - 1)
    attempt = replace(attempt, num_losses=num_losses, grow_after_s=draft.now_s + pause_s)
    draft.put_attempt(with_note(attempt, why))
    _abort(draft, attempt, loss.worker_ids, loss.reason)
    _note_running(draft, attempt_id)
    conclude(draft, attempt_id)


def _gone_as_asked(draft: Draft, attempt: AttemptRecord, worker_id: str, cause: FailureCause | None) -> None:
    """A worker finished, left, or was stopped."""
    has_finished = attempt.phase != "stopping" and not attempt.workers[worker_id].is_leaving
    attempt = drop_workers(draft, attempt.id, (worker_id,))
    if has_finished:
        draft.put_attempt(replace(attempt, num_finished=attempt.num_finished + 1))
        _release_late(draft, attempt.id)
    elif cause is not None and attempt.phase != "stopping":
        _abort(draft, attempt, (worker_id,), f"{worker_id} ended before it had left the group")
    _note_running(draft, attempt.id)
    conclude(draft, attempt.id)


def _release_late(draft: Draft, attempt_id: str) -> None:
    """Some worker has finished: one that came later and has had no share by now would only wait for a group."""
    attempt = draft.state.attempts[attempt_id]
    if not attempt.is_elastic or attempt.progress is None or not attempt.progress.split:
        return
    members = {worker_id for worker_id, _ in attempt.progress.split}
    late = tuple(
        worker_id
        for worker_id, worker in attempt.workers.items()
        if worker.is_active and worker.started_at_s > attempt.started_at_s and worker_id not in members
    )
    if late:
        release(draft, attempt_id, late, "the others finished before it could join")


def _abort(draft: Draft, attempt: AttemptRecord, lost: tuple[str, ...], reason: str) -> None:
    if attempt.active() and attempt.is_elastic:
        command = AbortCollectives(cause=draft.cause, attempt_id=attempt.id, lost=lost, reason=reason)
        draft.commands.append(command)


def _note_running(draft: Draft, attempt_id: str, *, has_stepped: bool = False) -> None:
    """Moves an attempt from starting to running once every worker of its gang has started."""
    attempt = draft.state.attempts[attempt_id]
    if attempt.phase != "starting" or not attempt.workers:
        return
    if has_stepped or all(worker.state == "running" for worker in attempt.workers.values()):
        draft.put_attempt(replace(attempt, phase="running"))
        draft.put_task(replace(draft.task(attempt.task), state="running"))


def _blame(draft: Draft, attempt: AttemptRecord, lost: list[WorkerRecord], loss: Loss) -> Loss:
    """Books the fault on the devices; returns the loss with what followed, for people.

    Where the job's rule is not to drop the device, one fault is no reason to take it from everybody else.
    """
    is_transient = loss.is_transient or draft.job_spec(attempt.task).failure.device_fault != "drop_device"
    devices = loss.devices or tuple(device for worker in lost for device in worker.placement.device_ids)
    told = blame(draft, devices, f"{attempt.id}: {loss.reason}", is_transient=is_transient)
    return replace(loss, reason="; ".join((loss.reason, *told)))


def _remember_memory(draft: Draft, attempt: AttemptRecord, lost: list[WorkerRecord]) -> None:
    """Keeps the task off devices that are too small, where its rule is to go on rather than to try again."""
    if draft.job_spec(attempt.task).failure.oom != "shrink_microbatch":
        return
    task = draft.task(attempt.task)
    for worker in lost:
        record = draft.state.nodes.get(worker.placement.node)
        devices = record.node.devices if record is not None else ()
        sizes = [d.memory_bytes for d in devices if d.id in worker.placement.device_ids and d.memory_bytes is not None]
        above = max([*sizes, task.memory_above_bytes or 0]) or None
        avoid = tuple(dict.fromkeys((*task.avoid_devices, *worker.placement.device_ids)))
        task = replace(task, memory_above_bytes=above, avoid_devices=avoid)
    draft.put_task(task)


def _cause(event: WorkerExited) -> FailureCause | None:
    """Returns what ended the worker, or None where it finished."""
    if event.failure is not None:
        return "lost" if event.failure == "cancelled" else event.failure
    if event.exit_code == 0 and not event.signal:
        return None
    return "lost" if event.signal or event.exit_code is None else "user"


_STORIES: dict[FailureCause, str] = {
    "oom": "ran out of memory",
    "network": "gave up the network",
    "device_fault": "had a device fault",
    "user": "failed",
    "lost": "was lost",
    "cancelled": "was lost",
}


def _story(event: WorkerExited, cause: FailureCause) -> str:
    code = f"exit code {event.exit_code}" if event.exit_code is not None else ""
    end = _signal_name(event.signal) if event.signal else code
    details = [words for words in (end if end not in event.detail else "", event.detail) if words]
    return _STORIES[cause] + (f" ({'; '.join(details)})" if details else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
