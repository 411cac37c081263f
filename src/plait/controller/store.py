"""Where the journal lives: a small protocol, and SQLite behind it.

The journal is append-only; a snapshot saves replaying it from the start. Recovery is the newest snapshot and the
records after it.
"""

import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pydantic import ValidationError

from plait.controller.journal import RECORD, Record
from plait.errors import PlaitError

SCHEMA_VERSION: Final = 1
_NOISE: Final = ("tick", "step_reported")
"""Kinds of event that nobody asks for once a snapshot covers them."""
_SCHEMA: Final = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE journal (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, record BLOB NOT NULL, delta BLOB);
CREATE TABLE snapshots (id INTEGER PRIMARY KEY, state BLOB NOT NULL, ledger BLOB NOT NULL);
"""


class StoreUnusable(PlaitError):
    """The controller's database is missing, damaged, or of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The scheduler's state and the controller's ledger after record ``id``, encoded."""

    id: int
    state: bytes
    ledger: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A record, and what it changed of the scheduler's state, encoded."""

    record: Record
    delta: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What was found on opening: the newest snapshot, if any, and every entry after it in order."""

    snapshot: Snapshot | None
    entries: tuple[Entry, ...]


class Store(Protocol):
    """Keeps the journal. One process writes at a time; calls may come from any one thread at a time."""

    def recover(self) -> Recovered:
        """Returns everything needed to go on where the last writer stopped."""
        ...

    def append(self, entries: Sequence[Entry], *, durable: bool = True) -> None:
        """Adds entries in one transaction; with ``durable`` it returns only when they survive a power cut."""
        ...

    def save(self, snapshot: Snapshot) -> None:
        """Adds a snapshot and drops what no recovery needs any more."""
        ...

    def read(self, after: int, limit: int) -> Sequence[Record]:
        """Returns up to ``limit`` records whose id is above ``after``, oldest first."""
        ...

    def close(self) -> None:
        """Gives the database back."""
        ...


def open_store(url: str, directory: Path) -> Store:
    """Opens the store of a cluster file.

    ``sqlite:///NAME`` is a file in ``directory``; with a further slash in it, ``sqlite:///var/lib/plait/state.db``, it
    is that absolute path.
    """
    scheme, separator, rest = url.partition(":///")
    if scheme != "sqlite" or not separator or not rest:
        raise StoreUnusable(f"store: expected a URL like 'sqlite:///plait-state.db'; got {url!r}")
    path = directory / rest if "/" not in rest else Path("/" + rest.lstrip("/"))
    return SqliteStore(path)


class SqliteStore:
    """The journal in one SQLite file, in WAL mode."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Jobs carry environments, so nobody else may read this; SQLite's side files take the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise StoreUnusable(f"{path}: cannot be used as the controller's database: {error}") from error

    def recover(self) -> Recovered:
        """Returns the newest snapshot and the entries after it."""
        try:
            row = self._database.execute("SELECT id, state, ledger FROM snapshots ORDER BY id DESC LIMIT 1").fetchone()
            snapshot = Snapshot(id=row[0], state=row[1], ledger=row[2]) if row else None
            after = snapshot.id if snapshot else 0
            later = "SELECT id, record, delta FROM journal WHERE id > ? ORDER BY id"
            rows = self._database.execute(later, (after,)).fetchall()
        except sqlite3.Error as error:
            raise StoreUnusable(f"{self._path}: the controller's database is damaged: {error}") from error
        records = self._decode((number, record) for number, record, _ in rows)
        entries = (Entry(record=record, delta=row[2] or b"") for record, row in zip(records, rows, strict=True))
        return Recovered(snapshot=snapshot, entries=tuple(entries))

    def append(self, entries: Sequence[Entry], *, durable: bool = True) -> None:
        """Adds entries in one transaction."""
        rows = [
            (entry.record.event.id, entry.record.event.kind, RECORD.encode(entry.record), entry.delta)
            for entry in entries
        ]
        try:
            # A later durable commit syncs the whole log, so an undurable one before it is never lost on its own.
            self._database.execute("PRAGMA synchronous = " + ("FULL" if durable else "NORMAL"))
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany("INSERT INTO journal (id, kind, record, delta) VALUES (?, ?, ?, ?)", rows)
            except sqlite3.Error:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreUnusable(f"{self._path}: {len(rows)} records could not be written: {error}") from error

    def save(self, snapshot: Snapshot) -> None:
        """Adds a snapshot; the one before it stays, with all records since."""
        try:
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("BEGIN IMMEDIATE")
            try:
                older = self._database.execute("SELECT max(id) FROM snapshots").fetchone()[0] or 0
                self._database.execute("DELETE FROM snapshots WHERE id < ?", (older,))
                self._database.execute(
                    f"DELETE FROM journal WHERE id <= ? AND kind IN ({', '.join('?' * len(_NOISE))})",  # noqa: S608
                    (older, *_NOISE),
                )
                self._database.execute("UPDATE journal SET delta = NULL WHERE id <= ? AND delta NOTNULL", (older,))
                self._database.execute(
                    "INSERT OR REPLACE INTO snapshots (id, state, ledger) VALUES (?, ?, ?)",
                    (snapshot.id, snapshot.state, snapshot.ledger),
                )
            except sqlite3.Error:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreUnusable(f"{self._path}: a snapshot could not be written: {error}") from error

    def read(self, after: int, limit: int) -> Sequence[Record]:
        """Returns up to ``limit`` records above ``after``."""
        rows = self._database.execute(
            "SELECT id, record FROM journal WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
        ).fetchall()
        return tuple(self._decode(rows))

    def close(self) -> None:
        """Closes the file; SQLite folds its log into it."""
        self._database.close()

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        verdict = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise StoreUnusable(f"{self._path}: the controller's database is damaged: {verdict}")
        tables = {row[0] for row in self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            self._database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA}")
            self._database.execute("INSERT INTO about VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
            self._database.execute("COMMIT")
            return
        if "about" not in tables:
            raise StoreUnusable(f"{self._path}: holds another program's tables ({', '.join(sorted(tables))})")
        row = self._database.execute("SELECT value FROM about WHERE key = 'schema_version'").fetchone()
        if row is None or row[0] != str(SCHEMA_VERSION):
            found = row[0] if row else "none"
            raise StoreUnusable(
                f"{self._path}: is of schema version {found}, but this Plait reads version {SCHEMA_VERSION}"
            )

    def _decode(self, rows: Iterable[tuple[int, bytes]]) -> Iterable[Record]:
        for number, data in rows:
            try:
                yield RECORD.decode(data)
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(str(part) for part in first["loc"])
                raise StoreUnusable(
                    f"{self._path}: record {number} cannot be read at {place or 'its start'}: {first['msg']}"
                ) from error
