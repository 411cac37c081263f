"""One bit a value and one scale a block: the codec, in whichever form is at hand."""

import numpy as np
import torch
from torch import Tensor

from plait.train.compression import torch_form
from plait.train.compression.codec import NUMBA_AND_TRITON, BadValues
from plait.train.compression.forms import graphics_kernels, numba_kernels
from plait.train.compression.reference import momentum_factors, num_blocks, sign1_bytes


class Sign1:
    """1-bit compression with error feedback; the format is told in :mod:`~plait.train.compression.reference`.

    Args:
        use_numba: ``None``: where it is installed.
    """

    name = "sign1"
    code = 5
    feeds_back = True
    forms = NUMBA_AND_TRITON

    def __init__(self, use_numba: bool | None = None) -> None:
        self._kernels = numba_kernels(use_numba)

    def wire_bytes(self, count: int) -> int:
        """Returns how many bytes ``count`` values take: a 31st of fp32, scales included."""
        return sign1_bytes(count)

    def encode(self, values: Tensor, error: Tensor | None, new_error: Tensor | None, out: Tensor) -> None:
        """Writes scales and bits of ``values + error``; see :class:`~plait.train.compression.codec.Codec`."""
        scales, bits = parts(out, len(values))
        if values.device.type != "cpu":
            _check(graphics_kernels().sign1_encode(values, error, new_error, scales, bits))
        elif self._kernels is None:
            _check(torch_form.sign1_encode(values, error, new_error, scales, bits))
        else:
            arrays = (values.numpy(), as_array(error), as_array(new_error), scales.numpy(), bits.numpy())
            _check(self._kernels.sign1_encode(*arrays))

    def encode_momentum(
        self,
        gradient: Tensor,
        state: Tensor,
        error: Tensor,
        new_error: Tensor,
        out: Tensor,
        *,
        beta: float,
        weight: float,
        gradient_weight: float | None = None,
    ) -> None:
        """Writes what a worker sends in 1-bit Adam, ``weight * (beta * m + (1 - beta) * g) + e``, in one pass.

        Tang et al., arXiv 2102.02888, algorithm 1, with errors in units of the mean; ``state`` is the momentum of the
        last step, which the exchange will replace, and is left alone. Nothing is allocated that grows with the run.

        Args:
            gradient: fp32, of shape (n,), like ``state``, ``error`` and ``new_error``, which may be ``error``.
            state: The momentum that all workers share.
            error: What earlier steps have lost.
            new_error: Where the new loss goes.
            out: uint8, of shape (``wire_bytes(n)``,).
            beta: The decay of the momentum.
            weight: This worker's share of the batch.
            gradient_weight: What a gradient counts for that is weighted already; ``None``: ``weight``.

        Raises:
            BadValues: There is an infinity or NaN; see :meth:`encode`.
        """
        scales, bits = parts(out, len(gradient))
        kept, fresh = momentum_factors(beta, weight, gradient_weight)
        if gradient.device.type != "cpu":
            given = (gradient, state, error, new_error)
            _check(graphics_kernels().sign1_momentum(*given, (float(kept), float(fresh)), scales, bits))
        elif self._kernels is None:
            _check(torch_form.sign1_momentum(gradient, state, error, new_error, (kept, fresh), scales, bits))
        else:
            arrays = (gradient.numpy(), state.numpy(), error.numpy(), new_error.numpy())
            _check(self._kernels.sign1_momentum(*arrays, kept, fresh, scales.numpy(), bits.numpy()))

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Writes (or adds) the values behind a message."""
        scales, bits = parts(data, len(out))
        if out.device.type != "cpu":
            graphics_kernels().sign1_decode(scales, bits, out, add)
        elif self._kernels is None:
            torch_form.sign1_decode(scales, bits, out, add)
        else:
            self._kernels.sign1_decode(scales.numpy(), bits.numpy(), out.numpy(), add)


def parts(message: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the scales (fp32) and the bits (uint8) of a message of ``count`` values, as views."""
    split = 4 * num_blocks(count)
    return message[:split].view(torch.float32), message[split : sign1_bytes(count)]


def as_array(values: Tensor | None) -> np.ndarray | None:
    """Returns the tensor as NumPy sees it, ``None`` for none."""
    return None if values is None else values.numpy()


def _check(is_finite: bool) -> None:
    if not is_finite:
        raise BadValues("the values to be sent hold an infinity or NaN")
