"""Slurm's ``topology.yaml``: several named networks in one file, each a tree, blocks, rings, tori or flat.

Refused is what Slurm's parser refuses (wrong types, two kinds in one topology); what parses but cannot work is warned
of.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plait.hardware.importers.hostlist import expand, is_name
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.paste import read_paste
from plait.hardware.importers.slurm_topology import NetworkReader, block_size_warnings
from plait.hardware.topology import Component, Fragment, Link
from plait.hardware.values import Source
from plait.words import did_you_mean

NAME = "slurm_topology_yaml"
MOST_RING_NODES = 16

_START = re.compile(r"^[ \t]*(-[ \t]+)?[\"']?topology[\"']?[ \t]*:", re.MULTILINE)
_LARGEST_BYTES = 4 << 20
_KINDS = ("tree", "block", "ring", "torus3d", "flat")
_TRUE = frozenset({"true", "yes", "on", "y", "1"})
_FALSE = frozenset({"false", "no", "off", "n", "0", "", "~", "null"})


class SlurmTopologyYaml:
    """Reads ``topology.yaml``."""

    name = NAME

    def recognises(self, data: bytes) -> float:
        """Returns how sure it is: a list item that names a topology, less so such a key at the top."""
        if b"topology" not in data:
            return 0.0
        start = _START.search(read_paste(data).text)
        return 0.0 if start is None else 0.95 if start[1] else 0.5

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns the networks: names are ``TOPOLOGY/SWITCH``, nodes hang under the cluster's default one.

        Raises:
            UnreadableDump: it is no YAML, or Slurm would refuse it; the message says where and why.
        """
        entries = _parsed(data, origin)
        if not isinstance(entries, list):
            raise UnreadableDump(f"{origin}: a topology.yaml is a list of topologies, this is {_sort(entries)}")
        if not entries:
            raise UnreadableDump(f"{origin}: no topology in it")
        networks = [_Network(entry, f"{origin}: topology {n + 1}", origin) for n, entry in enumerate(entries)]
        names = [network.name for network in networks]
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            networks[0].reader.warnings.append(f"{origin}: topology {name} is defined {names.count(name)} times")
        return _joined(networks, origin)


def _parsed(data: bytes, origin: str) -> object:
    import yaml

    if len(data) > _LARGEST_BYTES:
        raise UnreadableDump(f"{origin}: larger than {_LARGEST_BYTES >> 20} MiB")
    text = _own_lines(read_paste(data).lines)
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        # Anchors could make a short text endless; no topology has a use for them.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=loader)):
            raise UnreadableDump(f"{origin}: YAML aliases are refused")
        _refuse_twins(yaml.compose(text, Loader=loader), origin)
        return yaml.load(text, Loader=loader)  # noqa: S506 - the base loader makes strings, lists and dicts only
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        told = " ".join(str(error).split())[:200]
        raise UnreadableDump(f"{origin}: not YAML ({told})") from None


def _refuse_twins(root: Any, origin: str) -> None:
    """Refuses a dictionary with one key twice: a line is missing between, and the second would hide the first."""
    open_ = [root]
    while open_:
        node = open_.pop()
        if node is None or isinstance(node.value, str):
            continue
        pairs = [pair for pair in node.value if isinstance(pair, tuple)]
        keys = [str(key.value) for key, _ in pairs]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise UnreadableDump(f"{origin}: line {node.start_mark.line + 1}: the key {twice!r} is there twice")
        open_ += [value for _, value in pairs] + [value for value in node.value if not isinstance(value, tuple)]


def _own_lines(lines: Sequence[str]) -> str:
    """Returns the lines from the first topology on, up to one that cannot belong to the list (a prompt, a greeting)."""
    start = next((n for n, line in enumerate(lines) if _START.match(line)), 0)
    margin = len(lines[start]) - len(lines[start].lstrip()) if lines else 0
    own: list[str] = []
    for line in lines[start:]:
        word = line.lstrip()
        if word and not word.startswith(("#", "-")) and len(line) - len(word) <= margin and own:
            break
        own.append(line)
    return "\n".join(own)


def _joined(networks: list["_Network"], origin: str) -> Fragment:
    default = next((n for n in networks if n.is_default), networks[0])
    components: dict[str, Component] = {}
    links: list[Link] = []
    for network in [default, *(n for n in networks if n is not default)]:
        # The first to name a node decides where it hangs; the others' links say the rest.
        for key, component in network.reader.components.items():
            components.setdefault(key, component)
        links += network.reader.links
    return Fragment(
        origin=origin,
        format=NAME,
        components=tuple(components.values()),
        links=tuple(links),
        unread=tuple(text for n in networks for text in n.reader.unread),
        warnings=tuple(text for n in networks for text in n.reader.warnings),
        source=Source.USER,
    )


class _Network:
    """One topology of the file."""

    def __init__(self, entry: object, where: str, origin: str) -> None:
        self._where = where
        table = _table(entry, where)
        name = table.get("topology")
        if not isinstance(name, str) or not is_name(name):
            raise UnreadableDump(f"{where}: has no name (topology: NAME)")
        self.name = name
        self._where = f"{origin}: topology {name}"
        self.reader = NetworkReader(origin, prefix=f"{name}/")
        self.is_default = _truth(table.get("cluster_default", "false"), f"{self._where}/cluster_default")
        if next(iter(table)) != "topology":
            self.reader.warnings.append(f"{self._where}: topology has to be its first attribute")
        self._unknown(table, ("topology", "cluster_default", *_KINDS), self._where)
        kinds = [k for k in _KINDS if k in table and not (k == "flat" and self._is_off(table[k]))]
        if len(kinds) > 1:
            raise UnreadableDump(f"{self._where}: {' and '.join(kinds)} are mutually exclusive")
        extra = {"plugin": kinds[0] if kinds else "", "cluster_default": str(self.is_default).lower()}
        self.reader.components[name] = Component(key=name, name=name, kind="other", extra=extra)
        if not kinds:
            self.reader.warnings.append(
                f"{self._where}: says none of {', '.join(_KINDS)}, so Slurm has nothing to load"
            )
            return
        read: Mapping[str, Callable[[object], None]] = {
            "tree": self._tree,
            "block": self._block,
            "ring": self._ring,
            "torus3d": self._torus,
            "flat": self._flat,
        }
        read[kinds[0]](table[kinds[0]])
        self.reader.resolve()

    def _is_off(self, value: object) -> bool:
        return isinstance(value, str) and not _truth(value, f"{self._where}/flat")

    def _tree(self, value: object) -> None:
        where = f"{self._where}/tree"
        for switch, name in self._named(value, where, "switches", "switch", ("switch", "children", "nodes", "url")):
            extra = {k: v for k, v in switch.items() if k != "switch" and isinstance(v, str)}
            if len(name) > 64:
                self.reader.warnings.append(f"{where}: switch {name[:20]}... is longer than 64 characters")
            children, nodes = _names(switch, "children", where), _names(switch, "nodes", where)
            self.reader.switch(name, children, nodes, extra, f"{where}/switches/{name}")
        roots = {c.key for c in self.reader.components.values() if c.kind == "switch"}
        if not roots:
            self.reader.warnings.append(f"{where}: has no switch with anything under it")

    def _block(self, value: object) -> None:
        where = f"{self._where}/block"
        table = _table(value, where)
        self._unknown(table, ("block_sizes", "blocks"), where)
        sizes = [
            _count(size, f"{where}/block_sizes") for size in _list(table.get("block_sizes", []), f"{where}/block_sizes")
        ]
        smallest: int | None = None
        for block, name in self._named(value, where, "blocks", "block", ("block", "nodes")):
            nodes = _names(block, "nodes", where)
            self.reader.group("block", name, nodes, {"nodes": nodes or ""}, f"{where}/blocks/{name}")
            count = len(expand(nodes) or ()) if nodes else 0
            smallest = count if smallest is None else min(smallest, count)
        if sizes:
            self.reader.warnings += block_size_warnings(sizes, f"{where}/block_sizes")
            if smallest is not None and smallest < sizes[0]:
                self.reader.warnings.append(f"{where}: a block of {smallest} nodes for a base size of {sizes[0]}")
        if smallest is None:
            self.reader.warnings.append(f"{where}: has no blocks")

    def _ring(self, value: object) -> None:
        where = f"{self._where}/ring"
        for ring, name in self._named(value, where, "rings", "ring", ("ring", "nodes")):
            nodes = _names(ring, "nodes", where)
            self.reader.group("ring", name, nodes, {"nodes": nodes or ""}, f"{where}/rings/{name}")
            count = len(expand(nodes) or ()) if nodes else 0
            if count > MOST_RING_NODES:
                self.reader.warnings.append(f"{where}: ring {name} has {count} nodes, a ring holds {MOST_RING_NODES}")

    def _torus(self, value: object) -> None:
        where = f"{self._where}/torus3d"
        keys = ("name", "dims", "nodes", "regions", "placements")
        for torus, name in self._named(value, where, "toruses", "name", keys):
            cells = self._cells(torus.get("dims"), f"{where}/{name}/dims")
            nodes = _names(torus, "nodes", where)
            regions = [
                _table(r, f"{where}/{name}/regions") for r in _list(torus.get("regions", []), f"{where}/{name}/regions")
            ]
            if nodes and regions:
                self.reader.warnings.append(f"{where}: torus {name} has both nodes and regions, one may be")
            for region in regions:
                held, room = _names(region, "nodes", where), self._cells(region.get("dims"), f"{where}/{name}/regions")
                self._fits(len(expand(held) or ()) if held else 0, room, f"{where}: a region of torus {name}")
                nodes = ",".join(text for text in (nodes, held) if text)
            self.reader.group("torus", name, nodes or None, {"nodes": nodes or ""}, f"{where}/toruses/{name}")
            self._fits(len(expand(nodes) or ()) if nodes else 0, cells, f"{where}: torus {name}")
            for placement in _list(torus.get("placements", []), f"{where}/{name}/placements"):
                shape = f"{where}/{name}/placements"
                size = self._cells(_table(placement, shape).get("dims"), shape)
                if size is not None and cells is not None and size > cells:
                    self.reader.warnings.append(f"{shape}: a placement of {size} cells in a torus of {cells}")

    def _cells(self, value: object, where: str) -> int | None:
        if value is None:
            self.reader.warnings.append(f"{where}: no dimensions")
            return None
        table = _table(value, where)
        sides = [_count(table.get(axis, ""), f"{where}/{axis}") for axis in "xyz"]
        if 0 in sides:
            self.reader.warnings.append(f"{where}: a side of 0")
        return sides[0] * sides[1] * sides[2]

    def _fits(self, nodes: int, cells: int | None, what: str) -> None:
        if cells is not None and nodes > cells:
            self.reader.warnings.append(f"{what} has {nodes} nodes for {cells} cells")

    def _flat(self, value: object) -> None:
        if isinstance(value, str):
            return
        where = f"{self._where}/flat"
        table = _table(value, where)
        self._unknown(table, ("alpha_step_rank",), where)
        if "alpha_step_rank" in table:
            _truth(table["alpha_step_rank"], f"{where}/alpha_step_rank")

    def _named(
        self, value: object, where: str, list_key: str, name_key: str, keys: tuple[str, ...]
    ) -> list[tuple[Mapping[str, Any], str]]:
        """Returns the entries of a list with their names; one without a name is warned of and left out."""
        table = _table(value, where)
        self._unknown(table, (list_key, "block_sizes") if list_key == "blocks" else (list_key,), where)
        place = f"{where}/{list_key}"
        found: list[tuple[Mapping[str, Any], str]] = []
        for entry in _list(table.get(list_key, []), place):
            one = _table(entry, place)
            self._unknown(one, keys, place)
            name = one.get(name_key)
            if not isinstance(name, str) or not name:
                self.reader.warnings.append(f"{place}: an entry without {name_key}")
                continue
            if name in {known for _, known in found}:
                self.reader.warnings.append(f"{place}: {name} is there twice")
            found.append((one, name))
        return found

    def _unknown(self, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                self.reader.warnings.append(f"{where}: unknown key {key!r}{did_you_mean(key, known)}")


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UnreadableDump(f"{where}: a dictionary is expected, this is {_sort(value)}")
    return value


def _list(value: object, where: str) -> list[Any]:
    """Returns a list; a dictionary stands for a list of one, as Slurm's parser takes it."""
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise UnreadableDump(f"{where}: a list is expected, this is {_sort(value)}")
    return value


def _names(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = table.get(key)
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return ",".join(value)
    raise UnreadableDump(f"{where}: {key} is a list of names, this is {_sort(value)}")


def _count(value: object, where: str) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,9}", value, re.ASCII):
        raise UnreadableDump(f"{where}: a whole number is expected, not {value!r}")
    return int(value)


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, str) or value.casefold() not in _TRUE | _FALSE:
        raise UnreadableDump(f"{where}: true or false is expected, this is {_sort(value)}")
    return value.casefold() in _TRUE


def _sort(value: object) -> str:
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return "a list" if isinstance(value, list) else "a dictionary" if isinstance(value, dict) else "something else"
