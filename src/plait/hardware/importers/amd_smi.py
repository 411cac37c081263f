"""``amd-smi topology``, its tables and its JSON: devices by PCI address, a table for each property of a pair.

The bandwidth column (``min-max``) states no unit: it is kept as printed and makes no figure.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plait.hardware.importers.cells import link_of
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.paste import Paste, read_paste, words
from plait.hardware.pci import normal_address
from plait.hardware.topology import P2P, Component, Conflict, Fragment, Link, Locality

ACCESS, LINK_TYPE = "ACCESS", "LINK TYPE"
"""Titles in :attr:`Fragment.tables`, as the tool prints them without the word TABLE."""

_TITLE = re.compile(r"^\s*([A-Z][A-Z -]{2,30}?) TABLE:?\s*$")
_OF_JSON = {
    "link_status": ACCESS,
    "weight": "WEIGHT",
    "num_hops": "HOPS",
    "link_type": LINK_TYPE,
    "bandwidth": "NUMA BW",
    "coherent": "CACHE COHERANCY",
    "atomics": "ATOMICS",
    "dma": "DMA",
    "bi_dir": "BI-DIRECTIONAL",
}
_HINT = re.compile(r"^[ \t]*(?:ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:?[ \t]*$", re.MULTILINE)
_JSON_HINT = re.compile(r"^\s*[\[{][\s\S]{0,400}?\"bdf\"\s*:\s*\"[0-9a-fA-F]{4,8}:")
_MOST_DEEP = 4

Table = dict[tuple[str, str], str]


@dataclass(slots=True)
class _Topology:
    addresses: list[str] = field(default_factory=list)
    indices: dict[str, int] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)


class AmdSmi:
    """Reads ``amd-smi topology`` as text or JSON."""

    name = "amd-smi"

    def recognises(self, data: bytes) -> float:
        """Returns 0.95 where a titled table or the list of sources is in the text."""
        text = read_paste(data).text
        return 0.95 if _HINT.search(text) or _JSON_HINT.match(text) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns the devices, a link a pair, and all tables.

        Raises:
            UnreadableDump: neither a table nor the JSON can be read.
        """
        paste = read_paste(data)
        found = _of_json(paste.text) if _JSON_HINT.match(paste.text) else _of_text(paste)
        if not found.addresses:
            raise UnreadableDump(f"{origin}: no table and no list of amd-smi topology")
        links, conflicts = _links(found)
        return Fragment(
            origin=origin,
            format=self.name,
            components=tuple(_component(address, found.indices.get(address)) for address in found.addresses),
            links=tuple(links),
            conflicts=tuple(conflicts),
            unread=tuple(f"{origin}:{line}: {paste.lines[line - 1].strip()[:120]}" for line in found.unread),
            hides=() if links else ("links",),
            tables=found.tables,
        )


def _component(address: str, index: int | None) -> Component:
    return Component(
        key=address,
        name=address if index is None else f"GPU{index}",
        kind="gpu",
        vendor="amd",
        pci_address=address,
        index=index,
        locality=Locality(why_unknown="amd-smi topology names no NUMA node"),
    )


def _of_text(paste: Paste) -> _Topology:
    found = _Topology()
    title: str | None = None
    columns: list[str] = []
    for number, line in enumerate(paste.lines, 1):
        if heading := _TITLE.match(line):
            title, columns = heading[1], []
            continue
        parts = words(line)
        addresses = [normal_address(part) for part in parts]
        if parts and title is not None and all(address is not None for address in addresses):
            columns = [address for address in addresses if address is not None]
            if number < len(paste.lines) or paste.is_whole:
                found.addresses += [address for address in columns if address not in found.addresses]
        elif title is not None and columns and addresses and addresses[0] is not None:
            is_cut = number == len(paste.lines) and not paste.is_whole
            if len(parts) != len(columns) + 1 or addresses[0] not in columns or is_cut:
                found.unread.append(number)
                continue
            _add_row(found, title, addresses[0], dict(zip(columns, parts[1:], strict=True)))
    found.indices = {address: index for index, address in enumerate(found.addresses)}
    return found


def _add_row(found: _Topology, title: str, row: str, cells: Mapping[str, str]) -> None:
    table = found.tables.setdefault(title, {})
    for column, cell in cells.items():
        if column != row:
            table.setdefault((row, column), cell)


def _of_json(text: str) -> _Topology:
    found = _Topology()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return found
    for source in _sources(document, _MOST_DEEP):
        here = normal_address(str(source.get("bdf", "")))
        if here is None or here in found.addresses:
            continue
        found.addresses.append(here)
        if isinstance(source.get("gpu"), int):
            found.indices[here] = source["gpu"]
        for link in source["links"]:
            there = normal_address(str(link.get("bdf", ""))) if isinstance(link, dict) else None
            if there is not None and there != here:
                for key, title in _OF_JSON.items():
                    if key in link:
                        found.tables.setdefault(title, {})[here, there] = str(link[key])
    return found


def _sources(node: Any, deep: int) -> Iterator[dict[str, Any]]:
    """Yields the objects that have links, however the tool's version wraps the list."""
    if isinstance(node, dict) and isinstance(node.get("links"), list):
        yield node
    elif deep > 0 and isinstance(node, dict | list):
        for part in node.values() if isinstance(node, dict) else node:
            yield from _sources(part, deep - 1)


def _links(found: _Topology) -> tuple[list[Link], list[Conflict]]:
    links: list[Link] = []
    conflicts: list[Conflict] = []
    types, access = found.tables.get(LINK_TYPE, {}), found.tables.get(ACCESS, {})
    for at, a in enumerate(found.addresses):
        for b in found.addresses[at + 1 :]:
            said = [cell for cell in (types.get((a, b)), types.get((b, a))) if cell and link_of(cell)]
            p2p = _p2p(access.get((a, b)), access.get((b, a)))
            if len({cell.upper() for cell in said}) > 1:
                conflicts.append(Conflict(subject=f"link of {a} and {b}", said=tuple(said)))
                links += [_link(a, b, said[0], p2p), _link(b, a, said[1], p2p)]
            elif said:
                links.append(_link(a, b, said[0], p2p))
    return links, conflicts


def _link(a: str, b: str, cell: str, p2p: P2P) -> Link:
    kind, count = link_of(cell) or ("unknown", 1)
    return Link(a=a, b=b, kind=kind, count=count, p2p=p2p, raw=cell)


def _p2p(there: str | None, back: str | None) -> P2P:
    said = {cell.upper() for cell in (there, back) if cell}
    if "DISABLED" in said:
        return "refused"
    return "ok" if said == {"ENABLED"} else "unknown"
