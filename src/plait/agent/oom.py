"""Evidence that the kernel killed for want of memory: its own counters, never its log."""

from collections import deque
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def _counter_in(path: Path, name: str) -> int | None:
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return None


def counter_files(own_cgroups: str, root: Path = _ROOT) -> tuple[Path, ...]:
    """Returns files that may hold this process's ``oom_kill`` counter, the most exact first.

    Args:
        own_cgroups: The text of ``/proc/self/cgroup``.
        root: Where the cgroup hierarchies are mounted.
    """
    files: list[Path] = []
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        relative = path.lstrip("/")
        if "memory" in controllers.split(","):
            files.append(root / "memory" / relative / "memory.oom_control")
        elif not controllers:
            files.append(root / relative / "memory.events")
    return (*files, Path("/proc/vmstat"))


class OomCounter:
    """Reads the kernel's count of out-of-memory kills and remembers its last values."""

    def __init__(self, files: tuple[Path, ...] | None = None) -> None:
        if files is None:
            files = counter_files(Path("/proc/self/cgroup").read_text(encoding="utf-8"))
        self._file = next((file for file in files if _counter_in(file, "oom_kill") is not None), None)
        # A process takes a while to end after the kernel has counted it, so the value before last is the base.
        self._seen: deque[int] = deque([self.read()], maxlen=2)

    def read(self) -> int:
        """Returns the present count; 0 where the kernel gives none."""
        return (_counter_in(self._file, "oom_kill") or 0) if self._file is not None else 0

    def sample(self) -> None:
        """Remembers the present count; called about once a second."""
        self._seen.append(self.read())

    def rose(self) -> bool:
        """Says whether the kernel has killed for memory since the sample before last."""
        return self.read() > self._seen[0]
