"""Scaled dot-product attention, and the form that never holds the matrix of scores (FlashAttention).

Dao, Fu, Ermon, Rudra, Re, "FlashAttention: fast and memory-efficient exact attention with IO-awareness" (2022), and the
sums of FlashAttention-2 (Dao 2023, algorithms 1 and 2): blocks of keys pass by all queries; a row keeps its running
maximum and sum, and one logarithm a row is enough to make the weights again in the backward pass. A query that may see
no key gets zeros, as in PyTorch.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK = 128
"""Keys that are looked at together."""


def reference(  # noqa: PLR0917 - PyTorch's signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Returns ``softmax(query @ key^T * scale + mask) @ value``; shapes (..., length, width), as in PyTorch."""
    if enable_gqa:
        key, value = (_repeated(x, query.shape[-3]) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    mask = _mask(query, key, attn_mask, is_causal)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    weights = scores.masked_fill(sees_nothing, 0.0).softmax(dim=-1).masked_fill(sees_nothing, 0.0)
    if dropout_p > 0.0:
        weights = functional.dropout(weights, dropout_p)
    return weights @ value


def _repeated(x: Tensor, num_heads: int) -> Tensor:
    return x.repeat_interleave(num_heads // x.shape[-3], -3)


def _mask(query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor | None:
    if is_causal:
        if attn_mask is not None:
            raise RuntimeError("attention takes either attn_mask or is_causal, not both")
        return torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return attn_mask


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
    ) -> Tensor:
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        q = query.to(wide) * scale
        top = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=wide, device=q.device)
        total = torch.zeros_like(top)
        out = torch.zeros((*q.shape[:-1], value.shape[-1]), dtype=wide, device=q.device)
        for start in range(0, key.shape[-2], _BLOCK):
            stop = min(start + _BLOCK, key.shape[-2])
            scores = _scores(q, key[..., start:stop, :].to(wide), mask, (start, stop), is_causal=is_causal)
            higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            base = higher.masked_fill(higher == -torch.inf, 0.0)  # a row that nothing was seen of yet
            weights = (scores - base).exp_()
            shrink = (top - base).exp_()  # 0 where nothing was seen before
            total = total * shrink + weights.sum(dim=-1, keepdim=True)
            out = out * shrink + weights @ value[..., start:stop, :].to(wide)
            top = higher
        sees_nothing = total == 0
        result = (out / total.masked_fill(sees_nothing, 1.0)).to(query.dtype)
        logarithm = (top + total.log()).masked_fill(sees_nothing, torch.inf)
        ctx.save_for_backward(query, key, value, mask, result, logarithm)
        ctx.is_causal, ctx.scale = is_causal, scale
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, result, logarithm = ctx.saved_tensors
        wide = logarithm.dtype
        q, upstream = query.to(wide) * ctx.scale, gradients[0].to(wide)
        along = (upstream * result.to(wide)).sum(dim=-1, keepdim=True)
        to_query = torch.zeros_like(q)
        to_key, to_value = torch.empty_like(key, dtype=wide), torch.empty_like(value, dtype=wide)
        to_mask = torch.zeros(q.shape[:-1] + key.shape[-2:-1], dtype=wide) if ctx.needs_input_grad[3] else None
        for start in range(0, key.shape[-2], _BLOCK):
            stop = min(start + _BLOCK, key.shape[-2])
            k, v = key[..., start:stop, :].to(wide), value[..., start:stop, :].to(wide)
            weights = (_scores(q, k, mask, (start, stop), is_causal=ctx.is_causal) - logarithm).exp_()
            to_value[..., start:stop, :] = weights.transpose(-2, -1) @ upstream
            to_scores = weights * (upstream @ v.transpose(-2, -1) - along)
            to_query += to_scores @ k
            to_key[..., start:stop, :] = to_scores.transpose(-2, -1) @ q
            if to_mask is not None:
                to_mask[..., start:stop] = to_scores
        return (
            (to_query * ctx.scale).to(query.dtype),
            to_key.to(key.dtype),
            to_value.to(value.dtype),
            None if to_mask is None else to_mask.sum_to_size(mask.shape).to(mask.dtype),
            None,
            None,
        )


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, span: tuple[int, int], *, is_causal: bool) -> Tensor:
    """Returns the scores of all queries with the keys ``span``, which ``k`` holds; masked ones are minus infinity."""
    start, stop = span
    scores = q @ k.transpose(-2, -1)
    if is_causal:
        rows = torch.arange(q.shape[-2], device=q.device)[:, None]
        scores.masked_fill_(torch.arange(start, stop, device=q.device)[None, :] > rows, -torch.inf)
    if mask is not None:
        part = mask if mask.shape[-1] == 1 else mask[..., start:stop]
        scores = scores.masked_fill(~part, -torch.inf) if mask.dtype == torch.bool else scores + part.to(scores.dtype)
    return scores


def blocked(  # noqa: PLR0917 - PyTorch's signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Returns the same without ever holding all scores. With dropout the reference runs, whose draws are PyTorch's."""
    if dropout_p > 0.0 or key.shape[-2] == 0 or (is_causal and attn_mask is not None):
        return reference(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if enable_gqa:
        key, value = (_repeated(x, query.shape[-3]) for x in (key, value))
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (x.expand(*batch, *x.shape[-2:]) for x in (query, key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    result = _Blocked.apply(query, key, value, attn_mask, is_causal, factor)  # type: ignore[no-untyped-call]
    assert isinstance(result, Tensor)
    return result
