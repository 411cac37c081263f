"""One byte a value and one scale a block, rounded to even."""

import torch
from torch import Tensor

from plait.train.compression.codec import NUMBA_AND_TRITON, BadValues
from plait.train.compression.forms import graphics_kernels, numba_kernels
from plait.train.compression.reference import BLOCK, INT8_STEP, int8_bytes, num_blocks
from plait.train.compression.sign1 import as_array
from plait.train.compression.torch_form import pieces

_LEVELS = 127.0


class Int8:
    """Blockwise 8-bit compression with error feedback.

    Args:
        use_numba: ``None``: where it is installed.
    """

    name = "int8"
    code = 4
    feeds_back = True
    forms = NUMBA_AND_TRITON

    def __init__(self, use_numba: bool | None = None) -> None:
        self._kernels = numba_kernels(use_numba)

    def wire_bytes(self, count: int) -> int:
        """Returns how many bytes ``count`` values take."""
        return int8_bytes(count)

    def encode(self, values: Tensor, error: Tensor | None, new_error: Tensor | None, out: Tensor) -> None:
        """Writes scales and levels of ``values + error``; see :class:`~plait.train.compression.codec.Codec`."""
        scales, levels = _parts(out, len(values))
        if values.device.type != "cpu":
            is_finite = graphics_kernels().int8_encode(values, error, new_error, scales, levels)
        elif self._kernels is None:
            is_finite = all(
                _encode(
                    values[start:end],
                    None if error is None else error[start:end],
                    None if new_error is None else new_error[start:end],
                    scales[start // BLOCK : num_blocks(end)],
                    levels[start:end],
                )
                for start, end in pieces(len(values))
            )
        else:
            arrays = (values.numpy(), as_array(error), as_array(new_error), scales.numpy(), levels.numpy())
            is_finite = self._kernels.int8_encode(*arrays)
        if not is_finite:
            raise BadValues("the values to be sent hold an infinity or NaN")

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Writes (or adds) the values behind a message."""
        scales, levels = _parts(data, len(out))
        if out.device.type != "cpu":
            graphics_kernels().int8_decode(scales, levels, out, add)
        elif self._kernels is None:
            for start, end in pieces(len(out)):
                spread = _spread(scales[start // BLOCK : num_blocks(end)], end - start)
                values = levels[start:end].view(torch.int8).to(torch.float32).mul_(spread)
                if add:
                    out[start:end] += values
                else:
                    out[start:end] = values
        else:
            self._kernels.int8_decode(scales.numpy(), levels.numpy(), out.numpy(), add)


def _encode(values: Tensor, error: Tensor | None, new_error: Tensor | None, scales: Tensor, levels: Tensor) -> bool:
    c = values if error is None else values + error
    found = c.abs().view(num_blocks(len(c)), -1).amax(1).mul_(float(INT8_STEP))
    if not bool(torch.isfinite(found).all()):
        return False
    scales.copy_(found)
    spread = _spread(found, len(c))
    steps = torch.where(spread > 0, c / spread, torch.zeros_like(c)).clamp_(-_LEVELS, _LEVELS).round_()
    levels.copy_(steps.to(torch.int8).view(torch.uint8))
    if new_error is not None:
        torch.sub(c, steps.mul_(spread), out=new_error)
    return True


def _parts(message: Tensor, count: int) -> tuple[Tensor, Tensor]:
    split = 4 * num_blocks(count)
    return message[:split].view(torch.float32), message[split : split + count]


def _spread(scales: Tensor, count: int) -> Tensor:
    return scales.repeat_interleave(BLOCK)[:count]
