"""Lines of workers on their way into log files: whole lines, stamped, always valid UTF-8."""

import contextlib
import fcntl
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

Stream = Literal["out", "err"]
LONGEST_LINE_BYTES = 64 * 1024
_PIPE_BYTES = 1024 * 1024
_READ_BYTES = 64 * 1024
_F_SETPIPE_SZ = 1031


class LineCutter:
    """Cuts a stream of bytes into lines.

    Line feed, carriage return (progress bars) and both together end a line. One longer than ``LONGEST_LINE_BYTES`` is
    handed out in pieces, so that a worker that never ends its line cannot fill the agent's memory.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that ``data`` completes, without their ends."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        if data:
            self._after_return = data.endswith(b"\r")
        self._rest += data
        # A trailing \r may be the first half of \r\n; the second half is dropped above when it comes.
        *lines, rest = bytes(self._rest).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        while len(rest) > LONGEST_LINE_BYTES:
            lines.append(rest[:LONGEST_LINE_BYTES])
            rest = rest[LONGEST_LINE_BYTES:]
        self._rest = bytearray(rest)
        return lines

    def finish(self) -> list[bytes]:
        """Returns the last line where it had no end."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [rest] if rest else []


def stamped(at: datetime, stream: Stream, line: bytes) -> bytes:
    """Returns one line of a log file: UTC time, stream, text; bytes that are not UTF-8 are escaped."""
    text = line.decode("utf-8", "backslashreplace")
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}Z {stream} {text}\n".encode()


def _utc_now() -> datetime:
    return datetime.now(UTC)


class WorkerLog:
    """The log file of one worker, fed from the read ends of its two pipes."""

    def __init__(self, path: Path, now: Callable[[], datetime] = _utc_now) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file: BinaryIO | None = path.open("ab", buffering=0)
        self._now = now
        self._cutters: dict[Stream, LineCutter] = {"out": LineCutter(), "err": LineCutter()}
        self._num_unwritten = 0

    def write(self, stream: Stream, data: bytes) -> None:
        """Takes what came out of one stream."""
        self._put(stream, self._cutters[stream].feed(data))

    def note(self, text: str) -> None:
        """Adds a line of the agent's own."""
        self._put("err", [f"[plait] {text}".encode()])

    def tail(self, num_bytes: int) -> str:
        """Returns the end of what was written so far."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - num_bytes))
                return file.read(num_bytes).decode("utf-8", "replace")
        except OSError:
            return ""

    def close(self) -> None:
        """Writes unfinished lines and closes the file."""
        for stream, cutter in self._cutters.items():
            self._put(stream, cutter.finish())
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, stream: Stream, lines: list[bytes]) -> None:
        if not lines or self._file is None:
            return
        at = self._now()
        if self._num_unwritten:
            lines = [f"[plait] {self._num_unwritten} lines before this one could not be written".encode(), *lines]
        try:
            self._file.write(b"".join(stamped(at, stream, line) for line in lines))
            self._num_unwritten = 0
        except OSError:  # a full disk must stop neither the agent nor the training
            self._num_unwritten += len(lines)


def open_pipe() -> tuple[int, int]:
    """Returns (read end, write end) of a large pipe; reading does not block."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(write_end, _F_SETPIPE_SZ, _PIPE_BYTES)
    return read_end, write_end


def read_available(read_end: int) -> bytes | None:
    """Returns what the pipe holds now (``b""`` where it is empty), or None at its end."""
    try:
        return os.read(read_end, _READ_BYTES) or None
    except BlockingIOError:
        return b""
