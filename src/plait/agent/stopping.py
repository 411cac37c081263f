"""How a worker is asked to end, ever less politely."""

from typing import Literal, NamedTuple

StopAction = Literal["leave", "terminate", "kill"]


class StopStep(NamedTuple):
    """Do ``action`` this many seconds after the order, if the worker still lives then."""

    delay_s: float
    action: StopAction


def stop_steps(*, is_elastic: bool, grace_s: float) -> tuple[StopStep, ...]:
    """Returns what to do when.

    A worker that has said hello is asked to leave its group at a step boundary and gets SIGTERM only after half of
    the grace; any other gets SIGTERM at once. SIGKILL ends the grace.
    """
    if is_elastic:
        return StopStep(0.0, "leave"), StopStep(grace_s / 2, "terminate"), StopStep(grace_s, "kill")
    return StopStep(0.0, "terminate"), StopStep(grace_s, "kill")
