"""``plait explain``: every reason behind a job's state."""

from typing import TYPE_CHECKING

from plait.cli.failures import OK
from plait.cli.options import JobArgument, JsonOption, StateOption
from plait.cli.output import print_json, print_reasons, say

if TYPE_CHECKING:
    from plait.controller.answers import TaskExplanation


def explain(job: JobArgument, state: StateOption = None, as_json: JsonOption = False) -> int:
    """Tell why a job waits, runs where it does, or was retried.

    Also why each worker gets the share of a step that it gets.
    """
    from plait.cli.connection import connect

    answer = connect(state).explain(job)
    if as_json:
        print_json(answer)
        return OK
    say(f"{answer['job_id']} is {answer['state']}")
    for task in answer["tasks"]:
        _print_task(task)
    return OK


def _print_task(task: "TaskExplanation") -> None:
    say(f"\n{task['task']}: {task['state']}")
    if task["waiting"] and task["waiting"] not in task["placement"]:
        say(f"  why now: {task['waiting']}")
    if task["placement"]:
        say("  why there:")
        print_reasons(task["placement"], "    ")
    if task["split"]:
        say(f"  why this split: {task['split']}")
    if task["history"]:
        say("  what happened:")
        print_reasons(task["history"], "    ")
