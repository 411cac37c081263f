"""Hosts on one machine: a network namespace each, joined by a bridge, whose cable can be pulled.

Needs root and ``ip``. Names carry the process id of the benchmark; what a killed benchmark left is removed at the next
start.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

PREFIX = "pb"


class NoNamespaces(Exception):
    """Network namespaces cannot be made here; the message says why."""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """``count`` hosts with the addresses of :meth:`address`. Use as a context manager."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._tag = f"{PREFIX}{os.getpid()}"
        self._net = os.getpid() % 250

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise NoNamespaces("pulling a link needs root and the ip command")
        _sweep()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def namespace(self, host: int) -> str:
        return f"{self._tag}n{host}"

    def address(self, host: int) -> str:
        """Returns the IPv4 address of a host, from the range reserved for benchmarks (RFC 2544)."""
        return f"198.18.{self._net}.{host + 1}"

    def pull(self, host: int) -> None:
        """Takes the cable of a host out: nothing is sent, nothing comes, and nobody is told."""
        _ip("link", "set", f"{self._tag}v{host}", "down")

    def plug(self, host: int) -> None:
        _ip("link", "set", f"{self._tag}v{host}", "up")

    def lose(self, host: int) -> None:
        """Takes a host away altogether, its network namespace and its cable; what ran there must be dead."""
        _ip("link", "del", f"{self._tag}v{host}")
        _ip("netns", "del", self.namespace(host))

    def bring_back(self, host: int) -> None:
        """Makes a host anew that was lost; one that is there stays."""
        if not (Path("/run/netns") / self.namespace(host)).exists():
            self._make(host)

    def _build(self) -> None:
        bridge = f"{self._tag}b"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for host in range(self.count):
            self._make(host)

    def _make(self, host: int) -> None:
        space, near = self.namespace(host), f"{self._tag}v{host}"
        _ip("netns", "add", space)
        _ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", near, "master", f"{self._tag}b")
        _ip("link", "set", near, "up")
        _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for host in range(self.count):
            with suppress(NoNamespaces):
                _ip("link", "del", f"{self._tag}v{host}")
            with suppress(NoNamespaces):
                _ip("netns", "del", self.namespace(host))
        with suppress(NoNamespaces):
            _ip("link", "del", f"{self._tag}b")


def _sweep() -> None:
    """Removes namespaces and links of benchmarks that no longer run."""
    spaces = Path("/run/netns")
    names = [path.name for path in spaces.iterdir()] if spaces.is_dir() else []
    for name in names:
        owner = name.removeprefix(PREFIX).partition("n")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with suppress(NoNamespaces):
                _ip("netns", "del", name)
    for name in [path.name for path in Path("/sys/class/net").iterdir()]:
        owner = name.removeprefix(PREFIX).rstrip("b").partition("v")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with suppress(NoNamespaces):
                _ip("link", "del", name)
