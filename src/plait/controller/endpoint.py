"""How others find a controller: two small files in its state directory, and the lock that keeps it the only one."""

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from plait.errors import ControllerUnreachable, PlaitError

ENDPOINT_NAME = "endpoint.json"
TOKEN_NAME = "token"  # noqa: S105 -- the name of a file, not a secret
LOCK_NAME = "controller.lock"


class ControllerAlreadyRuns(PlaitError):
    """Another controller holds this state directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a controller listens: ``api`` is an HTTP URL, ``agents`` is ``host:port``."""

    api: str
    agents: str
    pid: int


def write_endpoint(directory: Path, endpoint: Endpoint) -> None:
    """Publishes the endpoint; a reader sees the old file or the new one, never half of it."""
    _replace(directory / ENDPOINT_NAME, json.dumps(asdict(endpoint)) + "\n", mode=0o644)


def read_endpoint(directory: Path) -> Endpoint:
    """Returns the endpoint of the controller that last ran here; it may be dead."""
    path = directory / ENDPOINT_NAME
    try:
        return Endpoint(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ControllerUnreachable(f"no controller has run in {directory}: {ENDPOINT_NAME} is missing") from None
    except (ValueError, TypeError, OSError) as error:
        raise ControllerUnreachable(f"{path}: cannot be read: {error}") from error


def ensure_token(directory: Path) -> str:
    """Returns this state directory's token, made on first use and readable by its owner only."""
    path = directory / TOKEN_NAME
    if not path.exists():
        _replace(path, secrets.token_urlsafe(32) + "\n", mode=0o600)
    return read_token(directory)


def read_token(directory: Path) -> str:
    """Returns the token; raises ControllerUnreachable where there is none to read."""
    path = directory / TOKEN_NAME
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ControllerUnreachable(f"{path}: the controller's token cannot be read: {error.strerror}") from error


class StateLock:
    """Held by the one controller of a state directory; the kernel lets go of it when the process ends in any way."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / LOCK_NAME).open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise ControllerAlreadyRuns(f"{directory}: a controller with pid {holder} already runs here") from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Lets another controller take over."""
        self._file.close()


def _replace(path: Path, text: str, *, mode: int) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
