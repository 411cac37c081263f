"""What every member holds alike: model, optimizer, schedule, and the group's own state; and how a step is applied."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from plait.errors import PlaitError
from plait.train.balance import BalancerState
from plait.train.bitwise import FixedPointScale
from plait.train.collectives.exchange import Exchange
from plait.train.collectives.fixed import FixedExchange
from plait.train.learning_rate import AdaScale, Rule, batch_factor, group_squares, scaled_learning_rates
from plait.train.norm import GhostStatistics
from plait.train.retreat import update_in_memory
from plait.train.scaling import GlobalScale
from plait.train.sync_norm import StepSums


@dataclass(frozen=True, slots=True)
class Planned:
    """The split of the next step, decided when the last one committed."""

    shares: Mapping[str, int]
    reason: str


@dataclass(slots=True)
class Replica:
    """The replicated state. ``step`` counts committed steps; it names the step that comes next."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler | None
    ghosts: GhostStatistics
    rule: Rule = "none"
    batch_ratio: float = 1.0
    clip_grad_norm: float | None = None
    step: int = 0
    balancer: BalancerState = field(default_factory=BalancerState)
    scale: GlobalScale = field(default_factory=GlobalScale)
    uses_scale: bool = False
    adascale: AdaScale | None = None
    planned: Planned | None = None
    before_step: Callable[[], None] | None = None
    sums: StepSums | None = None

    def __post_init__(self) -> None:
        """Starts the learning rate's estimates."""
        if self.rule == "adascale":
            self.adascale = AdaScale.start(len(self.optimizer.param_groups))

    def apply(self, exchange: Exchange, extras: "Extras", *, ratio: float, found_inf: bool) -> None:
        """Applies the reduced gradients of a committed step; all members do exactly the same.

        Args:
            exchange: holds the reduced sums.
            extras: holds the reduced side tables.
            ratio: what the sums must be multiplied by to be the mean over the step.
            found_inf: whether the step is to be passed over, since some gradient overflowed.
        """
        if self.uses_scale:
            self.scale = self.scale.after(1.0 if found_inf else 0.0)
        if not found_inf:
            exchange.set_gradients(ratio)
            self._update(extras)
        if self.scheduler is not None:
            self.scheduler.step()
        if self.ghosts.layers and extras.table is not None:
            self.ghosts.merge(extras.table)
        self.step += 1

    def _update(self, extras: "Extras") -> None:
        if self.adascale is not None and extras.squares is not None:
            total = [float(v) for v in group_squares(self.optimizer.param_groups)]
            *parts, num_parts, count = (float(v) for v in extras.squares)
            self.adascale = self.adascale.observe(
                [part / max(count, 1.0) for part in parts], total, round(num_parts), self.batch_ratio
            )
        if self.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
        if self.before_step is not None:
            self.before_step()
        with self._rates():
            update_in_memory(self.optimizer, self.optimizer.param_groups[0]["params"][0].device)
        if self.adascale is not None:
            self.adascale = self.adascale.advanced(self.batch_ratio)

    def _rates(self) -> Any:
        if self.rule == "none":
            return nullcontext()
        num_groups = len(self.optimizer.param_groups)
        factors = (
            self.adascale.gains(self.batch_ratio)
            if self.adascale is not None
            else (batch_factor(self.rule, self.batch_ratio),) * num_groups
        )
        return scaled_learning_rates(self.optimizer, factors)

    def state(self, exchange: Exchange) -> dict[str, Any]:
        """Returns everything that a joiner or a restart needs, as a nested state; tensors are not copied."""
        return {
            "step": self.step,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": _plain(self.scheduler.state_dict()) if self.scheduler is not None else None,
            "balancer": self.balancer.as_json(),
            "planned": [dict(self.planned.shares), self.planned.reason] if self.planned is not None else None,
            "scale": self.scale.state_dict(),
            "adascale": self.adascale.as_json() if self.adascale is not None else None,
            "fixed": list(exchange.scale.max_abs) if isinstance(exchange, FixedExchange) else None,
        }

    def load(self, state: Mapping[str, Any], exchange: Exchange) -> None:
        """Takes over a state of :meth:`state`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if (self.scheduler is None) != (state["scheduler"] is None):
            raise PlaitError("one side of this transfer has a learning-rate schedule and the other has none")
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.balancer = BalancerState.from_json(state["balancer"])
        self.planned = Planned(*state["planned"]) if state["planned"] is not None else None
        self.scale = GlobalScale.from_state_dict(state["scale"])
        if state["adascale"] is not None:
            self.adascale = AdaScale.from_json(state["adascale"])
        if isinstance(exchange, FixedExchange) and state["fixed"] is not None:
            exchange.scale = FixedPointScale(tuple(state["fixed"]))
        self.step = int(state["step"])


@dataclass(slots=True)
class Extras:
    """Small tables that are reduced beside the gradients: BatchNorm's statistics, AdaScale's squares."""

    table: Tensor | None = None
    squares: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """The tables that exist."""
        return [t for t in (self.table, self.squares) if t is not None]

    def clone(self) -> "Extras":
        """Returns a copy that later steps do not touch."""
        return Extras(*(None if t is None else t.clone() for t in (self.table, self.squares)))


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out what is no data (functions of a LambdaLR are rebuilt by the user's own code)."""
    return {k: v for k, v in state.items() if not callable(v) and not (isinstance(v, list) and any(map(callable, v)))}
