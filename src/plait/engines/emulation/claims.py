"""Names and numbers of this machine that belong to one cluster for as long as any of its processes lives.

A claim is a locked file. The lock belongs to the open file description, so processes that inherit the descriptor hold
it too, and the kernel lets go of it when the last of them ends, however that happens.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from plait.errors import PlaitError


def claims_directory() -> Path:
    """Returns where claims lie, made if need be: one place a user and machine."""
    if os.geteuid() == 0:
        directory = Path("/run/plait")
    else:
        directory = Path(tempfile.gettempdir()) / f"plait-{os.getuid()}" / "claims"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory


class Claim:
    """One held claim. ``descriptor`` is to be inherited by the processes that need what it stands for."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def close(self) -> None:
        """Lets go of this process's part; the file goes where nobody else holds it."""
        os.close(self.descriptor)
        if forgotten := try_exclusive(self.path):
            forgotten.remove()

    def remove(self) -> None:
        """Deletes the file of a claim that nobody else can hold, and lets go."""
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)


def _lock(path: Path, flags: int, operation: int) -> Claim | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except (FileNotFoundError, FileExistsError):
        return None
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        # Between opening and locking, the file may have been removed by who thought that it was nobody's.
        is_same = os.fstat(descriptor).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        is_same = False
    if not is_same:
        os.close(descriptor)
        return None
    return Claim(path, descriptor)


def claim(name: str, directory: Path | None = None) -> Claim | None:
    """Takes a new claim; None where somebody holds it."""
    path = (directory or claims_directory()) / f"{name}.lock"
    if forgotten := try_exclusive(path):
        forgotten.remove()
    return _lock(path, os.O_CREAT | os.O_EXCL, fcntl.LOCK_SH)


def join_claim(name: str, directory: Path | None = None) -> Claim | None:
    """Joins a claim that processes of the same cluster still hold, or takes it where nobody does."""
    path = (directory or claims_directory()) / f"{name}.lock"
    return _lock(path, os.O_CREAT, fcntl.LOCK_SH)


def try_exclusive(path: Path) -> Claim | None:
    """Returns the claim where its file lies there and nobody holds it any more, else None."""
    return _lock(path, 0, fcntl.LOCK_EX)


@contextlib.contextmanager
def alone(name: str, directory: Path | None = None, within_s: float = 10.0) -> Iterator[None]:
    """Waits until nobody else does what goes by this name, and keeps others out meanwhile.

    Raises:
        PlaitError: Somebody kept on doing it for ``within_s`` seconds.
    """
    deadline = time.monotonic() + within_s
    while (held := claim(name, directory)) is None:
        if time.monotonic() > deadline:
            raise PlaitError(f"another process of this machine has held {name!r} for {within_s:g} s")
        time.sleep(0.01)
    try:
        yield
    finally:
        held.close()
