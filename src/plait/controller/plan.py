"""What would happen if a job were submitted now, as the API tells it."""

from collections.abc import Iterable

from plait.controller.answers import PlanAnswer, PlannedTask
from plait.controller.views import worker_answer
from plait.controller.writer import Writer
from plait.schedule.commands import Command, ResizeTask, StopTask
from plait.schedule.preview import Preview, PreviewedTask, preview
from plait.spec.job import Job


def plan_answer(writer: Writer, job: Job) -> PlanAnswer:
    """Returns what would run where, with reasons; changes nothing."""
    job_id = writer.ledger.next_job_id(job.name)
    seen = preview(writer.state, job, job_id, event_id=writer.last_id + 1, now_s=writer.now_s())
    return plan_told(seen)


def plan_told(seen: Preview) -> PlanAnswer:
    """Returns a preview in the API's words."""
    return PlanAnswer(tasks=[_planned(task) for task in seen.tasks], preempts=list(_told(seen.others)))


def _planned(task: PreviewedTask) -> PlannedTask:
    workers = task.placement.workers if task.placement is not None else ()
    return PlannedTask(
        task=task.task,
        starts_now=task.placement is not None and not task.after,
        is_impossible=task.is_impossible,
        after=list(task.after),
        workers=[worker_answer(worker, "planned") for worker in workers],
        reasons=list(task.reasons),
    )


def _told(commands: Iterable[Command]) -> Iterable[str]:
    for command in commands:
        match command:
            case StopTask(attempt_id=attempt_id, reason=reason):
                yield f"{attempt_id} would stop: {reason}"
            case ResizeTask(attempt_id=attempt_id, remove=remove, reason=reason) if remove:
                yield f"{attempt_id} would lose {', '.join(remove)}: {reason}"
            case _:
                pass
