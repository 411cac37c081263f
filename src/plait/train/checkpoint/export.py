"""Checkpoints for others: safetensors as Hugging Face reads them, and one file of ``torch.save``."""

import json
from pathlib import Path

from plait.train.checkpoint.catalogue import UNREADABLE, Catalogue
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.image import TensorSpec, file_image
from plait.train.checkpoint.index import Index, TensorPlace
from plait.train.checkpoint.manifest import Manifest, Receipt
from plait.train.checkpoint.stores import Buffer

MODEL_PREFIX = "model."
MOST_FILE_BYTES = 5 * 10**9
"""Hugging Face's own limit for one file of weights."""


def newest_good(repository: Catalogue, step: int | None = None) -> Manifest:
    """Returns the newest checkpoint (or that of ``step``) after reading and verifying all of it.

    Raises:
        CheckpointDamaged: There is none.
    """
    faults = []
    for name in repository.names():
        if step is None or name.step == step:
            fault = repository.verify(name)
            if fault is None:
                return repository.manifest(name)
            faults.append(fault)
    what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    raise CheckpointDamaged("; ".join(faults) or f"{repository.store.url} holds {what}")


def to_safetensors(repository: Catalogue, manifest: Manifest, out: Path) -> list[Path]:
    """Writes the model's tensors under their own names, in files of at most 5 GB, with an index where there are more.

    Returns:
        The files written.

    Raises:
        CheckpointDamaged: The checkpoint holds no part called ``model``, or not as one whole.
    """
    receipt = manifest.receipts[0]
    index = repository.index(receipt)
    places = [place for place in index.tensors if place.name.startswith(MODEL_PREFIX)]
    if not places or len(manifest.receipts) > 1:
        raise CheckpointDamaged(f"the checkpoint of step {manifest.step} holds no whole part called model")
    groups = _groups(places)
    names = [
        "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        for number in range(1, len(groups) + 1)
    ]
    where: dict[str, str] = {}
    for name, group in zip(names, groups, strict=True):
        image = file_image([_spec(place) for place in group], {"format": "pt"})
        offsets = dict(zip([place.name for place in group], image.offsets, strict=True))
        with (out / name).open("wb") as file:
            file.write(image.header)
            file.truncate(image.num_bytes)
            for place in group:
                file.seek(offsets[place.name])
                file.write(_bytes_of(repository, receipt, index, place))
                where[place.name.removeprefix(MODEL_PREFIX)] = name
    paths = [out / name for name in names]
    if len(groups) > 1:
        total = sum(place.num_bytes for place in places)
        table = {"metadata": {"total_size": total}, "weight_map": where}
        paths.append(out / "model.safetensors.index.json")
        paths[-1].write_text(json.dumps(table, indent=2, sort_keys=True), encoding="utf-8")
    return paths


def _spec(place: TensorPlace) -> TensorSpec:
    values = 1
    for size in place.shape:
        values *= size
    return TensorSpec(
        name=place.name.removeprefix(MODEL_PREFIX),
        dtype=place.dtype,
        shape=place.shape,
        num_bytes=place.num_bytes,
        item_bytes=place.num_bytes // values if values else 1,
    )


def _groups(places: list[TensorPlace]) -> list[list[TensorPlace]]:
    groups: list[list[TensorPlace]] = [[]]
    size = 0
    for place in places:
        if groups[-1] and size + place.num_bytes > MOST_FILE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(place)
        size += place.num_bytes
    return groups


def _bytes_of(repository: Catalogue, receipt: Receipt, index: Index, place: TensorPlace) -> bytearray:
    end = place.offset + place.num_bytes
    data = bytearray(place.num_bytes)
    view = memoryview(data)

    def take(first: int, part: Buffer) -> None:
        low, high = max(place.offset, first), min(end, first + len(part))
        if low < high:
            view[low - place.offset : high - place.offset] = memoryview(part)[low - first : high - first]

    repository.read(receipt, index, [(place.offset, end)], take)
    return data


def to_torch(repository: Catalogue, manifest: Manifest, out: Path) -> list[Path]:
    """Writes the whole state as ``torch.save`` does; it loads with ``torch.load(weights_only=True)``."""
    import torch

    from plait.train.checkpoint.restore import read_state

    path = out / f"step-{manifest.step:012d}.pt"
    try:
        state = read_state(repository, manifest)
    except UNREADABLE as error:
        raise CheckpointDamaged(str(error)) from error
    # A tensor of the checkpoint is a view into one large buffer; torch.save would write that buffer for each.
    torch.save(_separate(state), path)
    return [path]


def _separate(state: object) -> object:
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, state)
