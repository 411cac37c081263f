"""Slurm's ``topology.conf``: the switches of a cluster as a tree, or its blocks; topograph writes the same."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

from plait.hardware.importers.hostlist import expand, is_name
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.slurm_lines import Statement, statements
from plait.hardware.topology import Component, Fragment, Link
from plait.hardware.values import Source

NAME = "slurm_topology_conf"
_KEYS = ("switchname", "blockname", "blocksizes")
_MOST_COMPONENTS = 200_000


class SlurmTopologyConf:
    """Reads ``topology.conf``."""

    name = NAME

    def recognises(self, data: bytes) -> float:
        """Returns how sure it is, by statements that only this file has."""
        found = any(key in data[: 1 << 20].lower() for key in (b"switchname", b"blockname", b"blocksizes"))
        if not found:
            return 0.0
        return 0.9 if any(_is_own(s) and s.is_whole for s in statements(data)) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns switches or blocks with their lines in ``extra``, and the nodes under them.

        Raises:
            UnreadableDump: no statement of it could be read.
        """
        reader = NetworkReader(origin)
        for statement in statements(data):
            reader.statement(statement)
        if not reader.components:
            raise UnreadableDump(f"{origin}: no switch or block of a topology.conf in it")
        return reader.fragment(NAME)


def _is_own(statement: Statement) -> bool:
    return any(key.casefold() in _KEYS for key in statement.words)


@dataclass(slots=True)
class NetworkReader:
    """Collects switches, blocks and nodes of one network; shared with ``topology.yaml``."""

    origin: str
    prefix: str = ""
    components: dict[str, Component] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _children: list[tuple[str, str, str]] = field(default_factory=list)

    def statement(self, statement: Statement) -> None:
        """Takes one line of a ``topology.conf``."""
        if not statement.is_whole or not _is_own(statement):
            self.unread.append(f"{self.origin}:{statement.line}: {statement.text[:80]}")
            return
        extra = {key: value for key, value in statement.words.items() if key.casefold() not in _KEYS[:2]}
        switch, block = statement.get("SwitchName"), statement.get("BlockName")
        where = f"{self.origin}:{statement.line}"
        if switch is not None:
            self.switch(switch, statement.get("Switches"), statement.get("Nodes"), extra, where)
        elif block is not None:
            self.group("BlockName", block, statement.get("Nodes"), extra, where)
        else:
            self.block_sizes(statement.get("BlockSizes") or "", where)

    def switch(self, name: str, switches: str | None, nodes: str | None, extra: dict[str, str], where: str) -> None:
        """Adds a switch with what is under it; one with nothing under it is not believed, as Slurm does not."""
        if not is_name(name):
            self.unread.append(f"{where}: a switch named {name[:40]!r}")
            return
        below = [(kind, names) for kind, names in (("switch", switches), ("node", nodes)) if names is not None]
        expanded = [(kind, expand(names)) for kind, names in below]
        if not below or any(kind == "switch" and name in (names or ()) for kind, names in expanded):
            self.unread.append(f"{where}: switch {name} with nothing below it but itself")
            return
        self._add(Component(key=self.prefix + name, name=name, kind="switch", extra=extra), where)
        for kind, names in expanded:
            if names is None:
                self.unread.append(f"{where}: what is below switch {name}")
            self._children += [(kind, child, self.prefix + name) for child in names or ()]

    def group(self, kind: str, name: str, nodes: str | None, extra: dict[str, str], where: str) -> None:
        """Adds a block, ring or torus with its nodes; ``kind`` is the key that names it in ``extra``."""
        names = () if nodes is None else expand(nodes)
        if names is None:
            self.unread.append(f"{where}: what is in {name[:40]!r}")
        if not is_name(name):
            self.unread.append(f"{where}: something named {name[:40]!r}")
            return
        key = self.prefix + name
        self._add(Component(key=key, name=name, kind="other", extra={kind: name, **extra}), where)
        self._children += [("node", node, key) for node in names or ()]

    def block_sizes(self, text: str, where: str) -> None:
        """Notes the sizes of blocks, and warns where a larger one is no power of two of the smallest."""
        sizes = text.split(",")
        if not all(size.isascii() and size.isdigit() and len(size) < 9 for size in sizes):
            self.unread.append(f"{where}: BlockSizes={text[:80]}")
            return
        key = f"{self.prefix}block sizes"
        self._add(Component(key=key, name="block sizes", kind="other", extra={"BlockSizes": text}), where)
        self.warnings += block_size_warnings([int(size) for size in sizes], where)

    def fragment(self, format_: str) -> Fragment:
        """Returns what was collected, every child under its parent."""
        self.resolve()
        return Fragment(
            origin=self.origin,
            format=format_,
            components=tuple(self.components.values()),
            links=tuple(self.links),
            unread=tuple(self.unread),
            warnings=tuple(self.warnings),
            source=Source.USER,
        )

    def resolve(self) -> None:
        """Hangs children under their parents; a switch that no line defines is only warned of.

        The network is a tree: of a child under two parents no line is believed, since one of them is wrong.
        """
        parents: dict[tuple[str, str], set[str]] = defaultdict(set)
        for kind, name, parent in self._children:
            parents[kind, name].add(parent)
        for kind, name, parent in self._children:
            key = self.prefix + name if kind == "switch" else name
            if kind == "node" and key not in self.components and len(self.components) < _MOST_COMPONENTS:
                self.components[key] = Component(key=key, name=name, kind="node")
            child = self.components.get(key)
            if child is None:
                self.warnings.append(f"switch {name} under {parent} has no line of its own")
                continue
            if len(parents[kind, name]) > 1:
                self.unread.append(f"{self.origin}: {name} under {parent}, since it is also under others")
                continue
            if self._is_above(key, parent):
                self.warnings.append(f"{name} under {parent} closes a circle")
            elif child.parent is None:
                self.components[key] = replace(child, parent=parent)
            self.links.append(Link(a=key, b=parent, kind="net", raw=self.prefix))
        self._children.clear()

    def _is_above(self, key: str, place: str | None) -> bool:
        """Whether this component is above that place already: then its line closes a circle."""
        steps = 0
        while place is not None and steps < len(self.components):
            if place == key:
                return True
            place = self.components[place].parent if place in self.components else None
            steps += 1
        return False

    def _add(self, component: Component, where: str) -> None:
        if component.key in self.components:
            self.warnings.append(f"{where}: {component.name} is defined twice; the last line counts")
        self.components[component.key] = component


def block_size_warnings(sizes: list[int], where: str) -> list[str]:
    """Returns a warning for each size that is no power-of-two multiple of the base block size."""
    base = sizes[0] if sizes else 0
    if base < 1:
        return [f"{where}: base block size {base} is no size"]
    wrong = [s for s in sizes[1:] if s % base or (s // base) & (s // base - 1) or s <= base]
    return [f"{where}: block size {size} is no power-of-two multiple of the base block size {base}" for size in wrong]
