"""The exchange of one step's gradients in fixed point: the same bits for any split over members."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from plait.train.bitwise import FixedPointScale, FixedSum, Verdict, judge
from plait.train.collectives.samples import Samples
from plait.train.collectives.wire_protocol import Group


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

    is_frozen = owes = settles = False
    codec = "fp32"

    def freeze(self) -> None:
        """Nothing changes: gradients travel always."""

    def settle(self) -> None:
        """Nothing is owed in fixed point."""

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
