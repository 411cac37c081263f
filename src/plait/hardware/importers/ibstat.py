"""``ibstat`` and ``ibstatus``: InfiniBand and RoCE adapters with the rate and state of each port."""

import re
from dataclasses import dataclass, field

from plait.hardware.importers.figures import gigabits_per_s
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.paste import Paste, read_paste
from plait.hardware.topology import Component, Fragment
from plait.hardware.values import Value

_ADAPTER = re.compile(r"^\s*CA '([A-Za-z][\w.-]{0,63})'\s*$", re.ASCII)
_STATUS = re.compile(r"^\s*Infiniband device '([A-Za-z][\w.-]{0,63})' port (\d{1,3}) status:", re.ASCII)
_PORT = re.compile(r"^\s*Port (\d{1,3}):\s*$")
_PAIR = re.compile(r"^\s*([A-Za-z][A-Za-z _]{1,40}?)\s*:\s*(\S.*?)\s*$")
_HINT = re.compile(r"^[ \t]*CA '[^'\n]{1,64}'|^[ \t]*Infiniband device '", re.MULTILINE)
_NUMBERED = re.compile(r"^\d+:\s*")

LAYER, RATE, STATE, TYPE, PORT = "link_layer", "rate_gbps", "state", "ca_type", "port"
"""Keys in :attr:`Component.extra`: layer and state in the words of ``ibstat``, the rate as printed, in Gb/s."""


@dataclass(slots=True)
class _Adapter:
    name: str
    line: int
    said: dict[str, str] = field(default_factory=dict)
    ports: dict[str, dict[str, str]] = field(default_factory=dict)


class IbStat:
    """Reads ``ibstat`` and ``ibstatus``."""

    name = "ibstat"

    def recognises(self, data: bytes) -> float:
        """Returns 0.75 where a line names an adapter as these tools do."""
        return 0.75 if _HINT.search(read_paste(data).text) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns the adapters; one with several ports printed has them as parts.

        A port that is not active keeps its printed rate in ``extra`` only: it carries nothing.

        Raises:
            UnreadableDump: no line names an adapter.
        """
        adapters = _adapters(read_paste(data))
        if not adapters:
            raise UnreadableDump(f"{origin}: no line CA '...' or Infiniband device '...'")
        components = tuple(c for adapter in adapters for c in _components(adapter, origin))
        down = tuple(
            f"{c.name} is {c.extra[STATE]} and carries nothing"
            for c in components
            if c.extra.get(STATE, "Active") != "Active"
        )
        return Fragment(origin=origin, format=self.name, components=components, warnings=down)


def _adapters(paste: Paste) -> list[_Adapter]:
    found: dict[str, _Adapter] = {}
    adapter: _Adapter | None = None
    port: dict[str, str] | None = None
    for number, line in enumerate(paste.lines, 1):
        if match := _ADAPTER.match(line) or _STATUS.match(line):
            adapter = found.setdefault(match[1], _Adapter(match[1], number))
            port = adapter.ports.setdefault(match[2], {}) if match.re is _STATUS else None
        elif adapter is None:
            continue
        elif match := _PORT.match(line):
            port = adapter.ports.setdefault(match[1], {})
        elif match := _PAIR.match(line):
            if number == len(paste.lines) and not paste.is_whole:
                continue  # the text ends inside this value
            into = adapter.said if port is None else port
            into.setdefault(match[1].lower().replace("_", " "), match[2])
    return list(found.values())


def _components(adapter: _Adapter, origin: str) -> list[Component]:
    ports = list(adapter.ports.items())
    where = f"{origin}:{adapter.line}"
    if len(ports) <= 1:
        number, said = ports[0] if ports else ("", {})
        return [_nic(adapter, None, number, said, where)]
    whole = Component(
        key=adapter.name,
        name=adapter.name,
        kind="nic",
        rate_bytes_per_s=Value(None, detail=f"{len(ports)} ports: see its parts"),
        extra=_adapter_extra(adapter),
    )
    parts = [_nic(adapter, adapter.name, number, said, where) for number, said in ports]
    return [whole, *parts]


def _nic(adapter: _Adapter, parent: str | None, port: str, said: dict[str, str], where: str) -> Component:
    name = adapter.name if parent is None else f"{adapter.name}/{port}"
    rate = said.get("rate", "")
    state = _NUMBERED.sub("", said.get("state", "")).capitalize()
    figure = gigabits_per_s(rate, where)
    if state not in {"", "Active"}:
        figure = Value(None, figure.source, f"the port is {state}; it prints {rate}")
    extra = _adapter_extra(adapter)
    printed = gigabits_per_s(rate, where).value
    extra |= {key: text for key, text in ((STATE, state), (LAYER, said.get("link layer", "")), (PORT, port)) if text}
    if printed is not None:
        extra[RATE] = f"{printed * 8 / 1e9:g}"
    for key in ("physical state", "phys state", "base lid", "port guid"):
        if key in said:
            extra[key.replace(" ", "_")] = said[key]
    return Component(key=name, name=name, kind="nic", parent=parent, rate_bytes_per_s=figure, extra=extra)


def _adapter_extra(adapter: _Adapter) -> dict[str, str]:
    kept = {"ca type": TYPE, "node guid": "node_guid", "firmware version": "firmware_version"}
    return {key: adapter.said[said] for said, key in kept.items() if said in adapter.said}
