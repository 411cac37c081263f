"""Learning-rate rules for users who let the global batch change; with a constant batch none is needed.

Let ``s`` be the present global batch over the one that the learning rate was chosen for.

- ``linear``: ``lr * s`` (Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677), for SGD.
- ``sqrt``: ``lr * sqrt(s)`` (Krizhevsky, arXiv 1404.5997; Malladi et al., arXiv 2205.10287, derive it for Adam).
- ``adascale``: ``lr * r`` with the gain ``1 <= r <= s`` of AdaScale SGD (Johnson et al., ICML 2020, arXiv 2007.05105),
  from the variance and the square of the gradient, each parameter group by itself; training then advances by ``r``
  steps a step. Both are estimated without bias from the spread of partial gradients around their mean (McCandlish et
  al., arXiv 1812.06162, appendix A). The parts may be of any size, so any split of the step serves.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Literal

import torch
from torch import Tensor

Rule = Literal["none", "linear", "sqrt", "adascale"]

AVERAGING_RATIO = 0.999
"""Share of the old average that is kept over a step at ``s = 1``; over a step at ``s`` it is this to the power s."""


def batch_factor(rule: Rule, batch_ratio: float) -> float:
    """Returns the factor of a rule that looks at the batch only; ``adascale`` gets its own from :class:`AdaScale`."""
    if batch_ratio <= 0.0:
        raise ValueError(f"the ratio of batches must be positive; got {batch_ratio}")
    match rule:
        case "linear":
            return batch_ratio
        case "sqrt":
            return sqrt(batch_ratio)
        case _:
            return 1.0


@dataclass(frozen=True, slots=True)
class AdaScale:
    """Running estimates of each parameter group; replicated state, sent to those who join.

    Attributes:
        square: Averages of the squared norm of the true gradient, a group each, before bias correction.
        variance: Averages of the variance of the gradient at the original batch, likewise.
        weight: Total weight in the averages, 0 at the start and 1 in the end.
        progress: Steps at the original batch that training so far amounts to.
    """

    square: tuple[float, ...]
    variance: tuple[float, ...]
    weight: float = 0.0
    progress: float = 0.0

    @classmethod
    def start(cls, num_groups: int) -> "AdaScale":
        """Returns the state before the first step."""
        return cls((0.0,) * num_groups, (0.0,) * num_groups)

    def observe(
        self, part_squares: Sequence[float], total_squares: Sequence[float], num_parts: int, batch_ratio: float
    ) -> "AdaScale":
        """Returns the state after a step.

        Args:
            part_squares: For each parameter group the sum over parts of ``count_j / count * |g_j|**2``, where ``g_j``
                is the mean gradient over the ``count_j`` samples of part ``j``; with sums ``G_j`` that is
                ``|G_j|**2 / (count_j * count)``.
            total_squares: ``|g|**2`` of the mean gradient over all samples, before clipping, a group each.
            num_parts: Parts with samples in the whole group; a single one says nothing, and the state stays.
            batch_ratio: s.
        """
        if num_parts < 2:
            return self
        keep = AVERAGING_RATIO**batch_ratio
        pairs = list(zip(part_squares, total_squares, strict=True))
        squares = [max(0.0, (num_parts * total - parts) / (num_parts - 1)) for parts, total in pairs]
        variances = [max(0.0, (parts - total) * batch_ratio / (num_parts - 1)) for parts, total in pairs]
        return AdaScale(
            tuple(keep * old + (1.0 - keep) * new for old, new in zip(self.square, squares, strict=True)),
            tuple(keep * old + (1.0 - keep) * new for old, new in zip(self.variance, variances, strict=True)),
            keep * self.weight + (1.0 - keep),
            self.progress,
        )

    def gains(self, batch_ratio: float) -> tuple[float, ...]:
        """Returns the gain of each parameter group at batch ratio ``s``: 1 where nothing is known, between 1 and s."""
        return tuple(
            # The bias correction of both averages is the same and falls out of the ratio.
            (variance + square) / (variance / batch_ratio + square) if variance + square > 0.0 else 1.0
            for square, variance in zip(self.square, self.variance, strict=True)
        )

    def advanced(self, batch_ratio: float) -> "AdaScale":
        """Returns the state with the progress of one committed step, the mean gain of the groups, added."""
        gains = self.gains(batch_ratio)
        return AdaScale(self.square, self.variance, self.weight, self.progress + sum(gains) / len(gains))

    def as_json(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "AdaScale":
        """Returns the state that :meth:`as_json` was taken of."""
        return cls(tuple(values["square"]), tuple(values["variance"]), values["weight"], values["progress"])


def group_squares(groups: Iterable[Mapping[str, Any]]) -> Tensor:
    """Returns the squared norm of the gradient of each parameter group of an optimizer, float64 on the CPU."""
    squares = [
        sum((_square(p.grad) for p in group["params"] if p.grad is not None), torch.zeros((), dtype=torch.float64))
        for group in groups
    ]
    return torch.stack(squares) if squares else torch.zeros(0, dtype=torch.float64)


def _square(gradient: Tensor) -> Tensor:
    values = gradient.detach().to(torch.promote_types(gradient.dtype, torch.float32))
    return values.square().sum().to("cpu", torch.float64)


@contextmanager
def scaled_learning_rates(optimizer: torch.optim.Optimizer, factors: Sequence[float]) -> Iterator[None]:
    """Multiplies the learning rate of each parameter group while the block runs the optimizer's step.

    The rates are put back afterwards, so schedulers keep working on the ones that the user chose.
    """
    groups = optimizer.param_groups
    if len(factors) != len(groups):
        raise ValueError(f"the optimizer has {len(groups)} parameter groups, but there are {len(factors)} factors")
    old = [group["lr"] for group in groups]
    try:
        for group, rate, factor in zip(groups, old, factors, strict=True):
            group["lr"] = rate * factor if factor != 1.0 else rate
        yield
    finally:
        for group, rate in zip(groups, old, strict=True):
            group["lr"] = rate
