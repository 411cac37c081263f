"""Pair figures out of tables that measuring tools printed, and from users: which direction, which unit, which test.

Directions differ by tool and by test: ``p2pBandwidthLatencyTest`` writes from row to column but reads from column to
row, nvbandwidth prints ``row <- column``; bidirectional figures are the sum of both directions.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from plait.hardware.topology import Fragment, Measurement
from plait.hardware.values import UNKNOWN, Source, Value

_UNITS = {"gb/s": 1e9, "gib/s": 2**30, "mb/s": 1e6, "mib/s": 2**20, "gbit/s": 1e9 / 8, "gb/sec": 1e9, "b/s": 1.0}
_UNITS |= {"bytes/s": 1.0, "gbps": 1e9 / 8, "gbytes/s": 1e9}
_TIMES = {"us": 1e-6, "µs": 1e-6, "ns": 1e-9, "ms": 1e-3, "s": 1.0}
_MEASURED_ERROR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFigure:
    """What somebody states or measured of one ordered pair: keys ``node/component``, names, or two node names."""

    a: str
    b: str
    bytes_per_s: Value[float] = UNKNOWN
    latency_s: Value[float] = UNKNOWN


def measured_pairs(fragment: Fragment, keys: Sequence[str]) -> tuple[PairFigure, ...]:
    """Returns the device-to-device figures in a fragment's tables.

    Of several bandwidth tables (peer access off and on, writes and reads) the best figure of each pair counts, as a
    program may choose the better path.

    Args:
        fragment: Holds the tables.
        keys: Devices in the order in which tools number them.
    """
    rates: dict[tuple[str, str], tuple[float, str]] = {}
    latencies: dict[tuple[str, str], tuple[float, str]] = {}
    for table in fragment.measurements:
        for (i, j), figure in _cells(table, len(keys)).items():
            pair = (keys[i], keys[j])
            unit = _time_unit(table)
            detail = f"{fragment.origin}: {table.title or 'table'}"
            if unit is not None:
                if i != j and (pair not in latencies or figure * unit < latencies[pair][0]):
                    latencies[pair] = (figure * unit, detail)
                continue
            scale = bandwidth_unit(table)
            if scale is not None and (pair not in rates or figure * scale > rates[pair][0]):
                rates[pair] = (figure * scale, detail)
    return tuple(
        PairFigure(
            a=a,
            b=b,
            bytes_per_s=_value(rates.get((a, b))),
            latency_s=_value(latencies.get((a, b))),
        )
        for a, b in sorted({*rates, *latencies})
    )


def bandwidth_unit(table: Measurement) -> float | None:
    """Returns how many bytes/s of one direction a cell of 1 stands for, ``None`` where it is no known bandwidth."""
    text = f"{table.unit} {table.title}".casefold()
    if _time_unit(table) is not None:
        return None
    found = next((scale for name, scale in _UNITS.items() if re.search(rf"(?<![a-z]){re.escape(name)}", text)), None)
    if found is None:
        return None
    return found / 2 if _is_both_ways(table) else found


def is_column_to_row(table: Measurement) -> bool:
    """Returns whether data of a cell go from its column to its row."""
    title = table.title.casefold()
    return "<-" in title or "p2p reads" in title or "_read_" in title


def _is_both_ways(table: Measurement) -> bool:
    title = table.title.casefold()
    return "bidirectional" in title or "<->" in title


def _time_unit(table: Measurement) -> float | None:
    title = f"{table.title} {table.unit}".casefold()
    if "latency" not in title and not re.search(r"\((us|ns|ms)\)", title):
        return None
    unit = re.search(r"\b(us|µs|ns|ms)\b", title)
    return _TIMES[unit.group(1)] if unit else None


def _cells(table: Measurement, count: int) -> Mapping[tuple[int, int], float]:
    columns = [_number_of(name) for name in table.columns]
    flipped = is_column_to_row(table)
    found: dict[tuple[int, int], float] = {}
    if len(table.columns) > count or not table.columns:
        return found
    for name, cells in table.rows:
        i = _number_of(name)
        for j, figure in zip(columns, cells, strict=False):
            if i is None or j is None or not figure or not (i < count and j < count):
                continue
            found[(j, i) if flipped else (i, j)] = figure
    return found


def _number_of(name: str) -> int | None:
    match = re.fullmatch(r"(?:GPU|NPU|Device|D)?\s*:?(\d{1,3}):?", name.strip(), re.IGNORECASE)
    return int(match.group(1)) if match else None


def _value(found: tuple[float, str] | None) -> Value[float]:
    return UNKNOWN if found is None else Value(found[0], Source.MEASURED, found[1], _MEASURED_ERROR)


def best_of(figures: Iterable[PairFigure]) -> dict[tuple[str, str], PairFigure]:
    """Returns one figure a pair: the value of the higher source, and of equal ones the first."""
    best: dict[tuple[str, str], PairFigure] = {}
    for figure in figures:
        pair = (figure.a, figure.b)
        other = best.get(pair)
        best[pair] = figure if other is None else _joined(other, figure)
    return best


def _joined(one: PairFigure, other: PairFigure) -> PairFigure:
    return PairFigure(
        a=one.a,
        b=one.b,
        bytes_per_s=_higher(one.bytes_per_s, other.bytes_per_s),
        latency_s=_higher(one.latency_s, other.latency_s),
    )


def _higher(one: Value[float], other: Value[float]) -> Value[float]:
    if one.value is None or (other.value is not None and other.source > one.source):
        return other
    return one
