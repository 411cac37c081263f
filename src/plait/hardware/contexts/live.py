"""The host that this process runs on."""

import os
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence

from plait.hardware.context import CommandResult

TIMED_OUT = 124
"""Exit status of a command that was stopped at the time limit, as ``timeout(1)`` gives it."""

_LARGEST_FILE_BYTES = 16 << 20
_AFTERLIFE_S = 1.0
"""How long a killed tool may take to let go of its output; one that sleeps in its driver never does."""


class LiveContext:
    """This host, read only; tools run with a time limit and are killed with their children when they hang."""

    def __init__(self, *, time_limit_s: float = 5.0, env: Mapping[str, str] | None = None) -> None:
        """Sets the seconds that one command may take, and the variables it sees (default: those of this process)."""
        self.env: Mapping[str, str] = dict(os.environ if env is None else env)
        self._time_limit_s = time_limit_s

    def read(self, path: str) -> bytes | None:
        """Returns the file's bytes, ``None`` where it cannot be read or is no regular file."""
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a device or a pipe could block for ever
                return None
            with open(path, "rb") as file:  # noqa: PTH123 - thousands of small files a scan: plain calls
                return file.read(_LARGEST_FILE_BYTES)
        except (OSError, ValueError):
            return None

    def list(self, path: str) -> tuple[str, ...]:
        """Returns the names in a directory, sorted; empty where it cannot be read."""
        try:
            return tuple(sorted(os.listdir(path)))  # noqa: PTH208
        except (OSError, ValueError):
            return ()

    def link(self, path: str) -> str | None:
        """Returns the absolute path that this path resolves to with links followed, ``None`` where it is missing."""
        try:
            return os.path.realpath(path, strict=True)
        except (OSError, ValueError):
            return None

    def run(self, argv: Sequence[str]) -> CommandResult:
        """Runs a tool with ``LC_ALL=C`` and no input.

        The status is 127 where there is no such command, 126 where it may not be started, 124 where it was stopped at
        the time limit.
        """
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self.env, "LC_ALL": "C"},
                start_new_session=True,
            )
        except FileNotFoundError:
            return CommandResult(127, "", f"{argv[0]}: command not found")
        except OSError as error:
            return CommandResult(126, "", f"{argv[0]}: {error.strerror or error}")
        try:
            out, err = process.communicate(timeout=self._time_limit_s)
        except subprocess.TimeoutExpired:
            return CommandResult(TIMED_OUT, *_stop(process, argv[0], self._time_limit_s))
        return CommandResult(process.returncode, _text(out), _text(err))


def _stop(process: subprocess.Popen[bytes], name: str, limit_s: float) -> tuple[str, str]:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    out = b""
    try:
        out, _ = process.communicate(timeout=_AFTERLIFE_S)
    except subprocess.TimeoutExpired as error:
        out = error.stdout or b""
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return _text(out), f"{name}: stopped after {limit_s:g} s without an answer"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
