"""The kernel's log from now on, where this process may read it; drivers tell there what they tell nobody else."""

import os
import time
from collections import deque
from pathlib import Path

_MOST_LINES = 500
_RECORD_BYTES = 8192
_WORDS = ("NVRM", "PCIe Bus Error", "amdgpu", "fallen off the bus")


class KernelLog:
    """Keeps the lines that may concern an accelerator."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=_MOST_LINES)
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:  # most containers have none
            self._file = -1

    def look(self, now_s: float | None = None) -> None:
        """Takes over what is new; called about once a second, and when a worker has ended."""
        now_s = time.monotonic() if now_s is None else now_s
        while self._file >= 0:
            try:
                record = os.read(self._file, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            except OSError:
                os.close(self._file)
                self._file = -1
                return
            if not record:
                return
            self.take(record.decode("utf-8", "replace"), now_s)

    def take(self, record: str, now_s: float) -> None:
        """Keeps the text of one record (``6,1234,5678,-;text``) where it may concern an accelerator."""
        text = record.partition(";")[2] or record
        self._lines.extend((now_s, line) for line in text.splitlines() if any(word in line for word in _WORDS))

    def since(self, from_s: float) -> tuple[str, ...]:
        """Returns the lines that came after this time."""
        return tuple(line for at_s, line in self._lines if at_s >= from_s)
