"""Chooses what a session's gradients travel as, and refuses what would not be right."""

from collections.abc import Sequence

import torch
from torch import nn

from plait.errors import PlaitError
from plait.train.collectives.exchange import Exchange, SumExchange
from plait.train.collectives.layout import FlatLayout
from plait.train.collectives.wires import CodedWire, MomentumWire
from plait.train.optimizers import OneBitAdam
from plait.train.replica import Replica
from plait.train.settings import Settings

ONE_BIT_ADAM = "onebit_adam"


def wire_of(
    settings: Settings, replica: Replica, exchange: Exchange, layout: FlatLayout, parameters: Sequence[nn.Parameter]
) -> str:
    """Gives the exchange its wire; returns the name of what travels.

    Raises:
        PlaitError: the compression does not go with the optimizer or another setting; the message names both.
    """
    optimizer = replica.optimizer
    is_one_bit = isinstance(optimizer, OneBitAdam)
    asked = settings.compression
    if asked == ONE_BIT_ADAM and not is_one_bit:
        raise PlaitError(
            f"compression is {ONE_BIT_ADAM}, but the optimizer is {type(optimizer).__name__}: use plait.OneBitAdam"
        )
    if not is_one_bit and asked == "none":
        return "none"
    if is_one_bit and asked not in {"none", ONE_BIT_ADAM}:
        raise PlaitError(
            f"the optimizer is {type(optimizer).__name__}, which compresses by itself, but compression is {asked!r}"
        )
    if not isinstance(exchange, SumExchange):
        raise PlaitError("bitwise sums in fixed point; it does not go with compression")
    if exchange.dtype is not torch.float32:
        raise PlaitError(f"compression takes gradients in fp32; precision.reduce is {settings.precision.reduce}")
    if isinstance(optimizer, OneBitAdam):
        _check_one_bit(replica)
        if settings.warm_up_steps is not None:
            for group in optimizer.param_groups:
                group["freeze"] = settings.warm_up_steps
        exchange.wire = MomentumWire(optimizer, layout, parameters)
        return ONE_BIT_ADAM
    exchange.wire = CodedWire(asked, layout, parameters[0].device)
    return asked


def _check_one_bit(replica: Replica) -> None:
    """What would need the gradient of the whole step, of which only the momentum comes."""
    name = type(replica.optimizer).__name__
    if replica.clip_grad_norm is not None:
        raise PlaitError(f"clip_grad_norm={replica.clip_grad_norm:g} does not go with {name}: momenta are exchanged")
    if replica.adascale is not None:
        raise PlaitError(f"learning_rate='adascale' does not go with {name}: momenta are exchanged")
    if replica.uses_scale:
        raise PlaitError(f"fp16 devices do not go with {name}, since no overflow could be passed over: use bf16")
