"""``plait logs``: what the workers of a job print."""

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.failures import OK
from plait.cli.options import JobArgument, JsonOption, StateOption
from plait.cli.output import print_json, say

if TYPE_CHECKING:
    from plait.cli.log_reader import LogLine

POLL_S = 0.25
_COLOURS = (36, 33, 32, 35, 34, 31)


def logs(
    job: JobArgument,
    *,
    rank: Annotated[int | None, typer.Option("--rank", help="Only the worker of this rank.")] = None,
    worker: Annotated[str | None, typer.Option("--worker", help="Only this worker, such as w0.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only this task.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print the logs of a job's workers, merged by time.

    With --follow and --json together each line is one document.
    """
    from plait.cli.connection import connect
    from plait.cli.log_reader import ENDED, LogReader

    client = connect(state, patience_s=10.0 if follow else 0.0)
    answer = client.job(job)
    reader = LogReader(client, job, frozenset({task} if task else ()), worker, rank)
    reader.check(answer)
    several_tasks = len(answer["tasks"]) > 1 and task is None
    if not follow:
        lines = reader.read(answer)
        print_json([asdict(line) for line in lines]) if as_json else _print(lines, several_tasks)
        return OK
    while True:
        lines = reader.read(answer)
        for line in lines if as_json else ():
            say(json.dumps(asdict(line), ensure_ascii=False))
        if not as_json:
            _print(lines, several_tasks)
        if answer["state"] in ENDED:
            return OK
        time.sleep(POLL_S)
        answer = client.job(job)


def _print(lines: "list[LogLine]", several_tasks: bool) -> None:
    is_terminal = sys.stdout.isatty()
    for line in lines:
        name = f"{line.task}/{line.worker}" if several_tasks else line.worker
        say(f"{_coloured(name, line.worker) if is_terminal else name} {line.at[11:19]} | {line.text}")


def _coloured(name: str, worker: str) -> str:
    digits = worker.lstrip("w")
    colour = _COLOURS[int(digits) % len(_COLOURS) if digits.isdigit() else 0]
    return f"\x1b[{colour}m{name}\x1b[0m"
