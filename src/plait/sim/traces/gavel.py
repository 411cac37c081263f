"""Gavel's traces: tab-separated rows without a header, jobs named by model and batch size."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from plait.sim.jobs import SimJob
from plait.sim.tables import BadTrace, ThroughputTable
from plait.sim.traces.reading import Format, Reading

_JOB_TYPE = re.compile(r"^(?P<model>.+?)(?: \(batch size (?P<batch>\d+)\))?$")
COLUMNS, OLD_COLUMNS, SHOCKWAVE_COLUMNS = 10, 7, 12


def read_gavel(
    path: Path, table: ThroughputTable, *, elastic: bool = False, left_out: Counter[str] | None = None
) -> tuple[SimJob, ...]:
    """Reads a trace with 10 columns (job_type, ..., total_steps, scale_factor, priority, SLO, arrival) or the old 7.

    Shockwave's 12 columns have the mode after the scale factor and the duration before the arrival; neither is used.
    With ``elastic`` jobs run with any of the table's numbers of workers up to 8. Jobs whose gang runs on no type of the
    table are counted in ``left_out``; without it they are an error.

    Raises:
        BadTrace: A row has another number of columns, a value is no number, or the table lacks the model or the gang.
    """
    jobs: list[SimJob] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            jobs.append(_job(line.rstrip("\n").split("\t"), len(jobs), table))
        except _NoRate as error:
            if left_out is None:
                raise BadTrace(f"{path}:{number}: {error}") from error
            left_out[str(error)] += 1
        except ValueError as error:
            raise BadTrace(f"{path}:{number}: {error}") from error
    return tuple(made_elastic(job, table) for job in jobs) if elastic else tuple(jobs)


class _NoRate(ValueError):
    """The table has no rate for this gang."""


def _job(cells: list[str], number: int, table: ThroughputTable) -> SimJob:
    if len(cells) == COLUMNS:
        job_type, total, size, priority, slo, arrival = (cells[i] for i in (0, 5, 6, 7, 8, 9))
    elif len(cells) == SHOCKWAVE_COLUMNS:
        job_type, total, size, priority, slo, arrival = (cells[i] for i in (0, 5, 6, 8, 9, 11))
    elif len(cells) == OLD_COLUMNS:
        job_type, total, arrival, size = (cells[i] for i in (0, 4, 5, 6))
        priority, slo = "1", "-1"
    else:
        raise ValueError(f"{len(cells)} columns; Gavel's traces have {COLUMNS}, {SHOCKWAVE_COLUMNS} or {OLD_COLUMNS}")
    match = _JOB_TYPE.match(job_type)
    assert match is not None
    model, batch = match["model"], int(match["batch"]) if match["batch"] else None
    workers, work, submitted_at_s = int(float(size)), float(total), float(arrival)
    rates = table.rates(model, batch, workers)
    reference = max((rate.per_s for c, rate in rates.items() if c.num_workers == workers), default=0.0)
    if reference <= 0:
        raise _NoRate(f"{model} with {workers} workers runs on no type of the throughput table")
    factor = float(slo)
    return SimJob(
        id=f"j{number:06d}",
        submitted_at_s=submitted_at_s,
        num_workers=workers,
        work=work,
        rates=rates,
        kind=job_type,
        weight=float(priority),
        # The trace gives the SLO as a multiple of the job's duration on its fastest type.
        deadline_at_s=submitted_at_s + factor * work / reference if factor > 0 else None,
    )


def made_elastic(job: SimJob, table: ThroughputTable, most: int = 8) -> SimJob:
    """Returns the job with the range of sizes that the table has for its model, at most ``most`` workers."""
    match = _JOB_TYPE.match(job.kind)
    assert match is not None
    sizes = table.sizes(match["model"], int(match["batch"]) if match["batch"] else None)
    fitting = [size for size in sizes if size <= most]
    if len(fitting) < 2:
        return job
    return replace(job, workers=(min(fitting), max(fitting)))


def _read(path: Path, reading: Reading) -> tuple[SimJob, ...]:
    if reading.table is None:
        raise BadTrace(f"{path}: a trace of Gavel names models; give their throughput table with --table")
    return read_gavel(path, reading.table, elastic=reading.is_elastic, left_out=reading.left_out)


def _looks_so(head: Sequence[str]) -> bool:
    return head[0].count("\t") + 1 in {COLUMNS, OLD_COLUMNS, SHOCKWAVE_COLUMNS}


FORMATS = (Format(name="Gavel", looks_so=_looks_so, read=_read),)
