"""``plait status``: all jobs, or one job with its tasks and workers."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.failures import OK
from plait.cli.options import JsonOption, StateOption
from plait.cli.output import human_duration, print_json, print_table, say

if TYPE_CHECKING:
    from plait.cli.connection import ControllerClient
    from plait.controller.answers import JobAnswer, ProgressAnswer, StatusAnswer, TaskAnswer


def status(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Show this job's tasks and workers.")] = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show all jobs, or one job's tasks, workers and steps."""
    from plait.cli.connection import connect

    client = connect(state)
    if job is None:
        answer = client.status()
        if as_json:
            print_json(answer)
        else:
            _print_jobs(answer)
    else:
        _show_job(client, job, as_json)
    return OK


def _show_job(client: "ControllerClient", job_id: str, as_json: bool) -> None:
    job, progress = client.job(job_id), client.progress(job_id)
    if as_json:
        print_json({**job, "progress": progress})
    else:
        _print_job(job, {line["attempt_id"]: line for line in progress})


def _print_jobs(answer: "StatusAnswer") -> None:
    nodes = answer["nodes"]
    devices = [device for node in nodes for device in node["devices"]]
    up = sum(node["state"] == "up" for node in nodes)
    held = sum(device["worker"] is not None for device in devices)
    policy = answer["controller"]["policy"]
    say(f"{up} of {len(nodes)} nodes up, {held} of {len(devices)} devices at work, policy {policy}")
    if not answer["jobs"]:
        say("no jobs yet; `plait submit job.yaml` adds one")
        return
    rows = [
        (
            job["job_id"],
            job["state"],
            job["project"],
            job["priority"],
            age_of(job),
            _workers_of(job),
            _why(job),
        )
        for job in answer["jobs"]
    ]
    print_table(("JOB", "STATE", "PROJECT", ">PRIORITY", ">AGE", ">WORKERS", "WHY"), rows)


def _print_job(job: "JobAnswer", progress: "dict[str, ProgressAnswer]") -> None:
    code = "" if job["exit_code"] is None else f", exit code {job['exit_code']}"
    say(f"{job['job_id']} ({job['project']}, priority {job['priority']}): {job['state']}{code}, {age_of(job)} old")
    if job["reason"]:
        say(f"  {job['reason']}")
    rows = [_task_row(task, progress.get(task["attempt_id"] or "")) for task in job["tasks"]]
    print_table(("TASK", "STATE", ">ATTEMPTS", ">WORKERS", "RANGE", ">STEP", ">SAMPLES/S", ">LOSS"), rows)
    for task in job["tasks"]:
        if task["reason"] or task["failure"]:
            say(f"  {task['task']}: {_reason_of(task)}")
    placed = [(task, worker) for task in job["tasks"] for worker in task["placement"]]
    if not placed:
        return
    say("")
    rows = []
    for task, worker in placed:
        line = progress.get(task["attempt_id"] or "")
        share = line["split"].get(worker["worker_id"]) if line is not None else None
        rows.append(
            (
                task["task"],
                worker["worker_id"],
                worker["rank"],
                " ".join(worker["device_ids"]),
                worker["accelerator_type"],
                worker["state"],
                share,
            )
        )
    print_table(("TASK", "WORKER", ">RANK", "DEVICES", "TYPE", "STATE", ">MICRO-BATCHES"), rows)


def _task_row(task: "TaskAnswer", line: "ProgressAnswer | None") -> tuple[object, ...]:
    live = sum(worker["state"] in {"starting", "running"} for worker in task["placement"])
    workers = task["workers"]
    if line is None:
        step, rate, loss = None, None, None
    else:
        step = step_text(line)
        rate = f"{line['samples_per_s']:.4g}"
        loss = None if line["loss"] is None else f"{line['loss']:.4g}"
    span = f"{workers['min']}:{workers['max']}"
    return task["task"], task["state"], task["attempts"] or None, live, span, step, rate, loss


def _reason_of(task: "TaskAnswer") -> str:
    failure = task["failure"]
    if failure is None or (failure["detail"] and failure["detail"] in task["reason"]):
        return task["reason"]
    last = f"{failure['cause'].replace('_', ' ')}: {failure['detail']}" if failure["detail"] else failure["cause"]
    return f"{task['reason']} (last failure: {last})" if task["reason"] else last


def _why(job: "JobAnswer") -> str | None:
    """Returns why the job is in its state; a job that only waits for devices says so in its tasks."""
    waiting = [task["reason"] for task in job["tasks"] if task["state"] == "waiting" and task["reason"]]
    return job["reason"] or next(iter(waiting), None)


def step_text(line: "ProgressAnswer") -> str:
    """Returns ``12/200``, or ``12`` where the number of steps is open."""
    return f"{line['step']}/{line['total_steps']}" if line["total_steps"] else str(line["step"])


def age_of(job: "JobAnswer") -> str:
    """Returns how long the job has been (or was) under way."""
    end = job["finished_at_s"] if job["finished_at_s"] is not None else time.time()
    return human_duration(end - job["submitted_at_s"]) or ""


def _workers_of(job: "JobAnswer") -> int:
    return sum(worker["state"] in {"starting", "running"} for task in job["tasks"] for worker in task["placement"])
