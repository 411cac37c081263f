"""Hosts in network namespaces behind a switch that is a namespace too.

No namespace has a name: each lives exactly as long as a process inside it or an open descriptor on it, and takes its
links with it. So nothing of the network outlives the processes that use it, not even after SIGKILL of everything.
"""

import contextlib
import ipaddress
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from plait.engines.emulation.claims import alone
from plait.errors import PlaitError

RANGE = ipaddress.IPv4Network("198.18.0.0/16")
"""Set aside for benchmarks by RFC 2544; never routed."""

FIRST_HOST_NUMBER = 11
_HOST_LINK_PREFIX = "plait"
_SMALLEST_BURST_BYTES = 32 * 1024
_BURST_S = 0.01
_QUEUE_S = 0.1
_SMALLEST_QUEUE_BYTES = 256 * 1024


class EmulationImpossible(PlaitError):
    """This machine cannot make the namespaces or links; the message says why."""


def _run(words: Sequence[str], *, descriptors: Iterable[int] = (), text: str = "") -> str:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, pass_fds=tuple(descriptors))
    if done.returncode != 0:
        complaint = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise EmulationImpossible(f"{' '.join(words[:3])}: {complaint[0]}")
    return done.stdout


class Namespace:
    """A network namespace held by an open descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def make(cls) -> "Namespace":
        """Makes a new one with nothing but its loopback interface, which is up."""
        words = ["unshare", "--net", "--", "sh", "-c", "echo; read _ || true"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as maker:
            assert maker.stdin is not None
            assert maker.stdout is not None
            assert maker.stderr is not None
            if not maker.stdout.readline():
                raise EmulationImpossible(f"unshare --net: {maker.stderr.read().decode().strip()}")
            made = cls(os.open(f"/proc/{maker.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            maker.stdin.close()
        made.ip("link set lo up")
        return made

    @classmethod
    def of_process(cls, pid: int) -> "Namespace":
        """Returns the namespace that a process lives in."""
        return cls(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    @classmethod
    def held_by(cls, pid: int, inode: int) -> "Namespace | None":
        """Returns the namespace of this inode where the process holds it open, else None."""
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(entry.readlink()) == f"net:[{inode}]":
                        return cls(os.open(entry, os.O_RDONLY | os.O_CLOEXEC))
        return None

    @property
    def inode(self) -> int:
        """The number by which the kernel knows it."""
        return os.fstat(self.descriptor).st_ino

    @property
    def path(self) -> str:
        """A path that means this namespace to a process that inherits the descriptor."""
        return f"/proc/self/fd/{self.descriptor}"

    def enter(self, command: Sequence[str]) -> tuple[str, ...]:
        """Returns the command that runs ``command`` inside; it has to inherit the descriptor."""
        return ("nsenter", f"--net={self.path}", "--", *command)

    def ip(self, *lines: str, with_namespaces: Iterable["Namespace"] = ()) -> None:
        """Runs lines of the ``ip`` command inside, up to the first that fails."""
        descriptors = (self.descriptor, *(other.descriptor for other in with_namespaces))
        _run(self.enter(["ip", "-batch", "-"]), descriptors=descriptors, text="\n".join(lines) + "\n")

    def shape(self, interface: str, bytes_per_s: float | None) -> None:
        """Limits what leaves through an interface with a token bucket; None lifts the limit."""
        words = ["tc", "qdisc"]
        if bytes_per_s is None:
            with contextlib.suppress(EmulationImpossible):  # there was none
                _run(self.enter([*words, "del", "dev", interface, "root"]), descriptors=[self.descriptor])
            return
        words += ["replace", "dev", interface, "root", *token_bucket(bytes_per_s)]
        _run(self.enter(words), descriptors=[self.descriptor])

    def close(self) -> None:
        """Lets go; the namespace goes with its last process."""
        os.close(self.descriptor)


def token_bucket(bytes_per_s: float) -> tuple[str, ...]:
    """Returns the arguments of ``tc`` for a rate: a burst of 10 ms, a queue of 100 ms, both with a floor."""
    burst = max(_SMALLEST_BURST_BYTES, round(bytes_per_s * _BURST_S))
    queue = max(_SMALLEST_QUEUE_BYTES, round(bytes_per_s * _QUEUE_S))
    return "tbf", "rate", f"{round(bytes_per_s * 8)}bit", "burst", f"{burst}b", "limit", f"{queue}b"


def free_subnet(taken: str, start: int) -> ipaddress.IPv4Network:
    """Returns a /24 of the range that no interface is in.

    Args:
        taken: What ``ip -o -4 addr show`` prints.
        start: The search begins at this number, so that clusters which start together rarely collide.

    Raises:
        EmulationImpossible: All 256 are taken.
    """
    used = [ipaddress.IPv4Interface(found).network for found in re.findall(r"inet (\d+\.\d+\.\d+\.\d+/\d+)", taken)]
    subnets = list(RANGE.subnets(new_prefix=24))
    for offset in range(len(subnets)):
        subnet = subnets[(start + offset) % len(subnets)]
        if not any(subnet.overlaps(other) for other in used):
            return subnet
    raise EmulationImpossible(f"every network of {RANGE} is in use on this machine")


def missing_tools() -> tuple[str, ...]:
    """Returns the commands that namespaces need and that are not installed."""
    return tuple(tool for tool in ("ip", "tc", "unshare", "nsenter") if shutil.which(tool) is None)


class Switch:
    """The switch and its cable to this machine, which has ``host_address``."""

    def __init__(self, namespace: Namespace, subnet: ipaddress.IPv4Network) -> None:
        self.namespace = namespace
        self.subnet = subnet

    @classmethod
    def make(cls, key: str) -> "Switch":
        """Makes a switch in a free network.

        Args:
            key: Eight hexadecimal digits that no other cluster has.

        Raises:
            EmulationImpossible: A command failed.
        """
        namespace = Namespace.make()
        try:
            namespace.ip("link add br0 type bridge", "link set br0 up")
            link = f"{_HOST_LINK_PREFIX}{key}"
            _run(
                ["ip", "link", "add", link, "type", "veth", "peer", "name", "out", "netns", namespace.path],
                descriptors=[namespace.descriptor],
            )
            namespace.ip("link set dev out master br0", "link set dev out up")
            with alone("subnets"):
                subnet = free_subnet(_run(["ip", "-o", "-4", "addr", "show"]), int(key, 16))
                _run(["ip", "addr", "add", f"{subnet[1]}/{subnet.prefixlen}", "dev", link])
            _run(["ip", "link", "set", link, "up"])
        except BaseException:
            namespace.close()
            raise
        return cls(namespace, subnet)

    @classmethod
    def with_subnet(cls, namespace: Namespace, subnet: str) -> "Switch":
        """Returns a switch that exists already."""
        return cls(namespace, ipaddress.IPv4Network(subnet))

    @property
    def host_address(self) -> str:
        """Where processes of the hosts reach this machine."""
        return str(self.subnet[1])

    def address(self, number: int) -> str:
        """Returns the address of the host of this number, counted from 0."""
        return str(self.subnet[FIRST_HOST_NUMBER + number])

    def plug_in(self, host: Namespace, number: int) -> None:
        """Joins a host's namespace by a cable: ``eth0`` inside, ``pN`` at the switch."""
        port = f"p{number}"
        with contextlib.suppress(EmulationImpossible):  # the port of a namespace that is just going
            self.namespace.ip(f"link del {port}")
        self.namespace.ip(
            f"link add {port} type veth peer name eth0 netns {host.path}",
            f"link set dev {port} master br0",
            f"link set dev {port} up",
            with_namespaces=[host],
        )
        host.ip(f"addr add {self.address(number)}/{self.subnet.prefixlen} dev eth0", "link set eth0 up")

    def set_link(self, number: int, *, is_up: bool) -> None:
        """Pulls or plugs a host's cable: what is sent is lost, and nobody is told."""
        self.namespace.ip(f"link set dev p{number} {'up' if is_up else 'down'}")
