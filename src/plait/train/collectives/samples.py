"""Notices gradients that somebody has changed between backward and the step, by a few of their entries."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

_NUM_SAMPLES = 4


class GradientsChanged(Exception):
    """Somebody wrote to the gradients between backward and the step."""


class Samples:
    """A few gradients as backward left them, to notice when somebody writes to them before the step."""

    def __init__(self) -> None:
        self._taken: list[tuple[nn.Parameter, Tensor]] = []

    def clear(self) -> None:
        """Forgets the last pass."""
        self._taken = []

    def take(self, bucket: GradBucket, by_id: Mapping[int, nn.Parameter]) -> None:
        """Remembers one entry of a bucket."""
        if len(self._taken) < _NUM_SAMPLES:
            entry = bucket.gradients()[0].reshape(-1)[:1].clone()
            self._taken.append((by_id[id(bucket.parameters()[0])], entry))

    def check(self) -> None:
        """Raises :class:`GradientsChanged` where an entry is another one now."""
        for parameter, entry in self._taken:
            if parameter.grad is None or not _same_bits(parameter.grad.reshape(-1)[:1], entry):
                raise GradientsChanged


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
