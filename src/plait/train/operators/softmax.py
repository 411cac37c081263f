"""Softmax, and its online form, which needs one pass for maximum and sum (Milakov, Gimelshein, arXiv 1805.02867)."""

from typing import Any

import torch
from torch import Tensor

_BLOCK = 4096
"""Values of a row that are looked at together: a block of them in float32 stays in the nearest cache."""


def reference(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Returns ``exp(x - max) / sum(exp(x - max))`` along ``dim``."""
    given = x if dtype is None else x.to(dtype)
    wide = given if given.dtype == torch.float64 else given.float()
    shifted = (wide - wide.amax(dim=dim, keepdim=True)).exp()
    return (shifted / shifted.sum(dim=dim, keepdim=True)).to(given.dtype)


class _Online(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        top = torch.full_like(wide.narrow(dim, 0, 1), -torch.inf)
        total = torch.zeros_like(top)
        for start in range(0, wide.shape[dim], _BLOCK):
            block = wide.narrow(dim, start, min(_BLOCK, wide.shape[dim] - start))
            higher = torch.maximum(top, block.amax(dim=dim, keepdim=True))
            # Algorithm 3, line 5; inf - inf is no number, and the sum is empty there.
            base = higher.masked_fill(higher == -torch.inf, 0.0)
            total.mul_((top - base).exp_()).add_((block - base).exp_().sum(dim=dim, keepdim=True))
            top = higher
        result = (wide - top).exp_().div_(total).to(x.dtype)
        ctx.save_for_backward(result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (result,) = ctx.saved_tensors
        upstream = gradients[0]
        weighted = result * upstream
        return weighted - result * weighted.sum(dim=ctx.dim, keepdim=True), None


def online(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Returns the same; keeps only its result for the backward pass. A row of minus infinity alone gives NaN, too."""
    given = x if dtype is None else x.to(dtype)
    if given.dim() == 0 or given.shape[dim] == 0:
        return reference(given, dim)
    result = _Online.apply(given, dim)  # type: ignore[no-untyped-call]
    assert isinstance(result, Tensor)
    return result
