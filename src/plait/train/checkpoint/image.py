"""The image of a safetensors file in memory: one header and where each tensor lies, computed once for a layout."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from plait.train.checkpoint.checkpointer import CheckpointDamaged

ALIGN_BYTES = 64
HEADER_ALIGN_BYTES = 4096

SAFETENSORS_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "complex64": "C64",
}  # fmt: skip
"""What safetensors calls PyTorch's types; a tensor of another type lies in the file as bytes."""

PLAIN_NAMES = {short: long for long, short in SAFETENSORS_TYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a state: its unique name, PyTorch's name of its type, shape, size and size of one value."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    item_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileImage:
    """A safetensors file: ``header``, then tensors at ``offsets`` (from the start of the file, in order of specs)."""

    header: bytes
    offsets: tuple[int, ...]
    num_bytes: int


def file_image(specs: Sequence[TensorSpec], metadata: dict[str, str] | None = None) -> FileImage:
    """Lays tensors out without holes, as safetensors asks, and yet aligned.

    Tensors whose size is a multiple of 64 bytes come first, then the others by falling size of their values, so that
    every tensor begins at a multiple of the size of its values, and large ones at one of 64 bytes. The header is padded
    with blanks to whole pages.
    """
    order = sorted(range(len(specs)), key=lambda i: (specs[i].num_bytes % ALIGN_BYTES != 0, -specs[i].item_bytes, i))
    starts, at = [0] * len(specs), 0
    table: dict[str, object] = {"__metadata__": metadata or {}}
    for number in order:
        spec = specs[number]
        kind = SAFETENSORS_TYPES.get(spec.dtype)
        shape = list(spec.shape) if kind else [spec.num_bytes]
        starts[number] = at
        table[spec.name] = {"dtype": kind or "U8", "shape": shape, "data_offsets": [at, at + spec.num_bytes]}
        at += spec.num_bytes
    text = json.dumps(table, separators=(",", ":")).encode()
    size = -(-(8 + len(text)) // HEADER_ALIGN_BYTES) * HEADER_ALIGN_BYTES
    header = (size - 8).to_bytes(8, "little") + text.ljust(size - 8)
    return FileImage(header=header, offsets=tuple(size + start for start in starts), num_bytes=size + at)


def read_header(head: bytes) -> dict[str, dict[str, object]]:
    """Returns the tensor table of a safetensors file from its first bytes; offsets are from the start of the file.

    Raises:
        CheckpointDamaged: These bytes are no safetensors header, or only part of one.
    """
    try:
        size = int.from_bytes(head[:8], "little")
        table = json.loads(head[8 : 8 + size])  # a part of a header is no JSON
        entries = {name: dict(entry) for name, entry in table.items() if name != "__metadata__"}
        for entry in entries.values():
            entry["data_offsets"] = [8 + size + offset for offset in entry["data_offsets"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"this is no header of a safetensors file: {error}") from error
    return entries
