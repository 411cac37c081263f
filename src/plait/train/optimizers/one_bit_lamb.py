"""1-bit LAMB: LAMB whose momentum can travel in one bit a value (Li et al., arXiv 2104.06069, Algorithm 1).

Warm-up is LAMB on the exact mean gradient, and keeps a moving mean ``c`` of each tensor's trust ratio. After the freeze
the variance stays, momenta travel, and the trust ratio is ``c`` times how much the variance would have changed by now.
That is told from the gradient that the momenta imply, ``g = (m - beta1 m_before) / (1 - beta1)``.
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from plait.train.optimizers.one_bit_adam import OneBitAdam

RATIO_LIMITS = (0.01, 10.0)
RATIO_DECAY = 0.9
FACTOR_LIMITS = (0.5, 4.0)
FACTOR_STEP = 0.1
"""The factor on the frozen trust ratio changes by this part at most from step to step."""


class OneBitLamb(OneBitAdam):
    """LAMB whose momentum can travel in one bit a value: for large batches.

    Args:
        params: Parameters, or groups of them; each tensor has a trust ratio of its own.
        lr: Learning rate.
        betas: Decay of momentum and variance.
        eps: Added to the root of the variance.
        weight_decay: Part of what the trust ratio scales, as in LAMB.
        freeze: As of :class:`OneBitAdam`.

    Raises:
        PlaitError: A setting is out of range.
    """

    def __init__(  # noqa: PLR0917 - the order of torch.optim.AdamW
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        freeze: int | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, freeze)

    @torch.no_grad()
    def freeze(self) -> None:
        """Ends the warm-up: variances and mean trust ratios stay."""
        super().freeze()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if "exp_avg_sq" in state:
                    state["fresh"] = state["exp_avg_sq"].clone()
                    state["factor"] = 1.0
                    state["ratio"] = state.get("ratio", 0.0) / (1.0 - RATIO_DECAY ** group["steps"])

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        momentum = self.momentum_of(parameter)
        state = self.state[parameter]
        variance = state["exp_avg_sq"]
        correction = 1.0 - beta1 ** group["steps"]
        if group["frozen"]:
            implied = gradient.sub(momentum, alpha=beta1).div_(1.0 - beta1)
            momentum.copy_(gradient)
            state["fresh"].mul_(beta2).addcmul_(implied, implied, value=1.0 - beta2)
            root = variance.sqrt()
        else:
            momentum.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
            variance.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            root = (variance / (1.0 - beta2 ** group["steps"])).sqrt_()
        root.add_(group["eps"])
        plain = momentum / root / correction
        update = plain.add(parameter, alpha=group["weight_decay"])
        if group["frozen"]:
            ratio = state["ratio"] * self._factor(state, root, group["eps"], plain, update)
        else:
            ratio = _trust_ratio(parameter, update)
            state["ratio"] = RATIO_DECAY * state.get("ratio", 0.0) + (1.0 - RATIO_DECAY) * ratio
        parameter.add_(update, alpha=-group["lr"] * ratio)

    @staticmethod
    def _factor(state: dict[str, Any], root: Tensor, eps: float, plain: Tensor, update: Tensor) -> float:
        """Returns how much the trust ratio has grown since the freeze, and remembers it."""
        grown = float((root / state["fresh"].sqrt().add_(eps)).max())
        whole = float(update.norm())
        share = min(1.0, float(plain.norm()) / whole) if whole > 0.0 else 1.0
        grown = grown * share + 1.0 - share
        low, high = FACTOR_LIMITS
        before = state["factor"]
        grown = min(max(grown, low), high)
        state["factor"] = min(max(grown, before * (1.0 - FACTOR_STEP)), before * (1.0 + FACTOR_STEP))
        return float(state["factor"])


def _trust_ratio(parameter: Tensor, update: Tensor) -> float:
    """Returns the norm of a tensor over that of its update, within limits; 1 where either is 0."""
    size, change = float(parameter.norm()), float(update.norm())
    if size == 0.0 or change == 0.0:
        return 1.0
    return min(max(size / change, RATIO_LIMITS[0]), RATIO_LIMITS[1])
