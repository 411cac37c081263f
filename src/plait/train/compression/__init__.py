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

__all__ = ["CODECS", "BadValues", "Codec", "MalformedMessage", "codec", "warm_up"]


def codec(name: str) -> Codec:
    """Returns the codec of this name.

    Raises:
        PlaitError: There is none; the message names the nearest one.
    """
    if name not in CODECS:
        raise PlaitError(f"unknown codec {name!r}{did_you_mean(name, CODECS)}")
    return CODECS[name]()


def warm_up(codec: Codec, device: torch.device | str = "cpu") -> None:
    """Uses a codec in each way that training does, so that its kernels are compiled before the first step.

    Numba takes about a second for each of a few forms the first time, and keeps them on disk.
    """
    run, error = torch.zeros(2, 32, device=device)
    data = torch.zeros(codec.wire_bytes(32), dtype=torch.uint8, device=device)
    for given in (None, error):
        codec.encode(run, given, given, data)
    for add in (False, True):
        codec.decode(data, run, add=add)
    if isinstance(codec, Sign1):
        codec.encode_momentum(run, run, error, error, data, beta=0.9, weight=1.0)
