"""Numba kernels of the codecs; import it only where Numba is installed. Equal to :mod:`reference` in every bit sent.

What makes them fast: one pass over memory; a block is taken into a scratch of its own, so that no two arrays of a loop
can be the same (a loop over arrays that may overlap is not vectorised); signs are packed sixteen at a time; while a
block is packed, the next one is fetched, even if it is only written: a store waits longer for its line than a load.
Only the sum of a block may be reordered, so scales differ from the reference by rounding. Kernels release the
interpreter lock and run in the calling thread: two threads in Numba's own parallel loops end the process.

Numba keeps compiled code by the age of this file alone: who changes ``lanes.py`` or a constant of ``reference.py`` has
to touch it.
"""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from plait.train.compression.lanes import LANES, close_lanes, prefetch, spread_lanes
from plait.train.compression.reference import BLOCK, INT8_STEP, Bytes, Floats

_LEVELS = np.float32(127)
_ROUNDING = np.float32(3 * 2**22)
"""Added to a value below 2**22 and taken away again, it leaves the nearest whole number, of two the even one."""
_INFINITY_BITS = np.uint32(0x7F800000)


def _kernel(function: Callable[..., Any]) -> Any:
    """Compiles a function when it is first used; keeps the code on disk where there is a place for it."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder of the package or of the user can be written to
        return numba.njit(nogil=True)(function)


@numba.njit(nogil=True, fastmath={"reassoc", "nsz"})
def _plus(a: np.float32, b: np.float32) -> np.float32:
    """Returns the sum; the order of several may be changed."""
    return a + b


@numba.njit(nogil=True)
def _take(values: Floats, error: Floats | None, c: Floats) -> np.float32:
    """Writes ``values + error`` to ``c`` and returns the sum of the sizes."""
    total = np.float32(0)
    for i in range(len(c)):
        v = values[i] if error is None else values[i] + error[i]
        c[i] = v
        total = _plus(total, abs(v))
    return total


@numba.njit(nogil=True)
def _take_momentum(
    gradient: Floats, state: Floats, error: Floats, kept: np.float32, fresh: np.float32, c: Floats
) -> np.float32:
    """Writes ``kept * state + fresh * gradient + error`` to ``c`` and returns the sum of the sizes."""
    total = np.float32(0)
    for i in range(len(c)):
        v = (kept * state[i] + fresh * gradient[i]) + error[i]
        c[i] = v
        total = _plus(total, abs(v))
    return total


@numba.njit(nogil=True)
def _scale(c: Floats, total: np.float32) -> np.float32:
    """Returns the mean size; infinity or NaN only where ``c`` holds one, not where merely the sum overflows."""
    if math.isfinite(total):
        return total / np.float32(len(c))
    wide = 0.0
    for i in range(len(c)):
        wide += abs(np.float64(c[i]))
    return np.float32(wide / len(c))


@numba.njit(nogil=True)
def _close_rest(c: Floats, first: int, scale: np.float32, bits: Bytes, new_error: Floats) -> None:
    """Packs what does not fill the lanes, from ``first`` (a multiple of 8) on."""
    for start in range(first, len(c), 8):
        byte = 0
        for i in range(start, min(start + 8, len(c))):
            positive = c[i] >= 0
            byte |= int(positive) << (i - start)
            new_error[i] = c[i] - (scale if positive else -scale)
        bits[start // 8] = byte


@_kernel
def sign1_encode(values: Floats, error: Floats | None, new_error: Floats | None, scales: Floats, bits: Bytes) -> bool:
    """Encodes ``values + error``; False where that holds an infinity or NaN."""
    scratch = np.empty(BLOCK, np.float32)
    for number in range(len(scales)):
        first = number * BLOCK
        end = min(first + BLOCK, len(values))
        c = scratch[: end - first]
        total = _take(values[first:end], None if error is None else error[first:end], c)
        scale = _scale(c, total)
        if not math.isfinite(scale):
            return False
        scales[number] = scale
        packed = bits[first // 8 : (end + 7) // 8]
        left = c if new_error is None else new_error[first:end]
        whole = len(c) // LANES
        for i in range(whole):
            close_lanes(c, LANES * i, scale, packed, 2 * i, left, LANES * i)
            prefetch(values, end + LANES * i)
            if error is not None:
                prefetch(error, end + LANES * i)
            if new_error is not None:
                prefetch(new_error, end + LANES * i)
        _close_rest(c, whole * LANES, scale, packed, left)
    return True


@_kernel
def sign1_momentum(
    gradient: Floats,
    state: Floats,
    error: Floats,
    new_error: Floats,
    kept: np.float32,
    fresh: np.float32,
    scales: Floats,
    bits: Bytes,
) -> bool:
    """Encodes ``kept * state + fresh * gradient + error``; False where that holds an infinity or NaN."""
    scratch = np.empty(BLOCK, np.float32)
    for number in range(len(scales)):
        first = number * BLOCK
        end = min(first + BLOCK, len(gradient))
        c = scratch[: end - first]
        total = _take_momentum(gradient[first:end], state[first:end], error[first:end], kept, fresh, c)
        scale = _scale(c, total)
        if not math.isfinite(scale):
            return False
        scales[number] = scale
        packed, left = bits[first // 8 : (end + 7) // 8], new_error[first:end]
        whole = len(c) // LANES
        for i in range(whole):
            close_lanes(c, LANES * i, scale, packed, 2 * i, left, LANES * i)
            prefetch(gradient, end + LANES * i)
            prefetch(state, end + LANES * i)
            prefetch(error, end + LANES * i)
            prefetch(new_error, end + LANES * i)
        _close_rest(c, whole * LANES, scale, packed, left)
    return True


@_kernel
def sign1_decode(scales: Floats, bits: Bytes, out: Floats, add: bool) -> None:
    """Writes or adds the values behind scales and bits."""
    for number in range(len(scales)):
        first = number * BLOCK
        end = min(first + BLOCK, len(out))
        part, packed, scale = out[first:end], bits[first // 8 : (end + 7) // 8], scales[number]
        whole = len(part) // LANES
        for i in range(whole):
            spread_lanes(packed, 2 * i, scale, part, LANES * i, add)
            prefetch(out, end + LANES * i)
        for i in range(whole * LANES, len(part)):
            value = scale if (int(packed[i // 8]) >> (i % 8)) & 1 else -scale
            part[i] = part[i] + value if add else value


@numba.njit(nogil=True)
def _largest(c: Floats) -> np.uint32:
    """Returns the bits of the largest size; those of NaN are above those of infinity."""
    largest = np.uint32(0)
    words = c.view(np.uint32)
    for i in range(len(words)):
        largest = max(largest, words[i] & np.uint32(0x7FFFFFFF))
    return largest


@_kernel
def int8_encode(values: Floats, error: Floats | None, new_error: Floats | None, scales: Floats, levels: Bytes) -> bool:
    """Encodes ``values + error``; False where that holds an infinity or NaN."""
    scratch, size = np.empty(BLOCK, np.float32), np.empty(1, np.uint32)
    for number in range(len(scales)):
        first = number * BLOCK
        end = min(first + BLOCK, len(values))
        c = scratch[: end - first]
        _take(values[first:end], None if error is None else error[first:end], c)
        size[0] = _largest(c)
        if size[0] >= _INFINITY_BITS:
            return False
        scale = size.view(np.float32)[0] * INT8_STEP
        scales[number] = scale
        sent = levels[first:end].view(np.int8)
        left = c if new_error is None else new_error[first:end]
        for i in range(len(c)):
            level = np.float32(0)
            if scale > 0:
                level = (min(max(c[i] / scale, -_LEVELS), _LEVELS) + _ROUNDING) - _ROUNDING
            sent[i] = np.int8(level)
            left[i] = c[i] - level * scale
    return True


@_kernel
def int8_decode(scales: Floats, levels: Bytes, out: Floats, add: bool) -> None:
    """Writes or adds the values behind scales and levels."""
    for number in range(len(scales)):
        first = number * BLOCK
        end = min(first + BLOCK, len(out))
        part, sent, scale = out[first:end], levels[first:end].view(np.int8), scales[number]
        if add:
            for i in range(len(part)):
                part[i] += np.float32(sent[i]) * scale
        else:
            for i in range(0, BLOCK, LANES):
                prefetch(out, end + i)
            for i in range(len(part)):
                part[i] = np.float32(sent[i]) * scale
