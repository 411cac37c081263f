"""The agents of one machine as processes: started, found again, ended; one directory a node holds all about each."""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plait.agent.main import LOCK_NAME
from plait.agent.processes import descendants, send
from plait.engines.emulation.hosts import Entry
from plait.engines.engine import Launch
from plait.hardware.device import Node
from plait.wire import Codec

_NODE: Codec[Node] = Codec(Node)
_LOCK_PATIENCE_S = 5.0
END_PATIENCE_S = 8.0
"""Longer than a guardian waits for its agent."""


@dataclass(slots=True)
class AgentProcess:
    """A living or just ended agent; ``guardian`` is the process that the engine started."""

    node: str
    guardian: int
    handle: int
    child: subprocess.Popen[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the guardian, and with it everything below, has ended."""
        return bool(_ended([self], 0.0))

    def reap(self) -> str:
        """Takes the exit status where the agent is a child of this process; returns words for how it ended."""
        code = self.child.wait() if self.child is not None else None
        return "its agent ended" if code is None else f"its agent ended with exit code {code}"


class AgentDirectory:
    """Knows every agent of one cluster on this machine through files that outlive the controller."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of_node(self, node: str) -> Path:
        """Returns the directory of one node."""
        return self._directory / node

    def write(self, node: Node, controller: str) -> None:
        """Writes what the agent reads: its node and where the controller is now."""
        directory = self.of_node(node.id)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in (("node.json", _NODE.encode(node)), ("controller", controller.encode() + b"\n")):
            fresh = directory / f"{name}.new"
            fresh.write_bytes(content)
            fresh.replace(directory / name)

    def known_node(self, node: str) -> Node | None:
        """Returns the node as it was last written."""
        try:
            return _NODE.decode((self.of_node(node) / "node.json").read_bytes())
        except (OSError, ValueError):
            return None

    def command(self, node: Node, launch: Launch) -> tuple[str, ...]:
        """Returns the command that runs this node's agent."""
        directory = self.of_node(node.id)
        words = [sys.executable, "-m", "plait.agent", "--controller", launch.controller]
        words += ["--token-file", str(launch.token_file), "--node-file", str(directory / "node.json")]
        words += ["--state-dir", str(directory), "--linger-s", f"{launch.linger_s:g}"]
        if launch.die_with is not None:
            words += ["--die-with", str(launch.die_with)]
        return tuple(words)

    def start(self, node: Node, entry: Entry) -> AgentProcess:
        """Starts the agent as ``entry`` says; ``write`` came before."""
        directory = self.of_node(node.id)
        with (directory / "agent.log").open("ab") as log:
            child = subprocess.Popen(
                entry.command,
                cwd=directory,
                env={**os.environ, **dict(entry.environment)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=entry.descriptors,
                start_new_session=True,
            )
        return AgentProcess(node.id, child.pid, os.pidfd_open(child.pid), child)

    def find(self, node: str) -> AgentProcess | None:
        """Returns the living agent of a node that an earlier controller started, or None."""
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while self._is_locked(node) and time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError, KeyError):
                noted = json.loads((self.of_node(node) / LOCK_NAME).read_bytes())
                handle = os.pidfd_open(int(noted["guardian"]))
                if self._is_locked(node):  # so the number is still the guardian's
                    return AgentProcess(node, int(noted["guardian"]), handle)
                os.close(handle)
            time.sleep(0.01)  # it is just coming up, or just ending
        return None

    def _is_locked(self, node: str) -> bool:
        try:
            descriptor = os.open(self.of_node(node) / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def workers_and_agent(guardian: int) -> tuple[int, ...]:
    """Returns the living processes below a guardian, the agent first."""
    return tuple(process.pid for process in descendants(guardian) if process.state not in "ZX")


def kill_hard(process: AgentProcess) -> None:
    """Kills the agent and all below it without asking; the guardian, awake, clears up what is left and ends."""
    if not process.has_ended:
        for pid in workers_and_agent(process.guardian):
            send(pid, signal.SIGKILL)
        send(process.guardian, signal.SIGCONT)


def end(processes: Iterable[AgentProcess], patience_s: float = END_PATIENCE_S) -> tuple[str, ...]:
    """Asks agents to end, kills those that do not, and returns the nodes whose processes withstood even that."""
    waiting = [process for process in processes if not process.has_ended]
    for process in waiting:
        send(process.guardian, signal.SIGTERM)
    waiting = _wait(waiting, patience_s)
    for process in waiting:
        for pid in (*workers_and_agent(process.guardian), process.guardian):
            send(pid, signal.SIGKILL)
    return tuple(process.node for process in _wait(waiting, patience_s))


def _wait(processes: list[AgentProcess], patience_s: float) -> list[AgentProcess]:
    deadline = time.monotonic() + patience_s
    while processes and (left_s := deadline - time.monotonic()) > 0:
        ended = _ended(processes, left_s)
        processes = [process for process in processes if process.handle not in ended]
    return processes


def _ended(processes: Iterable[AgentProcess], within_s: float) -> frozenset[int]:
    """Waits until at least one of the processes has ended or the time is over; returns the handles of the ended."""
    poll = select.poll()
    for process in processes:
        poll.register(process.handle, select.POLLIN)
    return frozenset(handle for handle, _ in poll.poll(within_s * 1000))


def freeze(process: AgentProcess, patience_s: float = 2.0) -> None:
    """Stops the agent and every process below it; only the guardian stays awake, so that nothing is left for ever."""
    deadline = time.monotonic() + patience_s
    while True:
        running = [below for below in descendants(process.guardian) if below.state not in "TZX"]
        if not running or time.monotonic() > deadline:
            return
        for below in running:  # parents first: a stopped agent starts nothing new
            send(below.pid, signal.SIGSTOP)


def thaw(process: AgentProcess) -> None:
    """Lets all go on, workers before the agent that looks after them."""
    for pid in reversed(workers_and_agent(process.guardian)):
        send(pid, signal.SIGCONT)
