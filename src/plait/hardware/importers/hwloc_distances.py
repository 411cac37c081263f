"""The distance matrices of hwloc's XML: NUMA latencies, NVLink and XGMI."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.hardware.importers.safe_xml import Element
from plait.hardware.pci import numa_key
from plait.hardware.topology import Conflict, Link, LinkKind
from plait.hardware.values import Source, Value

_LARGEST_MATRIX = 4096
_MB = 1e6
_NOTHING = "hwloc writes 100000 for every XGMI pair: no figure"
_NVLINK = "hwloc's sum of links; releases before 2.9 take 50 GB/s for each of NVLink 3 and 4"


@dataclass(slots=True)
class Distances:
    """What the matrices of one file say.

    ``tables`` holds every version 2 and 3 matrix under its name, as printed; a second one of a name gets ``#2``.
    """

    numa: dict[tuple[int, int], int] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    tables: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)


def read_distances(root: Element, by_gp_index: Mapping[str, str], origin: str) -> Distances:
    """Returns the matrices of a document; ``by_gp_index`` gives the component keys of its objects."""
    found = Distances()
    nodes = [e.attributes.get("os_index", "") for e in root.walk() if e.attributes.get("type") == "NUMANode"]
    for element in root.walk():
        if element.tag in {"distances2", "distances2hetero"}:
            _matrix(element, by_gp_index, origin, found)
        elif element.tag == "distances":
            _first_version(element, [n for n in nodes if n.isdigit()], origin, found)
    return found


def _matrix(element: Element, by_gp_index: Mapping[str, str], origin: str, found: Distances) -> None:
    attributes = element.attributes
    title = attributes.get("name") or attributes.get("type") or "distances"
    name, number = title, 1
    while name in found.tables:
        number += 1
        name = f"{title}#{number}"
    found.tables[name] = {}
    indexes = [word for e in element.all("indexes") for word in e.text.split()]
    values = [word for e in element.all("u64values") for word in e.text.split()]
    size = len(indexes)
    if attributes.get("nbobjs") != str(size) or len(values) != size * size or size > _LARGEST_MATRIX:
        found.unread.append(f"{origin}:{element.line}: {title} has {len(values)} values for {size} objects")
        return
    is_numa = attributes.get("type") == "NUMANode"
    if is_numa and attributes.get("indexing", "os") == "os":
        keys: list[str | None] = [numa_key(int(i)) if i.isdigit() else None for i in indexes]
    else:
        keys = [by_gp_index.get(i.rpartition(":")[2]) for i in indexes]
    table = found.tables[name]
    for row, a in enumerate(keys):
        for column, b in enumerate(keys):
            # Two names of one device (cuda0, nvml0): what the first of them says.
            if a is not None and b is not None and table.get((a, b), "0") == "0":
                table[a, b] = values[row * size + column]
    if "Latency" in title and is_numa:
        found.numa.update(_numa_pairs(table))
    elif title.startswith("NVLinkBandwidth"):
        found.links += _links(table, "nvlink", found.conflicts)
    elif title.startswith("XGMIBandwidth"):
        found.links += _links(table, "xgmi", found.conflicts)


def _numa_pairs(table: Mapping[tuple[str, str], str]) -> dict[tuple[int, int], int]:
    number = re.compile(r"[0-9]+", re.ASCII)
    return {
        (int(a[len("numa") :]), int(b[len("numa") :])): int(value)
        for (a, b), value in table.items()
        if number.fullmatch(a[len("numa") :]) and number.fullmatch(b[len("numa") :]) and number.fullmatch(value)
    }


def _links(table: Mapping[tuple[str, str], str], kind: LinkKind, conflicts: list[Conflict]) -> list[Link]:
    links = []
    for (a, b), value in table.items():
        back = table.get((b, a), "0")
        # One link a pair: named from the end that the matrix lists first, or from the only end that tells it.
        if a == b or not _rate(value) or (_rate(back) and (b, a) in table and _comes_first(table, b, a)):
            continue
        if _rate(value) != _rate(back):
            conflicts.append(Conflict(subject=f"link of {a} and {b}", said=(value, back)))
        links.append(
            Link(
                a=a,
                b=b,
                kind=kind,
                bytes_per_s=_value(value, kind),
                reverse_bytes_per_s=_value(back, kind),
                raw=value,
            )
        )
    return links


def _comes_first(table: Mapping[tuple[str, str], str], a: str, b: str) -> bool:
    order: dict[str, int] = {}
    for one, _ in table:
        order.setdefault(one, len(order))
    return order[a] < order[b]


def _rate(value: str) -> int:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 12 else 0


def _value(value: str, kind: LinkKind) -> Value[float]:
    if kind == "xgmi":
        return Value(None, Source.DEFAULT, _NOTHING)
    return Value(_rate(value) * _MB or None, Source.LIBRARY, _NVLINK)


def _first_version(element: Element, nodes: list[str], origin: str, found: Distances) -> None:
    """Version 1: latencies over a base, of the NUMA nodes in the order of the document."""
    values = [e.attributes.get("value", "") for e in element.all("latency")]
    try:
        base = float(element.attributes.get("latency_base", "1"))
        latencies = [float(value) * base for value in values]
    except ValueError:
        latencies = []
    size = len(nodes)
    if not latencies or element.attributes.get("nbobjs") != str(size) or len(latencies) != size * size:
        found.unread.append(f"{origin}:{element.line}: {len(values)} latencies for {size} NUMA nodes")
        return
    for row, a in enumerate(nodes):
        for column, b in enumerate(nodes):
            latency = latencies[row * size + column]
            if 0 < latency < 1e6:
                found.numa[int(a), int(b)] = round(latency)
