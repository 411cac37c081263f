"""Saving beside training: the state is copied at once, and written by a thread of its own."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from plait.train.checkpoint.checkpointer import Checkpointer, LoadedCheckpoint


def copied(state: Any) -> Any:
    """Returns the state with all tensors copied to the CPU, safe from what training does next."""
    return tree_map(_copied, state)


def _copied(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_like(value, device="cpu", memory_format=torch.contiguous_format).copy_(value.detach())


class BackgroundCheckpointer:
    """A checkpointer around another one whose :meth:`save` returns as soon as the state is copied.

    One state is written at a time: a save that comes early waits for the one before. A state counts once
    :meth:`durable_step` says so.
    """

    def __init__(self, inner: Checkpointer) -> None:
        """Writes through ``inner``."""
        self._inner = inner
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plait-checkpoint")
        self._pending: Future[None] | None = None
        self._durable: int | None = None

    def save(self, state: Any, step: int) -> None:
        """Copies the state and hands it to the writer; raises what the save before has failed with."""
        self.wait()
        self._pending = self._writer.submit(self._write, copied(state), step)

    def _write(self, state: Any, step: int) -> None:
        self._inner.save(state, step)
        self._durable = step

    @property
    def durable_step(self) -> int | None:
        """The last step that this object has made durable."""
        return self._durable

    def wait(self) -> None:
        """Returns once nothing is being written; raises what a save has failed with."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits for what is being written and ends the thread."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def latest(self) -> int | None:
        """Returns the newest step once nothing is being written."""
        self.wait()
        return self._inner.latest()

    def load(self, step: int | None = None) -> LoadedCheckpoint | None:
        """Loads once nothing is being written."""
        self.wait()
        return self._inner.load(step)
