"""``plait resume``: give a drained node work again."""

from plait.cli.failures import OK
from plait.cli.options import JsonOption, NodeArgument, StateOption
from plait.cli.output import print_json, say


def resume(node: NodeArgument, state: StateOption = None, as_json: JsonOption = False) -> int:
    """Let a drained node take work again.

    Elastic jobs may grow onto it.
    """
    from plait.cli.connection import connect

    answer = connect(state).resume(node)
    if as_json:
        print_json(answer)
    else:
        say(f"{node}: {answer['state']}")
    return OK
