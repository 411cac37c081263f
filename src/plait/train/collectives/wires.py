"""What a session's gradients travel as: in another type or code, or as the momentum of 1-bit Adam."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.train.collectives.exchange import Group
from plait.train.collectives.gloo import GlooGroup
from plait.train.collectives.layout import FlatLayout, Stretch
from plait.train.collectives.mesh import Mesh
from plait.train.collectives.plan import direct
from plait.train.collectives.planned import Debt, PlannedSum, Prepare, Route
from plait.train.compression import codec as codec_of
from plait.train.compression.codec import Codec
from plait.train.compression.message import MessageLayout, stretch_layout
from plait.train.optimizers import OneBitAdam


class ErrorLedger:
    """What the encodings of each stretch have lost, and which of them the running step uses."""

    def __init__(self, layout: FlatLayout, device: torch.device) -> None:
        self._all = {s.start: Debt(s.end - s.start, device) for s in layout.stretches}
        self._used: dict[int, Debt] = {}

    def use(self, stretch: Stretch) -> Debt:
        """Returns the debt of a stretch that is about to be exchanged."""
        self._used[stretch.start] = self._all[stretch.start]
        return self._all[stretch.start]

    def commit(self) -> None:
        """The step's exchanges count."""
        for debt in self._used.values():
            debt.commit()
        self._used = {}

    def forget(self) -> None:
        """The exchanges so far do not count."""
        self._used = {}


class CodedWire:
    """Sends each stretch through a codec, with error feedback where the codec gains by it."""

    is_frozen = False

    def __init__(self, name: str, layout: FlatLayout, device: torch.device) -> None:
        self._codec = codec_of(name)
        self._layouts = _layouts(layout)
        self.ledger = ErrorLedger(layout, device) if self._codec.feeds_back else None

    def start(self, group: Group, values: Tensor, stretch: Stretch, share: float) -> Sequence[Any]:  # noqa: ARG002
        """Starts the exchange of a stretch."""
        if group.size == 1:
            return ()
        debt = self.ledger.use(stretch) if self.ledger is not None else None
        return (_coded(group, values, self._codec, self._layouts[stretch.start], debt),)

    def freeze(self) -> None:
        """Nothing changes."""


class MomentumWire:
    """Sends bf16 gradients in the warm-up of 1-bit Adam and its kin, and then one bit a value of the momentum."""

    def __init__(self, optimizer: OneBitAdam, layout: FlatLayout, parameters: Sequence[nn.Parameter]) -> None:
        """``parameters`` in the layout's order."""
        self.is_frozen = optimizer.is_frozen
        self._optimizer = optimizer
        self._parameters = tuple(parameters)
        self._warm_up, self._frozen = codec_of("bf16"), codec_of("sign1")
        self._layouts = _layouts(layout)
        self.ledger = ErrorLedger(layout, parameters[0].device)

    def start(self, group: Group, values: Tensor, stretch: Stretch, share: float) -> Sequence[Any]:
        """Starts the exchange of a stretch; ``share`` is this member's part of the step, 0 to 1."""
        message = self._layouts[stretch.start]
        if not (self.is_frozen or self._optimizer.sends_momentum):
            return () if group.size == 1 else (_coded(group, values, self._warm_up, message, None),)
        debt = self.ledger.use(stretch)
        prepare = self._momentum(values, stretch, share)
        if group.size == 1:
            values.copy_(prepare(0, len(values)).add_(debt.owed))
            debt.next.zero_()
            return ()
        return (_coded(group, values, self._frozen, message, debt, prepare),)

    def _momentum(self, values: Tensor, stretch: Stretch, share: float) -> Prepare:
        """What a member compresses: its share of ``beta * m + (1 - beta) * g``; the gradient is weighted already."""
        beta = self._optimizer.beta
        parts = [self._optimizer.momentum_of(self._parameters[i]).reshape(-1) for i in stretch.parameters]
        momentum = torch.cat(parts).mul_(beta * share)
        fresh = values.mul(1.0 - beta).add_(momentum)
        return lambda first, end: fresh[first:end]

    def freeze(self) -> None:
        """From the next step on, momenta travel."""
        self.is_frozen = True


def _layouts(layout: FlatLayout) -> dict[int, MessageLayout]:
    return {stretch.start: stretch_layout(layout, stretch) for stretch in layout.stretches}


def _coded(  # noqa: PLR0917 - private, and as many as the parts of an exchange
    group: Group,
    values: Tensor,
    codec: Codec,
    message: MessageLayout,
    debt: Debt | None,
    prepare: Prepare | None = None,
) -> PlannedSum:
    mesh = group.mesh if isinstance(group, GlooGroup) else None
    if not isinstance(mesh, Mesh):
        raise PlaitError(f"a group of {group.size} members has no direct connections, which compression needs")
    route = Route(direct(group.size, len(values)), message, codec)
    return mesh.start(lambda key, ranks: PlannedSum(mesh, key, ranks, values, route, debt=debt, prepare=prepare))
