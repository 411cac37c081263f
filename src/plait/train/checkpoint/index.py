"""What a checkpoint's file means: the form of the state, its plain values, and where each tensor lies.

The form is the JSON of :mod:`plait.train.checkpoint.tree` in which every plain value stands as ``{"value": number}``:
it stays the same from step to step and is encoded once.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.train.checkpoint.blocks import BlockTable
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.image import FileImage, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """A tensor in a file; ``global_shape`` and ``first`` tell which part of a sharded tensor it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    global_shape: tuple[int, ...] | None = None
    first: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The index of one file of a checkpoint."""

    form: Any
    values: tuple[Any, ...]
    tensors: tuple[TensorPlace, ...]
    blocks: BlockTable | None = None

    def encoded(self) -> bytes:
        """Returns the JSON."""
        document: dict[str, Any] = {
            "form": self.form,
            "values": list(self.values),
            "tensors": [_entry(place) for place in self.tensors],
        }
        if self.blocks is not None:
            document["blocks"] = {
                "block_bytes": self.blocks.block_bytes,
                "file_bytes": self.blocks.file_bytes,
                "xxh3_128": base64.b64encode(self.blocks.hashes).decode(),
            }
        return json.dumps(document, separators=(",", ":")).encode()


def _entry(place: TensorPlace) -> list[Any]:
    entry: list[Any] = [place.name, place.dtype, list(place.shape), place.offset, place.num_bytes]
    if place.global_shape is not None and place.first is not None:
        entry += [list(place.global_shape), list(place.first)]
    return entry


def _place(entry: Sequence[Any]) -> TensorPlace:
    name, dtype, shape, offset, num_bytes, *part = entry
    return TensorPlace(
        name=str(name),
        dtype=str(dtype),
        shape=tuple(shape),
        offset=int(offset),
        num_bytes=int(num_bytes),
        global_shape=tuple(part[0]) if part else None,
        first=tuple(part[1]) if part else None,
    )


def decoded(data: bytes) -> Index:
    """Returns the index that this JSON holds.

    Raises:
        CheckpointDamaged: It is not one.
    """
    try:
        document = json.loads(data)
        blocks = document.get("blocks")
        table = None
        if blocks is not None:
            table = BlockTable(
                block_bytes=int(blocks["block_bytes"]),
                file_bytes=int(blocks["file_bytes"]),
                hashes=base64.b64decode(blocks["xxh3_128"], validate=True),
            )
        return Index(
            form=document["form"],
            values=tuple(document["values"]),
            tensors=tuple(_place(entry) for entry in document["tensors"]),
            blocks=table,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"this is no index of a checkpoint: {error!r}") from error


def places_of(specs: Sequence[TensorSpec], image: FileImage) -> tuple[TensorPlace, ...]:
    """Returns where the tensors of an image lie."""
    return tuple(
        TensorPlace(name=s.name, dtype=s.dtype, shape=s.shape, offset=offset, num_bytes=s.num_bytes)
        for s, offset in zip(specs, image.offsets, strict=True)
    )


def split_values(form: Any) -> tuple[Any, list[Any]]:
    """Returns a form of :func:`~plait.train.checkpoint.tree.described` with what holds no tensor taken out, and this.

    Each largest part without a tensor is one value, so that its inner structure may change from step to step.
    """
    values: list[Any] = []

    def without(value: Any) -> Any:
        if not _has_tensor(value):
            values.append(value)
            return {"value": len(values) - 1}
        match value:
            case {"dict": list(pairs)}:
                return {"dict": [[key, without(item)] for key, item in pairs]}
            case {"list": list(items)}:
                return {"list": [without(item) for item in items]}
            case {"tuple": list(items)}:
                return {"tuple": [without(item) for item in items]}
            case _:
                return value

    return without(form), values


def _has_tensor(form: Any) -> bool:
    match form:
        case {"tensor": _}:
            return True
        case {"dict": list(pairs)}:
            return any(_has_tensor(item) for _, item in pairs)
        case {"list": list(items)} | {"tuple": list(items)}:
            return any(_has_tensor(item) for item in items)
        case _:
            return False


def joined_values(form: Any, values: Sequence[Any]) -> Any:
    """Undoes :func:`split_values`."""
    match form:
        case {"value": int(number)}:
            return values[number]
        case {"dict": list(pairs)}:
            return {"dict": [[key, joined_values(item, values)] for key, item in pairs]}
        case {"list": list(items)}:
            return {"list": [joined_values(item, values) for item in items]}
        case {"tuple": list(items)}:
            return {"tuple": [joined_values(item, values) for item in items]}
        case _:
            return form


def tensor_names(form: Any) -> list[str]:
    """Returns a unique readable name for each tensor of a form, by number, as ``model.layer.weight``."""
    names: dict[int, str] = {}
    taken: set[str] = {"__metadata__"}
    _name(form, "", lambda number, path: names.__setitem__(number, _unique(path or "state", taken)))
    return [names[number] for number in range(len(names))]


def _unique(name: str, taken: set[str]) -> str:
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name}#{count}"
    taken.add(found)
    return found


def _name(form: Any, path: str, take: Callable[[int, str], None]) -> None:
    match form:
        case {"tensor": {"number": int(number)}}:
            take(number, path)
        case {"dict": list(pairs)}:
            for key, item in pairs:
                _name(item, f"{path}.{_word(key)}" if path else _word(key), take)
        case {"list": list(items)} | {"tuple": list(items)}:
            for number, item in enumerate(items):
                _name(item, f"{path}.{number}" if path else str(number), take)


def _word(key: Any) -> str:
    if isinstance(key, Mapping) and "tuple" in key:
        return "(" + ",".join(_word(part) for part in key["tuple"]) + ")"
    return str(next(iter(key.values()))) if isinstance(key, Mapping) else str(key)
