r"""The codecs in plain NumPy: what every faster form must equal, bit for bit where the format is bits.

**sign1** keeps one bit a value and one scale a block of 1024 (Seide et al., Interspeech 2014; Tang et al., 1-bit Adam,
arXiv 2102.02888): with :math:`c = x + e`, block by block

.. math:: s = \operatorname{mean} |c|, \qquad \hat c = s \cdot \operatorname{sign}(c), \qquad e' = c - \hat c,

where ``sign(c)`` is + for ``c >= 0`` (so also for -0.0). The mean of the absolute values minimises the error
:math:`\lVert c - \hat c \rVert_2` for given signs. A block of zeros has scale 0 and stays zero: the scale is the mask.
On the wire: the scales (fp32, little endian), then the bits in little order, bit 1 for +; the last byte's unused bits
are 0. All receivers use the scale that was sent, so all have the same values bit for bit.

**int8** keeps a byte a value: ``round(c / s)`` to even, with ``s = max |c| / 127`` a block of 1024. On the wire: the
scales, then the levels from -127 to 127.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024
"""Values that share a scale."""

INT8_STEP = np.float32(1 / 127)
"""The scale of int8 over the largest size: rounded, it lies under 1/127, so that 127 scales never overflow."""

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def num_blocks(count: int) -> int:
    """Returns the number of blocks, the last of which may be short."""
    return -(-count // BLOCK)


def sign1_bytes(count: int) -> int:
    """Returns the size of a sign1 message."""
    return 4 * num_blocks(count) + -(-count // 8)


def momentum_factors(beta: float, weight: float, gradient_weight: float | None = None) -> tuple[np.float32, np.float32]:
    """Returns the factors of the last momentum and of the gradient; see :func:`momentum`.

    ``gradient_weight`` is the weight of a gradient that is weighted already; ``None``: that of the momentum.
    """
    of_gradient = weight if gradient_weight is None else gradient_weight
    return np.float32(weight * beta), np.float32(of_gradient * (1.0 - beta))


def momentum(gradient: Floats, state: Floats, error: Floats, beta: float, weight: float) -> Floats:
    """Returns what a worker compresses in 1-bit Adam: ``weight * (beta * m + (1 - beta) * g) + e``.

    ``weight`` is the worker's share of the batch, so that errors are in the units of the mean and survive another
    split. The factors ``weight * beta`` and ``weight * (1 - beta)`` are rounded to fp32, then each operation is, in the
    order written here; fused multiply-add is not used.
    """
    kept, fresh = momentum_factors(beta, weight)
    return np.asarray((kept * state + fresh * gradient) + error, dtype=np.float32)


def sign1_encode(c: Floats) -> tuple[Bytes, Floats]:
    """Returns the message of ``c`` and the error that it leaves."""
    scales = np.array([_mean_abs(part) for part in _blocks(c)], dtype=np.float32)
    bits = np.packbits(c >= 0, bitorder="little")
    message = np.concatenate([scales.view(np.uint8), bits])
    return message, c - sign1_decode(message, len(c))


def sign1_decode(message: Bytes, count: int) -> Floats:
    """Returns the values behind a message."""
    split = 4 * num_blocks(count)
    scales = message[:split].copy().view(np.float32)
    positive = np.unpackbits(message[split:], count=count, bitorder="little").astype(bool)
    spread = np.repeat(scales, BLOCK)[:count]
    return np.where(positive, spread, -spread).astype(np.float32)


def int8_bytes(count: int) -> int:
    """Returns the size of an int8 message."""
    return 4 * num_blocks(count) + count


def int8_encode(c: Floats) -> tuple[Bytes, Floats]:
    """Returns the message of ``c`` and the error that it leaves."""
    scales = np.array([np.abs(part).max() * INT8_STEP for part in _blocks(c)], dtype=np.float32)
    spread = np.repeat(scales, BLOCK)[: len(c)]
    steps = np.divide(c, spread, out=np.zeros_like(c), where=spread > 0)
    levels = np.clip(np.rint(steps), -127, 127).astype(np.int8)
    message = np.concatenate([scales.view(np.uint8), levels.view(np.uint8)])
    return message, c - int8_decode(message, len(c))


def int8_decode(message: Bytes, count: int) -> Floats:
    """Returns the values behind a message."""
    split = 4 * num_blocks(count)
    scales = message[:split].copy().view(np.float32)
    return message[split:].view(np.int8).astype(np.float32) * np.repeat(scales, BLOCK)[:count]


def top_k_count(count: int, ratio: float) -> int:
    """Returns how many of ``count`` values travel."""
    return min(count, max(1, round(count * ratio))) if count else 0


def top_k_encode(c: Floats, ratio: float) -> tuple[Bytes, Floats]:
    """Returns the message (places as uint32, rising; values as fp32) of the largest values, and the error."""
    kept = top_k_count(len(c), ratio)
    places = np.sort(np.argsort(-np.abs(c), kind="stable")[:kept]).astype(np.uint32)
    values = c[places]
    error = c.copy()
    error[places] = 0
    return np.concatenate([places.view(np.uint8), values.view(np.uint8)]), error


def top_k_decode(message: Bytes, count: int) -> Floats:
    """Returns the values behind a message."""
    places, values = message.copy().view(np.uint32).reshape(2, -1)
    out = np.zeros(count, dtype=np.float32)
    out[places] = values.view(np.float32)
    return out


def low_rank_step(parts: list[Floats], right: Floats) -> tuple[Floats, list[Floats], Floats]:
    """Returns one step of low rank for one matrix: the mean, each member's error, and the sum of right factors.

    Args:
        parts: What each member would send, of shape (rows, columns).
        right: Where the step starts, of shape (columns, rank).
    """
    left, _ = np.linalg.qr(np.sum([c @ right for c in parts], axis=0, dtype=np.float64))
    own = [c.T @ left for c in parts]
    mean = left @ np.sum(own, axis=0).T
    errors = [np.asarray(c - left @ q.T, dtype=np.float32) for c, q in zip(parts, own, strict=True)]
    return mean.astype(np.float32), errors, np.sum(own, axis=0).astype(np.float32)


def _blocks(c: Floats) -> list[Floats]:
    return [c[start : start + BLOCK] for start in range(0, len(c), BLOCK)]


def _mean_abs(part: Floats) -> np.float32:
    return np.float32(np.abs(part).sum(dtype=np.float64) / len(part))
