"""The largest values only, each with its place; the rest waits in the error (Aji and Heafield, arXiv 1704.05021)."""

import torch
from torch import Tensor

from plait.train.compression.codec import PYTORCH, refuse_unless_finite
from plait.train.compression.reference import top_k_count

_PLACE_AND_VALUE_BYTES = 8


class TopK:
    """Sends ``ratio`` of the values, the largest by magnitude; of equal ones those with the lower place."""

    name = "top_k"
    code = 6
    feeds_back = True
    forms = PYTORCH

    def __init__(self, ratio: float = 0.01) -> None:
        self.ratio = ratio

    def wire_bytes(self, count: int) -> int:
        """Returns how many bytes ``count`` values take."""
        return _PLACE_AND_VALUE_BYTES * top_k_count(count, self.ratio)

    def encode(self, values: Tensor, error: Tensor | None, new_error: Tensor | None, out: Tensor) -> None:
        """Writes places and values of the largest entries of ``values + error``."""
        c = values.clone() if error is None else values + error
        refuse_unless_finite(c)
        kept = top_k_count(len(c), self.ratio)
        places = _largest(c.abs(), kept)
        chosen = c[places]
        out[: 4 * kept].copy_(places.to(torch.int32).view(torch.uint8))
        out[4 * kept :].copy_(chosen.view(torch.uint8))
        if new_error is not None:
            new_error.copy_(c)
            new_error[places] = 0.0

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Writes (or adds) the values behind a message."""
        kept = top_k_count(len(out), self.ratio)
        places = data[: 4 * kept].view(torch.int32).to(torch.int64)
        values = data[4 * kept : 8 * kept].view(torch.float32)
        if not add:
            out.zero_()
        out[places] += values


def _largest(sizes: Tensor, kept: int) -> Tensor:
    """Returns the places of the largest sizes, rising; of equal ones the first."""
    if kept == 0:
        return torch.empty(0, dtype=torch.int64, device=sizes.device)
    least = torch.topk(sizes, kept).values[-1]
    above = torch.nonzero(sizes > least).flatten()
    equal = torch.nonzero(sizes == least).flatten()[: kept - len(above)]
    return torch.cat([above, equal]).sort().values
