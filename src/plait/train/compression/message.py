"""How a stretch of several parameters becomes one message: weight matrices by the codec, the rest in bf16.

Where the codec is a cast itself, it sends everything.

Norms and biases are few and matter much, and a scale that they shared with a matrix would fit neither; in bf16 they
cost nothing that shows. Each run starts at a multiple of 4 bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from torch import Tensor

from plait.train.collectives.layout import FlatLayout, Stretch
from plait.train.compression.casts import Cast
from plait.train.compression.codec import Codec
from plait.train.compression.reference import BLOCK, momentum_factors
from plait.train.compression.sign1 import Sign1

SMALL = 1024
"""Tensors with fewer elements, and those of one dimension, travel in bf16."""

_SMALL_CODEC = Cast("bf16", 2, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring values that are encoded together, counted from the start of the message's values."""

    start: int
    end: int
    is_small: bool


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """Which runs of a flat fp32 buffer make up a message. Both sides compute it from the model alone."""

    runs: tuple[Run, ...]

    @property
    def count(self) -> int:
        """How many values the message stands for."""
        return self.runs[-1].end if self.runs else 0

    def payload_bytes(self, codec: Codec) -> int:
        """Returns how many bytes the values take, headers not included."""
        return sum(_padded(_codec_of(run, codec).wire_bytes(run.end - run.start)) for run in self.runs)

    def cut(self, start: int, end: int) -> "MessageLayout":
        """Returns the layout of the values from ``start`` to ``end`` alone, as one rank's shard."""
        inside = [(max(run.start, start), min(run.end, end), run.is_small) for run in self.runs]
        return MessageLayout(tuple(Run(a - start, b - start, small) for a, b, small in inside if a < b))

    def encode(
        self, codec: Codec, values: Tensor, error: Tensor | None, new_error: Tensor | None, payload: Tensor
    ) -> None:
        """Writes ``values + error`` as :meth:`Codec.encode` does, each run by its own codec.

        Args:
            codec: For all runs that are not small.
            values: fp32, of shape (``count``,).
            error: What earlier steps have lost, or ``None``.
            new_error: Where the new loss goes, or ``None``.
            payload: uint8, of shape (``payload_bytes(codec)``,).

        Raises:
            BadValues: There is an infinity or NaN.
        """
        for run, part in self._parts(codec, payload):
            a, b = run.start, run.end
            before = None if error is None else error[a:b]
            after = None if new_error is None else new_error[a:b]
            _codec_of(run, codec).encode(values[a:b], before, after, part)

    def encode_momentum(
        self,
        codec: Codec,
        gradient: Tensor,
        state: Tensor,
        error: Tensor,
        payload: Tensor,
        *,
        new_error: Tensor,
        beta: float,
        weight: float,
        gradient_weight: float | None = None,
    ) -> None:
        """Writes ``weight * (beta * m + (1 - beta) * g) + e`` as :meth:`Sign1.encode_momentum` does.

        sign1 does it in one pass; other codecs get the sum, which goes by way of ``new_error``.

        Raises:
            BadValues: There is an infinity or NaN.
        """
        for run, part in self._parts(codec, payload):
            of_run = _codec_of(run, codec)
            g, m, e, left = (each[run.start : run.end] for each in (gradient, state, error, new_error))
            if isinstance(of_run, Sign1):
                of_run.encode_momentum(g, m, e, left, part, beta=beta, weight=weight, gradient_weight=gradient_weight)
            else:
                kept, fresh = (float(factor) for factor in momentum_factors(beta, weight, gradient_weight))
                left.copy_((m * kept + g * fresh) + e)
                of_run.encode(left, None, left, part)

    def decode(self, codec: Codec, payload: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Writes (or adds) the values behind a payload to ``out`` (fp32, of shape (``count``,))."""
        for run, part in self._parts(codec, payload):
            _codec_of(run, codec).decode(part, out[run.start : run.end], add=add)

    def _parts(self, codec: Codec, payload: Tensor) -> list[tuple[Run, Tensor]]:
        sizes = [_codec_of(run, codec).wire_bytes(run.end - run.start) for run in self.runs]
        starts = accumulate((_padded(size) for size in sizes), initial=0)
        return [
            (run, payload[start : start + size]) for run, size, start in zip(self.runs, sizes, starts, strict=False)
        ]


def message_layout(sizes: Sequence[tuple[int, ...]]) -> MessageLayout:
    """Returns the layout of a message of tensors of these shapes, which lie one behind the other."""
    ends = list(accumulate(math.prod(shape) for shape in sizes))
    spans = zip([0, *ends], ends, (_is_small(shape) for shape in sizes), strict=False)
    runs = []
    for is_small, group in groupby(spans, key=lambda span: span[2]):
        members = list(group)
        if members[0][0] < members[-1][1]:
            runs.append(Run(members[0][0], members[-1][1], is_small))
    return MessageLayout(tuple(runs))


def stretch_layout(layout: FlatLayout, stretch: Stretch) -> MessageLayout:
    """Returns the layout of the message of one stretch."""
    return message_layout([layout.shapes[index] for index in stretch.parameters])


def shard_bounds(count: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Returns where to cut ``count`` values into parts of these weights, on whole blocks except at the end.

    Args:
        count: How many values.
        weights: One a part, not negative, not all zero; for instance the ranks' bandwidths.

    Returns:
        ``len(weights) + 1`` positions, from 0 to ``count``, not falling.
    """
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights are not negative and not all zero; got {list(weights)}")
    inner = [min(count, round(count * done / total / BLOCK) * BLOCK) for done in accumulate(weights[:-1])]
    return (0, *inner, count)


def _is_small(shape: tuple[int, ...]) -> bool:
    return len(shape) < 2 or math.prod(shape) < SMALL


def _codec_of(run: Run, codec: Codec) -> Codec:
    return _SMALL_CODEC if run.is_small and not isinstance(codec, Cast) else codec


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // 4) * 4
