"""An HTTP proxy on loopback that fails as told: server errors before a request is passed on, or answers lost after it.

What a client sees then is what it would see of a real store: a status, or a connection that ends without an answer
although the store has done what it was asked.
"""

import contextlib
import http.client
import random
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_HOP = {"connection", "transfer-encoding", "keep-alive"}


class FaultProxy:
    """Stands between clients and one server."""

    def __init__(self, upstream: str, seed: int) -> None:
        self.fault: str | None = None
        self.chance = 0.0
        self.struck: Counter[str] = Counter()
        self._upstream = urlsplit(upstream).netloc
        self._random = random.Random(seed)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

            def do_any(self) -> None:
                proxy.serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any  # noqa: N815 - names of http.server

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def strike(self, fault: str | None, chance: float = 0.0) -> None:
        """From now on each request fails so with this chance."""
        self.fault, self.chance = fault, chance

    def close(self) -> None:
        """Stops."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        """Passes one request on, or not, and its answer back, or not."""
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        is_hit = self.fault is not None and self._random.random() < self.chance
        if is_hit and self.fault == "server_errors":
            self.struck["server_errors"] += 1
            _answer(request, 503, [], b"<Error><Code>SlowDown</Code></Error>")
            return
        connection = http.client.HTTPConnection(self._upstream, timeout=60.0)
        try:
            # The signature covers the host that the client has asked, so that header goes on as it came.
            connection.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in _HOP:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if is_hit and self.fault == "lost_answers":
            self.struck["lost_answers"] += 1
            request.close_connection = True
            return
        _answer(request, answer.status, answer.getheaders(), data)


def _answer(request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
    length = str(len(data))
    request.send_response_only(status)
    for name, value in headers:
        if name.lower() == "content-length":
            length = value  # of the object, also where a HEAD has no body
        elif name.lower() not in _HOP:
            request.send_header(name, value)
    request.send_header("Content-Length", length)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(data)


@contextlib.contextmanager
def fault_proxy(upstream: str, seed: int) -> Iterator[FaultProxy]:
    """Yields a proxy before a server."""
    proxy = FaultProxy(upstream, seed)
    try:
        yield proxy
    finally:
        proxy.close()
