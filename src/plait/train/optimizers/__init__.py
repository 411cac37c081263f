"""Optimizers whose communication can be compressed."""

from plait.train.optimizers.one_bit_adam import OneBitAdam

__all__ = ["OneBitAdam"]
