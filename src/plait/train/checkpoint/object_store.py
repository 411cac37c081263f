"""Object stores through obstore: S3 and what speaks like it, Google Cloud Storage, Azure.

obstore keeps threads of its own, so nothing here is opened before a fork: the client is made at first use, and made
again in a child process.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from plait.train.checkpoint.direct import DirectImpossible, DirectReader
from plait.train.checkpoint.stores import (
    Buffer,
    Entry,
    Fill,
    ObjectExists,
    ObjectMissing,
    StoreFailed,
    StoreRefused,
)

_log = logging.getLogger(__name__)

PART_BYTES = 8 * 2**20
_WHOLE_ANSWER = "non-partial response"
"""What obstore says where a store ignores ``Range``, as ``rclone serve s3`` does."""

_CONCURRENT_PARTS = 4
_TIMEOUT = "60s"
_LARGE_FILE_BYTES = 8192 * PART_BYTES
"""S3 takes at most 10,000 parts; larger files get larger parts."""


class ObjectStore:
    """Objects under a prefix of a bucket."""

    def __init__(self, url: str, options: dict[str, str] | None = None) -> None:
        """Opens nothing yet.

        Args:
            url: ``s3://bucket/prefix``, ``gs://...`` or ``az://...``.
            options: Over the environment's AWS_*, GOOGLE_*, AZURE_*.

        Raises:
            StoreRefused: obstore is not installed.
        """
        try:
            import obstore  # noqa: F401
        except ImportError:
            raise StoreRefused(f"{url} needs the package obstore: pip install 'plait[s3]'") from None
        self.url = url.rstrip("/")
        self.notes: tuple[str, ...] = ()
        self._options = dict(options or {})
        self._client: Any = None
        self._owner = 0
        self._gives_whole = False
        self._whole: tuple[str, memoryview] | None = None
        self._whole_lock = threading.Lock()
        self._direct = DirectReader(lambda: self.client)
        self._goes_direct = True

    @property
    def client(self) -> Any:
        """Obstore's client, made in this very process."""
        if self._client is None or self._owner != os.getpid():
            from obstore.store import from_url

            opened: Any = from_url  # its overloads, one for each kind of store, do not fit a URL not known before
            self._client = opened(
                self.url,
                config=self._config(),
                client_options={"allow_http": True, "timeout": _TIMEOUT},
                retry_config={"max_retries": 0},  # asking again is ours, so that faults are counted and told
            )
            self._owner = os.getpid()
        return self._client

    def _config(self) -> dict[str, str]:
        if not self.url.startswith("s3://"):
            return self._options
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        config = {"region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"}
        if endpoint:
            config |= {"endpoint": endpoint, "virtual_hosted_style_request": "false"}
        return config | self._options

    def put(self, key: str, data: Buffer, num_bytes: int, each: Callable[[Buffer], None] | None = None) -> None:
        """Sends in parts; the object must not exist."""
        import obstore

        view = memoryview(data)[:num_bytes]
        size = max(PART_BYTES, -(-num_bytes // _LARGE_FILE_BYTES) * PART_BYTES)

        def parts() -> Iterator[bytes]:
            for first in range(0, num_bytes, size):
                part = view[first : first + size]
                if each is not None:
                    each(part)
                yield bytes(part)

        with _told(key):
            if num_bytes <= size:
                obstore.put(self.client, key, b"".join(parts()), use_multipart=False)
            else:
                obstore.put(
                    self.client, key, parts(), use_multipart=True, chunk_size=size, max_concurrency=_CONCURRENT_PARTS
                )

    def create(self, key: str, data: bytes) -> None:
        """Writes with ``If-None-Match: *``."""
        import obstore

        with _told(key):
            obstore.put(self.client, key, data, mode="create", use_multipart=False)

    def get(self, key: str) -> bytes:
        """Reads an object."""
        import obstore

        with _told(key):
            return bytes(obstore.get(self.client, key).bytes())

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Reads ranges, several at a time; the whole object once where the store does not give parts."""
        if not ranges:
            return []
        parts = self._whole_ranges(key, ranges) if self._gives_whole else self._asked_ranges(key, ranges)
        for part, (first, end) in zip(parts, ranges, strict=True):
            if len(part) != end - first:
                raise StoreFailed(f"{key}: {len(part)} bytes came for the range from {first} to {end}")
        return parts

    def _asked_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        import obstore

        starts, ends = [first for first, _ in ranges], [end for _, end in ranges]
        try:
            with _told(key):
                return [
                    memoryview(part)
                    for part in obstore.get_ranges(self.client, key, starts=starts, ends=ends, coalesce=0)
                ]
        except StoreFailed as error:
            if _WHOLE_ANSWER not in str(error):
                raise
            self._gives_whole = True
            note = f"{self.url} answers requests for parts with whole objects: each is read once, as a whole, in memory"
            self.notes = (*self.notes, note)
            _log.warning("%s", note)
        return self._whole_ranges(key, ranges)

    def _whole_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Cuts ranges out of an object that is read once: readers come in several threads, file after file."""
        import obstore

        with self._whole_lock:
            if self._whole is None or self._whole[0] != key:
                self._whole = None
                with _told(key):
                    self._whole = key, memoryview(obstore.get(self.client, key).bytes())
            data = self._whole[1]
        return [data[first:end] for first, end in ranges]

    @contextmanager
    def stream(self, key: str, first: int, end: int) -> Iterator[Fill]:
        """Puts a range into memory that is there, directly where the store can be asked so, else by a copy."""
        if not self._goes_direct:
            yield self._copying(key, first, end)
            return
        with ExitStack() as stack:
            try:
                fill = stack.enter_context(self._direct.stream(key, first, end))
            except DirectImpossible as error:
                _log.info("%s is read through obstore's own memory: %s", self.url, error)
                self._goes_direct = False
                fill = self._copying(key, first, end)
            yield fill

    def _copying(self, key: str, first: int, end: int) -> Fill:
        (part,) = self.get_ranges(key, [(first, end)])
        at = 0

        def fill(memory: memoryview) -> None:
            nonlocal at
            memory[:] = memoryview(part)[at : at + len(memory)]
            at += len(memory)

        return fill

    def list(self, prefix: str) -> list[Entry]:
        """Lists what begins so."""
        import obstore

        folder, _, _ = prefix.rpartition("/")
        with _told(prefix):
            found = [
                Entry(str(meta["path"]), int(meta["size"]))
                for batch in obstore.list(self.client, prefix=folder or None)
                for meta in batch
            ]
        return sorted((e for e in found if e.key.startswith(prefix)), key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects."""
        import obstore

        for key in keys:
            with self._whole_lock:
                self._whole = None if self._whole is not None and self._whole[0] == key else self._whole
            with _told(key):
                try:
                    obstore.delete(self.client, key)
                except FileNotFoundError:
                    continue

    def abandon_uploads(self, prefix: str) -> int:
        """Aborts multipart uploads under the prefix on S3; elsewhere parts expire by themselves."""
        if not self.url.startswith("s3://"):
            return 0
        from plait.train.checkpoint.s3_uploads import abort_uploads

        bucket, _, root = self.url.removeprefix("s3://").partition("/")
        return abort_uploads(self._config(), bucket, f"{root}/{prefix}".lstrip("/"))


@contextmanager
def _told(key: str) -> Iterator[None]:
    """Turns obstore's errors into those of stores."""
    from obstore import exceptions

    try:
        yield
    except (FileNotFoundError, exceptions.NotFoundError) as error:
        raise ObjectMissing(f"{key} does not exist") from error
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise ObjectExists(f"{key} exists already") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise StoreRefused(f"{key}: {_first_line(error)}") from error
    except (exceptions.BaseError, OSError, TimeoutError) as error:
        raise StoreFailed(f"{key}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
