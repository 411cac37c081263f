"""What two nodes exchange over TCP: one answers, the other measures both directions and the latency."""

import contextlib
import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plait.errors import PlaitError

_CHUNK_BYTES = 1 << 18
_PINGS = 100
_LONGEST_ROUND_S = 60.0
_PATIENCE_S = 10.0
_MOST_STREAMS = 16
_GREETING = "plait-probe-1"


class PeerUnreachable(PlaitError):
    """The other node does not answer, or speaks something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMeasurement:
    """Between two nodes: bytes/s out and back by the better number of streams, and the one-way latency."""

    out_bytes_per_s: float
    back_bytes_per_s: float
    latency_s: float
    streams: int
    relative_error: float


class Answerer:
    """Answers measurements on an address until closed; it discards what it gets and sends zeros."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listens at once.

        Args:
            host: The address to listen on; anybody who reaches it may make this node send and receive.
            port: 0 takes a free one.
        """
        self._server = socket.create_server((host, port))
        self._server.settimeout(0.2)
        self._is_closed = threading.Event()
        self._workers: list[threading.Thread] = []
        self.rounds = 0
        self._counting = threading.Lock()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.getsockname()[:2]
        return str(host), int(port)

    def serve(self) -> None:
        """Answers until :meth:`close` is called or a peer says that it is done."""
        while not self._is_closed.is_set():
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                break
            worker = threading.Thread(target=self._answer, args=(connection,), daemon=True)
            worker.start()
            self._workers.append(worker)
        for worker in self._workers:
            worker.join(_PATIENCE_S)

    def close(self) -> None:
        """Stops listening; rounds under way end."""
        self._is_closed.set()
        self._server.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, KeyError):
            connection.settimeout(_PATIENCE_S)
            asked = json.loads(_line(connection))
            if asked["greeting"] != _GREETING:
                return
            seconds = min(float(asked.get("seconds", 0.0)), _LONGEST_ROUND_S)
            connection.sendall(b"{}\n")
            with self._counting:
                self.rounds += 1
            match asked["do"]:
                case "receive":
                    _receive(connection)
                    connection.sendall(b"!")
                case "send":
                    _send(connection, seconds)
                    connection.shutdown(socket.SHUT_WR)
                    _line(connection)
                case "echo":
                    while data := connection.recv(64):
                        connection.sendall(data)
                case "done":
                    self.close()


def measure_peer(
    host: str, port: int, *, seconds: float = 4.0, streams: Sequence[int] = (1, 4), is_last: bool = False
) -> PeerMeasurement:
    """Measures the way to a node that answers and back.

    Args:
        host: Of the answering node.
        port: Likewise.
        seconds: For everything together.
        streams: Numbers of connections to try at once; the best counts.
        is_last: Whether the other side may stop answering afterwards.

    Raises:
        PeerUnreachable: nobody answers there, or it stopped.
    """
    counts = [min(count, _MOST_STREAMS) for count in streams]
    share = seconds / (2 * len(counts) + 0.5)
    try:
        latency = _latency(host, port)
        out = {count: _rates(host, port, "receive", count, share) for count in counts}
        back = {count: _rates(host, port, "send", count, share) for count in counts}
        if is_last:
            with _ask(host, port, "done", 0.0):
                pass
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise PeerUnreachable(f"no answer to a measurement from {host}:{port}: {reason}") from error
    best = max(counts, key=lambda count: out[count][0] + back[count][0])
    spread = max(out[best][1], back[best][1])
    return PeerMeasurement(
        out_bytes_per_s=out[best][0],
        back_bytes_per_s=back[best][0],
        latency_s=latency,
        streams=best,
        relative_error=spread,
    )


def _rates(host: str, port: int, do: str, count: int, seconds: float) -> tuple[float, float]:
    """Returns bytes/s of all streams together, and how far the halves of the time differ."""
    found: list[list[tuple[float, int]]] = [[] for _ in range(count)]
    failures: list[OSError | ValueError] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            with _ask(host, port, do, seconds) as connection:
                start.wait(_PATIENCE_S)
                if do == "receive":
                    found[number] = _send(connection, seconds)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1)  # until the other side has everything
                    found[number].append((time.monotonic(), 0))
                else:
                    found[number] = _receive(connection)
                    connection.sendall(b"\n")
        except (OSError, ValueError) as error:
            failures.append(error)
            start.abort()
        except threading.BrokenBarrierError:
            pass

    workers = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds + 3 * _PATIENCE_S)
    if failures:
        raise failures[0]
    marks = sorted(mark for marks in found for mark in marks)
    if len(marks) < 2 or marks[-1][0] <= marks[0][0]:
        raise ValueError("the connection ended before anything was measured")
    return _steady_rate(marks)


def _steady_rate(marks: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Returns the rate after the first fifth of the time, in which windows open and bursts drain, and its spread."""
    first, last = marks[0][0], marks[-1][0]
    begin = first + 0.2 * (last - first)
    late = [(at, size) for at, size in marks if at > begin]
    rate = sum(size for _, size in late) / (last - begin)
    middle = begin + (last - begin) / 2
    halves = [
        sum(size for at, size in late if low < at <= high) / (high - low)
        for low, high in ((begin, middle), (middle, last))
    ]
    return rate, max(0.02, abs(halves[0] - halves[1]) / max(2 * rate, 1.0))


def _latency(host: str, port: int) -> float:
    times = []
    with _ask(host, port, "echo", 0.0) as connection:
        for _ in range(_PINGS):
            begun = time.monotonic()
            connection.sendall(b"12345678")
            got = 0
            while got < 8:
                got += len(connection.recv(8 - got)) or 8
            times.append(time.monotonic() - begun)
    return statistics.median(times) / 2


@contextlib.contextmanager
def _ask(host: str, port: int, do: str, seconds: float) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=_PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = {"greeting": _GREETING, "do": do, "seconds": seconds}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        if _line(connection) != b"{}":
            raise ValueError("it speaks something else")
        yield connection


def _send(connection: socket.socket, seconds: float) -> list[tuple[float, int]]:
    chunk = memoryview(bytes(_CHUNK_BYTES))
    end = time.monotonic() + seconds
    marks = [(time.monotonic(), 0)]
    while marks[-1][0] < end:
        size = connection.send(chunk)
        marks.append((time.monotonic(), size))
    return marks


def _receive(connection: socket.socket) -> list[tuple[float, int]]:
    buffer = bytearray(_CHUNK_BYTES)
    marks = [(time.monotonic(), 0)]
    while size := connection.recv_into(buffer):
        marks.append((time.monotonic(), size))
    return marks


def _line(connection: socket.socket) -> bytes:
    line = bytearray()
    while len(line) < 1000:
        byte = connection.recv(1)
        if not byte or byte == b"\n":
            break
        line += byte
    return bytes(line)
