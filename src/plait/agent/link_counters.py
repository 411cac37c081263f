"""What the kernel counts of this node's network: carrier, damaged frames, and TCP segments that were sent again."""

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

KEPT_S = 20.0
"""How far back a change is looked for: longer than a group takes to give a member up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """Counters since the machine started.

    Attributes:
        has_carrier: Whether the interface has a link now; None where it does not say.
        carrier_changes: How often the link came or went.
        crc_errors: Frames that came damaged.
        sent: TCP segments of this network namespace.
        sent_again: Those of them that had to be sent again.
    """

    has_carrier: bool | None = None
    carrier_changes: int = 0
    crc_errors: int = 0
    sent: int = 0
    sent_again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """What happened to the node's network within the last seconds."""

    interface: str
    over_s: float
    has_carrier: bool | None = None
    carrier_changes: int = 0
    crc_errors: int = 0
    sent: int = 0
    sent_again: int = 0


def read_counters(
    interface: str, net: Path = Path("/sys/class/net"), tcp: Path = Path("/proc/net/snmp")
) -> LinkCounters:
    """Returns the counters now; what the kernel does not give is 0."""
    carrier = _text(net / interface / "carrier")
    segments = _tcp(_text(tcp))
    return LinkCounters(
        has_carrier=None if carrier not in {"0", "1"} else carrier == "1",
        carrier_changes=_number(net / interface / "carrier_changes"),
        crc_errors=_number(net / interface / "statistics" / "rx_crc_errors"),
        sent=segments.get("OutSegs", 0),
        sent_again=segments.get("RetransSegs", 0),
    )


class LinkHistory:
    """The counters of the last seconds."""

    def __init__(self, interface: str | None) -> None:
        self._interface = interface
        self._seen: deque[tuple[float, LinkCounters]] = deque()

    def look(self, now_s: float | None = None) -> None:
        """Remembers the counters; called about once a second."""
        if self._interface is not None:
            self.note(read_counters(self._interface), time.monotonic() if now_s is None else now_s)

    def note(self, counters: LinkCounters, now_s: float) -> None:
        """Remembers counters that were read at this time."""
        self._seen.append((now_s, counters))
        while len(self._seen) > 1 and now_s - self._seen[0][0] > KEPT_S:
            self._seen.popleft()

    def change(self) -> LinkChange | None:
        """Returns what changed since the oldest counters that are remembered; None before there are two."""
        if self._interface is None or len(self._seen) < 2:
            return None
        (from_s, old), (to_s, new) = self._seen[0], self._seen[-1]
        return LinkChange(
            interface=self._interface,
            over_s=to_s - from_s,
            has_carrier=new.has_carrier,
            carrier_changes=new.carrier_changes - old.carrier_changes,
            crc_errors=new.crc_errors - old.crc_errors,
            sent=new.sent - old.sent,
            sent_again=new.sent_again - old.sent_again,
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # an interface that is down gives no carrier
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0


def _tcp(text: str) -> dict[str, int]:
    """Returns the row ``Tcp:`` of ``/proc/net/snmp``, whose names stand in a row of the same begin before it."""
    rows = [line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:")]
    if len(rows) < 2:
        return {}
    return {name: int(value) for name, value in zip(rows[0], rows[1], strict=False) if value.lstrip("-").isdigit()}
