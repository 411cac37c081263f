"""BatchNorm over all samples of a step in a session: the sums behind it travel among those who have a share.

A forward pass cannot be given up half-way in a user's loop. So when the group changes inside one, the layers go on
with this member's own sums, and the engine throws the pass away at its end and runs the step again in the new group.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from plait.errors import PlaitError
from plait.train.collectives.exchange import SumExchange
from plait.train.collectives.gloo import GlooGroup
from plait.train.membership.link import Warned
from plait.train.norm import Exchange

if TYPE_CHECKING:
    from plait.train.engine import StepEngine


class StepSums:
    """Sums over the members that have a share of the running step; ``void`` once one of them did not come through."""

    def __init__(self, exchange: Exchange) -> None:
        """``exchange`` is that of the model's sync layers."""
        self.void: Exception | None = None
        self._engine: StepEngine | None = None
        self._exchange = exchange

    def bind(self, engine: "StepEngine") -> None:
        """From now on the layers sum over this engine's group."""
        self._engine = engine
        assert isinstance(engine.exchange, SumExchange)  # check_settings() refuses the other one
        self._exchange.all_reduce = self.all_reduce
        self._exchange.weight = engine.exchange.weight

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Returns the sum over the members with a share; outside a step's passes the tensor as it is."""
        engine = self._engine
        if engine is None or not engine.chunk or self.void is not None:
            return tensor
        active = engine.active_ranks()
        if len(active) == 1:
            return tensor
        group = engine.standing.group
        if not isinstance(group, GlooGroup):
            self.void = Warned()
            return tensor
        host = tensor.detach().to("cpu", copy=True)
        try:
            engine.wait_for([group.all_reduce_among(host, active)], "statistics")
        except (Warned, RuntimeError) as error:
            self.void = error
            return tensor
        return host.to(tensor.device)


def check_settings(*, bitwise: bool, max_fused: int | None) -> None:
    """Refuses settings that statistics over a whole step cannot keep.

    Raises:
        PlaitError: the message names the setting.
    """
    if bitwise:
        raise PlaitError("batch_norm='sync' sums statistics in an order that follows the split; bitwise needs 'ghost'")
    if max_fused is not None:
        raise PlaitError(f"batch_norm='sync' runs each share in one forward pass, but max_fused is {max_fused}")
