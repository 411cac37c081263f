"""The exchange of one step's gradient sums, overlapped with backward through DDP's communication hook.

DDP runs over a group of one member: it buckets, calls the hook as buckets fill during backward, and moves no byte.
The hook scales each gradient into the flat wire buffer (times samples, over the samples of the whole step) and starts
an all-reduce as soon as a stretch of the layout is complete, always in the layout's order. What a device computed
stays with it until the step commits, so an exchange that broke is simply started again in the next generation.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from plait.train.bitwise import Verdict
from plait.train.collectives.fixed import FixedExchange
from plait.train.collectives.layout import FlatLayout, Stretch
from plait.train.collectives.samples import Samples
from plait.train.collectives.wire_protocol import Group, PlainWire, Wire


class SumExchange:
    """Weighted sums in floating point; stretches leave during the last backward pass of a step."""

    def __init__(self, layout: FlatLayout, parameters: Sequence[nn.Parameter], wire_dtype: torch.dtype) -> None:
        """``parameters`` in the layout's order."""
        self.layout = layout
        self.parameters = tuple(parameters)
        self.wire: Wire = PlainWire()
        self.works: list[Any] = []
        self.extras: list[tuple[Tensor, Any]] = []
        self.dtype = wire_dtype
        self._index = {id(p): i for i, p in enumerate(self.parameters)}
        self._by_id = {id(p): p for p in self.parameters}
        self._dtype = wire_dtype
        self._device = self.parameters[0].device
        self._flat: Tensor | None = None
        self._local: Tensor | None = None
        self._weight = 0.0
        self._kept = 0.0
        self._group: Group | None = None
        self._next = 0
        self._filled: list[int] = []
        self._samples = Samples()
        self.ran_backward = False

    def _views(self, flat: Tensor) -> list[Tensor]:
        offsets, shapes = self.layout.offsets, self.layout.shapes
        return [flat[a : a + p.numel()].view(s) for a, p, s in zip(offsets, self.parameters, shapes, strict=True)]

    def begin_step(self) -> None:
        """Forgets the last step."""
        self._local = None
        self._weight = self._kept = 0.0
        self._drop_exchange()

    def _drop_exchange(self) -> None:
        self.works, self.extras, self._next = [], [], 0
        if self.wire.ledger is not None:
            self.wire.ledger.forget()
        self._filled = [0] * len(self.layout.stretches)

    def begin_chunk(self, weight: float, *, is_last: bool, group: Group | None) -> None:
        """A forward and backward pass follows whose mean gradient counts ``weight``; the last one of a share sends."""
        self._weight = weight
        self._group = group if is_last else None
        self._samples.clear()
        self.ran_backward = False
        self._drop_exchange()
        if self._flat is None:
            self._flat = torch.zeros(self.layout.num_elements, dtype=self._dtype, device=self._device)
            self._flat_views = self._views(self._flat)
        if self._local is not None:
            self._local_views = self._views(self._local)

    @torch.no_grad()
    def hook(self, _state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's communication hook: weighs the gradients of a bucket and sends the stretches that are complete."""
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        self.ran_backward = True
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            index = self._index[id(parameter)]
            target = self._flat_views[index]
            if self._local is None:
                torch.mul(gradient, self._weight, out=target)
            else:
                torch.add(self._local_views[index], gradient, alpha=self._weight, out=target)
            self._count(index)
        self._samples.take(bucket, self._by_id)
        if self._group is not None:
            self._send_complete(self._group)
        return done

    def _count(self, index: int) -> None:
        for number, stretch in enumerate(self.layout.stretches):
            if stretch.parameters[0] <= index <= stretch.parameters[-1]:
                self._filled[number] += 1
                return

    def _send_complete(self, group: Group) -> None:
        stretches = self.layout.stretches
        while self._next < len(stretches) and self._filled[self._next] == len(stretches[self._next].parameters):
            self._send(group, stretches[self._next])
            self._next += 1

    def _send(self, group: Group, stretch: Stretch) -> None:
        assert self._flat is not None
        share = min(1.0, self._kept + self._weight)
        self.works += self.wire.start(group, self._flat[stretch.start : stretch.end], stretch, share)

    def weight(self) -> float:
        """What the running chunk's mean loss counts for in the step's."""
        return self._weight or 1.0

    def check_untouched(self) -> None:
        """Raises :class:`GradientsChanged` where gradients differ from what was sent."""
        self._samples.check()

    @torch.no_grad()
    def keep_chunk(self) -> None:
        """Takes the gradients of the chunk that just ran into this member's own sum."""
        if self._weight == 0.0 or not self.ran_backward:
            return
        if self._local is None:
            self._local = torch.zeros(self.layout.num_elements, dtype=self._dtype, device=self._device)
        self._local_views = self._views(self._local)
        for view, parameter in zip(self._local_views, self.parameters, strict=True):
            if parameter.grad is not None:
                view.add_(parameter.grad, alpha=self._weight)
        self._kept += self._weight
        self._weight = 0.0

    def send_all(self, group: Group) -> None:
        """Sends whatever of this member's sum has not left in this generation; with a new buffer after a break."""
        stretches = self.layout.stretches
        if self._next == 0:
            fresh = torch.zeros(self.layout.num_elements, dtype=self._dtype, device=self._device)
            if self._weight != 0.0 and self.ran_backward:
                self.keep_chunk()
            if self._local is not None:
                fresh.copy_(self._local)
            self._flat = fresh
            self._flat_views = self._views(fresh)
        while self._next < len(stretches):
            self._send(group, stretches[self._next])
            self._next += 1

    def abandon(self) -> None:
        """The exchange broke: its buffer may still be written to, so it is left to its works."""
        self._drop_exchange()
        self._flat = None

    @property
    def is_frozen(self) -> bool:
        """Whether momenta travel in place of gradients."""
        return self.wire.is_frozen

    def freeze(self) -> None:
        """From the next step on, momenta travel."""
        self.wire.freeze()

    @property
    def codec(self) -> str:
        """The name of what most values travel in."""
        return self.wire.codec

    @property
    def owes(self) -> bool:
        """Whether this member owes something that a settled step would send."""
        return self.wire.ledger is not None and self.wire.ledger.owes

    @property
    def settles(self) -> bool:
        """Whether the coming step is settled: all that members owe travels with it."""
        return self.wire.ledger is not None and self.wire.ledger.settles

    def settle(self) -> None:
        """The coming step is settled; to be called on all members alike."""
        if self.wire.ledger is not None:
            self.wire.ledger.settles = True

    def commit(self) -> None:
        """The step counts: what its encodings lost is added to the next."""
        if self.wire.ledger is not None:
            self.wire.ledger.commit()

    def verdict(self) -> Verdict:
        """Floating-point sums are good as they are."""
        return Verdict.GOOD

    def restart_step(self) -> bool:
        """Whether the step must be run again after the last verdict; never for floating-point sums."""
        return False

    def set_gradients(self, ratio: float) -> None:
        """Points the parameters' gradients at the reduced sums, times ``ratio``."""
        assert self._flat is not None
        if ratio != 1.0:
            self._flat.mul_(ratio)
        for parameter, view in zip(self.parameters, self._flat_views, strict=True):
            parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)

    def has_bad_values(self) -> bool:
        """Whether the reduced sums hold an infinity or NaN: the same answer on all members."""
        assert self._flat is not None
        return not bool(torch.isfinite(self._flat).all())

    def result(self) -> list[Tensor]:
        """Returns copies of the reduced sums, for a member that cannot apply them yet."""
        assert self._flat is not None
        return [self._flat.clone()]

    def take_result(self, result: list[Tensor]) -> None:
        """Puts sums of :meth:`result` in place."""
        self._flat = result[0]
        self._flat_views = self._views(self._flat)


Exchange = SumExchange | FixedExchange
