"""Sums of gradients whose bits do not depend on the split: fixed-point numbers in 64-bit integers.

Integer addition is associative, so neither order, ring, split nor a micro-batch that was dealt again can change the
sum. What could is the scale, so it must not depend on who ran what either. The largest entry of this step would be the
ideal scale, but it is known only when all micro-batches have run, and keeping the gradient of each until then would
take K times the memory. Plait therefore scales by the largest entry of the *last committed* step, which every member
knows (:class:`FixedPointScale`, part of the replicated state), with ``GROWTH_BITS`` of head-room. The largest entry of
the running step travels with the sums (one MAX-reduce of one number a tensor, again independent of the split). Should
it exceed the head-room, or be so small that fewer than ``LEAST_BITS`` would be left of it, all members see so and run
the step's micro-batches once more with the scale of that very maximum, which fits. So the scale is a function of the
data of the steps alone, and a repeat happens only where gradients change by orders of magnitude from step to step.

Entries of a tensor that are 2**(62 - 8 - log2 K - 24) times smaller than its largest one in the step before (2**26 for
K = 16) lose low bits of their float32 mantissa, the same bits everywhere. Like kernels on like hardware are needed for
equal micro-batch gradients in the first place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import frexp, inf, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SUM_BITS = 62
GROWTH_BITS = 8
LEAST_BITS = 30
"""Bits that the largest entry of a tensor must keep; float32 keeps 24."""

FIRST_MAX_ABS = 1.0
"""Assumed largest entry before the first step, and of a tensor that had no gradient yet."""


def exponent_for(max_abs: float, num_terms: int) -> int:
    """Returns the largest ``e`` for which ``num_terms`` entries of up to ``max_abs * 2**e`` add up in 62 bits.

    Raises:
        ValueError: ``max_abs`` is not a finite positive number: frexp would give a silent 0 for infinity.
    """
    if not isfinite(max_abs) or max_abs <= 0.0:
        raise ValueError(f"a fixed-point scale needs a finite positive maximum; got {max_abs}")
    return SUM_BITS - _term_bits(num_terms) - frexp(max_abs)[1]


def _term_bits(num_terms: int) -> int:
    if num_terms < 1:
        raise ValueError(f"a sum needs at least 1 term; got {num_terms}")
    return (num_terms - 1).bit_length()


def limit_of(exponent: int, num_terms: int) -> float:
    """Returns the largest magnitude that an entry may have at this exponent."""
    return 2.0 ** (SUM_BITS - _term_bits(num_terms) - exponent)


def to_fixed(values: Tensor, exponent: int) -> Tensor:
    """Returns ``values * 2**exponent`` rounded half to even, as int64; the scaling itself is exact in float64."""
    return values.to(torch.float64).mul_(2.0**exponent).round_().to(torch.int64)


def from_fixed(sums: Tensor, exponent: int, dtype: torch.dtype) -> Tensor:
    """Returns ``sums * 2**-exponent`` in the given type."""
    return sums.to(torch.float64).mul_(2.0**-exponent).to(dtype)


def to_fixed_reference(values: NDArray[np.floating], exponent: int) -> NDArray[np.int64]:
    """The plain NumPy form of :func:`to_fixed`."""
    return np.rint(np.ldexp(values.astype(np.float64), exponent)).astype(np.int64)


def from_fixed_reference(sums: NDArray[np.int64], exponent: int) -> NDArray[np.float32]:
    """The plain NumPy form of :func:`from_fixed` for float32."""
    return np.ldexp(sums.astype(np.float64), -exponent).astype(np.float32)


@dataclass(frozen=True, slots=True)
class FixedPointScale:
    """The largest entry of each tensor in the last committed step; replicated state, sent to those who join."""

    max_abs: tuple[float, ...]

    @classmethod
    def start(cls, num_tensors: int) -> "FixedPointScale":
        """Returns the scale of the first step."""
        return cls((FIRST_MAX_ABS,) * num_tensors)

    def exponents(self, num_terms: int) -> tuple[int, ...]:
        """Returns the exponent of each tensor for a step of ``num_terms`` micro-batches, head-room included."""
        return tuple(exponent_for(value, num_terms) - GROWTH_BITS for value in self.max_abs)

    def after(self, step_max: Sequence[float]) -> "FixedPointScale":
        """Returns the scale of the next step after a commit, or of the same step run again after a bad fit.

        A tensor without any gradient in the step keeps its scale.
        """
        return FixedPointScale(tuple(new or old for new, old in zip(step_max, self.max_abs, strict=True)))


class Verdict(Enum):
    """What the reduced maxima say of a step."""

    GOOD = "good"
    MISFIT = "misfit"
    NOT_FINITE = "not finite"


def judge(step_max: Sequence[float], exponents: Sequence[int], num_terms: int) -> Verdict:
    """Returns whether the sums of a step may be used; every member comes to the same verdict.

    Args:
        step_max: MAX over all members of :attr:`FixedSum.maxima`.
        exponents: Those that the step ran with.
        num_terms: K.
    """
    if inf in step_max:
        return Verdict.NOT_FINITE
    for value, exponent in zip(step_max, exponents, strict=True):
        if value > limit_of(exponent, num_terms) or 0.0 < value < 2.0 ** (LEAST_BITS - exponent):
            return Verdict.MISFIT
    return Verdict.GOOD


class FixedSum:
    """One member's part of a step's gradient: the sum over its micro-batches, in fixed point.

    Attributes:
        sums: All tensors in one flat int64 tensor, to be SUM-reduced.
        maxima: The largest magnitude in each tensor so far, float64, infinite where an entry was not finite; to be
            MAX-reduced.
        held: The micro-batches added.
    """

    def __init__(self, like: Sequence[Tensor], exponents: Sequence[int], num_terms: int) -> None:
        """Starts an empty sum.

        Args:
            like: Tensors of the shapes and devices of the gradients, all on one device.
            exponents: One a tensor, from :meth:`FixedPointScale.exponents`.
            num_terms: K, the micro-batches of the whole step.
        """
        if len(like) != len(exponents):
            raise ValueError(f"{len(like)} tensors need as many exponents; got {len(exponents)}")
        device = like[0].device if like else torch.device("cpu")
        self.exponents = tuple(exponents)
        self.num_terms = num_terms
        self.held: set[int] = set()
        self.sums = torch.zeros(sum(t.numel() for t in like), dtype=torch.int64, device=device)
        self.maxima = torch.zeros(len(like), dtype=torch.float64, device=device)
        self._shapes = [t.shape for t in like]
        self._dtypes = [t.dtype for t in like]
        self._parts = list(self.sums.split([t.numel() for t in like])) if like else []

    def add(self, k: int, gradients: Sequence[Tensor | None]) -> None:
        """Adds the gradient of micro-batch ``k`` run alone; ``None`` stands for a tensor that it did not reach.

        Nothing waits for the device: entries that do not fit are clamped and show in ``maxima``.
        """
        if k in self.held or len(self.held) == self.num_terms:
            raise ValueError(f"micro-batch {k} is already in the sum, which holds {sorted(self.held)}")
        self.held.add(k)
        for i, gradient in enumerate(gradients):
            if gradient is None or gradient.numel() == 0:
                continue
            values = gradient.detach().reshape(-1)
            largest = values.abs().max().to(torch.float64)
            # NaN is lost in the MAX-reduce of some back ends; infinity is not.
            self.maxima[i] = torch.maximum(self.maxima[i], largest.nan_to_num(nan=inf, posinf=inf))
            limit = limit_of(self.exponents[i], self.num_terms)
            fitting = values.to(torch.float64).nan_to_num(nan=0.0).clamp_(-limit, limit)
            self._parts[i] += to_fixed(fitting, self.exponents[i])

    def gradients(self, sums: Tensor) -> list[Tensor]:
        """Returns the gradients that reduced ``sums`` stand for, in the types and shapes of the tensors."""
        parts = sums.split([part.numel() for part in self._parts])
        return [
            from_fixed(part, e, dtype).view(shape)
            for part, e, dtype, shape in zip(parts, self.exponents, self._dtypes, self._shapes, strict=True)
        ]
