"""``plait cancel``: ask for the end of a job."""

from plait.cli.failures import OK
from plait.cli.options import JobArgument, JsonOption, StateOption
from plait.cli.output import print_json, say


def cancel(job: JobArgument, state: StateOption = None, as_json: JsonOption = False) -> int:
    """Cancel a job.

    Its workers get SIGTERM and, where that is not enough, SIGKILL.
    """
    from plait.cli.connection import connect

    answer = connect(state).cancel(job)
    if as_json:
        print_json(answer)
    elif answer["state"] in {"waiting", "running"}:
        say(f"{job}: cancellation asked for; it is {answer['state']} until its workers have ended")
    else:
        say(f"{job}: {answer['state']}")
    return OK
