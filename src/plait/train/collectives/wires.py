"""What a session's gradients travel as: in another type or code, or as the momentum of 1-bit Adam."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.train.collectives.gloo import GlooGroup
from plait.train.collectives.layout import FlatLayout, Stretch
from plait.train.collectives.planned import Debt, MomentumShare, PlannedSum
from plait.train.collectives.wire_protocol import Group
from plait.train.compression import codec as codec_of
from plait.train.compression import warm_up
from plait.train.compression.codec import Codec
from plait.train.compression.message import MessageLayout, stretch_layout
from plait.train.compression.reference import BLOCK
from plait.train.optimizers import OneBitAdam

_MOST_SETTLING = 4
"""A settled step takes at most so many times the bytes of another one, if that is enough for fp32."""


class ErrorLedger:
    """What the encodings of each stretch have lost, and which of them the running step uses.

    What members owe lies with each of them, and only the sum over all counts. Before a member leaves, or the state is
    saved, a step is *settled*: its values travel in a format that keeps (nearly) all, with what everybody owes. The
    sum is then part of the momentum that all members hold alike, and nobody has anything to hand over.

    Attributes:
        settles: Whether the coming step is to be settled; the same on all members.
    """

    def __init__(self, layout: FlatLayout, device: torch.device) -> None:
        self._all = {s.start: Debt(s.end - s.start, device) for s in layout.stretches}
        self._used: dict[int, bool] = {}
        self._owing: set[int] = set()
        self.settles = False

    @property
    def owes(self) -> bool:
        """Whether this member owes more than a settled step leaves, or will once the running step counts."""
        return bool(self._owing) or not all(self._used.values())

    def use(self, stretch: Stretch, *, pays: bool) -> Debt:
        """Returns the debt of a stretch that is about to be exchanged; ``pays`` says that all of it is sent."""
        self._used[stretch.start] = pays
        return self._all[stretch.start]

    def commit(self) -> None:
        """The step's exchanges count."""
        for start, pays in self._used.items():
            self._all[start].commit()
            (self._owing.discard if pays else self._owing.add)(start)
        if self._used:
            self.settles = False
        self._used = {}

    def forget(self) -> None:
        """The exchanges so far do not count."""
        self._used = {}

    def owed(self) -> Tensor:
        """Returns a copy of what this member owes, in the order of the layout, in units of the step's mean."""
        return torch.cat([self._all[start].owed for start in sorted(self._all)])


class CodedWire:
    """Sends each stretch through a codec, with error feedback where the codec gains by it."""

    is_frozen = False

    def __init__(self, name: str, layout: FlatLayout, device: torch.device) -> None:
        self._codec = codec_of(name)
        self.codec = name
        self._settling = _settling(self._codec)
        self._layouts = _layouts(layout)
        self.ledger = ErrorLedger(layout, device) if self._codec.feeds_back else None
        warm_up(self._codec, device)

    def start(self, group: Group, values: Tensor, stretch: Stretch, share: float) -> Sequence[Any]:  # noqa: ARG002
        """Starts the exchange of a stretch."""
        message, ledger = self._layouts[stretch.start], self.ledger
        if ledger is None:
            return () if group.size == 1 else (_coded(group, values, self._codec, message, None),)
        if group.size == 1:
            _pay(values, ledger.use(stretch, pays=True))
            return ()
        codec = self._settling if ledger.settles else self._codec
        return (_coded(group, values, codec, message, ledger.use(stretch, pays=ledger.settles)),)

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
        self.codec = self._frozen.name
        self._settling = _settling(self._frozen)
        self._layouts = _layouts(layout)
        self.ledger = ErrorLedger(layout, parameters[0].device)
        for codec in (self._warm_up, self._frozen):  # kernels are compiled now, not in the middle of the run
            warm_up(codec, parameters[0].device)

    def start(self, group: Group, values: Tensor, stretch: Stretch, share: float) -> Sequence[Any]:
        """Starts the exchange of a stretch; ``share`` is this member's part of the step, 0 to 1."""
        message, ledger = self._layouts[stretch.start], self.ledger
        if not (self.is_frozen or self._optimizer.sends_momentum):
            return () if group.size == 1 else (_coded(group, values, self._warm_up, message, None),)
        parameters = [self._parameters[index] for index in stretch.parameters]
        if group.size == 1:
            self._optimizer.take_momenta(values, parameters, 1.0, share)
            _pay(values, ledger.use(stretch, pays=True))
            return ()
        momentum = MomentumShare(self._optimizer.momentum_run(parameters), self._optimizer.beta, share, 1.0)
        codec = self._settling if ledger.settles else self._frozen
        return (_coded(group, values, codec, message, ledger.use(stretch, pays=ledger.settles), momentum=momentum),)

    def freeze(self) -> None:
        """From the next step on, momenta travel."""
        self.is_frozen = True


def _settling(codec: Codec) -> Codec:
    """What a settled step travels in: fp32, but bf16 where fp32 would be far more than what travels otherwise."""
    most = _MOST_SETTLING * codec.wire_bytes(BLOCK)
    return codec_of("fp32" if codec_of("fp32").wire_bytes(BLOCK) <= most else "bf16")


def _pay(values: Tensor, debt: Debt) -> None:
    """With nobody to exchange with, what is owed is added at once."""
    values.add_(debt.owed)
    debt.next.zero_()


def _layouts(layout: FlatLayout) -> dict[int, MessageLayout]:
    return {stretch.start: stretch_layout(layout, stretch) for stretch in layout.stretches}


def _coded(
    group: Group,
    values: Tensor,
    codec: Codec,
    message: MessageLayout,
    debt: Debt | None,
    *,
    momentum: MomentumShare | None = None,
) -> PlannedSum:
    if not isinstance(group, GlooGroup):
        raise PlaitError(f"a {type(group).__name__} has no direct connections, which compression needs")
    return group.planned(values, message, codec, debt, momentum)
