"""The communication hook for plain ``DistributedDataParallel`` scripts: compressed, with errors kept by parameter.

engine = plait.comm.CommEngine()
model.register_comm_hook(plait.comm.DdpExchange(engine, "int8"), plait.comm.ddp_hook)
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from plait.errors import PlaitError
from plait.train.collectives.low_rank_sum import LowRankSum
from plait.train.collectives.mesh import Mesh, MeshWork
from plait.train.collectives.planned import Debt, MomentumShare, PlannedSum, Route, StageTimes
from plait.train.comm.engine import CommEngine
from plait.train.comm.planner import PLAIN
from plait.train.compression import CODECS, warm_up
from plait.train.compression import codec as codec_of
from plait.train.compression.low_rank import LowRank, low_rank_layout
from plait.train.compression.message import MessageLayout, message_layout
from plait.train.optimizers import OneBitAdam
from plait.train.optimizers.one_bit_adam import memory_views
from plait.words import did_you_mean

AUTO = "auto"
LOW_RANK = "low_rank"


def choices() -> tuple[str, ...]:
    """Returns the names of all ways to exchange gradients: the codecs, ``low_rank``, ``plain``, ``auto``."""
    return (*CODECS, LOW_RANK, PLAIN, AUTO)


@dataclass(slots=True)
class _Bucket:
    """What is kept for one bucket of DDP: it has the same parameters from the second step on."""

    parameters: tuple[Tensor, ...]
    layout: MessageLayout
    count: int
    debt: Debt | None = None
    routes: dict[str, Route] = field(default_factory=dict)
    low_rank: LowRank | None = None
    low_rank_routes: tuple[Route, Route] | None = None


class DdpExchange:
    """What :func:`ddp_hook` needs from step to step; one for each model.

    Args:
        engine: Carries out the exchanges.
        codec: What gradients travel as: ``"fp32"``, ``"bf16"``, ``"fp16"``, ``"int8"``, ``"sign1"``, ``"top_k"``,
            ``"low_rank"``, ``"plain"`` for PyTorch's own all-reduce, or ``"auto"`` for whatever :meth:`CommEngine.tune`
            found to be fastest for a bucket's size. Not for :class:`~plait.OneBitAdam`.
        optimizer: A :class:`~plait.OneBitAdam`: gradients travel in bf16 during its warm-up, then momenta in one bit a
            value.
        updates_early: With an optimizer that sends momenta: parameters are updated as soon as theirs have come, while
            backward goes on, and ``optimizer.step()`` updates the others. The learning rate has to be set before
            ``backward()`` then, and every backward pass that exchanges be followed by a ``step()``.
        shape: Of the all-reduce; see :meth:`CommEngine.plan`.
        rank: Of ``low_rank``.

    Attributes:
        refused: Number of exchanges of momenta in which somebody had an infinity or NaN; the momenta stay as they are.

    Raises:
        PlaitError: There is no such codec, or neither a codec nor OneBitAdam is given.
    """

    def __init__(
        self,
        engine: CommEngine,
        codec: str | None = None,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        updates_early: bool = False,
        shape: str | None = None,
        rank: int = 1,
    ) -> None:
        if (codec is None) == (optimizer is None):
            raise PlaitError(f"DdpExchange takes a codec or an optimizer, not both or neither; codec is {codec!r}")
        if updates_early and optimizer is None:
            raise PlaitError("updates_early goes with an optimizer that exchanges momenta, and none is given")
        if codec is not None and codec not in choices():
            raise PlaitError(f"unknown codec {codec!r}{did_you_mean(codec, choices())}")
        if optimizer is not None and not isinstance(optimizer, OneBitAdam):
            raise PlaitError(f"the optimizer is {type(optimizer).__name__}; only OneBitAdam exchanges momenta")
        self._engine = engine
        self._codec = codec
        self._optimizer = optimizer
        self._updates_early = updates_early
        self._shape = shape
        self._rank = rank
        self._buckets: dict[tuple[int, ...], _Bucket] = {}
        self._place: dict[int, tuple[Debt, int]] = {}
        self.refused = 0

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Starts the exchange of a bucket; the future gets the mean gradient, or with OneBitAdam the momentum."""
        optimizer = self._optimizer
        if optimizer is not None and bucket.index() == 0 and optimizer.wants_freeze:
            optimizer.freeze()
        is_momentum = optimizer is not None and optimizer.sends_momentum
        name = "sign1" if is_momentum else self._codec or "bf16"
        buffer = bucket.buffer()
        kept = self._kept(tuple(bucket.parameters()))
        if name == AUTO:
            return self._tuned(buffer, kept)
        if name == PLAIN:
            return self._plain(buffer, kept)
        return self._submit(buffer, kept, name, is_momentum)

    def state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """Returns what all members owe together, for a checkpoint; all call it between the same two steps.

        Args:
            model: The one whose gradients are exchanged, wrapped or not, and the same way at :meth:`load_state_dict`.

        Returns:
            By name of parameter, on the CPU and the same on all members, so that one of them may save it.
        """
        named = dict(model.named_parameters())
        owed = [self._owed(parameter).cpu() for parameter in named.values()]
        together = self._engine.all_reduce(torch.cat([each.reshape(-1) for each in owed])).wait()
        parts = together.split([each.numel() for each in owed])
        return {name: part.view(each.shape) for name, part, each in zip(named, parts, owed, strict=True)}

    def load_state_dict(self, state: Mapping[str, Tensor], model: nn.Module) -> None:
        """Takes over what was owed, each member an equal part: together, that is all of it, on any number of members.

        Raises:
            PlaitError: The state is not one of this model.
        """
        named = {name: parameter for name, parameter in model.named_parameters() if self._loses}
        strange = [
            name for name, parameter in named.items() if name not in state or state[name].shape != parameter.shape
        ]
        if strange:
            raise PlaitError(f"the state holds nothing of the right shape for parameter {strange[0]!r}")
        self._buckets = {}
        for name, parameter in named.items():
            debt = Debt(parameter.numel(), parameter.device)
            debt.owed.copy_(state[name].reshape(-1)).div_(self._engine.size)
            self._place[id(parameter)] = (debt, 0)

    def _owed(self, parameter: Tensor) -> Tensor:
        """Returns what this member owes of a parameter, zero before its first exchange."""
        place = self._place.get(id(parameter))
        if place is None:
            return torch.zeros_like(parameter, dtype=torch.float32)
        debt, at = place
        return debt.owed[at : at + parameter.numel()].view(parameter.shape)

    def _plain(self, buffer: Tensor, kept: _Bucket) -> torch.futures.Future[Tensor]:
        buffer.div_(self._engine.size)
        if kept.debt is not None:  # of an earlier choice; an exact sum pays it
            buffer.add_(kept.debt.owed)
            kept.debt.owed.zero_()
        return self._engine.plain(buffer)

    def _tuned(self, buffer: Tensor, kept: _Bucket) -> torch.futures.Future[Tensor]:
        tuning = self._engine.tuned()
        candidate = tuning.choice(4 * kept.count).candidate
        start_s = time.monotonic()
        if candidate.shape == PLAIN:
            future = self._plain(buffer, kept)
        else:
            name = str(candidate)
            if name not in kept.routes:
                kept.routes[name] = self._engine.route(candidate, tuning.table, kept.layout)
            future = self._submit(buffer, kept, name, False)

        def observe(done: torch.futures.Future[Tensor]) -> Tensor:
            result = done.value()
            tuning.observe(candidate, 4 * kept.count, time.monotonic() - start_s)
            return result

        return future.then(observe)

    def _submit(self, buffer: Tensor, kept: _Bucket, name: str, is_momentum: bool) -> torch.futures.Future[Tensor]:
        values = buffer
        part = 1.0 / self._engine.size

        def begin(mesh: Mesh, times: StageTimes) -> MeshWork:
            nonlocal values
            values = buffer if buffer.dtype == torch.float32 else buffer.float()
            momentum = None
            if is_momentum:
                assert self._optimizer is not None
                state = self._optimizer.momentum_run(kept.parameters, in_memory_order=True)
                momentum = MomentumShare(state, self._optimizer.beta, part, part)
            else:
                values.mul_(part)
            if name == LOW_RANK:
                return self._begin_low_rank(mesh, values, kept, times)
            route, debt = self._route(kept, name), kept.debt
            return mesh.start(
                lambda key, ranks: PlannedSum(
                    mesh, key, ranks, values, route, debt=debt, momentum=momentum, times=times
                )
            )

        def end(work: MeshWork) -> Tensor:
            assert isinstance(work, PlannedSum | LowRankSum)
            if not work.is_poisoned and kept.debt is not None:
                kept.debt.commit()
            if work.is_poisoned and is_momentum:
                assert self._optimizer is not None
                self.refused += 1
                values.copy_(self._optimizer.momentum_run(kept.parameters, in_memory_order=True))
            elif is_momentum and self._updates_early:
                assert self._optimizer is not None
                self._optimizer.update_early(kept.parameters, memory_views(values, kept.parameters))
            return values if values is buffer else buffer.copy_(values)

        return self._engine.submit(begin, end, buffer.device)

    def _begin_low_rank(self, mesh: Mesh, values: Tensor, kept: _Bucket, times: StageTimes) -> MeshWork:
        if kept.low_rank is None or kept.low_rank_routes is None:
            layout = low_rank_layout([tuple(p.shape) for p in kept.parameters], self._rank)
            kept.low_rank = LowRank(layout, device=values.device)
            first, second = (
                Route(self._engine.plan(count, self._shape), message_layout([(count, 1)]), codec_of("fp32"))
                for count in (layout.first_count, layout.second_count)
            )
            kept.low_rank_routes = (first, second)
        state, routes, debt = kept.low_rank, kept.low_rank_routes, kept.debt
        assert debt is not None
        return mesh.start(
            lambda key, ranks: LowRankSum(mesh, key, ranks, values, state, routes=routes, debt=debt, times=times)
        )

    def _route(self, kept: _Bucket, name: str) -> Route:
        if name not in kept.routes:
            chosen = codec_of(name)
            plan = self._engine.plan(kept.count, self._shape, kept.layout.payload_bytes(chosen))
            kept.routes[name] = Route(plan, kept.layout, chosen)
        return kept.routes[name]

    def _kept(self, parameters: Sequence[Tensor]) -> _Bucket:
        """Returns what is kept for these parameters. DDP deals its buckets anew after the first step; errors follow."""
        ids = tuple(id(p) for p in parameters)
        if ids in self._buckets:
            return self._buckets[ids]
        if not self._buckets:
            self._warm_up(parameters[0].device)
        sizes = [p.numel() for p in parameters]
        kept = _Bucket(tuple(parameters), message_layout([tuple(p.shape) for p in parameters]), sum(sizes))
        if self._loses:
            kept.debt = Debt(kept.count, parameters[0].device)
        at = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            old = self._place.pop(id(parameter), None)
            if kept.debt is not None:
                if old is not None:
                    kept.debt.owed[at : at + size] = old[0].owed[old[1] : old[1] + size]
                self._place[id(parameter)] = (kept.debt, at)
            at += size
        self._buckets = {other: b for other, b in self._buckets.items() if not {id(p) for p in b.parameters} & set(ids)}
        self._buckets[ids] = kept
        return kept

    def _warm_up(self, device: torch.device) -> None:
        """Compiles kernels in the first step, not at the end of the optimizer's warm-up."""
        names = ("bf16", "sign1") if self._codec is None else (self._codec,)
        for name in names:
            if name in CODECS:
                warm_up(codec_of(name), device)

    @property
    def _loses(self) -> bool:
        """Whether anything is lost that would have to be kept."""
        if self._codec in {None, LOW_RANK, AUTO}:
            return True
        return self._codec != PLAIN and codec_of(str(self._codec)).feeds_back


def ddp_hook(state: DdpExchange, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Exchanges a bucket: ``model.register_comm_hook(DdpExchange(engine, "int8"), ddp_hook)``."""
    return state.exchange(bucket)
