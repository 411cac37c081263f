"""``plait drain``: take a node out of use without losing work."""

from plait.cli.failures import OK
from plait.cli.options import JsonOption, NodeArgument, StateOption
from plait.cli.output import print_json, say


def drain(node: NodeArgument, state: StateOption = None, as_json: JsonOption = False) -> int:
    """Send no new work to a node.

    Elastic work leaves it without losing a step; other work may finish there.
    """
    from plait.cli.connection import connect

    answer = connect(state).drain(node)
    if as_json:
        print_json(answer)
    else:
        busy = sum(device["worker"] is not None for device in answer["devices"])
        say(f"{node}: {answer['state']}; {busy} of {len(answer['devices'])} devices still at work")
    return OK
