"""``rocm-smi --showtopo`` and ``--showtoponuma`` (and Hygon's ``hy-smi``): tables of weights, hops and link types.

A table is kept under the title that it was printed with; what its cells are decides whether it makes links. Broken
drivers print link types under the title of the weights.
"""

import functools
import re
from collections.abc import Mapping

from plait.hardware.importers.cells import link_of
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.matrix import Matrix, find_matrices
from plait.hardware.importers.matrix_header import ACCELERATOR
from plait.hardware.importers.paste import Paste, read_paste
from plait.hardware.topology import Component, Conflict, Fragment, Link, Locality

NUMA_NODE = "Numa Node"
NUMA_AFFINITY = "Numa Affinity"
"""Keys in :attr:`Component.extra`, values as printed."""

_TITLE = re.compile(r"(Weight|Hops|Link Type|Link accessibility|P2P|Bandwidth)\b", re.IGNORECASE)
_NUMA = re.compile(
    r"\b(GPU|[HD]CU) ?\[?(\d{1,3})\]?\s*:\s*\(Topology\) Numa (Node|Affinity)\s*:?\s*(-?\d{1,5})\s*$", re.IGNORECASE
)
_HINT = re.compile(r"between two (?:GPU|HCU|DCU)s|\(Topology\) Numa (?:Node|Affinity)|ROCm S(?:MI|ystem Management)")
_NO_TITLE = "untitled table"


class RocmSmi:
    """Reads the topology blocks of ``rocm-smi``."""

    name = "rocm-smi"

    def recognises(self, data: bytes) -> float:
        """Returns 0.95 where a topology block of that tool is in the text."""
        paste = read_paste(data)
        if not _HINT.search(paste.text):
            return 0.0
        return 0.95 if _tables(data) or _NUMA.search(paste.text) or _numa(paste) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns the devices, a link a pair whose type is printed, and all tables.

        Raises:
            UnreadableDump: neither a table nor a NUMA line can be read.
        """
        paste = read_paste(data)
        tables, numa = _tables(data), _numa(paste)
        named = [name for matrix in tables.values() for name in matrix.names if ACCELERATOR.fullmatch(name)]
        names = list(dict.fromkeys([*named, *numa]))
        if not names:
            raise UnreadableDump(f"{origin}: no table and no NUMA line of rocm-smi")
        vendor = "amd" if names[0].upper().startswith("GPU") else "hygon"
        cells = {title: {(a, b): cell for a, b, cell in matrix.cells()} for title, matrix in tables.items()}
        links, conflicts = _links(names, cells)
        disagreeing = [name for name in names if _differs(numa.get(name, {}))]
        has_both = any(len(said) > 1 for said in numa.values())
        return Fragment(
            origin=origin,
            format=self.name,
            components=tuple(_component(name, vendor, numa.get(name, {}), has_both=has_both) for name in names),
            links=links,
            conflicts=(*conflicts, *(_numa_conflict(name, numa[name]) for name in disagreeing)),
            unread=tuple(
                f"{origin}:{line}: {paste.lines[line - 1].strip()[:120]}"
                for matrix in tables.values()
                for line in matrix.unread
            ),
            hides=() if links else ("links",),
            warnings=tuple(
                dict.fromkeys(line.strip() for line in paste.lines if line.startswith(("WARNING", "ERROR")))
            ),
            tables=cells,
        )


@functools.lru_cache(maxsize=4)
def _tables(data: bytes) -> dict[str, Matrix]:
    """Returns the tables by their printed titles; the first of each title stands.

    The last table is the one of link types: a paste that begins inside it has lost its title.
    """
    found: dict[str, Matrix] = {}
    for matrix in find_matrices(data):
        if not matrix.rows:
            continue
        title = _TITLE.match(matrix.caption)
        if title:
            found.setdefault(" ".join(word.capitalize() for word in title[1].split()), matrix)
        elif _types(matrix):
            found.setdefault("Link Type", matrix)
        else:
            found.setdefault(_NO_TITLE, matrix)
    return found


def _types(matrix: Matrix) -> int:
    return sum(link_of(cell) is not None for _, _, cell in matrix.cells())


def _numa(paste: Paste) -> dict[str, dict[str, str]]:
    """Returns each device's NUMA node and affinity as printed; a last line that is cut counts where both agree."""
    found: dict[str, dict[str, str]] = {}
    for number, line in enumerate(paste.lines, 1):
        match = _NUMA.search(line)
        if match is None:
            continue
        said = found.setdefault(f"{match[1]}{int(match[2])}", {})
        if number == len(paste.lines) and not paste.is_whole and match[4] not in said.values():
            continue
        said.setdefault(NUMA_NODE if match[3].lower() == "node" else NUMA_AFFINITY, match[4])
    return found


def _differs(said: Mapping[str, str]) -> bool:
    return len(set(said.values())) > 1


def _numa_conflict(name: str, said: Mapping[str, str]) -> Conflict:
    return Conflict(subject=f"NUMA node of {name}", said=tuple(f"{key}: {value}" for key, value in said.items()))


def _component(name: str, vendor: str, said: Mapping[str, str], *, has_both: bool) -> Component:
    node = next(iter(said.values()), "")
    why = ""
    if not said:
        why = "not printed"
    elif _differs(said):
        why = "node and affinity disagree"
    elif has_both and len(said) == 1:
        why = "the text ends between its node and its affinity"
    elif node.startswith("-"):
        why = f"printed as {node!r}"
    number = re.search(r"[0-9]+$", name)
    return Component(
        key=name,
        name=name,
        kind="gpu",
        vendor=vendor,
        index=int(number[0]) if number else None,
        locality=Locality(numa_nodes=None if why else (int(node),), why_unknown=why),
        extra=dict(said),
    )


def _links(
    names: list[str], cells: Mapping[str, Mapping[tuple[str, str], str]]
) -> tuple[tuple[Link, ...], tuple[Conflict, ...]]:
    """Returns one link a pair from the tables whose cells name link types."""
    links: list[Link] = []
    conflicts: list[Conflict] = []
    for at, a in enumerate(names):
        for b in names[at + 1 :]:
            said = [cell for table in cells.values() for cell in (table.get((a, b)), table.get((b, a))) if cell]
            types = list(dict.fromkeys(cell for cell in said if link_of(cell) is not None))
            if len(types) > 1:
                conflicts.append(Conflict(subject=f"link of {a} and {b}", said=tuple(types)))
                links += [_link(a, b, types[0]), _link(b, a, types[1])]
            elif types:
                links.append(_link(a, b, types[0]))
    return tuple(links), tuple(conflicts)


def _link(a: str, b: str, cell: str) -> Link:
    kind, count = link_of(cell) or ("unknown", 1)
    return Link(a=a, b=b, kind=kind, count=count, raw=cell)
