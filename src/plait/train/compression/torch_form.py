"""The sign1 codec without Numba: NumPy and PyTorch in place on pieces that stay in a cache. Equal to the reference.

Each operation is done by the quicker of the two: NumPy compares and packs several times faster than PyTorch, PyTorch
spreads one number over a row faster than NumPy.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plait.train.compression.reference import BLOCK, Bytes, Floats, num_blocks

CHUNK = 64 * BLOCK
"""Values that are taken at a time: with their scratch they stay in a second-level cache."""

_SIGNS: Floats = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") * np.float32(2) - 1
"""The eight signs behind each byte, as 1.0 and -1.0."""

Flags = NDArray[np.bool_]


def sign1_encode(values: Tensor, error: Tensor | None, new_error: Tensor | None, scales: Tensor, bits: Tensor) -> bool:
    """Encodes ``values + error``; False where that holds an infinity or NaN."""

    def take(start: int, end: int, c: Tensor, _: Tensor) -> None:
        if error is None:
            c.copy_(values[start:end])
        else:
            torch.add(values[start:end], error[start:end], out=c)

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
    given = [each.numpy() for each in (gradient, state, error)]
    kept, fresh = factors

    def take(start: int, end: int, c: Tensor, spare: Tensor) -> None:
        g, m, e = (each[start:end] for each in given)
        # One rounding an operation, as in the reference: PyTorch's add(alpha=...) fuses two of them.
        sums, part = c.numpy(), spare.numpy()
        np.multiply(m, kept, out=sums)
        np.multiply(g, fresh, out=part)
        np.add(sums, part, out=sums)
        np.add(sums, e, out=sums)

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


def _encode(
    count: int, take: Callable[[int, int, Tensor, Tensor], None], new_error: Tensor | None, scales: Tensor, bits: Tensor
) -> bool:
    sums, spare, flags = torch.empty(CHUNK), torch.empty(CHUNK), np.empty(CHUNK, np.bool_)
    packed = bits.numpy()
    for start, end in pieces(count):
        size = end - start
        c, sizes, positive = sums[:size], spare[:size], flags[:size]
        take(start, end, c, sizes)
        np.abs(c.numpy(), out=sizes.numpy())
        means = _means(sizes.view(num_blocks(size), -1))
        if means is None:
            return False
        scales[start // BLOCK : num_blocks(end)] = means
        np.greater_equal(c.numpy(), 0, out=positive)
        packed[start // 8 : (end + 7) // 8] = np.packbits(positive, bitorder="little")
        if new_error is not None:
            signs = _signs_of(positive, sizes).view(len(means), -1)
            left = new_error[start:end].view_as(signs)
            # The product is exact, so it does not matter whether it is fused with the difference.
            torch.addcmul(c.view_as(signs), signs, means[:, None], value=-1, out=left)
    return True


def _means(sizes: Tensor) -> Tensor | None:
    """Returns the mean of each row; ``None`` where a size is not finite, not where merely a sum overflows."""
    means = sizes.sum(1).div_(sizes.shape[1])
    if math.isfinite(means.numpy().sum(dtype=np.float64)):
        return means
    means = sizes.sum(1, dtype=torch.float64).div_(sizes.shape[1]).to(torch.float32)
    return means if bool(torch.isfinite(means).all()) else None


def _signs_of(positive: Flags, out: Tensor) -> Tensor:
    """Writes 1.0 or -1.0 for each flag, which is used up."""
    numbers = positive.view(np.int8)
    np.add(numbers, numbers, out=numbers)
    np.subtract(numbers, 1, out=numbers)
    np.copyto(out.numpy(), numbers)
    return out


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
