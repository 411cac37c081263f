"""From a checkpoint or a snapshot in shared memory back to a state."""

import contextlib
import logging
import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plait.train.checkpoint.catalogue import Catalogue
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.index import Index, TensorPlace, decoded, joined_values, tensor_names
from plait.train.checkpoint.manifest import Manifest
from plait.train.checkpoint.segment import Segment
from plait.train.checkpoint.stores import Buffer
from plait.train.checkpoint.tree import bytes_of, described, padding_bytes, rebuilt

_log = logging.getLogger(__name__)

_LARGE_PAGE_BYTES = 2**21


def state_of(index: Index, tensors: Sequence[Tensor]) -> Any:
    """Returns the state of an index over its tensors, given in order of their numbers as flat bytes.

    Raises:
        CheckpointDamaged: The index is not of a state.
    """
    given = iter(tensors)
    try:
        return rebuilt(joined_values(index.form, index.values), lambda _num_bytes: next(given))
    except (ValueError, TypeError, IndexError, StopIteration, RuntimeError) as error:
        raise CheckpointDamaged(f"the index does not describe a state: {error!r}") from error


def read_state(repository: Catalogue, manifest: Manifest, rank: int = 0, *, into: Any = None) -> Any:
    """Returns the verified state that one rank has saved.

    Args:
        repository: Where from.
        manifest: The checkpoint.
        rank: Whose file.
        into: A state whose tensors of the same name, type and shape, in one piece in the memory of the CPU, receive the
            bytes and are in the returned state; this saves new memory, which takes longer to get than to fill. After
            an error they hold anything.

    Raises:
        CheckpointDamaged: Some byte is not as it was written.
    """
    receipt = next((r for r in manifest.receipts if r.rank == rank), None)
    if receipt is None:
        raise CheckpointDamaged(f"the checkpoint of step {manifest.step} holds nothing of rank {rank}")
    index = repository.index(receipt)
    target = Filling(index, into)
    repository.read_whole(receipt, index, target.place, target.take)
    return state_of(index, target.tensors)


class Filling:
    """Memory for the bytes of an index: that of a state which is there, and new one."""

    def __init__(self, index: Index, into: Any) -> None:
        """``into`` is as in :func:`read_state`."""
        self.tensors = _targets(index.tensors, into)
        order = sorted(range(len(self.tensors)), key=lambda number: index.tensors[number].offset)
        self._starts = [index.tensors[number].offset for number in order]
        self._filled = [bytes_of(self.tensors[number]) for number in order]

    def place(self, first: int, end: int) -> list[memoryview]:
        """Returns where the bytes ``[first, end)`` of the file go; what belongs to no tensor goes nowhere."""
        found, at = [], first
        for number in range(max(bisect_right(self._starts, first) - 1, 0), bisect_left(self._starts, end)):
            start, memory = self._starts[number], self._filled[number]
            low, high = max(start, at), min(start + len(memory), end)
            if low < high:
                if at < low:
                    found.append(memoryview(bytearray(low - at)))
                found.append(memory[low - start : high - start])
                at = high
        if at < end:
            found.append(memoryview(bytearray(end - at)))
        return found

    def take(self, first: int, part: Buffer) -> None:
        """Puts a stretch of the file where it belongs; stretches may come from several threads and in any order."""
        data, at = np.frombuffer(part, dtype=np.uint8), 0
        for piece in self.place(first, first + len(data)):
            np.frombuffer(piece, dtype=np.uint8)[:] = data[at : at + len(piece)]
            at += len(piece)


def _targets(places: Sequence[TensorPlace], into: Any) -> list[Tensor]:
    """Returns the flat bytes to fill for each place: those of the given state that fit, and new ones."""
    found = [_fitting(place, tensor) for place, tensor in zip(places, _named(places, into), strict=True)]
    lacking = [place.num_bytes for place, flat in zip(places, found, strict=True) if flat is None]
    fresh, at, tensors = new_bytes(sum(size + padding_bytes(size) for size in lacking)), 0, []
    for place, flat in zip(places, found, strict=True):
        if flat is None:
            tensors.append(fresh[at : at + place.num_bytes])
            at += place.num_bytes + padding_bytes(place.num_bytes)
        else:
            tensors.append(flat)
    return tensors


def _named(places: Sequence[TensorPlace], into: Any) -> list[Tensor | None]:
    if into is None:
        return [None] * len(places)
    form, tensors = described(into)
    by_name = dict(zip(tensor_names(form), tensors, strict=True))
    return [by_name.get(place.name) for place in places]


def _fitting(place: TensorPlace, tensor: Tensor | None) -> Tensor | None:
    if tensor is None or tensor.device.type != "cpu" or not tensor.is_contiguous() or not place.num_bytes:
        return None
    if tensor.is_conj() or tensor.is_neg() or str(tensor.dtype).removeprefix("torch.") != place.dtype:
        return None
    return tensor.view(-1).view(torch.uint8) if tuple(tensor.shape) == place.shape else None


def new_bytes(num_bytes: int) -> Tensor:
    """Returns new memory, in large pages where the kernel has them: a restore waits longer for pages than for bytes."""
    if num_bytes < _LARGE_PAGE_BYTES:
        return torch.empty(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, -(-num_bytes // _LARGE_PAGE_BYTES) * _LARGE_PAGE_BYTES)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:num_bytes]


def snapshot_state(segment: Segment, *, into: Any = None) -> tuple[int, int, Any] | None:
    """Returns (generation, step, state) of the newest whole snapshot in a segment, copied out of it; None if none.

    ``into`` is as in :func:`read_state`; where a slot was written meanwhile, its tensors hold anything.
    """
    slot = segment.newest()
    record = segment.record(slot) if slot is not None else None
    if slot is None or record is None:
        return None
    index = decoded(segment.index(slot, record.index_bytes))
    target = Filling(index, into)
    target.take(0, segment.data(slot)[: record.data_bytes])
    if segment.record(slot) != record:
        return None
    return record.generation, record.step, state_of(index, target.tensors)
