"""BatchNorm that does not notice how a global step is split over devices.

Two kinds. *Ghost* (Hoffer et al., arXiv 1705.08741): each logical micro-batch is normalised by its own statistics, and
the running statistics take in all K micro-batches in the order of ``k``, exactly as one device would that runs them
one after the other. No communication in forward or backward, the same on any placement: the default. *Sync*: the
statistics of all samples of the step that members run at the same time, weighted by count, over any exchange,
also on CPUs and in mixed groups, where PyTorch has none.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

AllReduce = Callable[[Tensor], Tensor]
"""Returns the sum of a tensor over all members, each of which calls it with a tensor of the same shape."""


@dataclass
class _Now:
    """The micro-batches in the running forward pass, shared by all layers of a model that are ours.

    ``tells``: whether this member reports statistics that several members hold alike.
    """

    ks: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    tells: bool = True


@dataclass
class _Seen:
    """What one layer saw of one micro-batch: mean and unbiased variance a channel, on the layer's device."""

    mean: Tensor
    variance: Tensor


class GhostBatchNorm(_BatchNorm):
    """BatchNorm over each logical micro-batch of a fused batch; made by :func:`convert`.

    A micro-batch with a single value a channel has no variance; it is normalised by the running statistics and adds
    nothing to them. Without a :class:`GhostStatistics` telling which micro-batches a batch holds, the layer is an
    ordinary BatchNorm.
    """

    now: _Now | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: dict[int, _Seen] = {}

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - the name is PyTorch's
        if input.dim() < 2:
            raise ValueError(f"BatchNorm takes a batch of at least 2 dimensions; got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalises ``input`` of shape (samples, channels, ...)."""
        now = self.now
        if not self.training or now is None or not now.counts:
            return super().forward(input)
        self._check_input_dim(input)
        if sum(now.counts) != input.shape[0]:
            raise ValueError(
                f"a batch of {input.shape[0]} samples reached BatchNorm, but its micro-batches hold {sum(now.counts)}"
            )
        parts = input.split(list(now.counts))
        return torch.cat([self._normalised(k, part) for k, part in zip(now.ks, parts, strict=True)])

    def _normalised(self, k: int, part: Tensor) -> Tensor:
        num_values = part.numel() // part.shape[1]
        if num_values <= 1 and self.running_mean is not None:
            return functional.batch_norm(
                part, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        # With momentum 1 PyTorch leaves the batch's own statistics here, the very ones it would have merged.
        kind = self.weight if self.weight is not None else part
        mean = torch.zeros(self.num_features, dtype=kind.dtype, device=part.device)
        variance = torch.ones_like(mean)
        result = functional.batch_norm(part, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
        if self.track_running_stats:
            self.seen[k] = _Seen(mean, variance)  # run again (recomputation, a redo), it only says the same again
        return result


class GhostStatistics:
    """Collects what the layers of a model saw in a step, and merges it into their running statistics.

    A ghost layer sees each micro-batch, a sync layer the step as a whole, which one member reports.

    Before each forward pass call :meth:`enter`; after the step, SUM-reduce :meth:`table` over all members and hand the
    result to :meth:`merge`. Each micro-batch is run by one member, so the sum is exact and the same everywhere; it is
    merged on the CPU with single multiplications and additions, so that all kinds of device get the same bits.
    """

    def __init__(self, model: nn.Module) -> None:
        """Finds the layers of a model that :func:`convert` has been through."""
        ours = (GhostBatchNorm, CountWeightedSyncBatchNorm)
        self.layers = [module for module in model.modules() if isinstance(module, ours)]
        self._now = _Now()
        for layer in self.layers:
            layer.now = self._now

    @property
    def width(self) -> int:
        """Columns of the table: for each layer a flag, then mean and variance a channel."""
        return sum(1 + 2 * layer.num_features for layer in self.layers)

    def enter(self, ks: Sequence[int], counts: Sequence[int], *, tells: bool = True) -> None:
        """Says which micro-batches the next forward pass holds, in order, and how many samples each, be it 0.

        ``tells``: whether this member reports the statistics of layers that see the step as a whole.
        """
        self._now.tells = tells
        present = [(k, n) for k, n in zip(ks, counts, strict=True) if n > 0]
        self._now.ks = tuple(k for k, _ in present)
        self._now.counts = tuple(n for _, n in present)

    def leave(self) -> None:
        """Says that forward passes from now on are none of a step's."""
        self._now.ks = self._now.counts = ()

    def discard(self, ks: Iterable[int] | None = None) -> None:
        """Forgets what was seen of these micro-batches (``None``: of all), as when a step is given up."""
        for layer in self.layers:
            for k in list(layer.seen) if ks is None else ks:
                layer.seen.pop(k, None)

    def table(self, num_micro_batches: int) -> Tensor:
        """Returns the table (K, :attr:`width`), float64 on the CPU, zero in the rows of micro-batches not run here."""
        table = torch.zeros(num_micro_batches, self.width, dtype=torch.float64)
        column = 0
        for layer in self.layers:
            for k in sorted(layer.seen):
                values = torch.cat([layer.seen[k].mean, layer.seen[k].variance]).to("cpu", torch.float64)
                table[k, column] = 1.0
                table[k, column + 1 : column + 1 + values.numel()] = values
            column += 1 + 2 * layer.num_features
        return table

    def merge(self, table: Tensor) -> None:
        """Merges a reduced table into all running statistics, in the order of ``k``, and forgets the step."""
        rows = table.to("cpu", torch.float64)
        column = 0
        for layer in self.layers:
            width = 1 + 2 * layer.num_features
            _merge_layer(layer, rows[:, column : column + width])
            column += width
        self.discard()
        self.leave()


@torch.no_grad()
def _merge_layer(layer: "GhostBatchNorm | CountWeightedSyncBatchNorm", rows: Tensor) -> None:
    mean, variance, tracked = layer.running_mean, layer.running_var, layer.num_batches_tracked
    if mean is None or variance is None or tracked is None:
        return
    running = torch.cat([mean, variance]).to("cpu", torch.float64)
    num_tracked = int(tracked)
    for row in rows[rows[:, 0] > 0.0]:
        num_tracked += 1
        momentum = 1.0 / num_tracked if layer.momentum is None else layer.momentum
        running = running * (1.0 - momentum) + row[1:] * momentum
    new_mean, new_variance = running.split(layer.num_features)
    mean.copy_(new_mean)
    variance.copy_(new_variance)
    tracked.fill_(num_tracked)


class _NormaliseTogether(torch.autograd.Function):
    """Normalisation by the statistics of all members; the sums behind them are exchanged forward and backward."""

    @staticmethod
    def forward(  # noqa: PLR0917 - apply() takes positions only
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, exchange: "Exchange"
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        all_reduce = exchange.all_reduce
        axes = [axis for axis in range(x.dim()) if axis != 1]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = wide.new_full((1,), x.numel() / max(1, x.shape[1]))
        sums = all_reduce(torch.cat([count, wide.sum(axes)]))
        total = sums[0].clamp(min=1.0)
        mean = sums[1:] / total
        shape = [1, -1] + [1] * (x.dim() - 2)
        centred = wide - mean.view(shape)
        # Squares of differences, in an exchange of their own: the difference of large squares would lose digits.
        variance = all_reduce(centred.square().sum(axes)) / total
        inverse = torch.rsqrt(variance + eps)
        normal = centred * inverse.view(shape)
        result = normal if weight is None or bias is None else normal * weight.view(shape) + bias.view(shape)
        ctx.save_for_backward(normal, inverse, weight, total)
        ctx.all_reduce, ctx.weight, ctx.axes, ctx.shape = all_reduce, exchange.weight, axes, shape
        ctx.mark_non_differentiable(mean, variance, total)
        return result.to(x.dtype), mean, variance, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normal, inverse, weight, total = ctx.saved_tensors
        given = gradients[0].to(normal.dtype)
        for_bias = given.sum(ctx.axes)
        for_weight = (given * normal).sum(ctx.axes)
        scale = inverse if weight is None else inverse * weight
        # Each member's loss is a mean over its own samples; the sums are of the whole step's loss.
        weight_of_mine = ctx.weight()
        means = ctx.all_reduce(torch.cat([for_bias, for_weight]) * weight_of_mine) / (total * weight_of_mine)
        mean_given, mean_along = means.split(normal.shape[1])
        along = normal * mean_along.view(ctx.shape)
        for_x = (given - mean_given.view(ctx.shape) - along) * scale.view(ctx.shape)
        has_weight = weight is not None
        return (
            for_x.to(gradients[0].dtype),
            for_weight.to(weight.dtype) if has_weight else None,
            for_bias.to(weight.dtype) if has_weight else None,
            None,
            None,
        )


@dataclass
class Exchange:
    """Where the sync layers of a model get their sums from; both may be changed between steps.

    Attributes:
        all_reduce: Returns the sum over the members.
        weight: Returns what this member's loss counts for in the loss of all, 1 where losses are simply added.
    """

    all_reduce: AllReduce = field(default=lambda tensor: tensor)
    weight: Callable[[], float] = field(default=lambda: 1.0)


class CountWeightedSyncBatchNorm(_BatchNorm):
    """BatchNorm over the samples that all members run at the same time, whatever their counts; made by :func:`convert`.

    All members must run forward and backward equally often; a member without samples runs an empty batch. Two
    exchanges of (1 + channels) and (channels) numbers in forward, one of (2 * channels) in backward.
    """

    exchange: Exchange = Exchange()  # a module does nothing between members until it is given an exchange
    now: _Now | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: dict[int, _Seen] = {}

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(f"BatchNorm takes a batch of at least 2 dimensions; got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalises ``input`` of shape (samples, channels, ...)."""
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        result, mean, variance, total = _NormaliseTogether.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, self.exchange
        )
        unbiased = variance * (total / (total - 1.0).clamp(min=1.0))
        if self.now is None or not self.now.counts:
            self._update(mean, unbiased)
        elif self.now.tells and self.track_running_stats:
            self.seen[self.now.ks[0]] = _Seen(mean, unbiased)  # counts once the step commits, and on every member
        assert isinstance(result, Tensor)
        return result

    @torch.no_grad()
    def _update(self, mean: Tensor, unbiased: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.mul_(1.0 - momentum).add_(mean.to(self.running_mean.dtype) * momentum)
        self.running_var.mul_(1.0 - momentum).add_(unbiased.to(self.running_var.dtype) * momentum)


def convert(model: nn.Module, kind: Literal["ghost", "sync"], exchange: Exchange | None = None) -> nn.Module:
    """Returns the model with each of its BatchNorm layers replaced; parameters and buffers stay the same objects.

    Args:
        model: The model, changed in place; only a model that is itself a BatchNorm comes back as another object.
        kind: ``ghost`` or ``sync``.
        exchange: Where sync layers get their sums from.
    """
    if isinstance(model, _BatchNorm) and not isinstance(model, (GhostBatchNorm, CountWeightedSyncBatchNorm)):
        return _replaced(model, kind, exchange)
    for name, child in model.named_children():
        setattr(model, name, convert(child, kind, exchange))
    return model


def _replaced(old: _BatchNorm, kind: Literal["ghost", "sync"], exchange: Exchange | None) -> _BatchNorm:
    form = GhostBatchNorm if kind == "ghost" else CountWeightedSyncBatchNorm
    new = form(old.num_features, old.eps, old.momentum, affine=False, track_running_stats=False)
    new.affine, new.track_running_stats, new.training = old.affine, old.track_running_stats, old.training
    new.weight, new.bias = old.weight, old.bias
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        new.register_buffer(name, getattr(old, name))
    if isinstance(new, CountWeightedSyncBatchNorm) and exchange is not None:
        new.exchange = exchange
    return new
