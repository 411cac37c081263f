"""Traces with one row a job and a header: Philly (as CSV), Helios, Acme, Tiresias, ElasticFlow, Muri, Alibaba 2023."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from plait.sim.jobs import SimJob
from plait.sim.tables import BadTrace
from plait.sim.traces.reading import Format, Reading

Cells = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of a format hold what. ``duration`` is empty where ``end`` and ``start`` tell it.

    ``project``, ``kind``, ``deadline`` and ``types`` are empty where the format does not tell.
    """

    submit: str
    workers: str
    duration: str = ""
    start: str = ""
    end: str = ""
    project: str = ""
    kind: str = ""
    deadline: str = ""
    types: str = ""


def read_table_of_jobs(path: Path, reading: Reading, columns: Columns) -> tuple[SimJob, ...]:
    """Reads the rows that ask for devices and lasted a while; the others (CPU jobs, never started) are left out.

    Raises:
        BadTrace: A cell is neither a number nor a date.
    """
    jobs: list[SimJob] = []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        for row in rows:
            try:
                job = _job(row, columns, reading, len(jobs))
            except ValueError as error:
                raise BadTrace(f"{path}:{rows.line_num}: {error}") from error
            if job is None:
                reading.left_out["asked for no device, or never ran"] += 1
            else:
                jobs.append(job)
    return tuple(jobs)


def _job(row: Cells, columns: Columns, reading: Reading, number: int) -> SimJob | None:
    scale, submitted_s = reading.time_scale, _seconds(row[columns.submit])
    workers, duration_s = _number(row.get(columns.workers)), _duration(row, columns)
    if submitted_s is None or not workers or workers < 1e-9 or not duration_s or duration_s <= 0:
        return None
    size = math.ceil(workers)
    allowed = tuple(name for name in row.get(columns.types, "").replace(";", "|").split("|") if name)
    deadline_s = _seconds(row.get(columns.deadline))
    return SimJob(
        id=f"j{number:06d}",
        submitted_at_s=submitted_s * scale,
        num_workers=size,
        work=duration_s * scale,
        rates=reading.speeds.rates(size, allowed, elastic_sizes(size) if reading.is_elastic else ()),
        kind=row.get(columns.kind, ""),
        workers=(1, max(elastic_sizes(size))) if reading.is_elastic and size > 1 else (0, 0),
        allowed=allowed,
        project=row.get(columns.project, "") or "default",
        deadline_at_s=deadline_s * scale if deadline_s is not None else None,
    )


def elastic_sizes(size: int) -> tuple[int, ...]:
    """Returns the numbers of workers that a job recorded with ``size`` may be given: halves down to one."""
    sizes = {size}
    while size > 1:
        size //= 2
        sizes.add(size)
    return tuple(sorted(sizes))


def _duration(row: Cells, columns: Columns) -> float | None:
    if columns.duration:
        return _number(row.get(columns.duration))
    start_s, end_s = _seconds(row.get(columns.start)), _seconds(row.get(columns.end))
    return end_s - start_s if start_s is not None and end_s is not None else None


def _number(cell: str | None) -> float | None:
    if cell is None or cell.strip() in {"", "None", "nan", "NaN"}:
        return None
    return float(cell)


def _seconds(cell: str | None) -> float | None:
    """Returns a time given as a number or as a date; None where there is none."""
    if cell is None or cell.strip() in {"", "None", "nan", "NaN"}:
        return None
    try:
        return float(cell)
    except ValueError:
        moment = datetime.fromisoformat(cell.strip())
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _has(names: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    def looks_so(head: Sequence[str]) -> bool:
        found = {cell.strip() for cell in head[0].split(",")}
        return found.issuperset(names)

    return looks_so


def _format(name: str, columns: Columns, *more: str) -> Format:
    used = (columns.submit, columns.workers, columns.duration, columns.start, columns.end, *more)
    return Format(
        name=name,
        looks_so=_has([column for column in used if column]),
        read=partial(read_table_of_jobs, columns=columns),
    )


FORMATS = (
    _format(
        "Alibaba 2023",
        Columns(
            submit="creation_time", workers="num_gpu", start="creation_time", end="deletion_time", types="gpu_spec",
            kind="qos",
        ),
        "gpu_milli",
    ),
    _format(
        "Helios",
        Columns(submit="submit_time", workers="gpu_num", duration="duration", project="vc", kind="state"),
        "vc",
    ),
    _format(
        "Acme",
        Columns(submit="submit_time", workers="gpu_num", duration="duration", kind="type", project="user"),
        "type",
    ),
    _format(
        "ElasticFlow",
        Columns(submit="submit_time", workers="num_gpu", duration="duration", kind="model_name", deadline="ddl"),
        "ddl",
    ),
    _format(
        "Muri",
        Columns(submit="submit_time", workers="num_gpu", duration="duration", kind="model_name"),
        "resource_time_0",
    ),
    _format("Tiresias", Columns(submit="submit_time", workers="num_gpu", duration="duration", kind="model_name")),
    _format("Philly (CSV)", Columns(submit="timestamp", workers="num_gpus", duration="duration", project="cluster")),
)  # fmt: skip
