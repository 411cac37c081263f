"""What the logs of committed steps say about a fault: its delay, the steps redone, whether replicas are the same."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Commit:
    """One committed step as one member wrote it down; ``at_s`` is on the machine-wide monotonic clock."""

    step: int
    at_s: float
    hash: str
    world: int


@dataclass(frozen=True)
class Records:
    """The log of one member so far."""

    commits: tuple[Commit, ...]
    ready_at_s: float | None
    end: Mapping[str, Any] | None
    started_at_s: tuple[float, ...] = ()

    @property
    def last_step(self) -> int:
        return self.commits[-1].step if self.commits else -1

    def before(self, at_s: float) -> tuple[Commit, ...]:
        return tuple(commit for commit in self.commits if commit.at_s <= at_s)

    def when(self, step: int) -> float | None:
        """Returns the time at which the member last committed ``step``."""
        return next((commit.at_s for commit in reversed(self.commits) if commit.step == step), None)


def read(path: Path) -> Records:
    """Reads a step log; an incomplete last line is left for the next time."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    rows = [json.loads(line) for line in text.split("\n")[:-1]]
    commits = [
        Commit(row["step"], row["at_s"], row["hash"], len(row["world"]) if "world" in row else row["participants"])
        for row in rows
        if row["event"] == "step"
    ]
    ready = [row["at_s"] for row in rows if row["event"] == "ready"]
    ends = [row for row in rows if row["event"] == "end"]
    started = tuple(row["at_s"] for row in rows if row["event"] == "process")
    return Records(tuple(commits), ready[0] if ready else None, ends[-1] if ends else None, started)


def normal_step_s(records: Sequence[Records], before_s: float, last: int = 10) -> float:
    """Returns the median seconds between commits, over the last steps of all members before a moment."""
    gaps = []
    for record in records:
        commits = record.before(before_s)[-last - 1 :]
        gaps += [later.at_s - earlier.at_s for earlier, later in pairwise(commits)]
    return median(gaps)


@dataclass(frozen=True)
class Delay:
    """How long a fault held the group up.

    Attributes:
        since_fault_s: From the fault to the moment when the last survivor had committed the first new step.
        beyond_s: The same moment against that when the running step would have ended without the fault, which is its
            begin plus the normal duration of a step, or the fault itself where that is later.
        new_step: The first step that was not committed when the fault came.
    """

    since_fault_s: float
    beyond_s: float
    new_step: int


def delay(survivors: Sequence[Records], victim: Records, fault_at_s: float) -> Delay | None:
    """Returns the delay that the survivors had; None while not all of them have committed a new step.

    A step that anybody, the victim included, had committed before the fault is not new, though some survivors may have
    written it down a moment after it.
    """
    earlier = [record.before(fault_at_s) for record in (*survivors, victim)]
    done = max((commits[-1].step for commits in earlier if commits), default=-1)
    ends = [record.when(done + 1) for record in survivors]
    begins = [record.when(done) for record in survivors]
    known_ends = [end for end in ends if end is not None]
    known_begins = [begin for begin in begins if begin is not None]
    if len(known_ends) < len(survivors) or not known_begins:
        return None
    begin_s = max(known_begins)
    planned_s = max(fault_at_s, begin_s + normal_step_s(survivors, fault_at_s))
    return Delay(max(known_ends) - fault_at_s, max(known_ends) - planned_s, done + 1)


def steps_redone(records: Sequence[Records]) -> int:
    """Returns how far any member ever went back: 0 when each of its steps follows the one before."""
    return max(
        (earlier.step + 1 - later.step for record in records for earlier, later in pairwise(record.commits)),
        default=0,
    )


def steps_skipped(records: Sequence[Records]) -> int:
    """Returns how many steps any member left out between two commits."""
    return max(
        (later.step - earlier.step - 1 for record in records for earlier, later in pairwise(record.commits)),
        default=0,
    )


def unequal_steps(records: Sequence[Records]) -> list[int]:
    """Returns the steps after which two members held different parameters, bit for bit."""
    hashes: dict[int, set[str]] = {}
    for record in records:
        for commit in record.commits:
            hashes.setdefault(commit.step, set()).add(commit.hash)
    return sorted(step for step, found in hashes.items() if len(found) > 1)


def longest_gap_s(records: Sequence[Records], first_s: float, last_s: float) -> float:
    """Returns the longest time between two commits of one member that touches the given window."""
    return max(
        (
            later.at_s - earlier.at_s
            for record in records
            for earlier, later in pairwise(record.commits)
            if later.at_s >= first_s and earlier.at_s <= last_s
        ),
        default=0.0,
    )
