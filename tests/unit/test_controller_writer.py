"""Durable before applied before acted upon; and what is replayed is what was decided."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from plait.controller import writer as controller_writer
from plait.controller.journal import Record, Registration, Submission
from plait.controller.store import Entry, SqliteStore, StoreUnusable
from plait.controller.writer import Proposal, View, Writer, propose_cluster
from plait.hardware.device import Device, Node
from plait.schedule.commands import StartTask
from plait.schedule.events import JobSubmitted, NodeJoined, Tick
from plait.schedule.state import ClusterState
from plait.spec.cluster import Cluster, PriceWindow
from plait.spec.job import Job, Task
from plait.wire import Codec


class Clock:
    """The test says what time it is."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FailingStore(SqliteStore):
    """A disk that is full after a while."""

    def __init__(self, path: Path, appends: int) -> None:
        super().__init__(path)
        self.appends_left = appends

    def append(self, entries: Sequence[Entry], *, durable: bool = True) -> None:
        self.appends_left -= 1
        if self.appends_left < 0:
            raise StoreUnusable("the disk is full")
        super().append(entries, durable=durable)


@asynccontextmanager
async def writing(store: SqliteStore, clock: Clock | None = None) -> AsyncIterator[Writer]:
    writer = Writer(store, clock or Clock())
    running = asyncio.create_task(writer.run())
    yield writer
    running.cancel()
    with suppress(asyncio.CancelledError, StoreUnusable):
        await running
    await writer.close()


def joined(view: View) -> Proposal:
    device = Device(id="n0/0", node="n0", index=0, accelerator_type="T4")
    node = Node(id="n0", address="127.0.0.1", devices=(device,))
    return Proposal(event=NodeJoined(id=view.id, at_s=view.at_s, node=node), note=Registration(incarnation="a"))


def submitted(name: str, view: View) -> Proposal:
    job = Job(name=name, tasks=(Task(name="train", command=("true",)),))
    event = JobSubmitted(id=view.id, at_s=view.at_s, job_id=view.ledger.next_job_id(name), job=job)
    return Proposal(event=event, note=Submission(request_id=str(view.id), directory="/", digest=""))


def tick(view: View) -> Proposal:
    return Proposal(event=Tick(id=view.id, at_s=view.at_s, day_s=int(view.at_s) % 86400))


async def test_whoever_listens_hears_only_of_what_is_durable(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    found: list[bool] = []
    async with writing(SqliteStore(path)) as writer:

        def check(record: Record) -> None:
            reader = SqliteStore(path)
            found.append(record in reader.read(0, 100))
            reader.close()

        writer.listen(check)
        await writer.put(joined)
        record = await writer.put(partial(submitted, "digits"))
        assert record is not None
        assert isinstance(record.commands[0], StartTask)
    assert found == [True, True]


async def test_a_killed_writers_state_comes_back_by_replay_and_by_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with writing(SqliteStore(path)) as writer:
        await writer.put(partial(propose_cluster, Cluster()))
        await writer.put(joined)
        await asyncio.gather(*(writer.put(partial(submitted, "digits")) for _ in range(5)))
        replayed = Writer(SqliteStore(path), Clock())  # as after kill -9: no snapshot was written
        assert (replayed.state, replayed.ledger, replayed.last_id) == (writer.state, writer.ledger, writer.last_id)
        last = writer
    from_snapshot = Writer(SqliteStore(path), Clock())
    assert (from_snapshot.state, from_snapshot.ledger) == (last.state, last.ledger)
    assert from_snapshot.last_id == last.last_id
    assert len(from_snapshot.ledger.submissions) == 5


async def test_many_records_leave_few_to_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_writer, "SNAPSHOT_EVERY", 10)
    path = tmp_path / "state.db"
    async with writing(SqliteStore(path)) as writer:
        for _ in range(3):
            await asyncio.gather(*(writer.put(partial(submitted, "digits")) for _ in range(12)))
        reader = SqliteStore(path)
        recovered = reader.recover()
        reader.close()
        assert recovered.snapshot is not None
        assert len(recovered.entries) < 36
        again = Writer(SqliteStore(path), Clock())
        assert again.ledger == writer.ledger


async def test_a_store_that_fails_stops_the_writer_and_nothing_is_acted_upon(tmp_path: Path) -> None:
    store = FailingStore(tmp_path / "state.db", appends=1)
    writer = Writer(store, Clock())
    heard: list[Record] = []
    writer.listen(heard.append)
    running = asyncio.create_task(writer.run())
    await writer.put(joined)
    before = writer.state
    with pytest.raises(StoreUnusable, match="disk is full"):
        await writer.put(partial(submitted, "digits"))
    with pytest.raises(StoreUnusable, match="disk is full"):
        await running
    assert writer.state == before
    assert [record.event.kind for record in heard] == ["node_joined"]


async def test_a_proposal_that_fails_or_has_nothing_to_say_writes_nothing(tmp_path: Path) -> None:
    async with writing(SqliteStore(tmp_path / "state.db")) as writer:

        def fail(_: View) -> Proposal:
            raise KeyError("gone")

        failing, silent, good = writer.put(fail), writer.put(lambda _: None), writer.put(joined)
        with pytest.raises(KeyError):
            await failing
        assert await silent is None
        record = await good
        assert record is not None
        assert record.event.id == writer.last_id == 1


async def test_idle_ticks_are_not_written_but_the_time_of_day_never_drifts(tmp_path: Path) -> None:
    clock = Clock()
    async with writing(SqliteStore(tmp_path / "state.db"), clock) as writer:
        await writer.put(joined)
        assert await writer.put(tick) is not None  # the first one tells the time of day
        for _ in range(50):
            clock.now_s += 0.2
            assert await writer.put(tick) is None
        clock.now_s += 61.0
        assert await writer.put(tick) is not None


async def test_a_clock_set_back_does_not_turn_events_around(tmp_path: Path) -> None:
    clock = Clock()
    async with writing(SqliteStore(tmp_path / "state.db"), clock) as writer:
        await writer.put(joined)
        clock.now_s -= 500.0
        record = await writer.put(partial(submitted, "digits"))
        assert record is not None
        assert record.event.at_s == 1000.0
    later = Writer(SqliteStore(tmp_path / "state.db"), clock)
    assert later.now_s() == 1000.0


async def test_recovery_decides_nothing_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.db"
    writer = Writer(SqliteStore(path), Clock())
    running = asyncio.create_task(writer.run())
    await writer.put(joined)
    await writer.put(partial(submitted, "digits"))
    running.cancel()

    def decide_otherwise(*_: object) -> None:
        raise AssertionError("another version of Plait would decide otherwise")

    monkeypatch.setattr(controller_writer, "apply", decide_otherwise)
    again = Writer(SqliteStore(path), Clock())
    assert (again.state, again.ledger) == (writer.state, writer.ledger)
    assert again.ledger.order("digits-1/train/0", "w0") is not None


async def test_what_is_decided_is_decided_alike_by_another_process(tmp_path: Path) -> None:
    """The journal alone, replayed under another hash seed, leads to the same commands and state."""
    path = tmp_path / "state.db"
    async with writing(SqliteStore(path)) as writer:
        await writer.put(joined)
        await asyncio.gather(*(writer.put(partial(submitted, f"job{number}")) for number in range(4)))
        state = writer.state
    for seed in ("1", "2"):
        told = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", REPLAY, str(path)],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        codec: Codec[ClusterState] = Codec(ClusterState)
        assert codec.decode(told.stdout) == state


REPLAY = """
import sys
from pathlib import Path
from plait.controller.store import SqliteStore
from plait.schedule.machine import apply, initial
from plait.schedule.state import ClusterState
from plait.wire import Codec
state = initial()
for record in SqliteStore(Path(sys.argv[1])).read(0, 1000):
    state, commands = apply(state, record.event)
    assert tuple(commands) == record.commands
sys.stdout.buffer.write(Codec(ClusterState).encode(state))
"""


async def test_a_changed_cluster_file_is_written_once(tmp_path: Path) -> None:
    window = PriceWindow(name="night", from_s=0, to_s=3600)
    async with writing(SqliteStore(tmp_path / "state.db")) as writer:
        assert await writer.put(partial(propose_cluster, Cluster())) is not None
        assert await writer.put(partial(propose_cluster, Cluster())) is None
        assert await writer.put(partial(propose_cluster, Cluster(price_windows=(window,)))) is not None
        assert writer.state.config.windows == (window,)
