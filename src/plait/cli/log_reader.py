"""Reads the logs of a job's workers by offset and merges them by time."""

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plait.cli.failures import unknown

if TYPE_CHECKING:
    from plait.cli.connection import ControllerClient
    from plait.controller.answers import JobAnswer

_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+Z) (out|err) (.*)", re.DOTALL)
ENDED = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of one worker; ``at`` is UTC, empty for a line without a stamp."""

    task: str
    attempt: int
    worker: str
    at: str
    stream: str
    text: str


@dataclass(slots=True)
class _Stream:
    offset: int = 0
    rest: str = ""


@dataclass(slots=True)
class LogReader:
    """Follows the workers of a job over all attempts that start while it reads.

    Attributes:
        client: Where logs come from.
        job_id: Whose logs.
        tasks: Only these; all where empty.
        worker: Only this worker id.
        rank: Only the worker of this rank.
    """

    client: "ControllerClient"
    job_id: str
    tasks: frozenset[str] = frozenset()
    worker: str | None = None
    rank: int | None = None
    _streams: dict[tuple[str, int, str], _Stream] = field(default_factory=dict)

    def read(self, job: "JobAnswer") -> list[LogLine]:
        """Returns every whole line that came since the last call, in the order of their time stamps."""
        for key in self._wanted(job):
            self._streams.setdefault(key, _Stream())
        has_ended = job["state"] in ENDED
        return list(merge([self._lines(key, has_ended) for key in self._streams]))

    def check(self, job: "JobAnswer") -> None:
        """Raises UnknownName where the job has no such task, worker or rank."""
        names = [task["task"] for task in job["tasks"]]
        for task in self.tasks:
            if task not in names:
                raise unknown("task", task, names)
        known = [worker for task in job["tasks"] for worker in task["placement"]]
        if self.worker is not None and known and all(one["worker_id"] != self.worker for one in known):
            raise unknown("worker", self.worker, {one["worker_id"] for one in known})
        if self.rank is not None and known and all(one["rank"] != self.rank for one in known):
            raise unknown("rank", str(self.rank), {str(one["rank"]) for one in known})

    def _wanted(self, job: "JobAnswer") -> Iterator[tuple[str, int, str]]:
        for task in job["tasks"]:
            if task["attempt_id"] is None or (self.tasks and task["task"] not in self.tasks):
                continue
            attempt = int(task["attempt_id"].rpartition("/")[2])
            for worker in task["placement"]:
                is_wanted = self.worker in {None, worker["worker_id"]} and self.rank in {None, worker["rank"]}
                if is_wanted:
                    yield task["task"], attempt, worker["worker_id"]

    def _lines(self, key: tuple[str, int, str], has_ended: bool) -> list[LogLine]:
        task, attempt, worker = key
        stream = self._streams[key]
        text = stream.rest
        while True:
            chunk = self.client.logs(self.job_id, task=task, worker=worker, attempt=attempt, offset=stream.offset)
            if chunk.next_offset <= stream.offset:
                break
            text, stream.offset = text + chunk.text, chunk.next_offset
        whole, newline, stream.rest = text.rpartition("\n")
        if has_ended and stream.rest:  # a process that died within a line never ends it
            whole, newline, stream.rest = text, "\n", ""
        lines = whole.removesuffix("\n").split("\n") if newline else []
        return [_parsed(task, attempt, worker, line) for line in lines]


def merge(streams: Iterable[list[LogLine]]) -> Iterator[LogLine]:
    """Yields the lines of all streams by their time stamps; a line without one stays behind the line before it."""
    keyed = (_stamped(lines, number) for number, lines in enumerate(streams))
    return (line for _, _, _, line in heapq.merge(*keyed, key=lambda entry: entry[:3]))


def _stamped(lines: list[LogLine], number: int) -> Iterator[tuple[str, int, int, LogLine]]:
    stamp = ""
    for position, line in enumerate(lines):
        stamp = max(stamp, line.at)
        yield stamp, number, position, line


def _parsed(task: str, attempt: int, worker: str, line: str) -> LogLine:
    found = _STAMPED.fullmatch(line)
    at, stream, text = found.groups() if found else ("", "out", line)
    return LogLine(task=task, attempt=attempt, worker=worker, at=at, stream=stream, text=text)
