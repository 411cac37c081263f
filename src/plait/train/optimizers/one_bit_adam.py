"""1-bit Adam: Adam that, once its variance has settled, exchanges one bit a value (arXiv 2102.02888).

Warm-up is AdamW on the exact mean gradient. Then the variance is frozen, bias-corrected (a frozen variance that is not
is a hidden change of the learning rate), and what devices exchange is the momentum. The exchange then hands over, in
place of the gradient, the new momentum itself, the same on all devices.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from plait.errors import PlaitError

STABLE_RATIO = 0.96
"""The variance counts as settled when its norm has grown by less than 1 - 0.96 within 1 / (1 - beta2) steps."""

ROOT_FLOOR_RATIO = 0.1
"""Least root of a frozen variance over the root mean of its tensor.

One bit a value gives a value that is never touched, such as the weight of a dead unit, the size of its neighbours, and
its error back in the next step. Divided by the root of almost nothing, that is a leap, and the loss becomes NaN.
"""


def raise_floor(variances: Sequence[Tensor]) -> None:
    """Raises, in place, what is tiny beside the rest of its tensor; a tensor of zeros beside all the others."""
    num_values = sum(variance.numel() for variance in variances)
    overall = sum((float(variance.sum()) for variance in variances), 0.0) / max(num_values, 1)
    for variance in variances:
        variance.clamp_(min=ROOT_FLOOR_RATIO**2 * (float(variance.mean()) or overall))


def memory_views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Returns each parameter's part of a run as DDP sees it: in the order of the parameter's own memory.

    That is another one than that of its indices where a tensor is, say, ``channels_last``.
    """
    parts = flat.split([parameter.numel() for parameter in parameters])
    strides = [torch.empty_like(parameter, device="meta").stride() for parameter in parameters]
    return [part.as_strided(p.shape, s) for part, p, s in zip(parts, parameters, strides, strict=True)]


def _plain_views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]


class _MomentumRun(NamedTuple):
    """Momenta that lie one after the other, and the views of them that are the optimizer's state."""

    flat: Tensor
    views: list[Tensor]
    in_memory_order: bool


class OneBitAdam(torch.optim.Optimizer):
    """AdamW whose momentum can travel in one bit a value.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of momentum and variance.
        eps: Added to the root of the variance.
        weight_decay: Decoupled, as in AdamW.
        freeze: The step after which the variance is frozen, or ``"auto"``: when its L1 norm has settled (section 7.1
            of the paper), checked every ``1 / (1 - beta2)`` steps.

    Raises:
        PlaitError: A setting is out of range.
    """

    def __init__(  # noqa: PLR0917 - the order of torch.optim.AdamW
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        freeze: int | Literal["auto"] = "auto",
    ) -> None:
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise PlaitError(f"betas are {betas}; each must lie in [0, 1)")
        if freeze != "auto" and freeze < 1:
            raise PlaitError(f"freeze is {freeze}; expected a number of steps, 1 or more, or 'auto'")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "freeze": freeze, "steps": 0, "frozen": False, "norm": 0.0})
        self._rooms: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._runs: dict[tuple[int, ...], _MomentumRun] = {}
        self._updated: set[int] = set()
        if len({group["betas"] for group in self.param_groups}) > 1:
            raise PlaitError("all parameter groups must have the same betas: their momenta travel together")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._rooms = {}
        self._runs = {}
        self._updated = set()

    @property
    def is_frozen(self) -> bool:
        """Whether gradients that come are momenta, and the variance stays."""
        return bool(self.param_groups[0]["frozen"])

    @property
    def sends_momentum(self) -> bool:
        """Whether what devices exchange for the coming step is the momentum; else it is the gradient."""
        return self.is_frozen

    @property
    def beta(self) -> float:
        """The decay of the momentum."""
        return float(self.param_groups[0]["betas"][0])

    @property
    def wants_freeze(self) -> bool:
        """Whether the warm-up may end; the same on all replicas. The exchange's owner calls :meth:`freeze` then."""
        first = self.param_groups[0]
        if first["frozen"]:
            return False
        if first["freeze"] != "auto":
            return bool(first["steps"] >= first["freeze"])
        return bool(first.get("settled", False))

    def momentum_of(self, parameter: Tensor) -> Tensor:
        """Returns the momentum of a parameter, zero before its first step."""
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        momentum: Tensor = state["exp_avg"]
        return momentum

    @torch.no_grad()
    def momentum_run(self, parameters: Sequence[Tensor], *, in_memory_order: bool = False) -> Tensor:
        """Returns the momenta of some parameters as one run of memory, where they lie from now on.

        Args:
            parameters: Of this optimizer; a parameter that is asked for among others moves on to their run.
            in_memory_order: Whether values follow each other as in :func:`memory_views`; else as in contiguous tensors.

        Returns:
            fp32; a copy where the momenta are of another type.
        """
        ids = tuple(id(parameter) for parameter in parameters)
        run = self._runs.get(ids)
        momenta = [self.momentum_of(parameter) for parameter in parameters]
        is_there = run is not None and all(map(operator.is_, run.views, momenta))
        if run is not None and is_there and run.in_memory_order == in_memory_order:
            return run.flat
        flat = torch.empty(sum(m.numel() for m in momenta), device=momenta[0].device)
        views = memory_views(flat, parameters) if in_memory_order else _plain_views(flat, parameters)
        for view, momentum in zip(views, momenta, strict=True):
            view.copy_(momentum)
        if all(momentum.dtype == flat.dtype for momentum in momenta):
            self._runs = {other: r for other, r in self._runs.items() if not set(other) & set(ids)}
            self._runs[ids] = _MomentumRun(flat, views, in_memory_order)
            for parameter, view in zip(parameters, views, strict=True):
                self.state[parameter]["exp_avg"] = view
        return flat

    @torch.no_grad()
    def take_momenta(self, gradients: Tensor, parameters: Sequence[Tensor], weight: float, share: float) -> None:
        """Makes of gradients, in place, what one device adds to the next momentum: ``share`` of it.

        Args:
            gradients: Of all values of ``parameters``, one after the other.
            parameters: Of this optimizer.
            weight: What the gradients are multiplied by to be this device's part of the mean.
            share: This device's part of the step; all shares add up to 1.
        """
        gradients.mul_((1.0 - self.beta) * weight)
        first = 0
        for parameter in parameters:
            end = first + parameter.numel()
            gradients[first:end].add_(self.momentum_of(parameter).reshape(-1), alpha=self.beta * share)
            first = end

    @torch.no_grad()
    def freeze(self) -> None:
        """Ends the warm-up: from the next step on, gradients that come are momenta.

        The variance is bias-corrected, and raised where it is tiny beside the rest of its tensor.
        """
        variances: list[Tensor] = []
        for group in self.param_groups:
            correction = 1.0 - group["betas"][1] ** max(group["steps"], 1)
            states = (self.state[parameter] for parameter in group["params"])
            variances.extend(state["exp_avg_sq"].div_(correction) for state in states if "exp_avg_sq" in state)
            group["frozen"] = True
        raise_floor(variances)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates the parameters by their gradients, or, once frozen, by the momenta that stand in their place."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in self._updated:
                    self._update(parameter, parameter.grad, group)
        self._updated = set()
        self._watch()
        return loss

    @torch.no_grad()
    def update_early(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Does for some parameters what the coming :meth:`step` would do, which then leaves them out."""
        groups = {id(parameter): group for group in self.param_groups for parameter in group["params"]}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            group = groups[id(parameter)]
            self._update(parameter, gradient, {**group, "steps": group["steps"] + 1})
            self._updated.add(id(parameter))

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        momentum = self.momentum_of(parameter)
        variance = self.state[parameter]["exp_avg_sq"]
        if group["frozen"]:
            momentum.copy_(gradient)
            root = torch.sqrt(variance, out=self._room(variance))
        else:
            momentum.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
            variance.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            root = torch.div(variance, 1.0 - beta2 ** group["steps"], out=self._room(variance)).sqrt_()
        if group["weight_decay"]:
            parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        rate = group["lr"] / (1.0 - beta1 ** group["steps"])
        parameter.addcdiv_(momentum, root.add_(group["eps"]), value=-rate)

    def _room(self, like: Tensor) -> Tensor:
        """Returns room for a tensor, the same each time: fresh memory costs more than the arithmetic."""
        kind = (like.device, like.dtype)
        if kind not in self._rooms or self._rooms[kind].numel() < like.numel():
            self._rooms[kind] = torch.empty(like.numel(), device=like.device, dtype=like.dtype)
        return self._rooms[kind][: like.numel()].view(like.shape)

    def _watch(self) -> None:
        """Compares the variance's norm with what it was a window ago."""
        first = self.param_groups[0]
        window = max(1, round(1.0 / (1.0 - first["betas"][1])))
        if first["freeze"] != "auto" or first["frozen"] or first["steps"] % window:
            return
        norm = sum(
            float(self.state[p]["exp_avg_sq"].sum()) for g in self.param_groups for p in g["params"] if self.state[p]
        )
        first["settled"] = norm > 0.0 and first["norm"] / norm >= STABLE_RATIO
        first["norm"] = norm
