"""Triton kernels of sign1 and int8; import it only where Triton is installed.

They have run in Triton's interpreter only, not on a device, and nothing is known of their speed. One program takes one
block. Fused multiply-add is switched off: what is sent has to equal the reference bit for bit. To refuse an infinity,
each encoding waits for its scales.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait.train.compression import reference

_BLOCK = tl.constexpr(reference.BLOCK)
_BYTES = tl.constexpr(reference.BLOCK // 8)
_INT8_STEP = tl.constexpr(float(reference.INT8_STEP))
_ROUNDING = tl.constexpr(float(3 * 2**22))


@triton.jit  # type: ignore[untyped-decorator]
def _values(number: Any, count: Any) -> Any:
    places = number * _BLOCK + tl.arange(0, _BLOCK)
    return places, places < count


@triton.jit  # type: ignore[untyped-decorator]
def _sum_of(values: Any, error: Any, places: Any, inside: Any, has_error: tl.constexpr) -> Any:
    c = tl.load(values + places, mask=inside, other=0.0)
    if has_error:
        c = c + tl.load(error + places, mask=inside, other=0.0)
    return c


@triton.jit  # type: ignore[untyped-decorator]
def _close(
    c: Any,
    number: Any,
    count: Any,
    places: Any,
    inside: Any,
    new_error: Any,
    scales: Any,
    bits: Any,
    keep: tl.constexpr,
) -> None:
    sizes = tl.abs(c)
    total = tl.sum(sizes, axis=0)
    filled = tl.minimum(count - number * _BLOCK, _BLOCK).to(tl.float32)
    # The sum of huge values may overflow where their mean does not.
    scale = tl.where(total < float("inf"), total / filled, tl.sum(sizes * (1.0 / _BLOCK), axis=0) * (_BLOCK / filled))
    tl.store(scales + number, scale)
    positive = (c >= 0) & inside
    eights = tl.reshape(positive.to(tl.int32), (_BYTES, 8)) << tl.arange(0, 8)[None, :]
    byte_places = number * _BYTES + tl.arange(0, _BYTES)
    tl.store(bits + byte_places, tl.sum(eights, axis=1).to(tl.uint8), mask=byte_places < (count + 7) // 8)
    if keep:
        tl.store(new_error + places, c - tl.where(positive, scale, -scale), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _sign1_encode(
    values: Any,
    error: Any,
    new_error: Any,
    scales: Any,
    bits: Any,
    count: Any,
    has_error: tl.constexpr,
    keep: tl.constexpr,
) -> None:
    number = tl.program_id(0)
    places, inside = _values(number, count)
    c = _sum_of(values, error, places, inside, has_error)
    _close(c, number, count, places, inside, new_error, scales, bits, keep)


@triton.jit  # type: ignore[untyped-decorator]
def _sign1_momentum(
    gradient: Any,
    state: Any,
    error: Any,
    new_error: Any,
    kept: Any,
    fresh: Any,
    scales: Any,
    bits: Any,
    count: Any,
) -> None:
    number = tl.program_id(0)
    places, inside = _values(number, count)
    g = tl.load(gradient + places, mask=inside, other=0.0)
    m = tl.load(state + places, mask=inside, other=0.0)
    c = (m * kept + g * fresh) + tl.load(error + places, mask=inside, other=0.0)
    _close(c, number, count, places, inside, new_error, scales, bits, True)


@triton.jit  # type: ignore[untyped-decorator]
def _sign1_decode(scales: Any, bits: Any, out: Any, count: Any, add: tl.constexpr) -> None:
    number = tl.program_id(0)
    places, inside = _values(number, count)
    scale = tl.load(scales + number)
    byte = tl.load(bits + places // 8, mask=inside, other=0).to(tl.int32)
    value = tl.where((byte >> (places % 8)) & 1 != 0, scale, -scale)
    if add:
        value += tl.load(out + places, mask=inside, other=0.0)
    tl.store(out + places, value, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _int8_encode(
    values: Any,
    error: Any,
    new_error: Any,
    scales: Any,
    levels: Any,
    count: Any,
    has_error: tl.constexpr,
    keep: tl.constexpr,
) -> None:
    number = tl.program_id(0)
    places, inside = _values(number, count)
    c = _sum_of(values, error, places, inside, has_error)
    # The largest of the bits, not of the values: NaN is then above infinity and is not passed over.
    largest = tl.max(tl.abs(c).to(tl.int32, bitcast=True), axis=0)
    scale = largest.to(tl.float32, bitcast=True) * _INT8_STEP
    tl.store(scales + number, scale)
    steps = tl.div_rn(c, tl.where(scale > 0, scale, 1.0) + tl.zeros_like(c))
    level = (tl.minimum(tl.maximum(tl.where(scale > 0, steps, 0.0), -127.0), 127.0) + _ROUNDING) - _ROUNDING
    tl.store(levels + places, level.to(tl.int8), mask=inside)
    if keep:
        tl.store(new_error + places, c - level * scale, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _int8_decode(scales: Any, levels: Any, out: Any, count: Any, add: tl.constexpr) -> None:
    number = tl.program_id(0)
    places, inside = _values(number, count)
    value = tl.load(levels + places, mask=inside, other=0).to(tl.float32) * tl.load(scales + number)
    if add:
        value += tl.load(out + places, mask=inside, other=0.0)
    tl.store(out + places, value, mask=inside)


def sign1_encode(values: Tensor, error: Tensor | None, new_error: Tensor | None, scales: Tensor, bits: Tensor) -> bool:
    """Encodes ``values + error``; False where that holds an infinity or NaN."""
    return _encode(_sign1_encode, values, error, new_error, scales, bits)


def sign1_momentum(
    gradient: Tensor,
    state: Tensor,
    error: Tensor,
    new_error: Tensor,
    factors: tuple[float, float],
    scales: Tensor,
    bits: Tensor,
) -> bool:
    """Encodes ``kept * state + fresh * gradient + error``; False where that holds an infinity or NaN."""
    _launch(_sign1_momentum, len(scales), gradient, state, error, new_error, *factors, scales, bits, len(gradient))
    return bool(torch.isfinite(scales).all())


def sign1_decode(scales: Tensor, bits: Tensor, out: Tensor, add: bool) -> None:
    """Writes or adds the values behind scales and bits."""
    _launch(_sign1_decode, len(scales), scales, bits, out, len(out), add=add)


def int8_encode(values: Tensor, error: Tensor | None, new_error: Tensor | None, scales: Tensor, levels: Tensor) -> bool:
    """Encodes ``values + error``; False where that holds an infinity or NaN."""
    return _encode(_int8_encode, values, error, new_error, scales, levels.view(torch.int8))


def int8_decode(scales: Tensor, levels: Tensor, out: Tensor, add: bool) -> None:
    """Writes or adds the values behind scales and levels."""
    _launch(_int8_decode, len(scales), scales, levels.view(torch.int8), out, len(out), add=add)


def _encode(
    kernel: Any, values: Tensor, error: Tensor | None, new_error: Tensor | None, scales: Tensor, sent: Tensor
) -> bool:
    given = (values, values if error is None else error, values if new_error is None else new_error)
    flags = {"has_error": error is not None, "keep": new_error is not None}
    _launch(kernel, len(scales), *given, scales, sent, len(values), **flags)
    return bool(torch.isfinite(scales).all())


def _launch(kernel: Any, num_blocks: int, *given: Any, **flags: bool) -> None:
    if num_blocks:
        kernel[(num_blocks,)](*given, **flags, enable_fp_fusion=False)
