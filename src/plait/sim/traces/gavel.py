"""Gavel's traces: tab-separated rows without a header, jobs named by model and batch size."""

import re
from dataclasses import replace
from pathlib import Path

from plait.sim.jobs import SimJob
from plait.sim.tables import BadTrace, ThroughputTable

_JOB_TYPE = re.compile(r"^(?P<model>.+?)(?: \(batch size (?P<batch>\d+)\))?$")
COLUMNS, OLD_COLUMNS = 10, 7


def read_gavel(path: Path, table: ThroughputTable, *, elastic: bool = False) -> tuple[SimJob, ...]:
    """Reads a trace with 10 columns (job_type, ..., total_steps, scale_factor, priority, SLO, arrival) or the old 7.

    With ``elastic`` jobs run with any of the table's numbers of workers up to 8.

    Raises:
        BadTrace: A row has another number of columns, a value is no number, or the table lacks the model.
    """
    jobs: list[SimJob] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            jobs.append(_job(line.rstrip("\n").split("\t"), len(jobs), table))
        except ValueError as error:
            raise BadTrace(f"{path}:{number}: {error}") from error
    return tuple(made_elastic(job, table) for job in jobs) if elastic else tuple(jobs)


def _job(cells: list[str], number: int, table: ThroughputTable) -> SimJob:
    if len(cells) == COLUMNS:
        job_type, total, size, priority, slo, arrival = (cells[i] for i in (0, 5, 6, 7, 8, 9))
    elif len(cells) == OLD_COLUMNS:
        job_type, total, arrival, size = (cells[i] for i in (0, 4, 5, 6))
        priority, slo = "1", "-1"
    else:
        raise ValueError(f"{len(cells)} columns; Gavel's traces have {COLUMNS} or {OLD_COLUMNS}")
    match = _JOB_TYPE.match(job_type)
    assert match is not None
    model, batch = match["model"], int(match["batch"]) if match["batch"] else None
    workers, work, submitted_at_s = int(float(size)), float(total), float(arrival)
    rates = table.rates(model, batch, workers)
    reference = max((rate.per_s for c, rate in rates.items() if c.num_workers == workers), default=0.0)
    if reference <= 0:
        raise ValueError(f"{job_type!r} with {workers} workers runs on no type of the throughput table")
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
