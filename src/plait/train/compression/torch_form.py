"""The sign1 codec without Numba: NumPy and PyTorch in place on pieces that stay in a cache. Equal to the reference.

Each operation is done by the quicker of the two: NumPy compares and packs several times faster than PyTorch, PyTorch
spreads one number over a row faster than NumPy. But an operation of NumPy takes less time to begin.
"""

import math
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from plait.train.compression.reference import BLOCK, Bytes, Floats, num_blocks

CHUNK = 64 * BLOCK
"""Values that are taken at a time: with their scratch they stay in a second-level cache."""

_APART = 272
"""Values between two runs of scratch: neither whole pages nor half ones."""

_SIGNS: Floats = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") * np.float32(2) - 1
"""The eight signs behind each byte, as 1.0 and -1.0."""


def sign1_encode(values: Tensor, error: Tensor | None, new_error: Tensor | None, scales: Tensor, bits: Tensor) -> bool:
    """Encodes ``values + error``; False where that holds an infinity or NaN."""
    given = values.numpy()
    before = None if error is None else error.numpy()

    def take(start: int, end: int, c: Floats, _: Floats) -> None:
        if before is None:
            np.copyto(c, given[start:end])
        else:
            np.add(given[start:end], before[start:end], out=c)

    return _encode(len(values), take, new_error, scales, bits)


def sign1_momentum(
    gradient: Tensor,
    state: Tensor,
    error: Tensor,
    new_error: Tensor,
    factors: tuple[np.float32, np.float32],
    scales: Tensor,
    bits: Tensor,
) -> bool:
    """Encodes ``kept * state + fresh * gradient + error``; False where that holds an infinity or NaN."""
    g, m, e = (each.numpy() for each in (gradient, state, error))
    kept, fresh = factors

    def take(start: int, end: int, c: Floats, spare: Floats) -> None:
        # One rounding an operation, as in the reference: PyTorch's add(alpha=...) fuses two of them.
        np.multiply(m[start:end], kept, out=c)
        np.multiply(g[start:end], fresh, out=spare)
        np.add(c, spare, out=c)
        np.add(c, e[start:end], out=c)

    return _encode(len(gradient), take, new_error, scales, bits)


def sign1_decode(scales: Tensor, bits: Tensor, out: Tensor, add: bool) -> None:
    """Writes or adds the values behind scales and bits."""
    packed = bits.numpy()
    spare = torch.empty(CHUNK)
    for start, end in pieces(len(out)):
        factor = scales[start // BLOCK : num_blocks(end), None]
        signs = _signs_behind(packed[start // 8 : (end + 7) // 8], spare)[: end - start].view(len(factor), -1)
        part = out[start:end].view_as(signs)
        if add:
            part.addcmul_(signs, factor)
        else:
            torch.mul(signs, factor, out=part)


class _Memory(threading.local):
    """What a thread works in, kept from call to call: fresh memory costs more than the arithmetic."""

    def __init__(self) -> None:
        # Of PyTorch, whose memory begins at a cache line. The signs lie a little off the values in their pages, else
        # the processor takes a load from one run for one of what was just stored to the other.
        both = torch.empty(2 * CHUNK + _APART).numpy()
        self.values, self.signs = both[:CHUNK], both[CHUNK + _APART :]
        self.flags = np.empty(CHUNK, np.bool_)


_MEMORY = _Memory()


class _Scratch:
    """Where a piece is worked on: its values, their signs and the means of its rows, as each operation wants them."""

    def __init__(self, size: int) -> None:
        rows = num_blocks(size)
        self.c, self.signs, self.positive = _MEMORY.values[:size], _MEMORY.signs[:size], _MEMORY.flags[:size]
        self.numbers = self.positive.view(np.int8)
        self.means = np.empty((rows, 1), np.float32)
        # A row times a column is one call of BLAS, and numpy.vecdot, which would say so, is younger than NumPy 1.26.
        self._as_rows, self._as_columns = self.c.reshape(rows, 1, -1), self.signs.reshape(rows, -1, 1)
        self._sums = self.means.reshape(rows, 1, 1)
        self._row_size = np.float32(size / rows)
        self._sign_rows, self._mean_rows = torch.from_numpy(self.signs).view(rows, -1), torch.from_numpy(self.means)

    def find_signs(self) -> None:
        """Finds 1.0 or -1.0 for each value by the flags of those that are not negative, which are used up."""
        np.add(self.numbers, self.numbers, out=self.numbers)
        np.subtract(self.numbers, 1, out=self.numbers)
        np.copyto(self.signs, self.numbers)

    def find_means(self) -> bool:
        """Finds the mean size of each row; False where a value is not finite, not where merely a sum overflows."""
        np.matmul(self._as_rows, self._as_columns, out=self._sums)
        np.divide(self.means, self._row_size, out=self.means)
        if math.isfinite(np.add.reduce(self.means, axis=None)):
            return True
        self.means[:] = np.abs(self.c).reshape(len(self.means), -1).mean(1, np.float64, keepdims=True)
        return bool(np.isfinite(self.means).all())

    def find_error(self, out: Floats) -> None:
        """Writes what is lost of the values; the signs are used up."""
        self._sign_rows.mul_(self._mean_rows)
        np.subtract(self.c, self.signs, out=out)


def _encode(
    count: int, take: Callable[[int, int, Floats, Floats], None], new_error: Tensor | None, scales: Tensor, bits: Tensor
) -> bool:
    factors, packed = scales.numpy(), bits.numpy()
    left = None if new_error is None else new_error.numpy()
    scratch: _Scratch | None = None
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are told by what is returned
        for start, end in pieces(count):
            if scratch is None or end - start != len(scratch.c):
                scratch = _Scratch(end - start)
            take(start, end, scratch.c, scratch.signs)
            np.greater_equal(scratch.c, 0, out=scratch.positive)
            packed[start // 8 : (end + 7) // 8] = np.packbits(scratch.positive, bitorder="little")
            scratch.find_signs()
            if not scratch.find_means():
                return False
            factors[start // BLOCK : num_blocks(end)] = scratch.means[:, 0]
            if left is not None:
                scratch.find_error(left[start:end])
    return True


def _signs_behind(packed: Bytes, spare: Tensor) -> Tensor:
    """Returns 1.0 or -1.0 for each bit, in ``spare``."""
    rows = spare[: 8 * len(packed)]
    np.take(_SIGNS, packed, axis=0, out=rows.numpy().reshape(-1, 8), mode="clip")
    return rows


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """Yields runs of whole blocks, and the short block at the end by itself."""
    whole = count // BLOCK * BLOCK
    for start in range(0, whole, CHUNK):
        yield start, min(start + CHUNK, whole)
    if whole < count:
        yield whole, count
