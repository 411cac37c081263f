"""Which link an exchange waits for: a wait far beyond the usual, and what the kernel says of the connections.

A link that is gone for a moment costs time and nothing else: the kernel sends again what was lost, and the exchange
goes on in the same step. This module only says what happened. If a link stays silent for longer than the heart-beats
may, the membership changes; that is the wardens' business.
"""

import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

LEAST_S = 0.25
USUAL_TIMES = 8.0
"""A wait is a stall once it takes so many times the usual one, and `LEAST_S` at least."""
KEPT_WAITS = 32
KNOWN_WAITS = 5
"""From so many waits on, how long a stage takes is known."""

GIVE_UP_TIMES = 4.0
"""A connection whose data is not confirmed is given up after so many times the limit of a stall."""

LEAST_RETRIES = 3
"""And after the kernel has sent the oldest data again so often."""

TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckLink:
    """A link on which something was sent that nobody has acknowledged.

    Attributes:
        members: Those at the other end; several where they share an address.
        unsent_bytes: Bytes that this host has handed to the kernel and the other end has not confirmed.
        retries: How often the kernel has sent the oldest of them again.
    """

    members: tuple[str, ...]
    unsent_bytes: int
    retries: int

    def __str__(self) -> str:
        return f"{', '.join(self.members)} ({self.unsent_bytes} bytes unconfirmed, sent again {self.retries} times)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A wait for others that took far longer than usual; ``links`` is empty where no link of this host is stuck."""

    step: int
    waited_s: float
    usual_s: float
    links: tuple[StuckLink, ...]

    def __str__(self) -> str:
        where = "; ".join(str(link) for link in self.links)
        cause = f"the link to {where} gave no answer" if self.links else "no link of this host was stuck"
        return f"step {self.step} waited {self.waited_s:.2f} s for others (usually {self.usual_s:.3f} s): {cause}"


class StallWatch:
    """Learns how long waits for others take by stage, and looks at the links when one takes far longer."""

    def __init__(self, timeout_s: float = 60.0, heartbeat_timeout_s: float = 1.0) -> None:
        """``timeout_s`` is that of an exchange of which nothing is known; see :attr:`give_up_s`."""
        self.addresses: Mapping[str, str] = {}
        self._timeout_s = timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._all_waits: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT_WAITS))
        self._stage = ""
        self._since_s: float | None = None
        self._looked_s = 0.0
        self._worst: dict[tuple[str, ...], StuckLink] = {}

    @property
    def limit_s(self) -> float:
        """From when on a wait is a stall, by the waits so far."""
        return max(LEAST_S, USUAL_TIMES * self._usual_s)

    @property
    def give_up_s(self) -> float:
        """From when on a connection that does not confirm its data is given up and made anew.

        That is far beyond what the stage took so far, and longer than a silent host stays a member: one whose
        heart-beats still come is there, and only its connection is not.
        """
        if len(self._waits) < KNOWN_WAITS:
            return self._timeout_s
        return min(self._timeout_s, max(2.0 * self._heartbeat_timeout_s, GIVE_UP_TIMES * self.limit_s))

    @property
    def _waits(self) -> deque[float]:
        return self._all_waits[self._stage]

    def is_too_long(self, now_s: float | None = None) -> bool:
        """Whether the running wait has gone on for so long that a connection without answers is to be given up."""
        now_s = time.monotonic() if now_s is None else now_s
        return self._since_s is not None and now_s - self._since_s >= self.give_up_s

    @property
    def _usual_s(self) -> float:
        return median(self._waits) if self._waits else 0.0

    def waiting(self, now_s: float | None = None, *, stage: str = "") -> None:
        """Called again and again while this member waits; what it waits for has its own usual time."""
        self._stage = stage
        now_s = time.monotonic() if now_s is None else now_s
        if self._since_s is None:
            self._since_s = now_s
        if now_s - max(self._since_s, self._looked_s) >= LEAST_S and now_s - self._since_s >= self.limit_s:
            self._looked_s = now_s
            for link in stuck_links(self.addresses):
                if link.retries >= self._worst.get(link.members, link).retries:
                    self._worst[link.members] = link

    def over(self, step: int, now_s: float | None = None) -> Stall | None:
        """The wait is over, or given up; returns what is worth telling of it."""
        if self._since_s is None:
            return None
        now_s = time.monotonic() if now_s is None else now_s
        waited_s, usual_s, limit_s = now_s - self._since_s, self._usual_s, self.limit_s
        links = tuple(self._worst.values())
        self._since_s = None
        self._worst = {}
        self._waits.append(waited_s)
        if waited_s < limit_s or not links:
            return None
        return Stall(step=step, waited_s=waited_s, usual_s=usual_s, links=links)


def stuck_links(addresses: Mapping[str, str], tables: tuple[Path, ...] = TABLES) -> tuple[StuckLink, ...]:
    """Returns the links whose connections wait for an answer and were sent again, of members' hosts.

    Args:
        addresses: ``host:port`` of each member; only hosts count.
        tables: The kernel's lists of TCP connections (``Documentation/networking/proc_net_tcp.rst``).
    """
    at: dict[str, list[str]] = defaultdict(list)
    for member, address in addresses.items():
        at[_host_of(address)].append(member)
    unsent: dict[str, int] = defaultdict(int)
    retries: dict[str, int] = defaultdict(int)
    for table in tables:
        try:
            rows = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # no such table in this kernel
        for words in (row.split() for row in rows):
            host = _host(words[2].partition(":")[0])
            times = int(words[6], 16)
            if host in at and times > 0:
                unsent[host] += int(words[4].partition(":")[0], 16)
                retries[host] = max(retries[host], times)
    return tuple(
        StuckLink(members=tuple(sorted(at[host])), unsent_bytes=unsent[host], retries=retries[host])
        for host in sorted(retries)
    )


def _host_of(address: str) -> str:
    host = address.rsplit(":", 1)[0].strip("[]")
    try:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0] if host else ""  # type: ignore[return-value]
    except OSError:
        return host


def _host(digits: str) -> str:
    """Returns an address from the kernel's table, which writes 32-bit words in the byte order of the machine."""
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    raw = b"".join(struct.pack("=I", word) for word in words)
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)
