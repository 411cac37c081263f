"""The agent's parent, which outlives it by a moment and leaves no process behind.

The guardian is forked before anything heavy is imported. It is a subreaper: when the agent is killed, every process
below the agent becomes the guardian's own child and is killed, also one that had a session of its own. When the
guardian is killed, the kernel sends the agent SIGTERM, and the agent ends its workers.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from plait.agent.processes import (
    adopt_orphans,
    die_with_parent,
    kill_all_below,
    reap_others,
    send,
)

PATIENCE_S = 5.0
"""An agent that was told to end is killed after this time."""

_FOREVER = float("inf")


class Guardian:
    """Waits for the agent's end, passes signals on, and ends the agent when another process has gone."""

    def __init__(self, agent: int, die_with: int | None) -> None:
        self._agent = agent
        self._die_with = die_with
        self._kill_at = _FOREVER

    def end_agent(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Tells the agent to end and starts the patience."""
        send(self._agent, signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + PATIENCE_S)

    def watch(self) -> int:
        """Returns the agent's exit code once nothing below is left."""
        poll = select.poll()
        agent_handle = os.pidfd_open(self._agent)
        poll.register(agent_handle, select.POLLIN)
        owner_handle = self._watch_owner(poll)
        while True:
            wait_ms = 1000 if self._kill_at == _FOREVER else 50
            ready = {handle for handle, _ in poll.poll(wait_ms)}
            if agent_handle in ready:
                break
            if owner_handle in ready and owner_handle is not None:
                poll.unregister(owner_handle)
                self.end_agent()
            if time.monotonic() > self._kill_at:
                send(self._agent, signal.SIGKILL)
            reap_others(frozenset({self._agent}))
        _, status = os.waitpid(self._agent, 0)
        kill_all_below(os.getpid(), PATIENCE_S, reap=lambda: reap_others(frozenset()))
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def _watch_owner(self, poll: select.poll) -> int | None:
        if self._die_with is None:
            return None
        try:
            handle = os.pidfd_open(self._die_with)
        except ProcessLookupError:
            self.end_agent()
            return None
        poll.register(handle, select.POLLIN)
        return handle


def guarded(agent: Callable[[], int], *, die_with: int | None, pid_file: Callable[[int, int], None]) -> int:
    """Runs ``agent`` in a child process under a guardian and returns its exit code.

    Args:
        agent: The agent's whole life; its modules are best imported inside.
        die_with: The agent ends when the process of this id has gone.
        pid_file: Is told the ids of guardian and agent.
    """
    adopt_orphans()
    guardian_pid = os.getpid()
    # Signals wait until the guardian can pass them on, and until the agent has its own way of taking them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            adopt_orphans()
            die_with_parent(guardian_pid, signal.SIGTERM)
            code = agent()
        except KeyboardInterrupt:
            code = 130
        except BaseException:  # noqa: BLE001 - the child must never return into its parent's frames
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    guardian = Guardian(child, die_with)
    for number in _PASSED_ON:
        signal.signal(number, guardian.end_agent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    pid_file(guardian_pid, child)
    return guardian.watch()


_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def unblock_signals() -> None:
    """Lets the agent take the signals that were held back while it came up."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
