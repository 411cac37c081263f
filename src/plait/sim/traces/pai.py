"""Alibaba's GPU trace of 2020 (PAI): rows of tasks without a header (Weng et al., NSDI 2022)."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from plait.sim.jobs import SimJob
from plait.sim.tables import BadTrace
from plait.sim.traces.reading import Format, Reading
from plait.sim.traces.tabular import elastic_sizes

COLUMNS = 10
STATES = frozenset({"Terminated", "Failed", "Running", "Waiting", "Interrupted"})
ANY_TYPE = frozenset({"", "MISC", "CPU"})


def read_pai(path: Path, reading: Reading) -> tuple[SimJob, ...]:
    """Reads ``pai_task_table``: job, task, instances, state, start, end, CPU, memory, devices in per cent, type.

    The table has no time of submission; tasks are taken to be submitted when they started. Each instance's share of a
    device is counted up to whole devices over the task. Tasks without devices, start or end are left out.

    Raises:
        BadTrace: A row has another number of columns or a cell is no number.
    """
    jobs: list[SimJob] = []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if number == 1 and row and row[0] == "job_name":
                continue
            try:
                job = _job(row, reading, len(jobs))
            except ValueError as error:
                raise BadTrace(f"{path}:{number}: {error}") from error
            if job is None:
                reading.left_out["asked for no device, or never ran"] += 1
            else:
                jobs.append(job)
    return tuple(jobs)


def _job(row: Sequence[str], reading: Reading, number: int) -> SimJob | None:
    if len(row) != COLUMNS:
        raise ValueError(f"{len(row)} columns; the task table has {COLUMNS}")
    _, task, instances, _, start, end, _, _, devices, name = row
    if not start or not end or not devices or float(devices) <= 0:
        return None
    size = max(1, math.ceil(float(instances or 1.0) * float(devices) / 100.0 - 1e-9))
    duration_s = float(end) - float(start)
    if duration_s <= 0:
        return None
    allowed = () if name in ANY_TYPE else (name,)
    return SimJob(
        id=f"j{number:06d}",
        submitted_at_s=float(start),
        num_workers=size,
        work=duration_s,
        rates=reading.speeds.rates(size, allowed, elastic_sizes(size) if reading.is_elastic else ()),
        workers=(1, size) if reading.is_elastic and size > 1 else (0, 0),
        allowed=allowed,
        kind=task,
    )


def _looks_so(head: Sequence[str]) -> bool:
    first = head[0].split(",")
    if first[0] == "job_name" and "plan_gpu" in first:
        return True
    return len(first) == COLUMNS and first[3] in STATES


FORMATS = (Format(name="Alibaba 2020", looks_so=_looks_so, read=read_pai),)
