"""Where each parameter's gradient lies in the flat wire buffer, and which stretches travel together.

The layout follows from the parameters alone. DDP rebuilds its own buckets by the order in which gradients arrive, each
replica for itself; a joiner's would differ from those of the others. What travels is therefore cut by this layout.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

FIRST_BUCKET_BYTES = 2**20
"""The first bucket is small, as in DDP, so that the exchange starts early in backward."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of the flat buffer that is exchanged as one; ``parameters`` are indices into the layout's order."""

    start: int
    end: int
    parameters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Parameters in reverse order of registration, as backward tends to reach them."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    offsets: tuple[int, ...]
    num_elements: int
    stretches: tuple[Stretch, ...]

    def digest(self) -> str:
        """Returns a short hash over names, shapes and types; equal on replicas of the same model."""
        text = "\n".join(f"{n} {s} {d}" for n, s, d in zip(self.names, self.shapes, self.dtypes, strict=True))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def lay_out(named: Sequence[tuple[str, nn.Parameter]], bucket_bytes: int) -> FlatLayout:
    """Lays out the parameters that need gradients.

    Args:
        named: parameters with their names, in order of registration.
        bucket_bytes: the most bytes of a stretch, unless a single parameter is larger.
    """
    order = [(name, p) for name, p in reversed(named) if p.requires_grad]
    offsets: list[int] = []
    stretches: list[Stretch] = []
    start, at, held = 0, 0, list[int]()
    for index, (_, parameter) in enumerate(order):
        limit = FIRST_BUCKET_BYTES if not stretches else bucket_bytes
        if held and (at - start) * parameter.element_size() + parameter.nbytes > min(limit, bucket_bytes):
            stretches.append(Stretch(start, at, tuple(held)))
            start, held = at, []
        offsets.append(at)
        held.append(index)
        at += parameter.numel()
    if held:
        stretches.append(Stretch(start, at, tuple(held)))
    return FlatLayout(
        names=tuple(name for name, _ in order),
        shapes=tuple(tuple(p.shape) for _, p in order),
        dtypes=tuple(p.dtype for _, p in order),
        offsets=tuple(offsets),
        num_elements=at,
        stretches=tuple(stretches),
    )
