"""Clears up after a program that used emulated hosts and was killed: ``python -m plait.engines.emulation.keeper``.

It waits for the end of its standard input. The program writes ``done`` before it ends in order; an end without that
word means that it was killed.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from plait.agent.strays import kill_leftovers
from plait.engines.emulation.cpu_groups import empty_and_remove

_PATIENCE_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """Waits, then kills what bears the owner's mark and empties the control group, if one is named."""
    owner, *groups = arguments
    if "done" in sys.stdin.read().split():
        return 0
    deadline = time.monotonic() + _PATIENCE_S
    while kill_leftovers(Path(owner)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for group in groups:
        empty_and_remove(Path(group))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
