"""Ranges of objects straight into memory that is there: signed requests over plain connections, no copy in between.

obstore hands bytes out in memory of its own; a restore then pays for that memory and for one more copy. Here the kernel
writes what comes into the tensors themselves. obstore signs the requests, so keys stay where they were.
"""

import contextlib
import http.client
import ssl
import threading
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from plait.train.checkpoint.stores import Fill, ObjectMissing, StoreFailed

TIMEOUT_S = 60.0
Answer = tuple[http.client.HTTPConnection, http.client.HTTPResponse]
_VALID = timedelta(hours=1)


class DirectImpossible(Exception):
    """This store is not to be read so: it signs nothing, or a proxy stands before it."""


class DirectReader:
    """Reads ranges of a store's objects into memory, over as many connections as there are readers at a time."""

    def __init__(self, client: Callable[[], Any]) -> None:
        """Opens nothing yet; ``client`` returns the store's obstore client in this process."""
        self._client = client
        self._idle: list[http.client.HTTPConnection] = []
        self._urls: dict[str, str] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def _signed(self, key: str) -> str:
        import obstore

        with self._lock:
            if key not in self._urls:
                try:
                    self._urls = {key: str(obstore.sign(self._client(), "GET", key, _VALID))}
                except Exception as error:  # whatever keeps obstore from signing: the other way is still there
                    raise DirectImpossible(f"requests cannot be signed: {error}") from error
            return self._urls[key]

    def _asked(self, url: str, first: int, end: int) -> Answer:
        """Returns a connection and its answer; one that the store has closed meanwhile is replaced."""
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        headers = {"Range": f"bytes={first}-{end - 1}"}
        while True:
            with self._lock:
                used = self._idle.pop() if self._idle else None
            connection = used or _connection(parts.scheme, parts.netloc.rpartition("@")[2])
            try:
                connection.request("GET", target, headers=headers)
                return connection, connection.getresponse()
            except ssl.SSLError as error:  # a store with a certificate of its own: obstore may know it
                connection.close()
                raise DirectImpossible(str(error)) from error
            except (OSError, http.client.HTTPException):
                connection.close()
                if used is None:
                    raise

    @contextlib.contextmanager
    def stream(self, key: str, first: int, end: int) -> Iterator[Fill]:
        """Yields what fills memory with the next bytes of the range ``[first, end)``.

        Raises:
            DirectImpossible: It has to be read in another way.
            ObjectMissing: There is no such object.
            StoreFailed: The connection failed, or the store did.
        """
        with _told(key):
            connection, response = self._asked(self._signed(key), first, end)
        is_over = False
        try:
            _check(response, key, end - first)
            with _told(key):
                yield partial(_fill, response, key)
            is_over = response.isclosed()
        finally:
            if is_over:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()
    connections.clear()


def _connection(scheme: str, host: str) -> http.client.HTTPConnection:
    if urllib.request.getproxies().get(scheme) and not urllib.request.proxy_bypass(host):
        raise DirectImpossible(f"a proxy stands before {host}")
    if scheme == "https":
        return http.client.HTTPSConnection(host, timeout=TIMEOUT_S, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, timeout=TIMEOUT_S)


@contextlib.contextmanager
def _told(key: str) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise StoreFailed(f"{key}: {error or type(error).__name__}") from error


def _fill(response: http.client.HTTPResponse, key: str, memory: memoryview) -> None:
    at = 0
    while at < len(memory):
        count = response.readinto(memory[at:])
        if not count:
            raise StoreFailed(f"{key}: the answer ended {len(memory) - at} bytes early")
        at += count


def _check(response: http.client.HTTPResponse, key: str, num_bytes: int) -> None:
    if response.status == http.client.NOT_FOUND:
        raise ObjectMissing(f"{key} does not exist")
    if response.status in {http.client.OK, http.client.FORBIDDEN, http.client.MOVED_PERMANENTLY}:
        # The whole object, or an answer that obstore may know better what to make of.
        raise DirectImpossible(f"{key}: the answer to a signed request for a part is {response.status}")
    if response.status != http.client.PARTIAL_CONTENT:
        raise StoreFailed(f"{key}: the store answers {response.status} {response.reason}")
    if response.length != num_bytes:
        raise DirectImpossible(f"{key}: {response.length} bytes are said to come instead of {num_bytes}")
