"""Figures over message sizes: nccl-tests and rccl-tests, bandwidthTest, SHOC-style ROCm copies, perftest.

Each becomes one measurement a test with its rows as printed, and the figures that people quote: at the largest size,
the best, the tool's own average. A collective's bandwidth is no link's; only perftest measures one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.paste import Paste, read_paste
from plait.hardware.topology import Component, Fragment, Measurement
from plait.hardware.values import Source, Value

_NUMBER = r"\d{1,7}(?:\.\d{1,6})?(?:e[+-]?\d{1,2})?"
_NCCL = re.compile(
    r"^\s*(\d{1,15})\s+(\d{1,15})\s+([a-z]\w{2,12})(?:\s+([a-z]\w{1,7}))?(?:\s+(-?\d{1,4}))?"
    rf"\s+({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s+(\S{{1,12}})(?:\s+({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s+(\S{{1,12}}))?\s*$"
)
_NCCL_TEST = re.compile(r"\b(\w{3,30}_perf)\b")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\d{1,7}(?:\.\d{1,8})?)")
_RANK = re.compile(r"#\s+Rank\s+(\d{1,6}).*?\bon\s+(\S{1,64})\s+device\s+(\d{1,3})\s+\[[^\]]{1,20}\]\s+(\S.*?)\s*$")
_SHMOO = re.compile(
    r"^\s*(bandwidthTest-[\w-]{3,40}), Bandwidth = (\d{1,7}(?:\.\d{1,4})?) ([GM]B/s)"
    r", Time = [\d.]{1,16} s?,? Size = (\d{1,15}) bytes"
)
_SECTION = re.compile(r"^\s*((?:Host to Device|Device to Host|Device to Device) Bandwidth)\b")
_SECTION_HEAD = re.compile(r"Transfer Size \(Bytes\)\s+Bandwidth\(([GM]B/s)\)")
_SECTION_ROW = re.compile(r"^\s*(\d{2,15})\s+(\d{1,7}(?:\.\d{1,4})?)\s*$")
_SHOC = re.compile(
    rf"^\s*(\w+_Bandwidth_?\w*)\s+(\+?\d{{1,9}}(?:By|kB|MB|GB))\s+(GB/sec|MB/sec)\s+({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s*$"
)
_PERF_TITLE = re.compile(
    r"^\s*(?:-+\s*)?((?:RDMA_Write|RDMA_Read|Send|Atomic)[\w ]{0,20} (?:BW|Latency)[\w -]{0,20}Test)\s*$"
)
_PERF_HEAD = re.compile(r"#bytes\s+#iterations\s+BW peak\[(\w+/sec)\]\s+BW average\[(\w+/sec)\]")
_PERF_ROW = re.compile(rf"^\s*(\d{{1,12}})\s+(\d{{1,12}})\s+({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s*$")
_PERF_DEVICE = re.compile(r"\bDevice\s*:\s*([A-Za-z][\w.-]{0,40})(?!\S)", re.ASCII)
_HINT = re.compile(
    r"\bbusbw\b|\b(?:float|bfloat16|half|int8|uint8|double)\s+(?:sum|none|prod|max|min)\b"
    r"|bandwidthTest-|Transfer Size \(Bytes\)|_Bandwidth_|BW average\["
)

ALGBW, BUSBW = "algbw", "busbw"
SIZE_BYTES, MAX_SIZE_BYTES = "size_bytes", "max_size_bytes"


@dataclass(slots=True)
class _Sweep:
    title: str
    unit: str
    columns: tuple[str, ...]
    rows: list[tuple[str, tuple[float | None, ...]]] = field(default_factory=list)
    figures: dict[str, float | str] = field(default_factory=dict)


class MeasuredSweeps:
    """Reads figures over message sizes."""

    name = "measured-sweeps"

    def recognises(self, data: bytes) -> float:
        """Returns 0.85 where at least one row of such a tool is in the text."""
        paste = read_paste(data)
        return 0.85 if _HINT.search(paste.text) and next(iter(_sweeps(paste)), None) is not None else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns a measurement a test, and the devices that the test says it used.

        Raises:
            UnreadableDump: no row of figures can be read.
        """
        paste = read_paste(data)
        sweeps = list(_sweeps(paste))
        if not sweeps:
            raise UnreadableDump(f"{origin}: no row of a bandwidth test")
        return Fragment(
            origin=origin,
            format=self.name,
            components=tuple(_devices(paste)) + tuple(_adapters(paste, sweeps, origin)),
            measurements=tuple(
                Measurement(title=s.title, unit=s.unit, columns=s.columns, rows=tuple(s.rows), figures=s.figures)
                for s in sweeps
            ),
        )


def _whole_lines(paste: Paste) -> Iterator[str]:
    """Yields the lines that the end of the text cannot have cut."""
    yield from paste.lines if paste.is_whole else paste.lines[:-1]


def _sweeps(paste: Paste) -> Iterator[_Sweep]:
    for read in (_nccl_tests, _shmoo, _sections, _shoc, _perftest):
        yield from read(paste)


def _nccl_tests(paste: Paste) -> Iterator[_Sweep]:
    test = _NCCL_TEST.search(paste.text)
    columns = ("time_us", ALGBW, BUSBW, "in_place_time_us", f"in_place_{ALGBW}", f"in_place_{BUSBW}")
    sweep = _Sweep(test[1] if test else "nccl-tests", "GB/s", columns)
    for line in _whole_lines(paste):
        if match := _NCCL.match(line):
            figures = tuple(float(match[at]) if match[at] else None for at in (6, 7, 8, 10, 11, 12))
            sweep.rows.append((match[1], figures))
        elif average := _AVERAGE.search(line):
            sweep.figures["avg_busbw"] = float(average[1])
    if not sweep.rows:
        return
    size, figures = max(sweep.rows, key=lambda row: int(row[0]))
    busbw = [row[2] for _, row in sweep.rows if row[2] is not None]
    sweep.figures |= {MAX_SIZE_BYTES: float(size), "best_busbw": max(busbw)}
    sweep.figures |= {
        f"{name}_at_max": value for name, value in ((ALGBW, figures[1]), (BUSBW, figures[2])) if value is not None
    }
    yield sweep


def _shmoo(paste: Paste) -> Iterator[_Sweep]:
    found: dict[str, _Sweep] = {}
    for line in _whole_lines(paste):
        if match := _SHMOO.match(line):
            sweep = found.setdefault(match[1], _Sweep(match[1], match[3], ("bandwidth",)))
            sweep.rows.append((match[4], (float(match[2]),)))
    yield from _with_figures(found)


def _sections(paste: Paste) -> Iterator[_Sweep]:
    """Yields the sections of bandwidthTest's default output."""
    found: dict[str, _Sweep] = {}
    title, unit = "", ""
    for line in _whole_lines(paste):
        if match := _SECTION.match(line):
            title, unit = match[1], ""
        elif title and (head := _SECTION_HEAD.search(line)):
            unit = head[1]
        elif title and unit and (row := _SECTION_ROW.match(line)):
            found.setdefault(title, _Sweep(title, unit, ("bandwidth",))).rows.append((row[1], (float(row[2]),)))
        elif line.strip():
            unit = ""
    yield from _with_figures(found)


def _shoc(paste: Paste) -> Iterator[_Sweep]:
    found: dict[str, _Sweep] = {}
    for line in _whole_lines(paste):
        if match := _SHOC.match(line):
            sweep = found.setdefault(match[1], _Sweep(match[1], match[3], ("median", "mean", "stddev", "min", "max")))
            sweep.rows.append((match[2], tuple(float(match[at]) for at in range(4, 9))))
    for sweep in found.values():
        label, figures = sweep.rows[-1]
        sweep.figures |= {"last_size": label, "last_median": figures[0] or 0.0}
        sweep.figures["best_median"] = max(row[0] or 0.0 for _, row in sweep.rows)
        yield sweep


def _perftest(paste: Paste) -> Iterator[_Sweep]:
    title, sweep, device = "perftest", None, ""
    for line in _whole_lines(paste):
        if match := _PERF_TITLE.match(line):
            title, sweep = match[1], None
        elif match := _PERF_DEVICE.search(line):
            device = match[1]
        elif head := _PERF_HEAD.search(line):
            if sweep is not None and sweep.rows:
                yield sweep
            sweep = _Sweep(title, head[2], ("peak", "average", "messages_mpps"), figures={"device": device})
        elif sweep is not None and (row := _PERF_ROW.match(line)):
            sweep.rows.append((row[1], (float(row[3]), float(row[4]), float(row[5]))))
            sweep.figures |= {SIZE_BYTES: float(sweep.rows[0][0]), "average": sweep.rows[0][1][1] or 0.0}
        elif sweep is not None and line.lstrip().startswith("--") and sweep.rows:
            yield sweep
            sweep = None
    if sweep is not None and sweep.rows:
        yield sweep


def _with_figures(found: Mapping[str, _Sweep]) -> Iterator[_Sweep]:
    for sweep in found.values():
        size, figures = sweep.rows[-1]
        sweep.figures |= {MAX_SIZE_BYTES: float(size), "at_max": figures[0] or 0.0}
        sweep.figures["best"] = max(row[0] or 0.0 for _, row in sweep.rows)
        yield sweep


def _devices(paste: Paste) -> Iterator[Component]:
    """Yields the devices that a collective test lists, by host and number."""
    seen = set()
    for line in _whole_lines(paste):
        match = _RANK.search(line)
        key = f"{match[2]}/GPU{int(match[3])}" if match else ""
        if match and key not in seen:
            seen.add(key)
            yield Component(
                key=key,
                name=f"GPU{int(match[3])}",
                kind="gpu",
                index=int(match[3]),
                model=match[4],
                extra={"host": match[2]},
            )


def _adapters(paste: Paste, sweeps: list[_Sweep], origin: str) -> Iterator[Component]:
    """Yields the adapter that perftest used; its rate is at least what was measured, so that is no line rate."""
    del paste
    names = dict.fromkeys(str(s.figures["device"]) for s in sweeps if s.figures.get("device"))
    for name in names:
        yield Component(
            key=name,
            name=name,
            kind="nic",
            rate_bytes_per_s=Value(None, Source.MEASURED, f"{origin}: see the measurement"),
        )
