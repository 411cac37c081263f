"""0/1 Adam: no warm-up, but steps that renew the variance, ever more rarely (Lu et al., arXiv 2202.06009, Algorithm 1).

At a step of the set ``T_v`` devices exchange the gradient in bf16, and momentum and variance are renewed; at all other
steps they exchange the momentum in one bit a value, and the variance stays. The j-th interval between renewals is
``2 ** (j // kappa)``. Momenta are synchronised at each step (the paper's ``T_u`` holds all steps): steps without any
exchange would let replicas differ, which a device that joins or leaves must not find.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from plait.errors import PlaitError
from plait.train.optimizers.one_bit_adam import OneBitAdam, raise_floor


def renews_variance(step: int, kappa: int) -> bool:
    """Says whether a step, counted from 0, is one of ``T_v``.

    Example:
        >>> [step for step in range(20) if renews_variance(step, 4)]
        [0, 1, 2, 3, 4, 6, 8, 10, 12, 16]
    """
    first, interval = 0, 1
    while step >= first + kappa * interval:
        first, interval = first + kappa * interval, 2 * interval
    return (step - first) % interval == 0


class ZeroOneAdam(OneBitAdam):
    """AdamW that sends one bit a value of its momentum from the start, but at the steps that renew the variance.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of momentum and variance.
        eps: Added to the root of the variance.
        weight_decay: Decoupled, as in AdamW.
        kappa: The interval between renewals doubles after so many of them.

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
        kappa: int = 16,
    ) -> None:
        if kappa < 1:
            raise PlaitError(f"kappa is {kappa}; expected 1 or more renewals before their interval doubles")
        super().__init__(params, lr, betas, eps, weight_decay)
        for group in self.param_groups:
            group["kappa"] = kappa

    @property
    def wants_freeze(self) -> bool:
        """Never: the variance is renewed to the end."""
        return False

    @property
    def sends_momentum(self) -> bool:
        """Whether the coming step leaves the variance as it is."""
        first = self.param_groups[0]
        return not renews_variance(first["steps"], first["kappa"])

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        momentum = self.momentum_of(parameter)
        variance = self.state[parameter]["exp_avg_sq"]
        if renews_variance(group["steps"] - 1, group["kappa"]):
            momentum.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
            variance.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            self.state[parameter]["renewals"] = self.state[parameter].get("renewals", 0) + 1
        else:
            momentum.copy_(gradient)
        settled = variance / (1.0 - beta2 ** self.state[parameter].get("renewals", 1))
        raise_floor([settled])
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        rate = group["lr"] / (1.0 - beta1 ** group["steps"])
        parameter.addcdiv_(momentum, settled.sqrt_().add_(group["eps"]), value=-rate)

    def _watch(self) -> None:
        """There is no warm-up whose end would have to be found."""
