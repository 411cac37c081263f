"""``plait submit``: hand a job to the controller and return."""

from pathlib import Path

from plait.cli.failures import OK
from plait.cli.options import JobFileArgument, JsonOption, StateOption
from plait.cli.output import print_json, say


def submit(file: JobFileArgument, state: StateOption = None, as_json: JsonOption = False) -> int:
    """Submit a job, print its id and return.

    Once the id is printed, the job survives any crash of the controller.
    """
    from plait.cli.connection import connect
    from plait.spec.load import load_job

    answer = connect(state).submit(load_job(file), Path.cwd())
    if as_json:
        print_json(answer)
    else:
        say(answer["job_id"])
    return OK
