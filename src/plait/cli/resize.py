"""``plait resize``: another elastic range for a task."""

import re
from typing import Annotated

import typer

from plait.cli.failures import OK
from plait.cli.options import JobArgument, JsonOption, StateOption
from plait.cli.output import print_json, say

_RANGE = re.compile(r"(\d+)(?::(\d+))?")


def resize(
    job: JobArgument,
    workers: Annotated[str, typer.Option("--workers", metavar="MIN:MAX", help="The new range; 4 means 4:4.")],
    task: Annotated[str | None, typer.Option("--task", help="Which task; needed where the job has several.")] = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Give a task another elastic range of workers.

    Workers of a running elastic task join or leave without a restart of the others.
    """
    from plait.cli.connection import connect, task_of

    fewest, most = worker_range(workers)
    client = connect(state)
    name = task_of(client.job(job), task)
    client.resize(job, name, fewest, most)
    if as_json:
        print_json({"job_id": job, "task": name, "workers": {"min": fewest, "max": most}})
    else:
        say(f"{job}/{name}: {fewest} to {most} workers asked for; `plait explain {job}` tells what follows")
    return OK


def worker_range(text: str) -> tuple[int, int]:
    """Returns ``(4, 8)`` for ``4:8`` and ``(4, 4)`` for ``4``; raises typer.BadParameter for anything else."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"--workers wants MIN:MAX such as 4:8, got {text!r}")
    fewest, most = int(match[1]), int(match[2] or match[1])
    if fewest < 1 or most < fewest:
        raise typer.BadParameter(f"--workers wants 1 <= MIN <= MAX, got {text!r}")
    return fewest, most
