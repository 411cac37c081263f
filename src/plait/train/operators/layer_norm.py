"""Layer normalisation (Ba, Kiros, Hinton 2016, equation 4 over the last dimensions)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def reference(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns ``(x - mean) / sqrt(variance + eps) * weight + bias``, with moments over the last dimensions."""
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    wide = x.double() if x.dtype == torch.float64 else x.float()
    centred = wide - wide.mean(dim=dims, keepdim=True)
    variance = centred.square().mean(dim=dims, keepdim=True)
    normal = centred / (variance + eps).sqrt()
    if weight is not None:
        normal = normal * weight
    if bias is not None:
        normal = normal + bias
    return normal.to(x.dtype)


class _Fused(torch.autograd.Function):
    """Keeps the input and two numbers a row for the backward pass, and no intermediate of the size of the input."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, size: int, eps: float
    ) -> Tensor:
        rows = x.reshape(-1, size)
        wide = rows if rows.dtype == torch.float64 else rows.float()
        variance, mean = torch.var_mean(wide, dim=1, correction=0, keepdim=True)
        inverse = (variance + eps).rsqrt_()
        normal = (wide - mean).mul_(inverse)
        if weight is not None:
            normal.mul_(weight.reshape(1, size))
        if bias is not None:
            normal.add_(bias.reshape(1, size))
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.bias_kind = None if bias is None else (bias.shape, bias.dtype)
        ctx.size = size
        return normal.to(x.dtype).reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        rows = x.reshape(-1, ctx.size).to(mean.dtype)
        upstream = gradients[0].reshape(-1, ctx.size).to(mean.dtype)
        normal = (rows - mean) * inverse
        scaled = upstream if weight is None else upstream * weight.reshape(1, ctx.size)
        along = (scaled * normal).mean(dim=1, keepdim=True)
        to_x = (scaled - scaled.mean(dim=1, keepdim=True) - normal * along) * inverse
        to_weight = None if weight is None else (upstream * normal).sum(dim=0).reshape(weight.shape).to(weight.dtype)
        to_bias = None if ctx.bias_kind is None else upstream.sum(dim=0).reshape(ctx.bias_kind[0]).to(ctx.bias_kind[1])
        return to_x.to(x.dtype).reshape(x.shape), to_weight, to_bias, None, None


def fused(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns the same; sums in float32 at least."""
    size = 1
    for length in normalized_shape:
        size *= length
    result = _Fused.apply(x, weight, bias, size, eps)  # type: ignore[no-untyped-call]
    assert isinstance(result, Tensor)
    return result
