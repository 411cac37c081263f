"""Processes that a worker left behind: grandchildren with a session of their own, children that outlived it.

The agent is a subreaper, so whatever loses its parent becomes the agent's own child and is found here.
"""

import asyncio
import os
import signal
from pathlib import Path

from plait.agent.environment import MARK
from plait.agent.processes import (
    ProcessState,
    all_processes,
    child_pids,
    environment_of,
    read_state,
    reap_others,
    send,
)


def mark_of(state_directory: Path, incarnation: str, attempt_id: str, worker_id: str) -> str:
    """Returns the mark that all processes of one worker carry in their environment."""
    return f"{state_directory}:{incarnation}:{attempt_id}:{worker_id}"


def _adopted(workers: frozenset[int]) -> list[ProcessState]:
    reap_others(workers)
    states = (read_state(pid) for pid in child_pids() if pid not in workers)
    return [state for state in states if state is not None and state.state not in "ZX"]


def kill_strays(workers: frozenset[int], mark: str, group: int) -> bool:
    """Kills adopted processes of one ended worker; returns whether there were any.

    Args:
        workers: Process ids of living workers: these are not strays.
        mark: The ended worker's mark.
        group: The ended worker's process group. A process that is just ending shows no environment any more.
    """
    found = False
    for process in _adopted(workers):
        if process.group == group or environment_of(process.pid).get(MARK) == mark:
            send(process.pid, signal.SIGKILL)
            found = True
    return found


async def sweep(workers: frozenset[int], mark: str, group: int, patience_s: float = 2.0) -> bool:
    """Kills strays of an ended worker until none is left; returns whether that took less than ``patience_s``."""
    waited_s, pause_s = 0.0, 0.001
    while kill_strays(workers, mark, group):
        if waited_s > patience_s:
            return False
        await asyncio.sleep(pause_s)
        waited_s += pause_s
        pause_s = min(pause_s * 2, 0.02)
    return True


def kill_unowned(workers: frozenset[int]) -> None:
    """Kills every adopted process. Only right where no worker lives: a stray may have wiped its environment."""
    for process in _adopted(workers):
        send(process.pid, signal.SIGKILL)


def kill_leftovers(owner: Path) -> int:
    """Kills every process whose mark begins with this owner; returns how many there were.

    Only right where the owner is dead for sure. An agent that holds its node's lock knows that of its predecessors;
    this is for the case that agent and guardian were killed in the same instant.
    """
    start = f"{owner}:"
    spared = {os.getpid(), os.getppid()}
    num_killed = 0
    for process in all_processes():
        if process.pid not in spared and environment_of(process.pid).get(MARK, "").startswith(start):
            send(process.pid, signal.SIGKILL)
            num_killed += 1
    return num_killed
