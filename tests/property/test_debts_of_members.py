"""What encodings have lost is owed by somebody, through steps, settlements, leaves, joins and restarts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from plait.train.collectives.gloo import GlooGroup
from plait.train.collectives.layout import FlatLayout, lay_out
from plait.train.collectives.mesh import Mesh
from plait.train.collectives.routes import Routes
from plait.train.collectives.wires import CodedWire, MomentumWire
from plait.train.optimizers import OneBitAdam

SHAPES = ((40, 50), (30,), (1500, 2), (7, 3))
BETA = 0.9
ROUNDING = 2.0**-8
"""Of bf16, in which a settled step of one-bit momenta travels: what one value may still be owed of."""


Groups = Callable[[Sequence[str]], AbstractContextManager[list[Any]]]


@pytest.fixture(scope="session")
def groups(meshes: Callable[[int], AbstractContextManager[list[Mesh]]]) -> Groups:
    """The members' ends of a group whose members lie on these islands."""
    nothing: Any = None

    @contextmanager
    def made_of(islands: Sequence[str]) -> Iterator[list[Any]]:
        with meshes(len(islands)) as made:
            ends = [GlooGroup(nothing, nothing, mesh, Routes(islands)) for mesh in made]
            try:
                yield ends
            finally:
                for end in ends:
                    end.close()

    return made_of


class Member:
    """The parts of one member that an exchange of momenta has to do with."""

    def __init__(self, momentum: Tensor | None = None) -> None:
        parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        self.optimizer = OneBitAdam(parameters, betas=(BETA, 0.999), freeze=1)
        self.layout: FlatLayout = lay_out([(f"p{i}", p) for i, p in enumerate(parameters)], 12_000)
        self.ordered = list(reversed(parameters))
        self.wire = MomentumWire(self.optimizer, self.layout, self.ordered)
        self.wire.freeze()
        if momentum is not None:
            self.take(momentum)

    @property
    def momentum(self) -> Tensor:
        return torch.cat([self.optimizer.momentum_of(p).reshape(-1) for p in self.ordered])

    def take(self, momentum: Tensor) -> None:
        for parameter, start in zip(self.ordered, self.layout.offsets, strict=True):
            part = momentum[start : start + parameter.numel()]
            self.optimizer.momentum_of(parameter).copy_(part.view_as(parameter))


def finish(ends: list[Any], works: list[Any]) -> None:
    """Moves all members on in turn until all exchanges are over."""
    for end in ends:
        end.rest()
    for _ in range(100_000):
        done = [work.is_completed() for work in works]
        if all(done):
            return
    raise AssertionError("the exchanges do not come to an end")


def exchange(members: list[Member], ends: list[Any], gradients: list[Tensor], shares: list[float]) -> None:
    """Runs one step: gradients are weighted already."""
    flats = [gradient.clone() for gradient in gradients]
    works = []
    for member, end, flat, share in zip(members, ends, flats, shares, strict=True):
        for stretch in member.layout.stretches:
            works += list(member.wire.start(end, flat[stretch.start : stretch.end], stretch, share))
    finish(ends, works)
    for member, flat in zip(members, flats, strict=True):
        member.wire.ledger.commit()
        member.take(flat)


def owed(members: list[Member]) -> Tensor:
    return torch.stack([member.wire.ledger.owed() for member in members]).sum(0)


EVENTS = st.sampled_from(["steps", "leave", "join", "restart"])
ISLANDS = st.sampled_from(["a", "b", "c"])


@settings(max_examples=25, deadline=None)
@given(
    first=st.lists(ISLANDS, min_size=1, max_size=4),
    events=st.lists(st.tuples(EVENTS, ISLANDS), min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_the_sum_of_momentum_and_debts_is_what_was_given(
    first: list[str], events: list[tuple[str, str]], seed: int, groups: Groups
) -> None:
    draw = torch.Generator().manual_seed(seed)
    islands, members = list(first), [Member() for _ in first]
    count = members[0].layout.num_elements

    def run(num_steps: int, *, settles: bool) -> None:
        """Runs steps of unequal shares, the last of them settled, and checks each."""
        with groups(islands) as ends:
            for number in range(num_steps):
                if settles and number == num_steps - 1:
                    for member in members:
                        member.wire.ledger.settles = True
                weights = torch.rand(len(members), generator=draw) + 0.1
                shares = (weights / weights.sum()).tolist()
                gradients = [torch.randn(count, generator=draw) * share for share in shares]
                mean = torch.stack(gradients).sum(0)
                expected = BETA * members[0].momentum + (1.0 - BETA) * mean + owed(members)
                exchange(members, ends, gradients, shares)
                for member in members[1:]:
                    assert torch.equal(member.momentum, members[0].momentum)
                found = members[0].momentum + owed(members)
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        is_paid = settles or len(members) == 1
        assert all(member.wire.ledger.owes != is_paid for member in members)
        if is_paid:
            assert float(owed(members).abs().max()) <= 2 * ROUNDING * float(members[0].momentum.abs().max())

    run(3, settles=False)
    for event, island in events:
        if event == "steps":
            run(2, settles=False)
        elif event == "join" and len(members) < 5:
            members.append(Member(members[0].momentum))
            islands.append(island)
            run(2, settles=False)
        elif event == "leave" and len(members) > 1:
            run(2, settles=True)
            before = members[0].momentum + owed(members)
            at = int(torch.randint(len(members), (1,), generator=draw))
            del members[at], islands[at]
            after = members[0].momentum + owed(members)
            most = 2 * ROUNDING * float(before.abs().max())
            torch.testing.assert_close(after, before, rtol=0.0, atol=most)
            run(1, settles=False)
        elif event == "restart":
            run(2, settles=True)
            saved = members[0].momentum
            number = int(torch.randint(1, 5, (1,), generator=draw))
            islands = ["a", "b", "b", "c"][:number]
            members = [Member(saved) for _ in islands]
            run(1, settles=False)


def test_momenta_that_would_be_lost_arrive_with_a_settled_step(groups: Groups) -> None:
    """Without a settled step, a member that leaves takes what it owes with it."""
    gradient = torch.zeros(Member().layout.num_elements)
    gradient[40] = 50.0  # one bit a value makes the whole block pay for it
    left = {}
    for settles in (False, True):
        members = [Member() for _ in range(3)]
        with groups(["a", "b", "c"]) as ends:
            for step in range(6):
                for member in members:
                    member.wire.ledger.settles = settles and step == 5
                exchange(members, ends, [gradient / 3] * 3, [1 / 3] * 3)
        left[settles] = float(members[2].wire.ledger.owed().abs().max())
    assert left[True] < 0.05 * left[False]


def test_a_wire_of_codes_pays_when_it_is_alone_and_settles_in_fp32_where_that_is_cheap(groups: Groups) -> None:
    layout = Member().layout
    values = torch.linspace(-1.0, 1.0, layout.num_elements)
    for name, rounding in (("int8", 0.0), ("top_k", ROUNDING)):
        wires = [CodedWire(name, layout, torch.device("cpu")) for _ in range(2)]

        def step(ends: list[Any], wires: list[CodedWire]) -> Tensor:
            flats = [values.clone() for _ in ends]
            works = []
            for wire, end, flat in zip(wires, ends, flats, strict=True):
                for stretch in layout.stretches:
                    works += list(wire.start(end, flat[stretch.start : stretch.end], stretch, 1.0))
            finish(ends, works)
            for wire in wires:
                assert wire.ledger is not None
                wire.ledger.commit()
            return flats[0]

        first, second = (wire.ledger for wire in wires)
        assert first is not None
        assert second is not None
        with groups(["a", "b"]) as ends:
            total = step(ends, wires)
            assert first.owes
            first.settles = second.settles = True
            total = total + step(ends, wires)
            torch.testing.assert_close(total, 4 * values, rtol=2 * rounding + 1e-6, atol=2 * rounding + 1e-6)
            assert not first.owes
            assert not first.settles
            step(ends, wires)
        owed_before = first.owed()
        with groups(["a"]) as ends:
            alone = step(ends, wires[:1])
        torch.testing.assert_close(alone, values + owed_before)
        assert not first.owes
