"""From a checkpoint or a snapshot in shared memory back to a state."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plait.train.checkpoint.checkpointer import CheckpointDamaged, LoadedCheckpoint
from plait.train.checkpoint.commit import CommitName
from plait.train.checkpoint.index import Index, TensorPlace, decoded, joined_values
from plait.train.checkpoint.manifest import Manifest
from plait.train.checkpoint.repository import UNREADABLE, Repository
from plait.train.checkpoint.segment import Segment
from plait.train.checkpoint.stores import Buffer
from plait.train.checkpoint.tree import rebuilt

_log = logging.getLogger(__name__)


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


def read_state(repository: Repository, manifest: Manifest, rank: int = 0) -> Any:
    """Returns the verified state that one rank has saved.

    Raises:
        CheckpointDamaged: Some byte is not as it was written.
    """
    receipt = next((r for r in manifest.receipts if r.rank == rank), None)
    if receipt is None:
        raise CheckpointDamaged(f"the checkpoint of step {manifest.step} holds nothing of rank {rank}")
    index = repository.index(receipt)
    data = np.empty(receipt.data_bytes, dtype=np.uint8)

    def take(first: int, part: Buffer) -> None:
        data[first : first + len(part)] = np.frombuffer(part, dtype=np.uint8)

    repository.read(receipt, index, [(0, receipt.data_bytes)], take)
    return state_of(index, [_flat(data, place) for place in index.tensors])


def _flat(data: "np.ndarray[Any, np.dtype[np.uint8]]", place: TensorPlace) -> Tensor:
    return torch.from_numpy(data[place.offset : place.offset + place.num_bytes])


def load(repository: Repository, step: int | None = None) -> tuple[LoadedCheckpoint, CommitName] | None:
    """Returns the newest checkpoint that is as it was written, or that of ``step``; None where there is none.

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
            return LoadedCheckpoint(name.step, read_state(repository, repository.complete(name)), tuple(skipped)), name
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
    data = np.empty(record.data_bytes, dtype=np.uint8)
    data[:] = np.frombuffer(segment.data(slot)[: record.data_bytes], dtype=np.uint8)
    if segment.record(slot) != record:
        return None
    return record.generation, record.step, state_of(index, [_flat(data, place) for place in index.tensors])
