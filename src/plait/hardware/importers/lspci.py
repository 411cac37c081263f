"""``lspci``: the tree (``-t``, ``-tv``) and the list (plain, ``-nn``, ``-vv``)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.lspci_tree import Function, Tree, read_tree
from plait.hardware.importers.paste import Paste, read_paste
from plait.hardware.importers.pci_names import kind_of_pci_name
from plait.hardware.pci import generation_of, hexadecimal, kind_of, lanes_of, normal_address, vendor_name
from plait.hardware.topology import Component, Fragment, Link, LinkKind, Locality

ROOT_BUS = "root_bus"
"""Key in :attr:`Component.extra`: the root bus (``0000:80``) that a function hangs below."""

_TREE_HINT = re.compile(
    r"-\[[0-9a-f]{2,8}(?::[0-9a-f]{2})?(?:-[0-9a-f]{2,8})?\]-|[+\\]-[0-9a-f]{2}\.[0-7]", re.IGNORECASE
)
_LIST_LINE = re.compile(
    r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) "
    r"([A-Z0-9][^:\"\[]{2,60}?)(?: \[([0-9a-f]{4})\])?: (\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
_LINK = re.compile(r"Lnk(Cap|Sta):.*?Speed ([0-9.]+ ?GT/s).*?Width x(\d{1,2})")
_NUMA = re.compile(r"NUMA node:\s*(-?\d{1,5})")
_COMMENT = re.compile(r"\s{2,}#\s?(.*)$")
_CLASSES = {
    "vga compatible controller": 0x0300,
    "3d controller": 0x0302,
    "display controller": 0x0380,
    "processing accelerators": 0x1200,
    "ethernet controller": 0x0200,
    "infiniband controller": 0x0207,
    "network controller": 0x0280,
    "pci bridge": 0x0604,
    "host bridge": 0x0600,
    "bridge": 0x0680,
}


class Lspci:
    """Reads what ``lspci`` prints, as a tree or as a list."""

    name = "lspci"

    def recognises(self, data: bytes) -> float:
        """Returns 0.7 where a drawn bus or a line of the list is in the text, below tools that say more."""
        text = read_paste(data).text
        return 0.7 if _TREE_HINT.search(text) or _LIST_LINE.search(text) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns the functions and, between accelerators and NICs below one root bus, how far apart they are.

        Below different root buses nothing is said: they may share a host bridge, a NUMA node or only the machine.

        Raises:
            UnreadableDump: no function can be read.
        """
        paste = read_paste(data)
        tree = read_tree(paste.lines, is_whole=paste.is_whole)
        listed = {c.key: c for c in _listed(paste)}
        components = {f.address: _of_tree(f, tree.functions, listed) for f in tree.functions.values()}
        components = {c.key: c for c in components.values()} | {k: c for k, c in listed.items() if k not in components}
        if not components:
            raise UnreadableDump(f"{origin}: no function of a PCI tree or list")
        return Fragment(
            origin=origin,
            format=self.name,
            components=tuple(components.values()),
            links=tuple(_links(tree, components)),
            unread=tuple(f"{origin}:{n}: {paste.lines[n - 1].strip()[:120]}" for n in tree.unread),
            hides=("functions",) if tree.elided else (),
            warnings=("the tree was shortened by its author: functions are missing",) if tree.elided else (),
        )


def _of_tree(function: Function, tree: Mapping[str, Function], listed: Mapping[str, Component]) -> Component:
    name = _COMMENT.sub("", function.name)
    ids = _IDS.findall(name)
    kind, vendor = kind_of_pci_name(name, is_first_function=function.address.endswith(".0"))
    if ids:
        vendor = vendor_name(hexadecimal(ids[-1][0]))
    if function.is_bridge:
        kind = "bridge"
    key = normal_address(function.address) if function.root else None
    extra = {ROOT_BUS: function.root} if function.root else {"address": function.address}
    comment = _COMMENT.search(function.name)
    if comment and comment[1]:
        extra["comment"] = comment[1].strip()
    if ids:
        extra["device_id"] = ":".join(ids[-1])
    component = Component(
        key=key or function.address,
        name=name or function.address,
        kind=kind,
        vendor=vendor,
        model=_IDS.sub("", name).strip() or None if kind in {"gpu", "npu"} else None,
        pci_address=key,
        parent=_parent(function, tree),
        locality=Locality(why_unknown="a PCI tree names no NUMA node"),
        extra=extra,
    )
    known = listed.get(component.key)
    if known is None:
        return component
    return replace(known, parent=component.parent, extra={**known.extra, **extra})


def _parent(function: Function, tree: Mapping[str, Function]) -> str | None:
    if function.parent is None or function.parent not in tree:
        return None
    return normal_address(function.parent) if function.root else function.parent


def _links(tree: Tree, components: Mapping[str, Component]) -> Iterator[Link]:
    ends = [
        function
        for function in tree.functions.values()
        if (c := components.get(_key(function))) is not None and c.kind in {"gpu", "npu", "nic"}
    ]
    above = {function.address: _bridges_above(function, tree.functions) for function in ends}
    for a, b in combinations(ends, 2):
        if a.root == b.root and (a.root is not None or _meet(above[a.address], above[b.address])):
            kind = _distance(above[a.address], above[b.address])
            if kind is not None:
                yield Link(a=_key(a), b=_key(b), kind=kind)


def _key(function: Function) -> str:
    return (normal_address(function.address) if function.root else None) or function.address


def _bridges_above(function: Function, tree: Mapping[str, Function]) -> list[str]:
    path: list[str] = []
    parent = function.parent
    while parent is not None and parent not in path:
        path.append(parent)
        parent = tree[parent].parent if parent in tree else None
    return path


def _meet(a: list[str], b: list[str]) -> str | None:
    return next((bridge for bridge in a if bridge in b), None)


def _distance(a: list[str], b: list[str]) -> LinkKind | None:
    """Returns PIX below one switch, PXB over several, PHB over the root bus.

    A switch is its upstream port with the ports below it: two functions are behind one switch where at most one bridge
    lies between each of them and the upstream port that both share.
    """
    meet = _meet(a, b)
    if meet is None:
        return "phb"
    return "pix" if max(a.index(meet), b.index(meet)) <= 1 else "pxb"


def _listed(paste: Paste) -> Iterator[Component]:
    """Yields the functions of a list, with what ``-vv`` prints below each."""
    pending: Component | None = None
    for number, line in enumerate(paste.lines, 1):
        if number == len(paste.lines) and not paste.is_whole:
            break
        match = _LIST_LINE.match(line)
        if match:
            if pending is not None:
                yield pending
            pending = _of_list(match)
        elif pending is not None and line[:1].isspace():
            pending = _with_detail(pending, line)
    if pending is not None:
        yield pending


def _of_list(match: re.Match[str]) -> Component | None:
    address = normal_address(match[1])
    class_ = hexadecimal(match[3]) if match[3] else _CLASSES.get(match[2].strip().lower())
    ids = _IDS.findall(match[4])
    vendor = hexadecimal(ids[-1][0]) if ids else None
    named_kind, named_vendor = kind_of_pci_name(match[4], is_first_function=match[1].endswith(".0"))
    kind = kind_of(class_, vendor)
    if kind == "gpu" and vendor is None and named_kind in {"other", "npu"}:
        kind = named_kind  # management graphics share the class of GPUs
    name = re.sub(r" \(rev [0-9a-f]{2}\)| \(prog-if .*\)", "", _IDS.sub("", match[4])).strip()
    return Component(
        key=address or match[1],
        name=name,
        kind=kind,
        vendor=vendor_name(vendor) or named_vendor,
        model=name if kind in {"gpu", "npu"} else None,
        pci_address=address,
        extra={"class": match[2].strip()} | ({"device_id": ":".join(ids[-1])} if ids else {}),
    )


def _with_detail(component: Component, line: str) -> Component:
    if link := _LINK.search(line):
        generation, lanes = generation_of(link[2].replace("GT", " GT")), lanes_of(link[3])
        port = component.pci
        if link[1] == "Cap":
            return replace(component, pci=replace(port, max_generation=generation, max_lanes=lanes))
        return replace(component, pci=replace(port, generation=generation, lanes=lanes))
    if node := _NUMA.search(line):
        known = int(node[1]) >= 0
        why = "" if known else "printed as -1"
        return replace(component, locality=Locality(numa_nodes=(int(node[1]),) if known else None, why_unknown=why))
    return component
