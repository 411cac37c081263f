"""Square tables of measured figures: nvbandwidth, p2pBandwidthLatencyTest, rocm_bandwidth_test, and notes like them.

Directions as the tools mean them. p2pBandwidthLatencyTest: row to column. nvbandwidth: its own arrow
(``GPU(row) <- GPU(column)``). rocm_bandwidth_test: row to column.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.paste import Paste, read_paste, words
from plait.hardware.importers.topo_matrix import fragment_of, matrix_reading
from plait.hardware.topology import Component, Fragment, Link, Measurement
from plait.hardware.values import Source, Value

_CORNER = re.compile(r"D\\D|D/D|GPU|CPU|[A-Za-z]{2,6}(?:\u2192|->|\\|/)\S{0,12}")
_COLUMN = re.compile(r"(?:GPU)?(\d{1,4})", re.ASCII)
_FIGURE = re.compile(r"\d{1,7}(?:\.\d{1,6})?", re.ASCII)
_EMPTY = frozenset({"-", "\u2014", "N/A", "n/a", "NA", "x", "X"})
_TITLE = re.compile(
    r"\(GB/s\)|\(GB/sec\)|\(us\)|\(ns\)|GB/s|bandwidth|latency|Connectivity Matrix|Numa Distance|Inter-Device",
    re.IGNORECASE,
)
_RUNNING = re.compile(r"^\s*Running \w+\.?\s*$")
_DEVICE = re.compile(r"^\s*(?:Device[: ]\s*(\d{1,3})\s*[:,]|\[(\d{1,3})\]|GPU(\d{1,3}):)\s*([A-Za-z][^,()\[\]]{2,60})")
_HINT = re.compile(
    r"D\\D|D/D|memcpy [CS][EM] |Bandwidth Matrix|\u2192|GPU\(row\)|CPU\(row\)|Latency Matrix|copy peak bandwidth"
)
_ARROW = re.compile(r"(GPU|CPU)\(row\)\s*(->|<-|<->)\s*(GPU|CPU)\(column\)", re.IGNORECASE)
_NO_TITLE = re.compile(r"\bSUM\b|\bNOTE\b")
_MOST_COLUMNS = 260
_ERROR_BAR = 0.05
"""What repeated runs of one tool on one machine differ by."""


@dataclass(slots=True)
class NumberTable:
    """A table of figures: columns and rows by the numbers of devices, ``None`` for a dash.

    ``corner`` is the word that the header begins with, empty where it begins with a number.
    """

    title: str
    corner: str
    columns: tuple[int, ...]
    rows: dict[int, tuple[float | None, ...]] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """The unit of the figures, by title; tables of rates are the only ones without one."""
        lowered = self.title.lower()
        if "(us)" in lowered:
            return "us"
        if "(ns)" in lowered or "latency" in lowered:
            return "ns" if "(ns)" in lowered else "us"
        if "connectivity" in lowered or "access" in lowered or "numa distance" in lowered:
            return ""
        return "GB/s"


class MeasuredMatrices:
    """Reads tables of measured bandwidth and latency between devices."""

    name = "measured-matrices"

    def recognises(self, data: bytes) -> float:
        """Returns 0.96 where such a table is in the text, above a topology matrix pasted below it."""
        paste = read_paste(data)
        return 0.96 if _HINT.search(paste.text) and number_tables(data) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns all tables, the devices they name, and a measured link each direction of a pair.

        Of several tables for one direction the better one counts: a copy may go the slow way if told to. Tables of
        both directions at once give no link.

        Raises:
            UnreadableDump: no table of figures is in the text.
        """
        tables = number_tables(data)
        if not tables:
            raise UnreadableDump(f"{origin}: no table of measured figures")
        paste = read_paste(data)
        measured = _links(tables, origin)
        latency = _latencies(tables, origin)
        reading = matrix_reading(data)
        topology = fragment_of(reading, origin, self.name) if reading is not None else Fragment(origin="", format="")
        components = _components(tables, paste, topology.components, origin)
        return replace(
            topology,
            origin=origin,
            format=self.name,
            components=components,
            links=(*_joined(topology.links, measured, latency), *_host_links(tables, origin)),
            measurements=tuple(
                Measurement(
                    title=table.title,
                    unit=table.unit,
                    columns=tuple(str(column) for column in table.columns),
                    rows=tuple((str(row), figures) for row, figures in table.rows.items()),
                )
                for table in tables
            ),
        )


@functools.lru_cache(maxsize=4)
def number_tables(data: bytes) -> tuple[NumberTable, ...]:
    """Returns the tables of figures of a paste, in order."""
    paste = read_paste(data)
    return tuple(_tables(paste)) if _HINT.search(paste.text) else ()


def _tables(paste: Paste) -> Iterator[NumberTable]:
    title = ""
    table: NumberTable | None = None
    for number, line in enumerate(paste.lines, 1):
        is_cut = number == len(paste.lines) and not paste.is_whole
        row = _row(line, table, is_cut=is_cut) if table is not None else None
        if table is not None and row is not None and row[0] not in table.rows:
            table.rows[row[0]] = row[1]
            continue
        if table is not None and table.rows:
            yield table
        table = None if is_cut else _header(line, title)
        if table is None and _TITLE.search(line) and not _RUNNING.match(line) and not _NO_TITLE.search(line):
            title = line.strip()
    if table is not None and table.rows:
        yield table


def _header(line: str, title: str) -> NumberTable | None:
    """Returns an empty table where the line counts devices from 0 on."""
    found = words(line)
    if not found or len(found) > _MOST_COLUMNS:
        return None
    corner = found.pop(0) if _CORNER.fullmatch(found[0]) else ""
    columns = [int(match[1]) for word in found if (match := _COLUMN.fullmatch(word))]
    if not found or columns != list(range(len(found))):
        return None
    return NumberTable(title, corner, tuple(columns))


def _row(line: str, table: NumberTable, *, is_cut: bool) -> tuple[int, tuple[float | None, ...]] | None:
    """Returns the number and the figures of a row, ``None`` where the line is none of this table.

    A row that the end of the text cuts is one where its figures are as many as the columns: the last may have lost
    digits, which the measurement shows and no link uses.
    """
    found = words(line)
    if len(found) != len(table.columns) + 1:
        return None
    label = found[0].rstrip(":").removeprefix("GPU")
    if not re.fullmatch(r"\d{1,4}", label, re.ASCII) or (_is_between_gpus(table) and int(label) not in table.columns):
        return None
    figures: list[float | None] = []
    for word in found[1:]:
        if word in _EMPTY:
            figures.append(None)
        elif _FIGURE.fullmatch(word):
            figures.append(float(word))
        else:
            return None
    if is_cut:
        figures[-1] = None
    return int(label), tuple(figures)


def _components(
    tables: Sequence[NumberTable], paste: Paste, known: tuple[Component, ...], origin: str
) -> tuple[Component, ...]:
    models = {int(m[1] or m[2] or m[3]): m[4].strip() for line in paste.lines if (m := _DEVICE.match(line))}
    indices = sorted({n for table in tables if _is_between_gpus(table) for n in (*table.columns, *table.rows)})
    indices += sorted({n for table in tables if _host_arrow(table) for n in table.columns} - set(indices))
    found = {component.key: component for component in known}
    local = _local_bandwidth(tables, origin)
    for index in indices:
        key = f"GPU{index}"
        base = found.get(key) or Component(key=key, name=key, kind="gpu", index=index)
        found[key] = replace(
            base, model=base.model or models.get(index), memory_bytes_per_s=local.get(index, base.memory_bytes_per_s)
        )
    if any(_host_arrow(table) for table in tables):
        found.setdefault("CPU", Component(key="CPU", name="CPU", kind="cpu"))
    return tuple(found.values())


def _is_between_gpus(table: NumberTable) -> bool:
    arrow = _ARROW.search(table.title)
    return table.unit == "GB/s" and (arrow is None or (arrow[1].upper() == "GPU" and arrow[3].upper() == "GPU"))


def _host_arrow(table: NumberTable) -> str | None:
    """Returns the arrow of a table between the host and the GPUs, one direction, one pair at a time."""
    arrow = _ARROW.search(table.title)
    if arrow is None or arrow[1].upper() != "CPU" or arrow[2] == "<->" or table.unit != "GB/s":
        return None
    return arrow[2]


def _is_one_way(table: NumberTable) -> bool:
    """Whether a table between devices is of one direction, each pair alone."""
    lowered = table.title.lower()
    if not _is_between_gpus(table) or "bidirectional" in lowered or "<->" in lowered or "total" in lowered:
        return False
    return "all" not in re.split(r"[^a-z]", lowered)


def _local_bandwidth(tables: Sequence[NumberTable], origin: str) -> dict[int, Value[float]]:
    """Returns memory bandwidth from the diagonal: a copy inside the device, read and write counted."""
    found: dict[int, Value[float]] = {}
    for table in tables:
        if not _is_one_way(table) or _ARROW.search(table.title):
            continue
        for row, figures in table.rows.items():
            figure = dict(zip(table.columns, figures, strict=True)).get(row)
            known = found.get(row)
            if figure and (known is None or (known.value or 0.0) < figure * 1e9):
                found[row] = Value(figure * 1e9, Source.MEASURED, f"{origin}: {table.title}", _ERROR_BAR)
    return found


def _links(tables: Sequence[NumberTable], origin: str) -> dict[tuple[str, str], Value[float]]:
    """Returns what was measured from one device to another, the best of all tables of one direction."""
    best: dict[tuple[str, str], Value[float]] = {}
    for table in tables:
        if not _is_one_way(table):
            continue
        arrow = _ARROW.search(table.title)
        for row, figures in table.rows.items():
            for column, figure in zip(table.columns, figures, strict=True):
                if not figure or column == row:
                    continue
                ends = (column, row) if arrow and arrow[2] == "<-" else (row, column)
                pair = (f"GPU{ends[0]}", f"GPU{ends[1]}")
                known = best.get(pair)
                if known is None or (known.value or 0.0) < figure * 1e9:
                    best[pair] = Value(figure * 1e9, Source.MEASURED, f"{origin}: {table.title}", _ERROR_BAR)
    return best


def _latencies(tables: Sequence[NumberTable], origin: str) -> dict[tuple[str, str], Value[float]]:
    """Returns the lower latency of each direction, of the tables that GPUs themselves took the time of."""
    best: dict[tuple[str, str], Value[float]] = {}
    for table in tables:
        if table.unit != "us" or table.corner not in {"GPU", ""}:
            continue
        for row, figures in table.rows.items():
            for column, figure in zip(table.columns, figures, strict=True):
                pair = (f"GPU{row}", f"GPU{column}")
                known = best.get(pair)
                if figure and row != column and (known is None or (known.value or 0.0) > figure * 1e-6):
                    best[pair] = Value(figure * 1e-6, Source.MEASURED, f"{origin}: {table.title}", _ERROR_BAR)
    return best


def _joined(
    links: tuple[Link, ...], measured: dict[tuple[str, str], Value[float]], latency: dict[tuple[str, str], Value[float]]
) -> Iterator[Link]:
    """Yields the links of a topology matrix with what was measured over them, and the pairs that were only measured."""
    left = dict(measured)
    for link in links:
        there, back = left.pop((link.a, link.b), link.bytes_per_s), left.pop((link.b, link.a), link.reverse_bytes_per_s)
        delay = latency.get((link.a, link.b), link.latency_s)
        yield replace(link, bytes_per_s=there, reverse_bytes_per_s=back, latency_s=delay)
    while left:
        (a, b), there = next(iter(left.items()))
        del left[a, b]
        back, delay = left.pop((b, a), Value(None)), latency.get((a, b), Value(None))
        yield Link(a=a, b=b, kind="unknown", bytes_per_s=there, reverse_bytes_per_s=back, latency_s=delay)


def _host_links(tables: Sequence[NumberTable], origin: str) -> Iterator[Link]:
    """Yields a link of the host to each GPU; the host is one node of the table, whichever socket it ran on."""
    to: dict[int, Value[float]] = {}
    back: dict[int, Value[float]] = {}
    for table in tables:
        arrow = _host_arrow(table)
        if arrow is None or len(table.rows) != 1 or "all" in re.split(r"[^a-z]", table.title.lower()):
            continue
        for column, figure in zip(table.columns, next(iter(table.rows.values())), strict=True):
            into = to if arrow == "->" else back
            if figure and (column not in into or (into[column].value or 0.0) < figure * 1e9):
                into[column] = Value(figure * 1e9, Source.MEASURED, f"{origin}: {table.title}", _ERROR_BAR)
    for index in sorted(to.keys() | back.keys()):
        yield Link(
            a="CPU",
            b=f"GPU{index}",
            kind="unknown",
            bytes_per_s=to.get(index, Value(None)),
            reverse_bytes_per_s=back.get(index, Value(None)),
        )
