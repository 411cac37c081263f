"""The gradient of a global step is the one-process gradient, however the step is split over members."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from plait.train.collectives.exchange import SumExchange
from plait.train.ddp import layout_of, wrapped_alone
from plait.train.engine import StepEngine
from plait.train.faults import FaultInjector
from plait.train.loop import CommittingOptimizer, ShareLoader
from plait.train.norm import GhostStatistics
from plait.train.observers import Observers
from plait.train.replica import Replica
from plait.train.telling import EngineConfig
from plait.train.work import DataPlan

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
DEADLINE_S = 60.0


class Hub:
    """Where the members' tensors meet: the n-th all-reduce of each member belongs together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._waiting: dict[int, list[tuple[int, Tensor, threading.Event]]] = {}

    def join(self, turn: int, index: int, tensor: Tensor) -> threading.Event:
        """Adds one member's tensor; the last one to come adds all up, in the order of the members."""
        done = threading.Event()
        with self._lock:
            parts = self._waiting.setdefault(turn, [])
            parts.append((index, tensor, done))
            if len(parts) == self.size:
                del self._waiting[turn]
                self._reduce(sorted(parts, key=lambda part: part[0]))
        return done

    @staticmethod
    def _reduce(parts: list[tuple[int, Tensor, threading.Event]]) -> None:
        assert len({tensor.shape for _, tensor, _ in parts}) == 1
        total = parts[0][1].clone()
        for _, tensor, _ in parts[1:]:
            total += tensor
        for _, tensor, done in parts:
            tensor.copy_(total)
            done.set()


@dataclass
class Work:
    """What PyTorch's work is to the engine."""

    done: threading.Event

    def is_completed(self) -> bool:
        return self.done.is_set()

    def wait(self, timeout: timedelta = timedelta(seconds=DEADLINE_S)) -> bool:
        """As PyTorch's: an error where the time is over, and not a word."""
        if not self.done.wait(timeout.total_seconds()):
            raise RuntimeError("the wait for a work has timed out")
        return True


@dataclass
class HubGroup:
    """One member's end of a hub."""

    hub: Hub
    index: int
    turn: int = 0

    @property
    def size(self) -> int:
        return self.hub.size

    def all_reduce(self, tensor: Tensor, op: Any = None) -> Work:
        self.turn += 1
        return Work(self.hub.join(self.turn, self.index, tensor))

    def rest(self) -> None:
        """Nothing moves by itself."""


@dataclass(frozen=True)
class Case:
    """One run: a data plan, a split, and how many micro-batches may be fused."""

    plan: DataPlan
    shares: tuple[int, ...]
    max_fused: int | None
    dtype: torch.dtype
    bucket_bytes: int = 256

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(f"w{i}" for i in range(len(self.shares)))


@dataclass
class Outcome:
    """What one member saw."""

    weights: list[list[Tensor]] = field(default_factory=list)
    gradients: list[list[Tensor]] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    error: BaseException | None = None


class Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Sample ``i``: input, target, and a weight per item of its sequence that says which items count."""

    def __init__(self, num: int, dtype: torch.dtype) -> None:
        source = torch.Generator().manual_seed(7)
        self.x = torch.randn(num, 4, 5, generator=source, dtype=torch.float64).to(dtype)
        self.y = torch.randn(num, 4, 2, generator=source, dtype=torch.float64).to(dtype)
        self.counts = torch.randint(0, 2, (num, 4), generator=source)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.x[index], self.y[index], self.counts[index]


def fresh(dtype: torch.dtype) -> nn.Module:
    layers = [nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
    model = nn.Sequential(*layers).to(dtype)
    source = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source, dtype=torch.float64) / 3)
    return model


def errors_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The squared error of each item, of shape (samples, items)."""
    x, y, _ = batch
    result: Tensor = (model(x) - y).square().mean(-1)
    return result


def loss_of(model: nn.Module, batch: Sequence[Tensor], *, weighs: bool) -> tuple[Tensor, int]:
    """The mean over what counts in this batch, and how much that is."""
    errors, counts = errors_of(model, batch), batch[2]
    if not weighs:
        return errors.mean(), len(errors)
    num = int(counts.sum())
    return (errors * counts).sum() / max(num, 1), num


def run_member(case: Case, hub: Hub, index: int, outcome: Outcome, *, weighs: bool) -> None:
    model = fresh(case.dtype)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    layout, parameters = layout_of(model, case.bucket_bytes)
    exchange = SumExchange(layout, parameters, case.dtype)
    replica = Replica(model=model, optimizer=inner, scheduler=None, ghosts=GhostStatistics(model))
    wrapped = wrapped_alone(model, exchange, find_unused=False)
    config = EngineConfig(
        me=case.members[index],
        plan=case.plan,
        total_steps=2 * case.plan.steps_per_epoch,
        contract=(),
        accelerator_type="CPU",
        forced_split=dict(zip(case.members, case.shares, strict=True)),
        max_fused=case.max_fused,
    )
    observers = Observers()
    observers.on_commit.append(lambda facts: outcome.losses.append(facts.loss))
    engine = StepEngine(config, replica, exchange, None, None, observers, FaultInjector(config.me, ""))
    engine.standing.members = case.members
    engine.standing.group = HubGroup(hub, index)  # type: ignore[assignment]

    def keep() -> None:
        outcome.weights.append([p.detach().clone() for p in model.parameters()])
        outcome.gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])

    replica.before_step = keep
    optimizer = CommittingOptimizer(inner, engine)
    samples = Samples(case.plan.num_samples, case.dtype)
    for batch in ShareLoader(engine, samples, torch.utils.data.default_collate, torch.device("cpu")):
        loss, count = loss_of(wrapped, batch, weighs=weighs)
        if weighs:
            engine.weigh(count)
        engine.record(float(loss.detach()))
        loss.backward()
        optimizer.step()


def run_group(case: Case, *, weighs: bool) -> list[Outcome]:
    """Runs all members of a group, each in a thread; the test fails where one does not come to its end."""
    hub = Hub(len(case.shares))
    outcomes = [Outcome() for _ in case.shares]

    def live(index: int) -> None:
        try:
            run_member(case, hub, index, outcomes[index], weighs=weighs)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            outcomes[index].error = error

    threads = [threading.Thread(target=live, args=(i,), daemon=True) for i in range(len(case.shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    assert not any(thread.is_alive() for thread in threads), "a member waits for ever"
    return outcomes


def reference(case: Case, step: int, weights: Sequence[Tensor], *, weighs: bool) -> tuple[list[Tensor], float | None]:
    """Gradient and loss of one process that knows nothing of Plait's exchange: one pass over the whole step.

    A step in which nothing counts has no loss.
    """
    model = fresh(case.dtype)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    data = Samples(case.plan.num_samples, case.dtype)
    index = torch.from_numpy(case.plan.samples(step, range(case.plan.micro_batches)).copy())
    loss, count = loss_of(model, (data.x[index], data.y[index], data.counts[index]), weighs=weighs)
    loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None], float(loss.detach()) if count else None


def difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """The relative difference of two gradients, each taken as one long vector; computed in float64."""
    one, two = (torch.cat([t.double().reshape(-1) for t in g]) for g in (a, b))
    size = float(two.norm())
    return float((one - two).norm()) / size if size > 0.0 else float(one.norm())


@st.composite
def splits(draw: st.DrawFn, num: int) -> tuple[int, ...]:
    """Any way of dealing ``num`` micro-batches to 1 to 6 members, those with none included."""
    cuts = sorted(draw(st.lists(st.integers(0, num), max_size=5)))
    ends = [*cuts, num]
    return tuple(end - start for start, end in zip([0, *cuts], ends, strict=True))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_micro = draw(st.integers(1, 9))
    batch = num_micro * draw(st.integers(1, 3)) + draw(st.integers(0, num_micro - 1))
    tail = draw(st.integers(1, batch))  # samples in the last step of an epoch
    return Case(
        plan=DataPlan(
            num_samples=batch * draw(st.integers(0, 1)) + tail,
            global_batch=batch,
            micro_batches=num_micro,
            seed=draw(st.integers(0, 5)),
        ),
        shares=draw(splits(num_micro)),
        max_fused=draw(st.one_of(st.none(), st.integers(1, 4))),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        bucket_bytes=draw(st.sampled_from([1, 256, 2**20])),
    )


def compare(case: Case, *, weighs: bool) -> None:
    first, *others = run_group(case, weighs=weighs)
    num_steps = 2 * case.plan.steps_per_epoch
    assert len(first.gradients) == len(first.losses) == num_steps
    for step in range(num_steps):
        gradient, loss = reference(case, step, first.weights[step], weighs=weighs)
        assert difference(first.gradients[step], gradient) <= TOLERANCE[case.dtype], f"step {step}"
        # A loss travels in fixed point with 24 bits after the point, rounded once a member.
        assert first.losses[step] == (None if loss is None else pytest.approx(loss, rel=1e-5, abs=1e-6))
        for other in others:
            for mine, theirs in zip(other.gradients[step], first.gradients[step], strict=True):
                assert torch.equal(mine, theirs), f"two members have two gradients in step {step}"


@settings(max_examples=40)
@given(case=cases())
def test_any_split_gives_the_one_process_gradient(case: Case) -> None:
    compare(case, weighs=False)


@settings(max_examples=25)
@given(case=cases())
def test_weighed_batches_give_the_one_process_gradient(case: Case) -> None:
    compare(case, weighs=True)


@pytest.mark.parametrize("shares", [(0, 0, 6), (6, 0, 0), (0, 6, 0, 0, 0, 0), (1, 1, 1, 1, 1, 1), (4, 2), (0, 5, 1)])
def test_members_without_work_take_part_in_every_step(shares: tuple[int, ...]) -> None:
    """The tail of 5 samples fills two and a half micro-batches, so even a member with work may have none in it."""
    plan = DataPlan(num_samples=41, global_batch=12, micro_batches=6)
    compare(Case(plan=plan, shares=shares, max_fused=None, dtype=torch.float64), weighs=False)
