"""Philly's own job log: one JSON list of jobs with their attempts (Jeon et al., ATC 2019)."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plait.sim.jobs import SimJob
from plait.sim.tables import BadTrace
from plait.sim.traces.reading import Format, Reading
from plait.sim.traces.tabular import elastic_sizes


def read_philly(path: Path, reading: Reading) -> tuple[SimJob, ...]:
    """Reads ``cluster_job_log``: work is the time of all attempts, workers are the devices of the largest.

    Jobs that never ran are left out.

    Raises:
        BadTrace: It is no list of jobs, or a time is no date.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        found = [_job(row, reading, number) for number, row in enumerate(rows)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadTrace(f"{path}: no job log of Philly: {error!r}") from error
    jobs = tuple(job for job in found if job is not None)
    if len(jobs) < len(found):
        reading.left_out["asked for no device, or never ran"] += len(found) - len(jobs)
    return jobs


def _job(row: Mapping[str, Any], reading: Reading, number: int) -> SimJob | None:
    size, work_s = 0, 0.0
    for attempt in row["attempts"]:
        start_s, end_s = _seconds(attempt.get("start_time")), _seconds(attempt.get("end_time"))
        size = max(size, sum(len(host["gpus"]) for host in attempt.get("detail", ())))
        work_s += end_s - start_s if start_s is not None and end_s is not None else 0.0
    submitted_s = _seconds(row.get("submitted_time"))
    if submitted_s is None or size == 0 or work_s <= 0:
        return None
    return SimJob(
        id=f"j{number:06d}",
        submitted_at_s=submitted_s,
        num_workers=size,
        work=work_s,
        rates=reading.speeds.rates(size, (), elastic_sizes(size) if reading.is_elastic else ()),
        workers=(1, size) if reading.is_elastic and size > 1 else (0, 0),
        kind=str(row.get("status", "")),
        project=str(row.get("vc") or "default"),
    )


def _seconds(value: str | None) -> float | None:
    if not value or value == "None":
        return None
    return datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp()


def _looks_so(head: Sequence[str]) -> bool:
    text = "".join(head).lstrip()
    return text.startswith("[") and (
        "attempts" in text or "jobid" in text or "vc" in text or text.strip() in {"[", "[ {"}
    )


FORMATS = (Format(name="Philly", looks_so=_looks_so, read=read_philly),)
