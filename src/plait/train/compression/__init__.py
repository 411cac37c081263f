"""What travels between devices in fewer bits. One file a codec, one line here."""

from collections.abc import Callable

import torch

from plait.errors import PlaitError
from plait.train.compression.casts import Cast
from plait.train.compression.codec import BadValues, Codec, MalformedMessage
from plait.train.compression.int8 import Int8
from plait.train.compression.sign1 import Sign1
from plait.train.compression.top_k import TopK
from plait.words import did_you_mean

CODECS: dict[str, Callable[[], Codec]] = {
    "fp32": lambda: Cast("fp32", 1, torch.float32),
    "bf16": lambda: Cast("bf16", 2, torch.bfloat16),
    "fp16": lambda: Cast("fp16", 3, torch.float16),
    "int8": Int8,
    "sign1": Sign1,
    "top_k": TopK,
}
"""Every codec by name."""

__all__ = ["CODECS", "BadValues", "Codec", "MalformedMessage", "codec"]


def codec(name: str) -> Codec:
    """Returns the codec of this name.

    Raises:
        PlaitError: There is none; the message names the nearest one.
    """
    if name not in CODECS:
        raise PlaitError(f"unknown codec {name!r}{did_you_mean(name, CODECS)}")
    return CODECS[name]()
