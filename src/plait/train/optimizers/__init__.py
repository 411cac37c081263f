"""Optimizers whose communication can be compressed."""

from plait.train.optimizers.one_bit_adam import OneBitAdam
from plait.train.optimizers.one_bit_lamb import OneBitLamb
from plait.train.optimizers.zero_one_adam import ZeroOneAdam

__all__ = ["OneBitAdam", "OneBitLamb", "ZeroOneAdam"]
