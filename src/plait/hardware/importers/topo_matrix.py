"""``nvidia-smi topo -m``, ``-mp`` and ``-p2p``, and what other vendors' tools print in the same form.

MetaX ``mx-smi topo``, Ascend ``npu-smi info -t topo``, Intel ``xpu-smi topology -m``, Cambricon ``cnmon topo -m``,
Moore Threads ``mthreads-gmi topo -m`` share one reader; what differs is the words in the cells and the order of the
columns behind them.
"""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plait.hardware.importers.cells import (
    cpus_of_cell,
    is_affinity,
    is_self,
    link_of,
    numa_nodes_of_cell,
    p2p_of,
)
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.matrix import Matrix, Row, find_matrices
from plait.hardware.importers.matrix_header import ACCELERATOR, TITLES
from plait.hardware.importers.npu_smi import npus_of
from plait.hardware.importers.nvidia_smi_table import gpus_of
from plait.hardware.importers.paste import Paste, read_paste
from plait.hardware.topology import P2P, Component, ComponentKind, Conflict, Fragment, Link, Locality

LINK_TABLE = "links"
P2P_TABLE = "p2p"
"""Titles in :attr:`Fragment.tables` of the cells as printed: the links, and the peer access of a second table."""

ROW_LINE = "row_line"
RDMA_DEVICE = "rdma_device"
"""Keys in :attr:`Component.extra`: the line of a device's own row, and what the NIC legend calls it."""

_NIC_LEGEND = re.compile(r"^\s*(NIC\d{1,3})\s*[:=]\s*([A-Za-z][\w.:-]{0,63})\s*$", re.IGNORECASE)
_LEGEND_LINE = re.compile(r"^\s*(X|S|SYS|SOC|NODE|PHB|PXB|PIX)\s+=\s")
_COMMAND = re.compile(r"\b(topo(?:logy)?)\b.*\s(-mp|--matrix_pci|-p2p)\b")
_VENDORS = (
    ("huawei", re.compile(r"npu-smi|\bNPU\d|Phy-ID\d|traversing (?:the )?(?:HCCS|SIO)")),
    ("metax", re.compile(r"mx-smi|MetaX")),
    ("intel", re.compile(r"xpu-smi|xpumcli|GPU \d+/\d+")),
    ("cambricon", re.compile(r"cnmon|\bMLU\d|MLULink")),
    ("moorethreads", re.compile(r"mthreads-gmi|MTLink", re.IGNORECASE)),
    ("hygon", re.compile(r"hy-smi|\b[HD]CU\d")),
    ("iluvatar", re.compile(r"ixsmi")),
    ("amd", re.compile(r"rocm-smi|amd-smi|XGMI")),
    ("nvidia", re.compile(r"nvidia-smi|NVLink|\bNV\d|NVIDIA")),
)
_SAME_FOR_ALL = 4
"""From this many accelerators on, one class for every pair says that the tree is hidden."""


@dataclass(frozen=True, slots=True)
class MatrixReading:
    """The tables of one paste, sorted by what their cells are: the first of links, those of peer access, the rest."""

    paste: Paste
    links: Matrix | None
    p2p: tuple[Matrix, ...]
    more: tuple[Matrix, ...]


class TopologyMatrix:
    """Reads the square tables of ``nvidia-smi topo`` and its relatives."""

    name = "topo-matrix"

    def recognises(self, data: bytes) -> float:
        """Returns 0.9 where a matrix of link classes or peer states is in the text."""
        return 0.9 if matrix_reading(data) is not None else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns devices, links and affinities of the first matrix, and the peer access of a second one.

        Raises:
            UnreadableDump: no line is the header of such a matrix.
        """
        reading = matrix_reading(data)
        if reading is None:
            raise UnreadableDump(f"{origin}: no header row of a topology matrix (GPU0 GPU1 ...) with a row behind it")
        return fragment_of(reading, origin, self.name)


@functools.lru_cache(maxsize=4)
def matrix_reading(data: bytes) -> MatrixReading | None:
    """Returns the topology tables of a paste, ``None`` where it has none."""
    paste = read_paste(data)
    links: list[Matrix] = []
    p2p: list[Matrix] = []
    for matrix in find_matrices(data):
        if not matrix.names:
            continue
        kind = _content(matrix)
        if kind == "p2p":
            p2p.append(matrix)
        elif kind == "links":
            links.append(matrix)
    if not links and not p2p:
        return None
    return MatrixReading(paste, links[0] if links else None, tuple(p2p), tuple(links[1:]))


def _content(matrix: Matrix) -> str:
    """What most cells of a table are; a table without any is one of links if its header says so."""
    words = Counter(cell for _, _, cell in matrix.cells())
    links = sum(count for cell, count in words.items() if link_of(cell) is not None)
    states = sum(count for cell, count in words.items() if p2p_of(cell) is not None)
    if states > links:
        return "p2p"
    numbers = sum(count for cell, count in words.items() if cell.isdigit())
    if links == 0 and (numbers or (words and not matrix.titles)) and len(matrix.names) > 1:
        return "other"
    return "links"


def fragment_of(reading: MatrixReading, origin: str, importer: str) -> Fragment:
    """Returns what these tables say; also used where they are one part of a longer paste."""
    paste, links, p2p, more = reading.paste, reading.links, reading.p2p, reading.more
    matrix = links or p2p[0]
    around = _around((matrix, *p2p), paste)
    vendor = next((word for word, pattern in _VENDORS if any(pattern.search(line) for line in around)), None)
    cells, conflicts = _cells(links) if links else ({}, [])
    states = _states(p2p)
    components = _named(_components(matrix, paste, vendor), (*gpus_of(paste, origin), *npus_of(paste, origin)))
    conflicts += _other_tables(links, more)
    tables = {title: table for title, table in ((LINK_TABLE, cells), (P2P_TABLE, states)) if table}
    return Fragment(
        origin=origin,
        format=importer,
        components=components,
        links=_links(matrix.names, cells, states),
        conflicts=tuple(conflicts),
        unread=_unread(origin, paste, (matrix, *p2p, *more)),
        hides=("nvlink",) if _hides_nvlink(around, cells, vendor) else (),
        warnings=_warnings(components, cells),
        tables=tables,
    )


def _cells(matrix: Matrix) -> tuple[dict[tuple[str, str], str], list[Conflict]]:
    """Returns the cells as printed, cut-off ones left out, and the pairs whose halves disagree."""
    cells = {(row, column): cell for row, column, cell in matrix.cells()}
    for row in matrix.rows.values():
        if not row.last_is_cell or not row.cells:
            continue
        column = [name for name in matrix.names if name in row.cells][-1]
        mirrored = cells.get((column, row.name))
        if mirrored != row.cells[column]:
            del cells[row.name, column]  # the text ends inside it: NV1 may be the beginning of NV12
    conflicts = [
        Conflict(subject=f"link of {a} and {b}", said=(f"{a} row: {cell}", f"{b} row: {cells[b, a]}"))
        for (a, b), cell in cells.items()
        if a < b and cells.get((b, a), cell) != cell
    ]
    conflicts += [
        Conflict(subject=f"row of {name}", said=(f"line {matrix.rows[name].line}", f"line {line}"))
        for name, line in matrix.disagreeing
        if name in matrix.rows
    ]
    return cells, conflicts


def _states(matrices: Sequence[Matrix]) -> dict[tuple[str, str], str]:
    """Returns the peer states of all P2P tables; of several (read, write, NVLink) the last one stands."""
    return {(row, column): cell for matrix in matrices for row, column, cell in matrix.cells() if p2p_of(cell)}


def _other_tables(links: Matrix | None, more: Sequence[Matrix]) -> list[Conflict]:
    """A paste with two link tables: equal ones are one; of different ones the first is read, and each pair is told."""
    first = {(row, column): cell for row, column, cell in links.cells()} if links else {}
    found = []
    for other in more:
        if links and set(links.names) != set(other.names):
            said = ("the first one is read", f"line {other.line} has other devices")
            found.append(Conflict(subject="second link table (another machine?)", said=said))
        found += [
            Conflict(subject=f"link of {a} and {b}", said=(first[a, b], f"{cell} in the table of line {other.line}"))
            for a, b, cell in other.cells()
            if first.get((a, b), cell) != cell
        ]
    return found


def _links(
    names: Sequence[str], cells: Mapping[tuple[str, str], str], states: Mapping[tuple[str, str], str]
) -> tuple[Link, ...]:
    """Returns one link a pair, two where the halves name different classes."""
    found = []
    for at, a in enumerate(names):
        for b in names[at + 1 :]:
            there, back = cells.get((a, b)), cells.get((b, a))
            p2p = _p2p(states.get((a, b)), states.get((b, a)))
            if there is not None and back is not None and there.upper() != back.upper():
                found += [_link(a, b, there, p2p), _link(b, a, back, p2p)]
                continue
            cell = there if there is not None else back
            found.append(_link(a, b, cell, p2p))
    return tuple(link for link in found if link is not None)


def _link(a: str, b: str, cell: str | None, p2p: P2P) -> Link | None:
    found = link_of(cell) if cell is not None else None
    if cell is not None and found is not None:
        return Link(a=a, b=b, kind=found[0], count=found[1], p2p=p2p, raw=cell)
    return None if p2p == "unknown" else Link(a=a, b=b, kind="unknown", p2p=p2p)


def _p2p(there: str | None, back: str | None) -> P2P:
    said = {p2p_of(cell) for cell in (there, back) if cell is not None}
    if "refused" in said:
        return "refused"
    return "ok" if said == {"ok"} else "unknown"


def _components(matrix: Matrix, paste: Paste, vendor: str | None) -> tuple[Component, ...]:
    tails = {name: _affinities(row, matrix) for name, row in matrix.rows.items()}
    columns = {title: frozenset(t[title] for t in tails.values() if t.get(title)) for title in TITLES}
    rdma = {m[1].upper(): m[2] for line in paste.lines if (m := _NIC_LEGEND.match(line))}
    return tuple(
        Component(
            key=name,
            name=name,
            kind=kind_of_name(name),
            vendor=None if kind_of_name(name) == "nic" else vendor,
            index=_number(name),
            locality=_locality(tails.get(name), columns),
            extra=_extra(name, matrix, tails.get(name, {}), rdma.get(name.upper())),
        )
        for name in matrix.names
    )


def _named(devices: tuple[Component, ...], listed: Sequence[Component]) -> tuple[Component, ...]:
    """Returns the devices of a matrix with model, address and memory from a table that was pasted with it.

    Only where the table has every accelerator of the matrix: a part of them may be those of another machine.
    """
    by_index = {(c.kind, c.index): c for c in listed if c.parent is None and c.index is not None}
    if not all(c.index is not None and (c.kind, c.index) in by_index for c in devices if c.kind != "nic"):
        return devices
    return tuple(_with_listed(device, by_index.get((device.kind, device.index or 0))) for device in devices)


def _with_listed(device: Component, known: Component | None) -> Component:
    if known is None or device.kind == "nic":
        return device
    return replace(
        device,
        vendor=device.vendor or known.vendor,
        model=known.model,
        pci_address=known.pci_address,
        uuid=known.uuid,
        memory_bytes=known.memory_bytes,
        health=known.health,
        extra={**known.extra, **device.extra},
    )


def _extra(name: str, matrix: Matrix, tail: Mapping[str, str], rdma_device: str | None) -> dict[str, str]:
    is_nic = kind_of_name(name) == "nic"
    extra = {} if is_nic else dict.fromkeys(matrix.titles, "")
    extra |= tail
    if name in matrix.rows:
        extra[ROW_LINE] = str(matrix.rows[name].line)
    if rdma_device is not None and is_nic:
        extra[RDMA_DEVICE] = rdma_device
    return extra


def _number(name: str) -> int | None:
    found = re.search(r"[0-9]+$", name)
    return int(found[0]) if found and kind_of_name(name) != "nic" else None


def kind_of_name(name: str) -> ComponentKind:
    """Returns what a device of a header is: its name says accelerator, anything else is a NIC."""
    if not ACCELERATOR.fullmatch(name.replace(" ", "\ue000")):
        return "nic"
    return "npu" if name.upper().startswith(("NPU", "PHY", "MLU", "XPU")) else "gpu"


def _affinities(row: Row, matrix: Matrix) -> dict[str, str]:
    """Returns the fields behind the cells by title; what cannot be placed is left out."""
    placed = _placed(row.tail, matrix.titles)
    if not row.is_cut or not row.tail:
        return placed
    last = next((title for title in reversed(matrix.titles) if placed.get(title)), None)
    if last is not None and not _is_corroborated(placed[last], last, row, matrix):
        del placed[last]  # the text ends inside it: 0-2 may be the beginning of 0-23
    return placed


def _placed(tail: Sequence[str], titles: Sequence[str]) -> dict[str, str]:
    filled = [field for field in tail if field]
    if not titles or not filled or not all(is_affinity(field) for field in filled):
        return _bare_numa(filled) if not titles else {}
    if len(filled) == len(titles):
        return dict(zip(titles, filled, strict=True))
    if len(filled) > len(titles):
        return {}
    return _placed_with_gaps(list(tail), titles)


def _placed_with_gaps(tail: list[str], titles: Sequence[str]) -> dict[str, str]:
    """Fewer fields than titles: they follow one another from the first column on; a last N/A is the GPU's own node."""
    placed: dict[str, str] = {}
    rest = list(titles)
    at = [i for i, field in enumerate(tail) if field]
    if rest[-1] == "GPU NUMA ID" and tail[at[-1]].upper() == "N/A":
        placed[rest.pop()] = tail[at.pop()]
    before = -1
    for title in rest:
        if not at or at[0] != before + 1:
            break  # a gap: which column this field belongs to cannot be said
        before = at.pop(0)
        placed[title] = tail[before]
    return placed


def _bare_numa(tail: Sequence[str]) -> dict[str, str]:
    """``NUMA 0`` behind a row of a table without titles, as people write it into notes."""
    if len(tail) == 2 and tail[0].upper() == "NUMA" and tail[1].isdigit():
        return {"NUMA Affinity": tail[1]}
    return {}


def _is_corroborated(value: str, title: str, row: Row, matrix: Matrix) -> bool:
    """Whether the last word of a text without a final line break is surely whole: another row says the same."""
    others = {
        _placed(other.tail, matrix.titles).get(title, "") for name, other in matrix.rows.items() if name != row.name
    }
    if any(other != value and other.startswith(value) for other in others):
        return False
    return value in others or value.upper() == "N/A"


def _locality(tail: Mapping[str, str] | None, columns: Mapping[str, frozenset[str]]) -> Locality:
    if tail is None:
        return Locality(why_unknown="the text has no row of it")
    title = "Node Affinity" if "Node Affinity" in tail else "NUMA Affinity"
    nodes, why = numa_nodes_of_cell(tail.get(title, ""), columns[title])
    own = cpus_of_cell(tail.get("GPU NUMA ID", ""))
    return Locality(
        cpus=cpus_of_cell(tail.get("CPU Affinity", "")),
        numa_nodes=nodes,
        gpu_numa_node=next(iter(own)) if own is not None and len(own) == 1 else None,
        why_unknown=why,
    )


def _unread(origin: str, paste: Paste, matrices: Sequence[Matrix]) -> tuple[str, ...]:
    lines = sorted({line for matrix in matrices for line in matrix.unread})
    rows = [f"{origin}:{line}: {paste.lines[line - 1].strip()[:120]}" for line in lines]
    cells = [
        f"{origin}:{row.line}: {row.name} to {column}: {cell[:40]!r}"
        for matrix in matrices
        for row in matrix.rows.values()
        for column, cell in row.cells.items()
        if link_of(cell) is None and p2p_of(cell) is None and not is_self(cell) and cell.upper() != "NA"
    ]
    long = [f"{origin}:{line}: too long for a line of a table" for line in paste.left_out]
    return tuple(rows + cells + long)


def _around(matrices: Sequence[Matrix], paste: Paste) -> tuple[str, ...]:
    """Returns the lines of these tables with what stands near them: prompt and banner above, legends below."""
    lines = [number for m in matrices for number in (m.line, *(row.line for row in m.rows.values()))]
    return paste.lines[max(0, min(lines) - 30) : max(lines) + 80]


def _hides_nvlink(lines: Sequence[str], cells: Mapping[tuple[str, str], str], vendor: str | None) -> bool:
    """Whether this is ``topo -mp``: it was asked for, or there is a legend and NVLink is not in it."""
    if any((m := _COMMAND.search(line)) and m[2] != "-p2p" for line in lines):
        return True
    if vendor not in {None, "nvidia"} or any(cell.upper().startswith("NV") for cell in cells.values()):
        return False
    legend = {m[1] for line in lines if (m := _LEGEND_LINE.match(line))}
    return {"X", "PIX", "PXB", "PHB"} <= legend and not any(line.lstrip().startswith("NV#") for line in lines)


def _warnings(components: Sequence[Component], cells: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
    accelerators = {c.key for c in components if c.kind != "nic"}
    pairs = {cell.upper() for (a, b), cell in cells.items() if a in accelerators and b in accelerators}
    said = []
    if len(accelerators) >= _SAME_FOR_ALL and len(pairs) == 1 and pairs <= {"SYS", "SOC", "PHB"}:
        word = next(iter(pairs))
        said.append(
            f"all {len(accelerators)} accelerators are {word} to each other: the tree is hidden, or NVLink is down"
            " (fabric manager), or these are PCIe boards without switches"
        )
    if any("every node" in c.locality.why_unknown for c in components):
        said.append("the NUMA affinity names every node, so it says nothing: a virtual machine that hides its tree")
    return tuple(said)
