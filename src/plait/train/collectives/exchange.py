"""The exchange of one step's gradient sums, overlapped with backward through DDP's communication hook.

DDP runs over a group of one member: it buckets, calls the hook as buckets fill during backward, and moves no byte.
The hook scales each gradient into the flat wire buffer (times samples, over the samples of the whole step) and starts
an all-reduce as soon as a stretch of the layout is complete, always in the layout's order. What a device computed
stays with it until the step commits, so an exchange that broke is simply started again in the next generation.

Seams for what later rides here: :class:`Wire` turns a stretch into what travels (compression), and a group may be any
object with ``all_reduce`` (hierarchy over islands).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from plait.train.bitwise import FixedPointScale, FixedSum, Verdict, judge
from plait.train.collectives.layout import FlatLayout, Stretch

_NUM_SAMPLES = 4


class Ledger(Protocol):
    """What a wire remembers between steps."""

    def commit(self) -> None:
        """The step's exchanges count."""
        ...

    def forget(self) -> None:
        """The exchanges so far do not count."""
        ...


class Group(Protocol):
    """What an exchange needs of a process group."""

    size: int

    def all_reduce(self, tensor: Tensor, op: Any = ...) -> Any:
        """Starts an all-reduce in place and returns a work with ``is_completed`` and ``wait``."""
        ...


class Wire(Protocol):
    """Sends one stretch of the flat buffer and puts the sum over all members back in its place.

    Attributes:
        is_frozen: Whether momenta travel in place of gradients.
        ledger: What is remembered between steps, if anything.
    """

    @property
    def is_frozen(self) -> bool:
        """See above."""
        ...

    @property
    def ledger(self) -> Ledger | None:
        """See above."""
        ...

    def start(self, group: Group, values: Tensor, stretch: Stretch, share: float) -> Sequence[Any]:
        """Starts the exchange of ``values``, in place; returns its works.

        Args:
            group: The members.
            values: The stretch's part of the flat buffer, weighted sums.
            stretch: Which one it is.
            share: This member's part of the step, 0 to 1; over all members they add up to 1.
        """
        ...

    def freeze(self) -> None:
        """The warm-up of an optimizer that exchanges momenta is over."""
        ...


class PlainWire:
    """Sends the values as they are."""

    is_frozen = False
    ledger: Ledger | None = None

    def start(self, group: Group, values: Tensor, stretch: Stretch, share: float) -> Sequence[Any]:  # noqa: ARG002
        """Starts one all-reduce."""
        return (group.all_reduce(values),) if group.size > 1 else ()

    def freeze(self) -> None:
        """Nothing changes."""


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


class FixedExchange:
    """Sums in fixed point: the same bits for any split. Each micro-batch runs alone; sums leave at the step's end."""

    def __init__(self, parameters: Sequence[nn.Parameter], num_micro_batches: int) -> None:
        self.parameters = tuple(parameters)
        self.works: list[Any] = []
        self.scale = FixedPointScale.start(len(self.parameters))
        self._samples = Samples()
        self._by_id = {id(p): p for p in self.parameters}
        self._terms = num_micro_batches
        self._weight = 0.0
        self._k = -1
        self._sum = self._fresh()
        self._step_max: list[float] = []
        self._sums: Tensor | None = None
        self._maxima: Tensor | None = None
        self.ran_backward = False

    def _fresh(self) -> FixedSum:
        return FixedSum(self.parameters, self.scale.exponents(self._terms), self._terms)

    def begin_step(self) -> None:
        """Starts empty sums on the present scale."""
        self._sum = self._fresh()
        self.works = []
        self._sums = None

    def begin_chunk(self, weight: float, *, is_last: bool, group: Group | None) -> None:  # noqa: ARG002
        """One micro-batch follows."""
        self._weight = weight
        self._samples.clear()
        self.ran_backward = False

    def at(self, k: int) -> None:
        """Says which micro-batch the chunk is."""
        self._k = k

    def hook(self, _state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's communication hook: nothing leaves before the whole micro-batch is in the sum."""
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        self.ran_backward = True
        self._samples.take(bucket, self._by_id)
        return done

    def check_untouched(self) -> None:
        """Raises :class:`GradientsChanged` where gradients differ from what backward left."""
        self._samples.check()

    def keep_chunk(self) -> None:
        """Adds the micro-batch that just ran."""
        if self._weight == 0.0:
            return
        weighted = [None if p.grad is None else p.grad * self._weight for p in self.parameters]
        self._sum.add(self._k, weighted)
        self._weight = 0.0

    def send_all(self, group: Group) -> None:
        """Sends sums and largest entries."""
        self.keep_chunk()
        self._sums, self._maxima = self._sum.sums.clone(), self._sum.maxima.clone()
        if group.size > 1:
            self.works += [group.all_reduce(self._sums), group.all_reduce(self._maxima, dist.ReduceOp.MAX)]

    def abandon(self) -> None:
        """The exchange broke."""
        self.works = []
        self._sums = self._maxima = None

    is_frozen = False

    def freeze(self) -> None:
        """Nothing changes: gradients travel always."""

    def commit(self) -> None:
        """Nothing is lost in fixed point."""

    def verdict(self) -> Verdict:
        """Judges the reduced maxima; the same on all members."""
        assert self._maxima is not None
        self._step_max = [float(value) for value in self._maxima]
        return judge(self._step_max, self._sum.exponents, self._terms)

    def restart_step(self) -> bool:
        """Takes the scale that this step needs; the caller runs its micro-batches once more."""
        self.scale = self.scale.after(self._step_max)
        self.begin_step()
        return True

    def set_gradients(self, ratio: float) -> None:
        """Gives the parameters the gradients that the reduced sums stand for; their size scales the next step."""
        assert self._sums is not None
        for parameter, gradient in zip(self.parameters, self._sum.gradients(self._sums), strict=True):
            parameter.grad = gradient * ratio
        self.follow_scale()

    def follow_scale(self) -> None:
        """Takes the scale of the step after the one that was judged last."""
        self.scale = self.scale.after(self._step_max)

    def has_bad_values(self) -> bool:
        """Whether any gradient was not finite."""
        assert self._maxima is not None
        return bool(torch.isinf(self._maxima).any())

    def result(self) -> list[Tensor]:
        """Returns copies of the reduced sums and maxima, and the exponents that they were made with."""
        assert self._sums is not None
        assert self._maxima is not None
        return [self._sums.clone(), self._maxima.clone(), torch.tensor(self._sum.exponents)]

    def take_result(self, result: list[Tensor]) -> None:
        """Puts sums of :meth:`result` in place."""
        self._sums, self._maxima, exponents = result
        self._sum = FixedSum(self.parameters, exponents.tolist(), self._terms)
        self.verdict()


Exchange = SumExchange | FixedExchange


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
