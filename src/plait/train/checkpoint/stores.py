"""Where checkpoints lie: objects under keys. A store of files is here; object stores are in ``object_store``."""

import contextlib
import ctypes
import errno
import logging
import os
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from plait.errors import PlaitError

_log = logging.getLogger(__name__)

CHUNK_BYTES = 16 * 2**20
_ALIGN_BYTES = 4096
_WRITERS = 2
_ASIDE = ".writing-"
_MOST_TRIES = 100


class StoreFailed(PlaitError):
    """The store did not do what it was asked; asking again may help."""


class StoreRefused(PlaitError):
    """The store cannot or will not do this: no space, no permission, no such bucket."""


class ObjectMissing(PlaitError):
    """There is no object of this key."""


class ObjectExists(PlaitError):
    """There is an object of this key, which must not be written again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a listing."""

    key: str
    num_bytes: int


Buffer = memoryview | bytes | bytearray
Fill = Callable[[memoryview], None]
"""Fills memory with the next bytes of a range."""


class Store(Protocol):
    """Objects under keys such as ``data/000000000100/r00000.safetensors``.

    An object becomes visible whole or not at all, and once :meth:`put` or :meth:`create` has returned it is durable.
    """

    url: str
    notes: tuple[str, ...]
    """What this store does not do as well as it should, one sentence each."""

    def put(self, key: str, data: Buffer, num_bytes: int, each: Callable[[Buffer], None] | None = None) -> None:
        """Writes the first ``num_bytes`` of ``data``; ``each`` is given every part in order before it is sent."""

    def create(self, key: str, data: bytes) -> None:
        """Writes a small object that must not exist yet.

        Raises:
            ObjectExists: It does. A store may fail to notice; see
                :func:`~plait.train.checkpoint.repository.honours_create`.
        """

    def get(self, key: str) -> bytes:
        """Returns a small object."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Returns the bytes ``[first, end)`` of each range."""

    def list(self, prefix: str) -> list[Entry]:
        """Returns all objects whose key begins so, in order of keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that are gone already count as deleted."""

    def abandon_uploads(self, prefix: str) -> int:
        """Removes what dead writers under this prefix have sent in part; returns how many there were."""


@runtime_checkable
class Streams(Protocol):
    """A store that can put the bytes of a range straight into memory that is there."""

    def stream(self, key: str, first: int, end: int) -> AbstractContextManager[Fill]:
        """Yields what fills memory with the next bytes of ``[first, end)``."""


class FileStore:
    """Objects as files of a directory, flushed, written past the page cache where the file system can."""

    def __init__(self, directory: str | Path) -> None:
        """Uses a directory, which need not exist yet."""
        self.directory = Path(directory)
        self.url = f"file://{self.directory.absolute()}"
        self.notes: tuple[str, ...] = ()
        self._durable: set[Path] = set()
        """Directories that are there, and whose names this object has flushed."""

    def _path(self, key: str) -> Path:
        return self.directory / key

    def _aside(self, path: Path) -> Path:
        return path.parent / f"{_ASIDE}{os.getpid()}-{uuid.uuid4().hex[:8]}-{path.name}"

    def put(self, key: str, data: Buffer, num_bytes: int, each: Callable[[Buffer], None] | None = None) -> None:
        """Writes aside, flushes, then gives the file its name."""
        with _told():
            path = self._path(key)
            aside = self._aside(path)
            try:
                self._write(aside, memoryview(data), num_bytes, each)
                aside.rename(path)
                self._flush_names(path.parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    aside.unlink()
                raise

    def _write(self, path: Path, data: memoryview, num_bytes: int, each: Callable[[Buffer], None] | None) -> None:
        descriptor = self._opened(path)
        try:
            if self._go_direct(descriptor, data, num_bytes):
                _write_direct(descriptor, data, num_bytes, each)
            else:
                for first in range(0, num_bytes, CHUNK_BYTES):
                    part = data[first : min(first + CHUNK_BYTES, num_bytes)]
                    if each is not None:
                        each(part)
                    _write_all(descriptor, part, first)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _opened(self, path: Path) -> int:
        """Makes a file, and its directory as often as another process removes it for being empty."""
        folder, tries = path.parent, 0
        while True:
            try:
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                tries += 1
                if tries > _MOST_TRIES:
                    raise
                self._durable -= {folder, *folder.parents}
                with contextlib.suppress(FileNotFoundError):
                    folder.mkdir(parents=True, exist_ok=True)

    def _go_direct(self, descriptor: int, data: memoryview, num_bytes: int) -> bool:
        """Switches the file to direct writes where that pays and both memory and file system allow it."""
        import fcntl

        if num_bytes < CHUNK_BYTES // 16 or len(data) < _rounded(num_bytes) or _address(data) % _ALIGN_BYTES:
            return False
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.pwrite(descriptor, data[:_ALIGN_BYTES], 0)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
            if not self.notes:
                note = (
                    f"{self.directory} takes no direct writes ({os.strerror(error.errno or 0)}): files go through the "
                    "page cache, which costs more of the processor"
                )
                self.notes = (note,)
                _log.warning("%s", note)
            return False
        return True

    def create(self, key: str, data: bytes) -> None:
        """Writes aside, flushes, and links the file to its name, which fails where the name is taken."""
        with _told():
            path = self._path(key)
            aside = self._aside(path)
            try:
                self._write(aside, memoryview(data), len(data), None)
                os.link(aside, path)
                self._flush_names(path.parent)
            except FileExistsError:
                raise ObjectExists(f"{path} exists already") from None
            finally:
                with contextlib.suppress(OSError):
                    aside.unlink()

    def _flush_names(self, folder: Path) -> None:
        """Makes the name of a new file in a directory durable, and those of the directories that may be new."""
        while True:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if folder in self._durable or folder in {self.directory, folder.parent}:
                return
            self._durable.add(folder)
            folder = folder.parent

    def get(self, key: str) -> bytes:
        """Reads a file."""
        with _told():
            return self._path(key).read_bytes()

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Reads parts of a file."""
        with _told():
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return [_read_all(descriptor, first, end) for first, end in ranges]
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def stream(self, key: str, first: int, end: int) -> Iterator[Fill]:
        """Reads a part of a file into memory that is there."""
        with _told():
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        at = first

        def fill(memory: memoryview) -> None:
            nonlocal at
            with _told():
                _fill(descriptor, memory, at, end)
            at += len(memory)

        try:
            yield fill
        finally:
            os.close(descriptor)

    def list(self, prefix: str) -> list[Entry]:
        """Walks the directory that the prefix names."""
        with _told():
            start = self.directory / prefix.rpartition("/")[0]
            found = []
            for folder, _, names in os.walk(start, onerror=_unless_missing):
                for name in names:
                    path = Path(folder) / name
                    key = path.relative_to(self.directory).as_posix()
                    if not name.startswith(_ASIDE) and key.startswith(prefix):
                        with contextlib.suppress(FileNotFoundError):
                            found.append(Entry(key, path.stat().st_size))
            return sorted(found, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Removes files and the directories that are empty then."""
        with _told():
            for key in keys:
                path = self._path(key)
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # not empty, or gone
                    while (path := path.parent) != self.directory:
                        self._durable.discard(path)
                        path.rmdir()

    def abandon_uploads(self, prefix: str) -> int:
        """Removes files that were being written by processes of this machine that are gone."""
        count = 0
        with _told():
            for folder, _, names in os.walk(self.directory / prefix):
                for name in names:
                    if name.startswith(_ASIDE) and not _lives(name.removeprefix(_ASIDE).partition("-")[0]):
                        with contextlib.suppress(FileNotFoundError):
                            (Path(folder) / name).unlink()
                            count += 1
        return count


def _unless_missing(error: OSError) -> None:
    """Raises what keeps a directory from being read: one that cannot be read is not an empty one."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _lives(pid: str) -> bool:
    return pid.isdecimal() and Path(f"/proc/{pid}").exists()


def _address(data: memoryview) -> int:
    """Returns where writable memory lies, 1 for memory that cannot be written, which is never aligned."""
    return 1 if data.readonly else ctypes.addressof(ctypes.c_char.from_buffer(data))


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


def _write_direct(descriptor: int, data: memoryview, num_bytes: int, each: Callable[[Buffer], None] | None) -> None:
    """Writes while ``each`` looks at what comes next; space is taken beforehand, so that the disk has two at once."""
    try:
        os.posix_fallocate(descriptor, 0, _rounded(num_bytes))
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise
    with ThreadPoolExecutor(max_workers=_WRITERS) as writers:
        under_way: deque[Future[None]] = deque()
        for first in range(0, num_bytes, CHUNK_BYTES):
            end = min(first + CHUNK_BYTES, num_bytes)
            if each is not None:
                each(data[first:end])
            under_way.append(writers.submit(_write_all, descriptor, data[first : _rounded(end)], first))
            if len(under_way) > _WRITERS:
                under_way.popleft().result()
        for one in under_way:
            one.result()
    if num_bytes % _ALIGN_BYTES:
        os.ftruncate(descriptor, num_bytes)


def _write_all(descriptor: int, data: memoryview, first: int) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(descriptor, data[at:], first + at)


def _read_all(descriptor: int, first: int, end: int) -> memoryview:
    view = np.empty(end - first, dtype=np.uint8).data  # a bytearray would be cleared first
    _fill(descriptor, view, first, end)
    return view


def _fill(descriptor: int, memory: memoryview, first: int, end: int) -> None:
    at = 0
    while at < len(memory):
        count = os.preadv(descriptor, [memory[at:]], first + at)
        if count == 0:
            raise StoreFailed(f"the file ends at byte {first + at}, before {end}")
        at += count


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ObjectMissing(f"{error.filename} does not exist") from error
    except OSError as error:
        kind = StoreFailed if error.errno in {errno.EIO, errno.EINTR, errno.EAGAIN, errno.ESTALE} else StoreRefused
        raise kind(f"{error.filename or 'a file'}: {error.strerror}") from error


def open_store(url: str, options: "dict[str, str] | None" = None) -> Store:
    """Returns the store that a URL or plain path names: ``file://``, ``s3://``, ``gs://``, ``az://``.

    Args:
        url: Where checkpoints lie.
        options: For object stores, what obstore is told over AWS_*, GOOGLE_*, AZURE_* of the environment.

    Raises:
        StoreRefused: The scheme is unknown, or the package for it is not installed.
    """
    from plait.train.checkpoint.checkpointer import directory_of

    scheme = url.partition("://")[0] if "://" in url else "file"
    if scheme == "file":
        return FileStore(directory_of(url))
    if scheme not in {"s3", "gs", "az"}:
        raise StoreRefused(f"checkpoint.url is {url!r}; its scheme must be one of file, s3, gs, az")
    from plait.train.checkpoint.object_store import ObjectStore

    return ObjectStore(url, options)
