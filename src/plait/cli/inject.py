"""``plait inject``: do a fault to a running worker, to see what follows."""

from typing import Annotated

import typer

from plait.cli.failures import OK
from plait.cli.options import JobArgument, JsonOption, StateOption
from plait.cli.output import print_json, say
from plait.words import did_you_mean

DEEDS = {
    "kill": "SIGKILL to all of its processes",
    "freeze": "SIGSTOP to all of its processes; it is killed once it has been frozen for too long",
    "notice": "SIGTERM, as a cloud sends before it takes a machine away",
    "device_fault": "killed and reported as a fault of its device, which is quarantined",
}
"""Each fault and what is done."""


def inject(
    job: JobArgument,
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Which worker, such as w1.")],
    deed: Annotated[str, typer.Argument(metavar="FAULT", help=f"One of {', '.join(DEEDS)}.")],
    *,
    task: Annotated[str | None, typer.Option("--task", help="Which task; needed where the job has several.")] = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Do a fault to a running worker, as a drill.

    Only where the cluster file says so by drills: true. kill, freeze, notice (SIGTERM), or device_fault, which
    quarantines the worker's devices. What follows is what would follow without a drill; plait explain tells it.
    """
    from plait.cli.connection import connect, task_of

    if deed not in DEEDS:
        raise typer.BadParameter(f"unknown fault {deed!r}{did_you_mean(deed, DEEDS) or f'; known are {_known()}'}")
    client = connect(state)
    name = task_of(client.job(job), task)
    client.inject(job, name, worker, deed)
    if as_json:
        print_json({"job_id": job, "task": name, "worker": worker, "fault": deed})
    else:
        say(f"{worker} of {job}/{name}: {DEEDS[deed]}; `plait explain {job}` tells what follows")
    return OK


def _known() -> str:
    return ", ".join(DEEDS)
