"""The newest progress of every attempt, and how much of it is worth an event."""

import math
from dataclasses import dataclass, replace
from typing import Final

from plait.agent.messages import Progress

EVENT_INTERVAL_S: Final = 2.0
"""An attempt whose split stays as it is reports to the scheduler this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The newest progress line of an attempt and when it came (Unix seconds)."""

    line: Progress
    at_s: float


class ProgressBoard:
    """Keeps the newest line of each attempt; every member reports, the furthest step counts."""

    def __init__(self) -> None:
        self._latest: dict[str, Latest] = {}
        self._told: dict[str, Latest] = {}

    def of_attempt(self, attempt_id: str) -> Latest | None:
        """Returns the newest line of the attempt, if it reported any since this controller started."""
        return self._latest.get(attempt_id)

    def of_job(self, job_id: str) -> tuple[Latest, ...]:
        """Returns the newest line of each attempt of the job, in the order in which they first reported."""
        return tuple(latest for attempt, latest in self._latest.items() if attempt.startswith(f"{job_id}/"))

    def take(self, line: Progress, at_s: float) -> Progress | None:
        """Takes a line in; returns it where the scheduler should hear of it.

        The first line counts at once, for it says whether the attempt is elastic; so does another split.
        """
        line = _finite(line)
        before = self._latest.get(line.attempt_id)
        if before is not None and line.step < before.line.step and line.generation == before.line.generation:
            return None
        self._latest[line.attempt_id] = Latest(line=line, at_s=at_s)
        told = self._told.get(line.attempt_id)
        if told is not None and not _is_news(line, told.line) and at_s - told.at_s < EVENT_INTERVAL_S:
            return None
        self._told[line.attempt_id] = Latest(line=line, at_s=at_s)
        return line


def _is_news(line: Progress, told: Progress) -> bool:
    return line.elastic != told.elastic or (line.split != told.split and line.step > told.step)


def _finite(line: Progress) -> Progress:
    """JSON has no word for what is not finite, and a loss that is not a number must not stop the controller."""
    loss = line.loss if line.loss is not None and math.isfinite(line.loss) else None
    return replace(line, loss=loss, samples_per_s=line.samples_per_s if math.isfinite(line.samples_per_s) else 0.0)
