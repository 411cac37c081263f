"""The interface of a codec: what travels of a run of fp32 values, and what is put back from it."""

from collections.abc import Mapping
from typing import Final, Protocol

import torch
from torch import Tensor

from plait.errors import PlaitError

NUMBA_AND_TRITON: Final[Mapping[str, str]] = {
    "cpu": "Numba; NumPy and PyTorch without it",
    "cuda": "Triton, run in its interpreter only",
}
PYTORCH: Final[Mapping[str, str]] = {"cpu": "PyTorch", "cuda": "PyTorch"}


class BadValues(PlaitError):
    """Values hold an infinity or NaN, so nothing is to be sent of them."""


class MalformedMessage(PlaitError):
    """A message is not what the receiver expects; the text names the first field that differs."""


class Codec(Protocol):
    """Turns runs of fp32 values into bytes and back. Works on 1-D contiguous tensors; stateless.

    Messages start at a multiple of 4 bytes of their storage; values may start anywhere.

    Attributes:
        name: As in :data:`~plait.train.compression.CODECS`.
        code: Its number in wire headers; never reused.
        feeds_back: Whether what one step loses is worth adding to the next one.
        forms: The code that runs on each type of device, in words.
    """

    name: str
    code: int
    feeds_back: bool
    forms: Mapping[str, str]

    def wire_bytes(self, count: int) -> int:
        """Returns how many bytes ``count`` values take."""
        ...

    def encode(self, values: Tensor, error: Tensor | None, new_error: Tensor | None, out: Tensor) -> None:
        """Writes ``values + error`` into ``out``, and what was lost thereby into ``new_error``.

        Args:
            values: fp32, of shape (n,).
            error: What earlier steps have lost, of shape (n,); ``None`` is zero.
            new_error: Where the new loss goes, of shape (n,); may be ``error`` or ``values``. ``None``: it is not kept.
            out: uint8, of shape (``wire_bytes(n)``,).

        Raises:
            BadValues: There is an infinity or NaN. ``error`` and ``values`` are as before, unless ``new_error`` is one
                of them: give a buffer of its own where a step may have to be undone.
        """
        ...

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Writes (or adds) the values behind ``data`` (uint8, of ``encode``'s shape) to ``out`` (fp32, (n,))."""
        ...


def refuse_unless_finite(values: Tensor, reason: str = "the values to be sent hold an infinity or NaN") -> None:
    """Raises BadValues where ``values`` hold an infinity or NaN; one pass, unless they are huge."""
    # A sum is finite only if all its terms are; a sum of finite ones may still overflow.
    if not bool(torch.isfinite(values.sum(dtype=torch.float32))) and not bool(torch.isfinite(values).all()):
        raise BadValues(reason)
