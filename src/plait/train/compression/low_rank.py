r"""Matrices as products of two thin ones, in two sums over all members (PowerSGD; Vogels et al., arXiv 1905.13727).

With :math:`C_i` what member i would send, errors included, algorithm 1 of the paper takes one step of the power method:

.. math::
    P = \textstyle\sum_i C_i Q, \quad \hat P = \operatorname{orthonormal}(P), \quad
    Q' = \textstyle\sum_i C_i^\top \hat P, \quad \hat C = \hat P Q'^\top, \quad
    E_i = C_i - \hat P (C_i^\top \hat P)^\top.

Everything that travels is linear in what the members hold, so plain all-reduces do, over whichever topology; nothing
has to be decoded on the way. :math:`Q'` is where the next step starts. Errors are what a member's own part loses, so
that :math:`\hat C + \sum_i E_i = \sum_i C_i` whatever the members' shares: error state is kept in units of the mean, as
for the other codecs. (The paper subtracts the mean from each member's gradient; the sum of errors, and therefore every
later step, is the same.)

No function here waits: a caller starts the sum of ``first``, does something else, hands the result to ``second``, and
so on, with as many buckets under way as it likes.

The members orthonormalise the same sum, each for itself. On devices of different kinds its last bits may differ; there,
let the member that owns a shard do it and send the result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from plait.train.compression.codec import refuse_unless_finite

_DEPENDENT = 1e-5
"""A column of which no more than this part is new depends on those before it."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Where one matrix lies among the values, and where its factors lie in the two buffers that are summed."""

    start: int
    rows: int
    columns: int
    rank: int
    p_start: int
    q_start: int

    @property
    def values(self) -> slice:
        """Its place among the values."""
        return slice(self.start, self.start + self.rows * self.columns)

    @property
    def p(self) -> slice:
        """The place of its left factor in the first buffer."""
        return slice(self.p_start, self.p_start + self.rows * self.rank)

    @property
    def q(self) -> slice:
        """The place of its right factor in the second buffer."""
        return slice(self.q_start, self.q_start + self.columns * self.rank)


@dataclass(frozen=True, slots=True)
class LowRankLayout:
    """Which values are matrices worth factoring; all others travel as they are, in the first buffer's end.

    Attributes:
        count: Number of values.
        matrices: Those that are factored.
        others: Runs of values that are not, as (start, end).
        first_count: Number of fp32 values that the first sum is over.
        second_count: Number of fp32 values that the second sum is over.
    """

    count: int
    matrices: tuple[Factors, ...]
    others: tuple[tuple[int, int], ...]
    first_count: int
    second_count: int


def low_rank_layout(shapes: Sequence[tuple[int, ...]], rank: int) -> LowRankLayout:
    """Returns the layout for tensors of these shapes, which lie one behind the other.

    A tensor of more than two dimensions counts as a matrix of its first against all others. One that its factors would
    not make smaller travels as it is.

    Raises:
        ValueError: The rank is below 1.
    """
    if rank < 1:
        raise ValueError(f"rank is at least 1; got {rank}")
    starts = list(accumulate((math.prod(shape) for shape in shapes), initial=0))
    matrices: list[Factors] = []
    others: list[tuple[int, int]] = []
    p_at = q_at = 0
    for shape, start, end in zip(shapes, starts, starts[1:], strict=False):
        rows = shape[0] if len(shape) > 1 else 1
        columns = (end - start) // rows if rows else 0
        kept = min(rank, rows, columns)
        if len(shape) < 2 or kept * (rows + columns) >= end - start:
            others.append((start, end))
            continue
        matrices.append(Factors(start, rows, columns, kept, p_at, q_at))
        p_at, q_at = p_at + rows * kept, q_at + columns * kept
    loose = sum(end - start for start, end in others)
    return LowRankLayout(starts[-1], tuple(matrices), tuple(others), p_at + loose, q_at)


@dataclass(slots=True)
class _Step:
    """What a member holds between the phases of a step."""

    c: Tensor
    orthonormal: Tensor | None = None
    own_right: Tensor | None = None


class LowRank:
    """One bucket's state: the right factors from which the next step starts. Errors are the caller's.

    A step calls ``first``, sums what it returns over all members, then ``second`` and ``finish`` likewise. Until
    ``finish`` nothing is changed, so a step that breaks is begun again with ``first``.

    Args:
        layout: Equal on all members.
        seed: Of the factors of the first step; equal on all members.
        device: Where the values lie.

    Attributes:
        right: The right factors, orthonormal, fp32, of shape (``second_count``,); equal on all members, part of a
            checkpoint, and what a member that joins has to get.
    """

    def __init__(self, layout: LowRankLayout, *, seed: int = 0, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        numbers = torch.Generator().manual_seed(seed)
        self._fresh = torch.randn(layout.second_count, generator=numbers).to(device)
        self.right = torch.zeros_like(self._fresh)
        self._c = torch.zeros(layout.count, device=device)
        self._step: _Step | None = None
        self._renew(self.right)

    def first(self, values: Tensor, error: Tensor | None) -> Tensor:
        """Returns what is summed first: left factors, then the values that travel as they are.

        Args:
            values: This member's part of the mean, fp32, of shape (``count``,).
            error: What earlier steps have lost, likewise.

        Returns:
            fp32, of shape (``first_count``,).

        Raises:
            BadValues: There is an infinity or NaN.
        """
        # One buffer for all steps: fresh memory costs more than the sum.
        c = self._c.copy_(values) if error is None else torch.add(values, error, out=self._c)
        refuse_unless_finite(c)
        out = torch.empty(self.layout.first_count, dtype=torch.float32, device=c.device)
        for each in self.layout.matrices:
            torch.mm(_matrix(c, each), _right(self.right, each), out=_left(out, each))
        for place, (start, end) in self._loose():
            out[place] = c[start:end]
        self._step = _Step(c)
        return out

    def second(self, first_sum: Tensor) -> Tensor:
        """Returns what is summed next: right factors, fp32, of shape (``second_count``,).

        Raises:
            RuntimeError: ``first`` was not called.
        """
        step = self._step
        if step is None:
            raise RuntimeError("first() comes before second()")
        step.orthonormal = first_sum.clone()
        step.own_right = torch.empty_like(self.right)
        for each in self.layout.matrices:
            left = _left(step.orthonormal, each)
            orthonormalise(left)
            torch.mm(_matrix(step.c, each).T, left, out=_right(step.own_right, each))
        return step.own_right.clone()

    def finish(self, second_sum: Tensor, out: Tensor, new_error: Tensor | None) -> None:
        """Writes the mean to ``out``, and what this member's part has lost to ``new_error``; both (``count``,).

        Raises:
            RuntimeError: ``second`` was not called.
        """
        step = self._step
        if step is None or step.orthonormal is None or step.own_right is None:
            raise RuntimeError("second() comes before finish()")
        for each in self.layout.matrices:
            left = _left(step.orthonormal, each)
            torch.mm(left, _right(second_sum, each).T, out=_matrix(out, each))
            if new_error is not None:
                own = _right(step.own_right, each)
                torch.addmm(_matrix(step.c, each), left, own.T, alpha=-1, out=_matrix(new_error, each))
        for place, (start, end) in self._loose():
            out[start:end] = step.orthonormal[place]
            if new_error is not None:
                new_error[start:end] = 0.0
        self.right.copy_(second_sum)
        self._renew(self.right)
        self._step = None

    def _renew(self, right: Tensor) -> None:
        """Makes right factors orthonormal, so that sizes do not grow or vanish from step to step.

        A column of zeros would stay one for ever, so it starts anew from the seed.
        """
        for each in self.layout.matrices:
            factor, fresh = _right(right, each), _right(self._fresh, each)
            orthonormalise(factor)
            factor.copy_(torch.where((factor == 0).all(0), fresh, factor))
            orthonormalise(factor)

    def _loose(self) -> list[tuple[slice, tuple[int, int]]]:
        """Returns the runs that travel as they are, with their places in the first buffer."""
        sizes = [end - start for start, end in self.layout.others]
        starts = accumulate(sizes, initial=self.layout.first_count - sum(sizes))
        places = [slice(start, start + size) for start, size in zip(starts, sizes, strict=False)]
        return list(zip(places, self.layout.others, strict=True))


def orthonormalise(p: Tensor) -> None:
    """Makes the columns of ``p`` (rows, rank) orthonormal in place, each twice against those before it.

    A column that depends on those before it becomes zero: what it would carry is carried already, or stays in the
    error.
    """
    for k in range(p.shape[1]):
        column, before = p[:, k], p[:, :k]
        length = torch.linalg.vector_norm(column)
        # Twice is enough (Giraud et al., 2005): what then remains of a dependent column is rounding alone.
        for _ in range(2):
            column -= before @ (before.T @ column)
        left = torch.linalg.vector_norm(column)
        column *= torch.where(left > _DEPENDENT * length, 1.0 / left, 0.0)


def _matrix(values: Tensor, each: Factors) -> Tensor:
    return values[each.values].view(each.rows, each.columns)


def _left(buffer: Tensor, each: Factors) -> Tensor:
    return buffer[each.p].view(each.rows, each.rank)


def _right(buffer: Tensor, each: Factors) -> Tensor:
    return buffer[each.q].view(each.columns, each.rank)
