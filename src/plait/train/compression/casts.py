"""Codecs that send each value in a type of its own: fp32 as it is, bf16, fp16."""

import torch
from torch import Tensor

from plait.train.compression.codec import PYTORCH, refuse_unless_finite
from plait.train.compression.torch_form import CHUNK, pieces


class Cast:
    """Sends values in a narrower (or the same) floating-point type, as PyTorch's own vector code rounds them.

    Args:
        name: The codec's name.
        code: Its number in wire headers.
        dtype: What travels.
    """

    forms = PYTORCH

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self.feeds_back = dtype is not torch.float32
        self._dtype = dtype

    def wire_bytes(self, count: int) -> int:
        """Returns how many bytes ``count`` values take."""
        return count * self._dtype.itemsize

    def encode(self, values: Tensor, error: Tensor | None, new_error: Tensor | None, out: Tensor) -> None:
        """Writes ``values + error``, rounded to the type; see :class:`~plait.train.compression.codec.Codec`."""
        sent = out.view(self._dtype)
        sums, rounded = torch.empty(2, min(CHUNK, len(values)), device=values.device)
        for start, end in pieces(len(values)):
            c = values[start:end]
            if error is not None:
                c = torch.add(c, error[start:end], out=sums[: end - start])
            sent[start:end] = c
            back = rounded[: end - start].copy_(sent[start:end])
            refuse_unless_finite(
                back, f"the values to be sent hold an infinity or NaN, or are too large for {self.name}"
            )
            if new_error is not None:
                torch.sub(c, back, out=new_error[start:end])

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Writes (or adds) the values behind a message."""
        values = data[: self.wire_bytes(len(out))].view(self._dtype)
        if add:
            out.add_(values)
        else:
            out.copy_(values)
