"""What Linux tells about processes, and the few calls that tie their lives together."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One line of ``/proc/PID/stat``. ``state`` is the kernel's letter: R, S, D, T (stopped), t (traced), Z ..."""

    pid: int
    state: str
    parent: int
    group: int
    session: int


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")


def adopt_orphans() -> None:
    """Makes this process the new parent of descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, with_signal: signal.Signals = signal.SIGKILL) -> None:
    """Ends this process when the thread that forked it ends; at once where the parent is gone already."""
    _prctl(_PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent:
        os.kill(os.getpid(), with_signal)


def read_state(pid: int) -> ProcessState | None:
    """Returns the state of a process, or None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name stands in brackets and may hold blanks and brackets itself.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessState(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]))


def is_alive(pid: int) -> bool:
    """Says whether the process exists and has not ended (a zombie has)."""
    state = read_state(pid)
    return state is not None and state.state not in "ZX"


def all_processes() -> Iterator[ProcessState]:
    """Yields every process of this machine that can be seen."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 - scandir over /proc is slower and gives nothing more
        if entry.isdigit():
            state = read_state(int(entry))
            if state is not None:
                yield state


def descendants(root: int) -> tuple[ProcessState, ...]:
    """Returns all processes below ``root``, parents before their children; zombies too."""
    children: dict[int, list[ProcessState]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[ProcessState] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found.extend(below)
        queue.extend(process.pid for process in below)
    return tuple(found)


def environment_of(pid: int) -> dict[str, str]:
    """Returns the environment that a process was started with; empty for one that ended or belongs to others."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.split(b"=", 1) for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, value in pairs}


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def send_group(group: int, number: signal.Signals) -> None:
    """Sends a signal to a process group; a group that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def reap_others(mine: frozenset[int]) -> None:
    """Takes the exit status of ended children that are not ``mine`` (those whose owner waits for them)."""
    for child in child_pids():
        if child not in mine:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def child_pids() -> tuple[int, ...]:
    """Returns the children of this process, adopted ones and zombies too."""
    me = os.getpid()
    try:
        text = Path(f"/proc/{me}/task/{me}/children").read_text(encoding="ascii")
    except OSError:  # a kernel without this file
        return tuple(process.pid for process in all_processes() if process.parent == me)
    return tuple(int(pid) for pid in text.split())


def kill_all_below(root: int, patience_s: float, reap: Callable[[], None] | None = None) -> bool:
    """Kills every descendant of ``root`` again and again until none lives; returns whether that succeeded."""
    deadline = time.monotonic() + patience_s
    while True:
        if reap is not None:
            reap()
        living = [process for process in descendants(root) if process.state not in "ZX"]
        if not living:
            return True
        for process in living:
            send(process.pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
