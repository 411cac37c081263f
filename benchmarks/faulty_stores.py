"""Stores whose requests fail as told, for the benchmark that tortures checkpoints."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from plait.train.checkpoint.stores import (
    Buffer,
    Entry,
    ObjectExists,
    ObjectMissing,
    Store,
    StoreFailed,
    StoreRefused,
)


class Killed(BaseException):
    """The writer died here."""


class MemoryStore:
    """Objects in a dictionary."""

    def __init__(self, *, honours_create: bool = True) -> None:
        self.url = "memory://run"
        self.notes: tuple[str, ...] = ()
        self.objects: dict[str, bytes] = {}
        self.honours_create = honours_create
        self._lock = threading.Lock()

    def put(self, key: str, data: Buffer, num_bytes: int, each: Callable[[Buffer], None] | None = None) -> None:
        view = memoryview(data)[:num_bytes]
        if each is not None:
            each(view)
        self.objects[key] = bytes(view)

    def create(self, key: str, data: bytes) -> None:
        with self._lock:
            if self.honours_create and key in self.objects:
                raise ObjectExists(key)
            self.objects[key] = data

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectMissing(key) from None

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        return [self.get(key)[first:end] for first, end in ranges]

    def list(self, prefix: str) -> list[Entry]:
        return [Entry(key, len(data)) for key, data in sorted(self.objects.copy().items()) if key.startswith(prefix)]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def abandon_uploads(self, prefix: str) -> int:
        return 0 * len(prefix)


@dataclass(slots=True)
class Death:
    """When a process dies, by its requests to all of its stores."""

    after: int | None = None
    is_over: bool = False

    def is_now(self) -> bool:
        """Counts a request; returns whether the process dies in it."""
        if self.after is not None:
            self.after -= 1
            self.is_over = self.after <= 0
        return self.is_over


@dataclass(slots=True)
class FaultyStore:
    """A store whose requests fail as told."""

    inner: Store
    random: random.Random
    fault: str | None = None
    death: Death = field(default_factory=Death)
    chance: float = 0.0
    truncated: Counter[str] = field(default_factory=Counter)
    url: str = ""
    notes: tuple[str, ...] = ()

    def _strike(self, *, is_write: bool) -> str | None:
        """Returns what happens to this request: None, or lost (done, and told as failed)."""
        if self.death.is_over:
            raise Killed
        if self.death.is_now():
            return "die"
        if self.random.random() < self.chance:
            if self.fault == "server_errors":
                raise StoreFailed("HTTP 503")
            if self.fault == "lost_answers" and is_write:
                return "lost"
            if self.fault == "no_space" and is_write:
                raise StoreRefused("no space left on device")
        return None

    def _after(self, struck: str | None) -> None:
        if struck == "lost":
            raise StoreFailed("the answer was lost")
        if struck == "die":
            raise Killed

    def put(self, key: str, data: Buffer, num_bytes: int, each: Callable[[Buffer], None] | None = None) -> None:
        struck = self._strike(is_write=True)
        if struck == "die":
            count = self.random.randrange(num_bytes + 1)
            if count < num_bytes:  # parts of an upload that never ends, or a file aside: not visible
                raise Killed
        if self.fault == "truncation" and self.random.random() < 0.15:
            self.truncated[key] += 1
            part = bytes(memoryview(data)[: self.random.randrange(1, num_bytes)])
            if each is not None:
                each(memoryview(data)[:num_bytes])
            self.inner.put(key, part, len(part))
            return
        self.inner.put(key, data, num_bytes, each)
        self._after(struck)

    def create(self, key: str, data: bytes) -> None:
        struck = self._strike(is_write=True)
        if struck == "die" and self.random.random() < 0.5:
            raise Killed
        self.inner.create(key, data)
        self._after(struck)

    def get(self, key: str) -> bytes:
        self._after(self._strike(is_write=False))
        return self.inner.get(key)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        self._after(self._strike(is_write=False))
        return self.inner.get_ranges(key, ranges)

    def list(self, prefix: str) -> list[Entry]:
        self._after(self._strike(is_write=False))
        return self.inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        names = list(keys)
        struck = self._strike(is_write=True)
        if struck == "die":
            names = names[: self.random.randrange(len(names) + 1)]
        self.inner.delete(names)
        self._after(struck)

    def abandon_uploads(self, prefix: str) -> int:
        return self.inner.abandon_uploads(prefix)
