"""``plait plan``: what would run where and when, without doing it."""

from pathlib import Path
from typing import TYPE_CHECKING

from plait.cli.failures import OK
from plait.cli.options import ClusterOption, JobFileArgument, JsonOption, StateOption
from plait.cli.output import print_json, print_reasons, print_table, say

if TYPE_CHECKING:
    from plait.controller.answers import PlanAnswer, PlannedTask
    from plait.spec.job import Job


def plan(
    file: JobFileArgument,
    cluster: ClusterOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Tell what of a job would run where and when, with reasons; nothing is changed.

    With --cluster it is planned on that cluster, idle; otherwise on the running controller's as it is now.
    """
    from plait.spec.load import load_job

    job = load_job(file)
    answer = _planned(job, cluster, state)
    if as_json:
        print_json(answer)
        return OK
    for task in answer["tasks"]:
        _print_task(task)
    for attempt in answer["preempts"]:
        say(f"{attempt} would give way")
    return OK


def _print_task(task: "PlannedTask") -> None:
    when = "would start now" if task["starts_now"] else "would wait"
    on = f" with {len(task['workers'])} workers" if task["workers"] else ""
    say(f"{task['task']}: {when}{on}")
    print_reasons(task["reasons"])
    if task["workers"]:
        rows = [
            (worker["worker_id"], worker["rank"], " ".join(worker["device_ids"]), worker["accelerator_type"])
            for worker in task["workers"]
        ]
        print_table(("  WORKER", ">RANK", "DEVICES", "TYPE"), [("  " + str(row[0]), *row[1:]) for row in rows])
