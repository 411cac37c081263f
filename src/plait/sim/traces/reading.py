"""A trace in any known format, told apart by its content."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plait.sim.jobs import SimJob
from plait.sim.speeds import Speeds
from plait.sim.tables import BadTrace, ThroughputTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reader may need besides the file.

    Attributes:
        table: Measured rates, for traces that name models (Gavel).
        speeds: Relative speeds of the cluster's types, for traces that tell only how long jobs took.
        profiles: Folder of Pollux's profiles, for workloads that name applications (Pollux, Sia).
        is_elastic: Jobs that the format knows to be resizable may be resized.
        time_scale: Factor on all times of the file, for files in other units than seconds.
        left_out: Filled by readers: how many rows were no jobs for this simulation, by reason. Nothing is dropped
            without a word.
    """

    table: ThroughputTable | None = None
    speeds: Speeds = field(default_factory=Speeds)
    profiles: Path | None = None
    is_elastic: bool = False
    time_scale: float = 1.0
    left_out: Counter[str] = field(default_factory=Counter)


Reader = Callable[[Path, Reading], tuple[SimJob, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format: its name, how its first lines look, and its reader."""

    name: str
    looks_so: Callable[[Sequence[str]], bool]
    read: Reader


def formats() -> tuple[Format, ...]:
    """Returns all formats, the most particular first."""
    from plait.sim.traces import gavel, pai, philly, pollux, tabular

    return (*gavel.FORMATS, *pollux.FORMATS, *philly.FORMATS, *pai.FORMATS, *tabular.FORMATS)


def read_trace(path: Path, reading: Reading | None = None) -> tuple[str, tuple[SimJob, ...]]:
    """Returns the name of the format and the jobs in the order of their submission, from time 0 on.

    Raises:
        BadTrace: No format fits, or the file breaks the rules of its own.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        head = [line.rstrip("\n") for _, line in zip(range(4), file, strict=False)]
    for form in formats():
        if head and form.looks_so(head):
            jobs = form.read(path, reading or Reading())
            return form.name, in_order(jobs)
    known = ", ".join(form.name for form in formats())
    raise BadTrace(f"{path}: no trace format that is known ({known}); it begins with {(head or [''])[0][:60]!r}")


def in_order(jobs: Sequence[SimJob]) -> tuple[SimJob, ...]:
    """Returns the jobs by submission, the first at time 0, with ids that sort in this order."""
    from dataclasses import replace

    if not jobs:
        return ()
    first_s = min(job.submitted_at_s for job in jobs)
    ordered = sorted(jobs, key=lambda job: job.submitted_at_s)
    return tuple(
        replace(
            job,
            id=f"j{number:06d}",
            submitted_at_s=job.submitted_at_s - first_s,
            deadline_at_s=job.deadline_at_s - first_s if job.deadline_at_s is not None else None,
        )
        for number, job in enumerate(ordered)
    )
