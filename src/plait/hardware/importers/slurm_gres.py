"""Slurm's ``gres.conf``: which device files each node has, with links between them where someone wrote them down.

``Cores`` are Slurm's core numbers, not CPU numbers of Linux, so they stay in ``extra`` and say nothing of locality.
"""

import re
from dataclasses import dataclass, field

from plait.hardware.importers.hostlist import expand
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.slurm_lines import Statement, statements
from plait.hardware.topology import Component, ComponentKind, Fragment, Link, Locality
from plait.hardware.values import Source

NAME = "slurm_gres_conf"
TABLE = "gres.conf"
"""Table of all statements as printed: ``{(line, key): value}``."""

_KEYS = frozenset(
    {"autodetect", "cores", "cpus", "count", "file", "flags", "links", "multiplefiles", "name", "nodename", "type"}
)
_FOREIGN_KEYS = frozenset({"switchname", "blockname", "partitionname", "clustername", "downnodes", "frontendname"})
_DETECTORS = frozenset({"nvml", "nvidia", "rsmi", "oneapi", "nrt", "off", "full"})
_ACCELERATORS: dict[str, ComponentKind] = {"gpu": "gpu", "npu": "npu"}
_DEVICE_FILE = re.compile(r"/.*?([0-9]+)", re.ASCII)
_MOST_DEVICES = 100_000
_CORES = "Cores are Slurm's core numbers, not CPU numbers"


class SlurmGresConf:
    """Reads ``gres.conf``."""

    name = NAME

    def recognises(self, data: bytes) -> float:
        """Returns how sure it is, by statements with ``Name=`` or ``AutoDetect=`` and no key of another file."""
        head = data[: 1 << 20].lower()
        if b"name" not in head and b"autodetect" not in head:
            return 0.0
        return 0.85 if any(_is_sure(s) for s in statements(data)) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns a component for every device file of every node, in the order of the lines.

        Raises:
            UnreadableDump: no statement of it could be read.
        """
        reader = _Reader(origin)
        for statement in statements(data):
            if statement.is_whole and _is_own(statement):
                reader.statement(statement)
            else:
                reader.unread.append(f"{origin}:{statement.line}: {statement.text[:80]}")
        if not reader.table:
            raise UnreadableDump(f"{origin}: no statement of a gres.conf in it")
        reader.connect()
        return Fragment(
            origin=origin,
            format=NAME,
            components=tuple(reader.components.values()),
            links=tuple(reader.links),
            unread=tuple(reader.unread),
            warnings=tuple(reader.warnings),
            tables={TABLE: reader.table},
            source=Source.USER,
        )


def _is_own(statement: Statement) -> bool:
    keys = {key.casefold() for key in statement.words}
    return bool(keys & {"name", "autodetect"}) and not keys & _FOREIGN_KEYS


def _is_sure(statement: Statement) -> bool:
    """Returns whether a statement is of this file and no other: many files say ``Name=``."""
    keys = {key.casefold() for key in statement.words}
    if not statement.is_whole or not keys <= _KEYS:
        return False
    name, detect = statement.get("Name") or "", statement.get("AutoDetect") or ""
    is_device = bool(name) and bool(keys & (_KEYS - {"name", "nodename"}))
    return is_device or name.casefold() == "gpu" or detect.casefold() in _DETECTORS


@dataclass(slots=True)
class _Reader:
    origin: str
    components: dict[str, Component] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    table: dict[tuple[str, str], str] = field(default_factory=dict)

    def statement(self, statement: Statement) -> None:
        where = f"{self.origin}:{statement.line}"
        self.table |= {(str(statement.line), key): value for key, value in statement.words.items()}
        name = statement.get("Name")
        if name is None:
            return
        nodes = expand(statement.get("NodeName") or "") if statement.get("NodeName") else ("",)
        printed = statement.get("MultipleFiles") or statement.get("File")
        files = expand(printed) if printed else ()
        if nodes is None or files is None or len(nodes) * max(1, len(files)) > _MOST_DEVICES - len(self.components):
            self.unread.append(f"{where}: {statement.text[:80]}")
            return
        if statement.get("MultipleFiles") and files:
            files = files[:1]  # all of them are one device, a MIG slice for instance
        if not files:
            files = self._counted(name, statement, where) if name.casefold() in _ACCELERATORS else ()
        for node in nodes:
            for file in files:
                self._device(statement, name, node, file, where)

    def _counted(self, name: str, statement: Statement, where: str) -> tuple[str, ...]:
        """Returns stand-ins for devices of which only the number is told."""
        count = statement.get("Count") or ""
        if not (count.isascii() and count.isdigit() and 0 < int(count[:6]) <= 1024 and len(count) < 6):
            self.warnings.append(f"{where}: {name} without File and Count: how many there are is not told")
            return ()
        taken = sum(c.extra.get("Name") == name for c in self.components.values())
        return tuple(f"{name}#{taken + number}" for number in range(int(count)))

    def _device(self, statement: Statement, name: str, node: str, file: str, where: str) -> None:
        kind = _ACCELERATORS.get(name.casefold(), "other")
        number = _DEVICE_FILE.fullmatch(file) if file.startswith("/") else re.fullmatch(r".*#([0-9]+)", file)
        if kind != "other" and number is None:
            # A device file that ends without a number is one that was cut off.
            self.unread.append(f"{where}: device file {file!r}")
            return
        key = f"{node}:{file}" if node else file
        if key in self.components:
            self.warnings.append(f"{where}: {key} is listed twice")
            return
        has_cores = statement.get("Cores") or statement.get("CPUs")
        self.components[key] = Component(
            key=key,
            name=file,
            kind=kind,
            model=statement.get("Type"),
            index=int(number[1]) if number and len(number[1]) < 9 else None,
            locality=Locality(why_unknown=_CORES if has_cores else ""),
            extra={**{key: value.strip('"') for key, value in statement.words.items()}, "node": node},
        )

    def connect(self) -> None:
        """Turns ``Links`` into links: its numbers follow the order of the node's devices, -1 is the device itself."""
        by_node: dict[str, list[Component]] = {}
        for component in self.components.values():
            if component.kind != "other":
                by_node.setdefault(component.extra["node"], []).append(component)
        for devices in by_node.values():
            for device in devices:
                printed = next((v for k, v in device.extra.items() if k.casefold() == "links"), None)
                if printed is not None:
                    self._links(device, devices, printed)

    def _links(self, device: Component, devices: list[Component], printed: str) -> None:
        counts = printed.split(",")
        own = devices.index(device)
        if len(counts) != len(devices) or not all(re.fullmatch(r"-1|[0-9]{1,3}", c, re.ASCII) for c in counts):
            self.unread.append(f"{self.origin}: Links={printed} of {device.key} for {len(devices)} devices")
            return
        for position, count in enumerate(counts):
            if position > own and int(count) > 0:
                other = devices[position]
                self.links.append(Link(a=device.key, b=other.key, kind="nvlink", count=int(count), raw=count))
