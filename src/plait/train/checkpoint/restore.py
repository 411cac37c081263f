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

from plait.train.checkpoint.catalogue import UNREADABLE, Catalogue
from plait.train.checkpoint.checkpointer import CheckpointDamaged, LoadedCheckpoint
from plait.train.checkpoint.commit import CommitName
from plait.train.checkpoint.index import Index, TensorPlace, decoded, joined_values, tensor_names
from plait.train.checkpoint.manifest import Manifest
from plait.train.checkpoint.segment import Segment
from plait.train.checkpoint.stores import Buffer
from plait.train.checkpoint.tree import described, padding_bytes, rebuilt

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
    tensors = _targets(index.tensors, into)
    order = sorted(range(len(tensors)), key=lambda number: index.tensors[number].offset)
    starts = [index.tensors[number].offset for number in order]
    filled = [tensors[number].numpy() for number in order]

    def take(first: int, part: Buffer) -> None:
        data = np.frombuffer(part, dtype=np.uint8)
        end = first + len(data)
        for number in range(max(bisect_right(starts, first) - 1, 0), bisect_left(starts, end)):
            start = starts[number]
            low, high = max(start, first), min(start + len(filled[number]), end)
            if low < high:
                filled[number][low - start : high - start] = data[low - first : high - first]

    repository.read(receipt, index, [(0, receipt.data_bytes)], take)
    return state_of(index, tensors)


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


def load(
    repository: Catalogue, step: int | None = None, *, into: Any = None
) -> tuple[LoadedCheckpoint, CommitName] | None:
    """Returns the newest checkpoint that is as it was written, or that of ``step``; None where there is none.

    ``into`` is a state whose tensors may be filled, as :func:`read_state` says.

    Raises:
        CheckpointDamaged: There are checkpoints, but all (or that of ``step``) are damaged.
        StoreFailed: The store does not answer. Nobody goes on from an older checkpoint for that.
    """
    skipped: list[str] = []
    tried: set[CommitName] = set()
    while True:
        fresh = [n for n in repository.names() if n not in tried and (step is None or n.step == step)]
        if not fresh:
            break
        # What was removed while we read is listed again without it, and newer ones may be there instead.
        name = fresh[0]
        tried.add(name)
        try:
            state = read_state(repository, repository.complete(name), into=into)
            return LoadedCheckpoint(name.step, state, tuple(skipped)), name
        except UNREADABLE as error:
            skipped.append(f"checkpoint {name.key} of {repository.store.url} is damaged: {error}")
            _log.warning("%s", skipped[-1])
    if skipped or step is not None:
        raise CheckpointDamaged("; ".join(skipped) or f"{repository.store.url} holds no checkpoint of step {step}")
    return None


def snapshot_state(segment: Segment) -> tuple[int, int, Any] | None:
    """Returns (generation, step, state) of the newest whole snapshot in a segment, copied out of it; None if none."""
    slot = segment.newest()
    record = segment.record(slot) if slot is not None else None
    if slot is None or record is None:
        return None
    index = decoded(segment.index(slot, record.index_bytes))
    data = new_bytes(record.data_bytes)
    data.numpy()[:] = np.frombuffer(segment.data(slot)[: record.data_bytes], dtype=np.uint8)
    if segment.record(slot) != record:
        return None
    return (
        record.generation,
        record.step,
        state_of(index, [data[place.offset : place.offset + place.num_bytes] for place in index.tensors]),
    )
