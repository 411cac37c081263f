"""``ibnetdiscover``: switches, host adapters and the cables between them, with the rate that each port prints."""

import re
from collections import Counter
from dataclasses import dataclass, field

from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.paste import Paste, read_paste
from plait.hardware.topology import Component, ComponentKind, Conflict, Fragment, Link
from plait.hardware.values import Source, Value

_NODE = re.compile(r'^(Switch|Ca|Rt)\s+(\d{1,5})\s+"([SHR]-[0-9a-fA-F]{16})"\s*(?:#\s*"([^"]{0,128})")?', re.IGNORECASE)
_CABLE = re.compile(
    r'^\[(\d{1,5})\](?:\([0-9a-fA-F]+\))?\s+"([SHR]-[0-9a-fA-F]{16})"\[(\d{1,5})\][^#"]{0,64}(?:#\s*"([^"]{0,128})"(.*))?$'
)
_RATE = re.compile(r"\b(1|2|4|8|12)x([A-Z]{2,4})(\d*)\b")
_LANE_GBPS = {"SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0}
_HINT = re.compile(r'^(?:Switch|Ca)\s+\d{1,5}\s+"[SH]-[0-9a-fA-F]{16}"', re.MULTILINE)

AGGREGATION = "aggregation_node"
HOST_NAME = "host"
"""Keys in :attr:`Component.extra`: SHARP's processors inside switches, which look like hosts; a host's own name."""


@dataclass(slots=True)
class _Fabric:
    names: dict[str, str] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=dict)
    cables: dict[tuple[str, str, str, str], str] = field(default_factory=dict)


class IbNetDiscover:
    """Reads ``ibnetdiscover``."""

    name = "ibnetdiscover"

    def recognises(self, data: bytes) -> float:
        """Returns 0.95 where a line begins a switch or an adapter as that tool does."""
        return 0.95 if _HINT.search(read_paste(data).text) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns the fabric; a pair of ends with several cables is one link with their count.

        Raises:
            UnreadableDump: no switch and no adapter is in it.
        """
        fabric = _fabric(read_paste(data))
        if not fabric.names:
            raise UnreadableDump(f"{origin}: no switch and no adapter of ibnetdiscover")
        twice = _contradicting(fabric)
        for cables in twice.values():
            for cable in cables:
                fabric.cables.pop(cable, None)
        return Fragment(
            origin=origin,
            format=self.name,
            components=tuple(_component(key, fabric) for key in fabric.names),
            links=_links(fabric, origin),
            conflicts=tuple(
                Conflict(
                    subject=f"port {port} of {node}", said=tuple(f"cable {a} - {b}" for a, _, b, _ in sorted(cables))
                )
                for (node, port), cables in twice.items()
            ),
        )


def _fabric(paste: Paste) -> _Fabric:
    fabric = _Fabric()
    here: str | None = None
    for number, line in enumerate(paste.lines, 1):
        if match := _NODE.match(line):
            here = _key(match[3])
            fabric.names[here] = match[4] or fabric.names.get(here, "")
            fabric.ports[here] = match[2]
        elif match := _CABLE.match(line):
            if here is not None and (number < len(paste.lines) or paste.is_whole):
                _add_cable(fabric, here, match)
        else:
            here = None  # an empty line, or what stands above the next switch: cables below have lost theirs
    return fabric


def _add_cable(fabric: _Fabric, here: str, match: re.Match[str]) -> None:
    there = _key(match[2])
    fabric.names[there] = fabric.names.get(there) or match[4] or ""
    (a, port_a), (b, port_b) = sorted([(here, match[1]), (there, match[3])])
    rate = _RATE.search(match[5] or "")
    known = fabric.cables.get((a, port_a, b, port_b), "")
    fabric.cables[a, port_a, b, port_b] = known or (rate[0] if rate else "")


def _contradicting(fabric: _Fabric) -> dict[tuple[str, str], set[tuple[str, str, str, str]]]:
    """Returns the ports that two different cables end in, which one plug cannot."""
    ends: dict[tuple[str, str], set[tuple[str, str, str, str]]] = {}
    for cable in fabric.cables:
        ends.setdefault(cable[:2], set()).add(cable)
        ends.setdefault(cable[2:], set()).add(cable)
    return {end: cables for end, cables in ends.items() if len(cables) > 1}


def _key(printed: str) -> str:
    return printed[0].upper() + printed[1:].lower()


def _component(key: str, fabric: _Fabric) -> Component:
    name = fabric.names[key]
    extra = {"description": name} if name else {}
    kind: ComponentKind = "switch" if key[0] == "S" else "nic" if key[0] == "H" else "other"
    if kind == "nic" and "aggregation node" in name.lower():
        kind = "other"
        extra[AGGREGATION] = "yes"
    elif kind == "nic" and name:
        extra[HOST_NAME] = name.split()[0]
    if kind == "nic":
        extra["link_layer"] = "InfiniBand"  # the tool sees nothing else
    if key in fabric.ports:
        extra["ports"] = fabric.ports[key]
    return Component(key=key, name=name or key, kind=kind, extra=extra)


def _links(fabric: _Fabric, origin: str) -> tuple[Link, ...]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for (a, _, b, _), rate in fabric.cables.items():
        counts[a, b, rate] += 1
    return tuple(
        Link(
            a=a,
            b=b,
            kind="net",
            count=count,
            bytes_per_s=(v := _rate(rate, count, origin)),
            reverse_bytes_per_s=v,
            raw=rate,
        )
        for (a, b, rate), count in counts.items()
    )


def _rate(printed: str, count: int, origin: str) -> Value[float]:
    """Returns what the cables of a link carry together, one direction, after the line code of the old generations."""
    match = _RATE.fullmatch(printed)
    lane = _LANE_GBPS.get(match[2]) if match else None
    if match is None or lane is None:
        return Value(None, Source.CLI, f"printed as {printed!r}" if printed else "not printed")
    coded = 0.8 if match[2] in {"SDR", "DDR", "QDR"} else 1.0
    return Value(int(match[1]) * lane * coded * 1e9 / 8 * count, Source.CLI, f"{origin}: {count} x {printed}")
