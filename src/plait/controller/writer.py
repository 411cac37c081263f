"""The one place where the controller's state changes: event, durable, applied, and only then acted upon."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from pydantic import ValidationError

from plait.controller.delta import DELTA, after_delta, delta_between
from plait.controller.journal import Note, Record
from plait.controller.ledger import Ledger
from plait.controller.store import Entry, Recovered, Snapshot, Store, StoreUnusable
from plait.schedule.events import ClusterConfigured, Event, StepReported, Tick
from plait.schedule.machine import apply, initial, is_same_but_for_time
from plait.schedule.state import ClusterState
from plait.spec.cluster import Cluster
from plait.wire import Codec

log = logging.getLogger(__name__)

SNAPSHOT_EVERY: Final = 500
"""Records between two snapshots."""
TICK_KEPT_S: Final = 60.0
"""A tick that changes nothing is written this often at least, so that the time of day never drifts."""
T = TypeVar("T")
_STATE: Codec[ClusterState] = Codec(ClusterState)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a proposer sees: everything written so far, the id and the time (Unix seconds) of the event to make."""

    state: ClusterState
    ledger: Ledger
    id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An event to write, and where it came from."""

    event: Event
    note: Note | None = None


Proposer = Callable[[View], Proposal | None]
"""Makes the event once its turn has come; None where it turns out that nothing is to be written."""


class Writer:
    """Writes events one after another, several to a transaction where they queue up.

    ``state`` and ``ledger`` hold what is durable. Whoever listens hears of a record only once it is.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        recovered = store.recover()
        self.state, self.ledger, self.last_id, self._last_at_s = _recovered(recovered)
        self._store = store
        self._clock = clock
        self._next_state = self.state
        self._next_ledger = Ledger.load(self.ledger.dump())
        self._next_id = self.last_id + 1
        self._since_snapshot = len(recovered.entries)
        self._queue: asyncio.Queue[tuple[Proposer, asyncio.Future[Record | None]]] = asyncio.Queue()
        self._listeners: list[Callable[[Record], None]] = []
        # SQLite waits for the disk; heartbeats must not.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plait-store")

    def listen(self, listener: Callable[[Record], None]) -> None:
        """Calls ``listener`` with every record from now on, in order, once it is durable."""
        self._listeners.append(listener)

    def put(self, propose: Proposer) -> "asyncio.Future[Record | None]":
        """Queues a proposal; the future holds the durable record, or None where nothing was to be written."""
        future: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((propose, future))
        return future

    def now_s(self) -> float:
        """Returns the time that an event made now would carry; a clock set back does not take it back."""
        return max(self._last_at_s, self._clock())

    async def run(self) -> None:
        """Writes until cancelled; raises StoreUnusable when the store fails, for nothing is safe then."""
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._write(batch)

    async def read(self, after: int, limit: int) -> tuple[Record, ...]:
        """Returns up to ``limit`` records after this id."""
        loop = asyncio.get_running_loop()
        return tuple(await loop.run_in_executor(self._thread, self._store.read, after, limit))

    async def close(self) -> None:
        """Writes a last snapshot and closes the store; ``run`` must have been cancelled before."""
        loop = asyncio.get_running_loop()
        if self.last_id:
            await self._save()
        await loop.run_in_executor(self._thread, self._store.close)
        self._thread.shutdown()

    async def _write(self, batch: list[tuple[Proposer, "asyncio.Future[Record | None]"]]) -> None:
        outcomes: list[tuple[asyncio.Future[Record | None], Record | None]] = []
        states = [self._next_state]
        for propose, future in batch:
            try:
                record = self._take(propose)
                outcomes.append((future, record))
                if record is not None:
                    states.append(self._next_state)
            except Exception as error:  # noqa: BLE001 -- whoever proposed it hears of it; the next one has its turn
                log.debug("a proposal was refused: %s", error)
                _settle(future, error)
        records = [record for _, record in outcomes if record is not None]
        if records:
            try:
                await self._append(records, states)
            except StoreUnusable as error:
                for future, _ in outcomes:
                    _settle(future, error)
                raise
        for future, record in outcomes:
            _settle(future, record)
        if self._since_snapshot >= SNAPSHOT_EVERY:
            self._since_snapshot = 0
            await self._save()

    async def _append(self, records: list[Record], states: list[ClusterState]) -> None:
        """Writes records; ``states`` are those before the first, between, and after the last."""
        is_weighty = any(record.commands or not isinstance(record.event, StepReported | Tick) for record in records)
        loop = asyncio.get_running_loop()

        def append() -> None:  # states never change, so they can be compared and encoded beside the event loop
            deltas = (DELTA.encode(delta_between(*step)) for step in pairwise(states))
            entries = [Entry(record=record, delta=delta) for record, delta in zip(records, deltas, strict=True)]
            self._store.append(entries, durable=is_weighty)

        await loop.run_in_executor(self._thread, append)
        self.state = self._next_state
        self.last_id = records[-1].event.id
        self._since_snapshot += len(records)
        for record in records:
            self.ledger.apply(record)
        for record in records:
            for listener in self._listeners:
                _tell(listener, record)

    def _take(self, propose: Proposer) -> Record | None:
        at_s = self.now_s()
        proposal = propose(View(state=self._next_state, ledger=self._next_ledger, id=self._next_id, at_s=at_s))
        if proposal is None:
            return None
        state, commands = apply(self._next_state, proposal.event)
        if isinstance(proposal.event, Tick) and not commands and _is_idle(self._next_state, state):
            return None
        record = Record(event=proposal.event, commands=tuple(commands), note=proposal.note)
        self._next_state = state
        self._next_id += 1
        self._last_at_s = at_s
        self._next_ledger.apply(record)
        return record

    async def _save(self) -> None:
        state, ledger, last_id = self.state, self.ledger.dump(), self.last_id

        def save() -> None:  # the state never changes, so it can be encoded beside the event loop
            self._store.save(Snapshot(id=last_id, state=_STATE.encode(state), ledger=ledger))

        await asyncio.get_running_loop().run_in_executor(self._thread, save)


def _tell(listener: Callable[[Record], None], record: Record) -> None:
    """What is written is written: a listener that stumbles stops neither the others nor the writer."""
    try:
        listener(record)
    except Exception:
        log.exception("record %d (%s) was not acted upon", record.event.id, record.event.kind)


def propose_cluster(cluster: Cluster, view: View) -> Proposal | None:
    """The administrator's file may have changed while the controller was away."""
    if view.ledger.cluster == cluster:
        return None
    return Proposal(event=ClusterConfigured(id=view.id, at_s=view.at_s, cluster=cluster))


def _is_idle(before: ClusterState, after: ClusterState) -> bool:
    """Returns whether a tick changed nothing but the time, and the time is not worth keeping either."""
    if before.tick_day_s is None or after.now_s - before.tick_at_s > TICK_KEPT_S:
        return False
    return is_same_but_for_time(before, after)


def _recovered(recovered: Recovered) -> tuple[ClusterState, Ledger, int, float]:
    state, ledger, last_id = initial(), Ledger(), 0
    if recovered.snapshot is not None:
        state = _decoded(_STATE, recovered.snapshot.state, f"snapshot {recovered.snapshot.id}")
        ledger = Ledger.load(recovered.snapshot.ledger)
        last_id = recovered.snapshot.id
    for entry in recovered.entries:
        last_id = entry.record.event.id
        state = after_delta(state, _decoded(DELTA, entry.delta, f"record {last_id}"))
        ledger.apply(entry.record)
    return state, ledger, last_id, state.now_s


def _decoded(codec: Codec[T], data: bytes, what: str) -> T:
    try:
        return codec.decode(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "its start"
        raise StoreUnusable(f"{what} of the database cannot be read at {place}: {first['msg']}") from error


def _settle(future: "asyncio.Future[Record | None]", outcome: Record | Exception | None) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
