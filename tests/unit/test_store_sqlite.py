"""The journal survives what processes and disks do to it, and says clearly when it cannot."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from plait.controller.journal import Record, Report, Submission
from plait.controller.store import Entry, Snapshot, SqliteStore, StoreUnusable, open_store
from plait.schedule.commands import StopTask
from plait.schedule.events import JobSubmitted, Tick, WorkerStarted
from plait.spec.job import Job, Task


def entries(*records: Record) -> list[Entry]:
    return [Entry(record=record, delta=f"delta {record.event.id}".encode()) for record in records]


def submitted(number: int) -> Record:
    job = Job(name="digits", tasks=(Task(name="train", command=("python", "train.py")),))
    event = JobSubmitted(id=number, at_s=float(number), job_id=f"digits-{number}", job=job)
    note = Submission(request_id=f"r{number}", directory="/work", digest="d")
    return Record(event=event, note=note)


def tick(number: int) -> Record:
    command = StopTask(cause=number, attempt_id="digits-1/train/1", reason="its window closed", grace_s=2.5)
    return Record(event=Tick(id=number, at_s=float(number), day_s=number), commands=(command,))


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = [submitted(1), tick(2)]
    started = WorkerStarted(id=3, at_s=3.0, attempt_id="digits-1/train/1", worker_id="w0")
    written.append(Record(event=started, note=Report(incarnation="a", number=7)))
    store = SqliteStore(tmp_path / "state.db")
    store.append(entries(*written[:1]))
    store.append(entries(*written[1:]), durable=False)
    store.close()
    recovered = SqliteStore(tmp_path / "state.db").recover()
    assert recovered.snapshot is None
    assert list(recovered.entries) == entries(*written)


def test_recovery_starts_at_the_newest_snapshot(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    store.append(entries(submitted(1), tick(2)))
    store.save(Snapshot(id=2, state=b"s2", ledger=b"l2"))
    store.append(entries(tick(3)))
    store.save(Snapshot(id=3, state=b"s3", ledger=b"l3"))
    store.append(entries(submitted(4)))
    recovered = store.recover()
    assert recovered.snapshot == Snapshot(id=3, state=b"s3", ledger=b"l3")
    assert [entry.record.event.id for entry in recovered.entries] == [4]
    store.save(Snapshot(id=4, state=b"s4", ledger=b"l4"))
    # What people ask for stays; ticks that the older snapshot covers go.
    assert [record.event.id for record in store.read(0, 100)] == [1, 4]
    assert [record.event.id for record in store.read(1, 1)] == [4]


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    store.append(entries(submitted(1)))
    with pytest.raises(StoreUnusable, match="2 records could not be written"):
        store.append(entries(submitted(2), submitted(1)))
    assert [entry.record.event.id for entry in store.recover().entries] == [1]
    store.append(entries(submitted(2)))


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from plait.controller.journal import Record
from plait.controller.store import Entry, SqliteStore
from plait.schedule.events import Tick
store = SqliteStore(Path(sys.argv[1]))
number = 0
while True:
    batch = [Entry(record=Record(event=Tick(id=number + i, at_s=0.0)), delta=b"") for i in (1, 2, 3)]
    store.append(batch)
    number += 3
    print(number, flush=True)
"""


def test_kill_while_writing_loses_nothing_that_was_answered_and_tears_no_batch(tmp_path: Path) -> None:
    chance = random.Random(5)
    for turn in range(4):
        path = tmp_path / f"{turn}.db"
        writer = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        answered = [int(writer.stdout.readline()) for _ in range(chance.randint(1, 40))][-1]
        os.kill(writer.pid, signal.SIGKILL)
        answered = max([answered, *(int(line) for line in writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        ids = [entry.record.event.id for entry in SqliteStore(path).recover().entries]
        assert len(ids) >= answered
        assert len(ids) % 3 == 0
        assert ids == list(range(1, len(ids) + 1))


def test_a_log_cut_short_by_a_crash_keeps_the_batches_before_it(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SqliteStore(path)
    for number in range(1, 40):
        store.append(entries(submitted(number)))
    log = path.with_name("state.db-wal")
    copy = tmp_path / "copy.db"
    for length in (log.stat().st_size * part // 7 for part in range(1, 7)):
        copy.write_bytes(path.read_bytes())
        copy.with_name("copy.db-wal").write_bytes(log.read_bytes()[:length])
        copy.with_name("copy.db-shm").unlink(missing_ok=True)
        torn = SqliteStore(copy)
        ids = [entry.record.event.id for entry in torn.recover().entries]
        torn.close()
        assert ids == list(range(1, len(ids) + 1))
    store.close()


def test_damage_is_said_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SqliteStore(path)
    store.append(entries(*(submitted(number) for number in range(1, 400))))
    store.close()
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 9] = os.urandom(4096 * 6)
    path.write_bytes(data)
    with pytest.raises(StoreUnusable, match=r"state\.db.*damaged"):
        SqliteStore(path).recover()
    path.write_bytes(b"not a database at all, but long enough to look at" * 100)
    with pytest.raises(StoreUnusable, match=r"state\.db: cannot be used"):
        SqliteStore(path)


def test_another_version_or_another_programs_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    SqliteStore(path).close()
    database = sqlite3.connect(path)
    database.execute("UPDATE about SET value = '99'")
    database.commit()
    database.close()
    with pytest.raises(StoreUnusable, match="schema version 99, but this Plait reads version 1"):
        SqliteStore(path)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE songs (title TEXT)")
    other.commit()
    other.close()
    with pytest.raises(StoreUnusable, match="another program's tables \\(songs\\)"):
        SqliteStore(tmp_path / "other.db")


def test_an_unreadable_record_names_its_number(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SqliteStore(path)
    store.append(entries(submitted(1), submitted(2)))
    store.close()
    database = sqlite3.connect(path)
    database.execute("UPDATE journal SET record = replace(record, 'job_submitted', 'job_vanished') WHERE id = 2")
    database.commit()
    database.close()
    with pytest.raises(StoreUnusable, match="record 2 cannot be read at event"):
        SqliteStore(path).recover()


def test_urls(tmp_path: Path) -> None:
    open_store("sqlite:///plait-state.db", tmp_path).close()
    assert (tmp_path / "plait-state.db").stat().st_mode & 0o077 == 0
    open_store(f"sqlite://{tmp_path}/deep/er/state.db", tmp_path / "elsewhere").close()
    assert (tmp_path / "deep" / "er" / "state.db").exists()
    for url in ("postgresql://host/plait", "plait.db", "sqlite:///"):
        with pytest.raises(StoreUnusable, match="expected a URL like"):
            open_store(url, tmp_path)
