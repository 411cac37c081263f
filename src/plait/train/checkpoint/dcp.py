"""PyTorch's distributed checkpoints (DCP) over Plait's store.

::

    dcp.save(state, storage_writer=PlaitWriter("s3://bucket/run", step=100))
    dcp.load(state, storage_reader=PlaitReader("s3://bucket/run"))

Each rank writes one safetensors file; the coordinator commits. A rank that loads reads only the rows it needs, in few
requests, on any number of ranks, and verifies every byte.
"""

import dataclasses
import io
import math
import mmap
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from plait.train.checkpoint.catalogue import UNREADABLE
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.commit import Retention
from plait.train.checkpoint.image import TensorSpec, file_image
from plait.train.checkpoint.index import Index, TensorPlace, places_of
from plait.train.checkpoint.manifest import Manifest, Receipt
from plait.train.checkpoint.repository import Claim, Repository
from plait.train.checkpoint.segment import pages
from plait.train.checkpoint.stores import Buffer, open_store
from plait.train.checkpoint.tree import raw_bytes

METADATA_RANK = 99_999
"""The file of this rank holds what DCP knows of the whole state."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where an item of DCP lies."""

    rank: int
    number: int


class PlaitWriter(StorageWriter):
    """Saves one step with ``dcp.save`` or ``dcp.async_save``."""

    def __init__(self, url: str, step: int, *, keep: int = 3, base_step: int | None = None) -> None:
        """Opens nothing yet, so that it may travel to another process.

        Args:
            url: Where checkpoints lie.
            step: The step that is saved.
            keep: How many of the last are kept.
            base_step: The step that this run goes on from; by default everything that counts goes on to count.
        """
        self.url, self.step, self._keep, self._base_step = url, step, keep, base_step
        self._claim: Claim | None = None
        self._prefix = ""
        self._rank = 0

    def _repository(self) -> Repository:
        return Repository(open_store(self.url), retention=Retention(last=self._keep))

    def reset(self, checkpoint_id: Any = None) -> None:
        """Forgets the save before; the place and the step are those of the constructor."""
        del checkpoint_id
        self._claim = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Takes the right to commit, on the coordinator."""
        del args
        self._rank = int(kwargs.get("rank") or 0)
        if is_coordinator:
            self._claim = self._repository().claim(self._base_step, lists_newer=self._base_step is None)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leaves the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tells all ranks under which prefix they write."""
        assert self._claim is not None
        prefix = self._repository().prefix(self._claim, self.step)
        return [dataclasses.replace(plan, storage_data=(prefix, rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's items as one safetensors file."""
        prefix, rank = cast("tuple[str, int]", plan.storage_data)
        tensors = [_tensor_of(item, planner) for item in plan.items]
        specs = [
            _spec(number, item, tensor) for number, (item, tensor) in enumerate(zip(plan.items, tensors, strict=True))
        ]
        image = file_image(specs)
        memory = mmap.mmap(-1, pages(image.num_bytes))
        memory[: len(image.header)] = image.header
        for tensor, offset in zip(tensors, image.offsets, strict=True):
            raw = raw_bytes(tensor)
            memory[offset : offset + len(raw)] = raw
        index = Index(form=None, values=(), tensors=_parts(plan.items, places_of(specs, image)))
        receipt = self._repository().write(prefix, rank, index, memoryview(memory), image.num_bytes)
        results = [
            WriteResult(index=item.index, size_in_bytes=spec.num_bytes, storage_data=(receipt, Stored(rank, number)))
            for number, (item, spec) in enumerate(zip(plan.items, specs, strict=True))
        ]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commits what all ranks have written."""
        assert self._claim is not None
        repository = self._repository()
        flat = [result for part in results for result in part]
        receipts = {receipt.rank: receipt for receipt, _ in (result.storage_data for result in flat)}
        prefix = next(iter(receipts.values())).data_key.rpartition("/")[0] + "/"
        document = {
            "state": {name: _described_metadata(value) for name, value in metadata.state_dict_metadata.items()},
            "planner": _described_planner(metadata.planner_data),
            "items": [
                [r.index.fqn, list(r.index.offset) if r.index.offset is not None else None, r.index.index,
                 r.storage_data[1].rank, r.storage_data[1].number]
                for r in flat
            ],
        }  # fmt: skip
        index = Index(form=document, values=(), tensors=())
        header = file_image(()).header
        about = repository.write(prefix, METADATA_RANK, index, header, len(header))
        ordered = [receipts[rank] for rank in sorted(receipts)]
        repository.commit(self._claim, self.step, prefix, [*ordered, about], written_s=time.time())
        repository.retain(self._claim)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Accepts any; the place is that of the constructor."""
        del checkpoint_id
        return True


def _tensor_of(item: WriteItem, planner: SavePlanner) -> Tensor:
    data = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        return torch.frombuffer(bytearray(cast("io.BytesIO", data).getbuffer()), dtype=torch.uint8)
    return cast("Tensor", data).detach()


def _spec(number: int, item: WriteItem, tensor: Tensor) -> TensorSpec:
    offset = item.index.offset
    name = item.index.fqn if offset is None or not any(offset) else f"{item.index.fqn}@{','.join(map(str, offset))}"
    return TensorSpec(
        name=name if name != "__metadata__" else f"{name}#{number}",
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        num_bytes=tensor.numel() * tensor.element_size(),
        item_bytes=tensor.element_size(),
    )


def _parts(items: list[WriteItem], places: tuple[TensorPlace, ...]) -> tuple[TensorPlace, ...]:
    parts = []
    for item, place in zip(items, places, strict=True):
        data = item.tensor_data
        if data is None:
            parts.append(place)
        else:
            parts.append(dataclasses.replace(place, global_shape=tuple(data.size), first=tuple(data.chunk.offsets)))
    return tuple(parts)


def _described_metadata(value: TensorStorageMetadata | BytesStorageMetadata) -> Any:
    if isinstance(value, BytesStorageMetadata):
        return "bytes"
    chunks = [[list(chunk.offsets), list(chunk.sizes)] for chunk in value.chunks]
    dtype = str(value.properties.dtype).removeprefix("torch.")
    return {"dtype": dtype, "requires_grad": value.properties.requires_grad, "size": list(value.size), "chunks": chunks}


def _metadata_of(described: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if described == "bytes":
        return BytesStorageMetadata()
    kind = getattr(torch, str(described["dtype"]), None)
    if not isinstance(kind, torch.dtype):
        raise CheckpointDamaged(f"{described['dtype']!r} is no type of tensors")
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=kind, requires_grad=bool(described["requires_grad"])),
        size=torch.Size(described["size"]),
        chunks=[ChunkStorageMetadata(torch.Size(first), torch.Size(sizes)) for first, sizes in described["chunks"]],
    )


def _described_planner(data: Any) -> Any:
    """Writes how DCP has flattened the state: each name's path, of strings and numbers."""
    if not isinstance(data, dict):
        return None
    return {name: [[isinstance(part, int), part] for part in path] for name, path in data.items()}


def _planner_of(described: Any) -> Any:
    if described is None:
        return None
    return {name: tuple(int(p) if is_int else str(p) for is_int, p in path) for name, path in described.items()}


class PlaitReader(StorageReader):
    """Loads with ``dcp.load``; ``bytes_read`` counts what came from the store."""

    def __init__(self, url: str, step: int | None = None) -> None:
        """Reads the newest checkpoint that is complete, or that of ``step``."""
        self.url, self.step = url, step
        self.bytes_read = 0
        self._manifest: Manifest | None = None
        self._metadata: Metadata | None = None

    def _repository(self) -> Repository:
        return Repository(open_store(self.url))

    def reset(self, checkpoint_id: Any = None) -> None:
        """Looks anew for the newest checkpoint at the next load."""
        del checkpoint_id
        self._manifest = self._metadata = None

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """Finds the checkpoint and returns what it holds.

        Raises:
            CheckpointDamaged: There is none that is complete.
        """
        del args, options  # not named kwargs: DCP would take that for metadata of each rank's own, and not synchronise
        repository = self._repository()
        faults = []
        for name in repository.names():
            if self.step is not None and name.step != self.step:
                continue
            try:
                manifest = repository.complete(name)
                about = next((r for r in manifest.receipts if r.rank == METADATA_RANK), None)
                if about is None:
                    raise CheckpointDamaged(f"{name.key} was not saved by DCP")
                document = repository.index(about).form
                self._manifest = manifest
                self._metadata = _metadata_from(document)
            except (*UNREADABLE, KeyError, TypeError, ValueError) as error:
                faults.append(str(error))
            else:
                return self._metadata
        raise CheckpointDamaged("; ".join(faults) or f"{self.url} holds no checkpoint of DCP")

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Takes what the coordinator has read."""
        del is_coordinator, args, kwargs
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Tells which checkpoint this rank has found."""
        assert self._manifest is not None
        found = (self._manifest.step, self._manifest.prefix)
        return dataclasses.replace(plan, storage_data=found)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leaves the plans as they are, if all ranks have found the same checkpoint.

        Raises:
            CheckpointDamaged: They have not: one was saved meanwhile, or a part of it is missing where some look.
        """
        found = [cast("tuple[int, str]", plan.storage_data) for plan in plans]
        if len(set(found)) > 1:
            steps = ", ".join(f"rank {rank} step {step}" for rank, (step, _) in enumerate(found))
            raise CheckpointDamaged(
                f"the newest complete checkpoint is not the same for all ranks ({steps}); load again, or all of them "
                f"PlaitReader({self.url!r}, step={min(step for step, _ in found)})"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads the rows that this rank needs, file by file.

        Raises:
            CheckpointDamaged: Some byte is not as it was written.
        """
        assert self._metadata is not None
        assert self._manifest is not None
        by_rank: dict[int, list[tuple[ReadItem, int]]] = defaultdict(list)
        for item in plan.items:
            stored = cast("Stored", self._metadata.storage_data[item.storage_index])
            by_rank[stored.rank].append((item, stored.number))
        receipts = {receipt.rank: receipt for receipt in self._manifest.receipts}
        for rank, wanted in by_rank.items():
            self._read_file(receipts[rank], wanted, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_file(self, receipt: Receipt, wanted: list[tuple[ReadItem, int]], planner: LoadPlanner) -> None:
        repository = self._repository()
        index = repository.index(receipt)
        asked = [_wanted_bytes(item, index.tensors[number]) for item, number in wanted]
        parts = [np.empty(end - first, dtype=np.uint8) for first, end in asked]

        def take(first: int, part: Buffer) -> None:
            data = np.frombuffer(part, dtype=np.uint8)
            for (begin, end), target in zip(asked, parts, strict=True):
                low, high = max(begin, first), min(end, first + len(data))
                if low < high:
                    target[low - begin : high - begin] = data[low - first : high - first]

        self.bytes_read += repository.read(receipt, index, asked, take)
        for (item, number), part in zip(wanted, parts, strict=True):
            _hand_over(item, index.tensors[number], part, planner)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Accepts any; the place is that of the constructor."""
        del checkpoint_id
        return True


def _metadata_from(document: Any) -> Metadata:
    state = {str(name): _metadata_of(value) for name, value in document["state"].items()}
    items = {}
    for fqn, offset, number, rank, place in document["items"]:
        key = MetadataIndex(fqn, torch.Size(offset) if offset is not None else None, number)
        items[key] = Stored(int(rank), int(place))
    return Metadata(state_dict_metadata=state, planner_data=_planner_of(document["planner"]), storage_data=items)


def _rows(item: ReadItem, place: TensorPlace) -> tuple[int, int]:
    """Returns the rows of a stored part that an item needs."""
    if not place.shape or item.type == LoadItemType.BYTE_IO:
        return 0, 1
    return int(item.storage_offsets[0]), int(item.storage_offsets[0] + item.lengths[0])


def _wanted_bytes(item: ReadItem, place: TensorPlace) -> tuple[int, int]:
    """Returns the bytes of the file that hold the rows an item needs."""
    if not place.shape or item.type == LoadItemType.BYTE_IO or not place.num_bytes:
        return place.offset, place.offset + place.num_bytes
    row_bytes = place.num_bytes // place.shape[0]
    first, end = _rows(item, place)
    return place.offset + first * row_bytes, place.offset + end * row_bytes


def _hand_over(item: ReadItem, place: TensorPlace, part: Any, planner: LoadPlanner) -> None:
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(part.tobytes()))
        return
    kind = cast("torch.dtype", getattr(torch, place.dtype))
    first, end = _rows(item, place)
    shape = (end - first, *place.shape[1:]) if place.shape else ()
    tensor = torch.from_numpy(part).view(kind).reshape(shape) if math.prod(shape) else torch.empty(shape, dtype=kind)
    for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        tensor = tensor.narrow(dim, 0 if dim == 0 else int(start), int(length))
    target = planner.resolve_tensor(item).detach()
    target.copy_(tensor)
    planner.commit_tensor(item, target)
