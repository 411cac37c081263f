"""Unequal hosts on one machine for benchmarks: the local engine's own emulation, with processes of your choice.

    with Testbed([Host(name="a", cpu_quota=1.0, up=125e6, down=125e6), Host(name="b", cpu_quota=0.5)]) as testbed:
        worker = testbed.popen("a", [sys.executable, "worker.py", testbed.address("b")])
        testbed.cut("b")

When the block ends, all processes on the hosts are killed, also those that they started and that changed their
session; when the benchmark itself is killed, a keeper does the same.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from plait.agent.environment import MARK
from plait.agent.processes import descendants, send, send_group
from plait.agent.strays import kill_leftovers
from plait.engines.emulation.hosts import EmulatedHosts, Host

__all__ = ["Host", "Testbed"]

_PATIENCE_S = 5.0


class Testbed:
    """Hosts and the processes on them; use it as a context manager."""

    __test__ = False  # not a test case, whatever its name

    def __init__(self, hosts: Sequence[Host], *, enforce: bool = True) -> None:
        """Describes the hosts.

        Args:
            hosts: Rates in bytes a second, quotas in cores.
            enforce: False does without namespaces and control groups even where they could be made.
        """
        self._hosts = EmulatedHosts(hosts, enforce=enforce)
        self._owner = Path(f"/testbed-{os.getpid()}-{id(self)}")
        self._processes: list[subprocess.Popen[Any]] = []
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._hosts.open()
        group = self._hosts.cpu_group
        words = [sys.executable, "-m", "plait.engines.emulation.keeper", str(self._owner)]
        words += [str(group)] if group is not None else []
        # The keeper has to survive signals that are meant for the benchmark's process group.
        self._keeper = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._kill_all()
            self._hosts.close()
        finally:
            assert self._keeper is not None
            self._keeper.communicate(b"done\n")

    @property
    def limitations(self) -> tuple[str, ...]:
        """What could not be emulated here, in plain sentences; print it with the figures."""
        return self._hosts.limitations

    @property
    def host_address(self) -> str:
        """Where processes on the hosts reach the benchmark itself."""
        return self._hosts.host_address

    def address(self, host: str) -> str:
        """Returns the IPv4 address of a host."""
        return self._hosts.address(host)

    def ports(self, host: str) -> tuple[int, int]:
        """Returns (first port, number of ports) that processes of the host may listen on."""
        return self._hosts.ports(host)

    def popen(
        self, host: str, arguments: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts a process on a host, in a session of its own; ``options`` go to ``subprocess.Popen``.

        The process id is that of the program itself: commands that enter the host replace themselves by it.
        """
        entry = self._hosts.enter(host, arguments)
        process = subprocess.Popen(
            entry.command,
            env={**(os.environ if env is None else env), **dict(entry.environment), MARK: f"{self._owner}:{host}"},
            pass_fds=(*entry.descriptors, *options.pop("pass_fds", ())),
            start_new_session=True,
            **options,
        )
        self._processes.append(process)
        return process

    def cut(self, host: str) -> None:
        """Takes the host's link down: what is sent is lost, and nobody is told."""
        self._hosts.set_link(host, is_up=False)

    def mend(self, host: str) -> None:
        """Takes the host's link up again."""
        self._hosts.set_link(host, is_up=True)

    def reshape(self, host: str, up: float | None, down: float | None) -> None:
        """Gives the host's link other rates, in bytes a second."""
        self._hosts.reshape(host, up, down)

    @staticmethod
    def freeze(pid: int) -> None:
        """Stops a process and all below it."""
        for below in (pid, *(process.pid for process in descendants(pid))):
            send(below, signal.SIGSTOP)

    @staticmethod
    def thaw(pid: int) -> None:
        """Lets a frozen process and all below it go on."""
        for below in (pid, *(process.pid for process in descendants(pid))):
            send(below, signal.SIGCONT)

    def _kill_all(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        for process in self._processes:
            if process.poll() is None:  # else its number may be somebody else's by now
                send_group(process.pid, signal.SIGKILL)
                process.wait()
            for stream in _streams(process):
                stream.close()
        while kill_leftovers(self._owner) and time.monotonic() < deadline:
            time.sleep(0.01)


def _streams(process: subprocess.Popen[Any]) -> Iterator[Any]:
    return (stream for stream in (process.stdin, process.stdout, process.stderr) if stream is not None)
