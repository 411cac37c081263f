"""Where a worker stands, in memory that it shares with its warden: to say so costs neither of them a wake-up."""

import mmap
import os
import struct

PHASES = ("starting", "computing", "exchanging", "regrouping", "measuring")
_FORM = struct.Struct("<qq")


class Pulse:
    """One step number and one phase; the worker writes, the warden reads when it sends a heartbeat."""

    def __init__(self, handle: int) -> None:
        """``handle`` is that of :func:`new_pulse`, in this process or inherited."""
        self._memory = mmap.mmap(handle, _FORM.size)

    def write(self, step: int, phase: str) -> None:
        """Says where the worker is."""
        _FORM.pack_into(self._memory, 0, step, PHASES.index(phase))

    def read(self) -> tuple[int, str]:
        """Returns what was written last; step and phase may be of two writes that followed each other."""
        step, phase = _FORM.unpack_from(self._memory, 0)
        return step, PHASES[phase % len(PHASES)]


def new_pulse() -> int:
    """Returns the file descriptor of fresh shared memory for a :class:`Pulse`."""
    handle = os.memfd_create("plait-pulse")
    os.ftruncate(handle, _FORM.size)
    return handle
