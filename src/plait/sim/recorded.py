"""Plait's own recorded runs: the journal of a controller, played again on a virtual clock.

What came from outside (submissions, nodes, ticks) comes at its recorded time. What workers did comes as long after the
command that started them as it came then. If the scheduler decides as it did, the same events follow in the same order;
if it does not, the first difference shows where.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plait.controller.journal import RECORD, Record
from plait.controller.store import SqliteStore
from plait.errors import PlaitError
from plait.schedule import machine
from plait.schedule.commands import Command, ResizeTask, StartTask, TestDevice
from plait.schedule.events import Event, StepReported, WorkerExited, WorkerStarted
from plait.schedule.policy import Policy
from plait.schedule.state import ClusterState

DATABASE = "plait-state.db"
MOST_DIFFERENCES = 20
AT_ONCE = 10_000


class NoRecord(PlaitError):
    """There is no recorded run in this place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What playing a recorded run again gave; no ``differences`` where it was the same."""

    num_events: int
    num_commands: int
    differences: tuple[str, ...]


def is_recorded(where: Path) -> bool:
    """Says whether this is a state directory, a controller's database, or a journal in JSON lines."""
    if where.is_dir():
        return (where / DATABASE).exists()
    if not where.is_file():
        return False
    with where.open("rb") as file:
        head = file.read(64)
    return head.startswith((b"SQLite format 3", b'{"event":'))


def read_records(where: Path) -> tuple[Record, ...]:
    """Returns the journal of a state directory, of a database file, or of a file with one record a line.

    Raises:
        NoRecord: There is none, or it no longer begins at its beginning (snapshots drop old reports of progress).
    """
    path = where / DATABASE if where.is_dir() else where
    if not path.exists():
        raise NoRecord(f"{where}: no recorded run here")
    with path.open("rb") as file:
        is_database = file.read(16).startswith(b"SQLite")
    records = tuple(_of_database(path)) if is_database else tuple(_of_lines(path))
    if not records:
        raise NoRecord(f"{where}: the recorded run is empty")
    ids = [record.event.id for record in records]
    if ids != list(range(ids[0], ids[0] + len(ids))) or ids[0] > 1:
        raise NoRecord(f"{where}: the journal has gaps: snapshots have dropped what is needed to play it again")
    return records


def _of_database(path: Path) -> Iterator[Record]:
    store = SqliteStore(path)
    try:
        after = 0
        while records := store.read(after, AT_ONCE):
            yield from records
            after = records[-1].event.id
    finally:
        store.close()


def _of_lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield RECORD.decode(line)


def reproduce(records: Sequence[Record], policy: Policy | None = None) -> Reproduction:
    """Plays a recorded run again and compares events and commands, in order.

    Args:
        records: From the beginning on.
        policy: None takes the one that the recorded cluster names.
    """
    run = _Replay(records, policy)
    run.play()
    recorded = [_told(record.event) for record in records]
    played = [_told(event) for event in run.events]
    commands = [_command(command) for record in records for command in record.commands]
    differences = [*_compare("event", recorded, played), *_compare("command", commands, run.commands)]
    return Reproduction(
        num_events=len(run.events), num_commands=len(run.commands), differences=tuple(differences[:MOST_DIFFERENCES])
    )


class _Replay:
    """Recorded physics, decisions made anew. An event that a worker caused waits for the command that starts it."""

    def __init__(self, records: Sequence[Record], policy: Policy | None) -> None:
        self.policy = policy
        self.state: ClusterState = machine.initial()
        self.events: list[Event] = []
        self.commands: list[str] = []
        self.now_s = records[0].event.at_s
        self.calendar: list[tuple[float, int, Event]] = []
        self.by_worker: dict[tuple[str, str], list[tuple[float, int, Event]]] = {}
        self.started: set[tuple[str, str]] = set()
        self.began: dict[tuple[str, str], float] = {}
        self._sort(records)

    def _sort(self, records: Sequence[Record]) -> None:
        """Puts outside events into the calendar, those of workers behind the command that started the worker."""
        began = self.began
        first: dict[str, str] = {}
        for record in records:
            event = record.event
            worker = _worker(event, first)
            if worker is not None and worker in began:
                delay_s = event.at_s - began[worker]
                self.by_worker.setdefault(worker, []).append((delay_s, event.id, event))
            else:
                self.calendar.append((event.at_s, event.id, event))
            for attempt_id, worker_id in _starts(record.commands):
                began[attempt_id, worker_id] = event.at_s
                first.setdefault(attempt_id, worker_id)
        heapq.heapify(self.calendar)

    def play(self) -> None:
        while self.calendar:
            at_s, _, event = heapq.heappop(self.calendar)
            self.now_s = max(self.now_s, at_s)
            event = replace(event, id=self.state.last_event_id + 1, at_s=at_s)
            self.state, commands = machine.apply(self.state, event, self.policy)
            self.events.append(event)
            self.commands.extend(_command(command) for command in commands)
            for worker in _starts(commands):
                if worker not in self.started:
                    self.started.add(worker)
                    # Sums of floating-point times must not swap events that came at nearly the same time.
                    is_as_recorded = at_s == self.began.get(worker)
                    for delay_s, number, later in self.by_worker.get(worker, ()):
                        due_s = later.at_s if is_as_recorded else at_s + delay_s
                        heapq.heappush(self.calendar, (due_s, number, later))


def _worker(event: Event, first: dict[str, str]) -> tuple[str, str] | None:
    """Returns the worker that the event came from; reports of progress hang on the attempt's first worker."""
    if isinstance(event, WorkerStarted | WorkerExited):
        return event.attempt_id, event.worker_id
    if isinstance(event, StepReported):
        return event.attempt_id, first.get(event.attempt_id, "")
    return None


def _starts(commands: Sequence[Command]) -> Iterator[tuple[str, str]]:
    for command in commands:
        if isinstance(command, StartTask):
            yield from ((command.attempt_id, worker.worker_id) for worker in command.placement.workers)
        elif isinstance(command, ResizeTask):
            yield from ((command.attempt_id, worker.worker_id) for worker in command.add)


def _told(event: Event) -> str:
    about = [
        str(getattr(event, name)) for name in ("job_id", "attempt_id", "worker_id", "step") if hasattr(event, name)
    ]
    if hasattr(event, "node"):
        node = event.node
        about.append(node if isinstance(node, str) else node.id)
    return " ".join((event.kind, *about))


def _command(command: Command) -> str:
    if isinstance(command, TestDevice):
        return f"{command.kind} {command.device}"
    seats = []
    if isinstance(command, StartTask):
        seats = [f"{w.worker_id}@{','.join(w.device_ids)}" for w in command.placement.workers]
    elif isinstance(command, ResizeTask):
        seats = [*(f"+{w.worker_id}@{','.join(w.device_ids)}" for w in command.add), *(f"-{i}" for i in command.remove)]
    return " ".join((command.kind, command.attempt_id, *seats))


def _compare(what: str, recorded: Sequence[str], played: Sequence[str]) -> Iterator[str]:
    for index, (then, now) in enumerate(zip(recorded, played, strict=False), start=1):
        if then != now:
            yield f"{what} {index}: recorded {then!r}, simulated {now!r}"
            return
    if len(recorded) != len(played):
        yield f"{len(recorded)} {what}s recorded, {len(played)} simulated"
