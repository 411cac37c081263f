"""Nested state as JSON and raw bytes: nothing in a checkpoint is ever executed, as a pickle would be.

Plain strings, integers, booleans and ``None`` stand for themselves; everything else is an object with one key that
says what it is, so that the types of containers and of dictionary keys come back as they were.
"""

from collections.abc import Callable, Mapping
from math import isfinite, prod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from plait.train.checkpoint.checkpointer import CheckpointUnsupported

ALIGNMENT_BYTES = 64

_TYPES: dict[str, torch.dtype] = {
    str(kind).removeprefix("torch."): kind
    for kind in vars(torch).values()
    if isinstance(kind, torch.dtype) and not str(kind).startswith(("torch.q", "torch.bits"))
}


def described(state: Any) -> tuple[Any, list[Tensor]]:
    """Returns the JSON form of a state and the tensors that it refers to by number.

    Raises:
        CheckpointUnsupported: The state holds a value of another type; the message says where.
    """
    tensors: list[Tensor] = []
    return _described(state, "state", tensors), tensors


def _described(value: Any, where: str, tensors: list[Tensor]) -> Any:
    match value:
        case None | bool() | str():
            form: Any = value
        case Tensor():
            form = {"tensor": _numbered(value, where, tensors)}
        case np.generic() if value.dtype.kind in "biuf":
            form = _described(value.item(), where, tensors)
        case int():
            form = int(value)
        case float():
            form = {"float": value.hex() if isfinite(value) else str(float(value))}
        case Mapping():
            keys = [_described_key(key, where) for key in value]
            items = [_described(item, f"{where}[{key!r}]", tensors) for key, item in value.items()]
            form = {"dict": [list(pair) for pair in zip(keys, items, strict=True)]}
        case list() | tuple():
            items = [_described(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]
            form = {"list" if isinstance(value, list) else "tuple": items}
        case _:
            raise CheckpointUnsupported(
                f"{where} is a {type(value).__name__}; a checkpoint holds dictionaries, lists, tuples, tensors, "
                "numbers, strings, booleans and None"
            )
    return form


def _described_key(key: Any, where: str) -> Any:
    if key is None or isinstance(key, (bool, int, str, float)):
        return _described(key, where, [])
    if isinstance(key, tuple):
        return {"tuple": [_described_key(part, where) for part in key]}
    raise CheckpointUnsupported(
        f"{where} has the key {key!r}, a {type(key).__name__}; keys are strings, numbers or tuples"
    )


def _numbered(tensor: Tensor, where: str, tensors: list[Tensor]) -> dict[str, Any]:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise CheckpointUnsupported(f"{where} is a sparse, quantised or meta tensor; a checkpoint holds dense ones")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise CheckpointUnsupported(f"{where} has the type {tensor.dtype}, which a checkpoint cannot hold")
    tensors.append(tensor.detach())
    return {"number": len(tensors) - 1, "dtype": name, "shape": list(tensor.shape)}


def raw_bytes(tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor in row-major order, without a copy where it already lies so on the CPU."""
    plain = tensor.resolve_conj().resolve_neg().to("cpu").contiguous().reshape(-1)
    return bytes_of(plain.view(torch.uint8)) if plain.numel() else memoryview(b"")


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns the memory of a flat uint8 tensor on the CPU."""
    return memoryview(cast("Any", tensor.numpy()))


def padding_bytes(num_bytes: int) -> int:
    """Returns the bytes that bring ``num_bytes`` to the next multiple of :data:`ALIGNMENT_BYTES`."""
    return -num_bytes % ALIGNMENT_BYTES


def rebuilt(form: Any, read: Callable[[int], Tensor]) -> Any:
    """Returns the state that a JSON form stands for; ``read(num_bytes)`` gives the next tensor's bytes, as uint8.

    Tensors are asked for in the order of their numbers.

    Raises:
        ValueError: The form is not one that :func:`described` made.
    """
    match form:
        case None | bool() | str() | int():
            return form
        case {"float": str(text)}:
            return float.fromhex(text) if "x" in text else float(text)
        case {"dict": list(pairs)}:
            return {rebuilt(key, read): rebuilt(item, read) for key, item in pairs}
        case {"list": list(items)}:
            return [rebuilt(item, read) for item in items]
        case {"tuple": list(items)}:
            return tuple(rebuilt(item, read) for item in items)
        case {"tensor": {"dtype": str(name), "shape": list(shape)}} if name in _TYPES:
            return _tensor(_TYPES[name], cast("list[int]", shape), read)
        case _:
            raise ValueError(f"{str(form)[:80]!r} is not part of a checkpoint")


def _tensor(kind: torch.dtype, shape: list[int], read: Callable[[int], Tensor]) -> Tensor:
    num_values = prod(shape)
    data = read(num_values * kind.itemsize)
    return data.view(kind).reshape(shape) if num_values else torch.empty(shape, dtype=kind)
