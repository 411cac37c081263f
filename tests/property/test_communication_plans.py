"""Plans of all-reduces: each value goes one way, and carried out they are sums, alike on all members."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.train.collectives.mesh import Mesh
from plait.train.collectives.plan import Plan, direct, fair_shares, islands, ring, ring_order
from plait.train.collectives.planned import Debt, PlannedSum, Route
from plait.train.compression import codec
from plait.train.compression.message import message_layout

Meshes = Callable[[int], AbstractContextManager[list[Mesh]]]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan over up to six members in up to three islands, their members in any order."""
    count = draw(st.sampled_from([1, 5, 1000, 1024, 9001, 70_001]))
    shape = draw(st.sampled_from(["direct", "ring", "islands"]))
    chunks = draw(st.integers(1, 3))
    if shape == "islands":
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        island_of = draw(st.permutations([i for i, size in enumerate(sizes) for _ in range(size)]))
        shares = draw(st.none() | st.tuples(*(st.sampled_from([0.0, 0.3, 1.0]) for _ in sizes)))
        given = shares if shares and sum(shares) else None
        return islands(tuple(island_of), count, given, chunks, lanes=draw(st.sampled_from([None, 1, 2])))
    size = draw(st.integers(1, 5))
    if shape == "ring":
        return ring(tuple(draw(st.permutations(range(size)))), count)
    shares = draw(st.none() | st.tuples(*(st.sampled_from([0.0, 0.1, 2.0]) for _ in range(size))))
    return direct(size, count, shares if shares and sum(shares) else None, chunks)


def reaches(parents: tuple[int, ...], root: int) -> bool:
    """Whether all members come to the root, in fewer steps than there are members."""
    at = list(range(len(parents)))
    for _ in parents:
        at = [parents[member] for member in at]
    return set(at) == {root}


@settings(max_examples=200, deadline=None)
@given(plans())
def test_each_value_has_one_tree_and_each_tree_holds_all_members(plan: Plan) -> None:
    spans = sorted((tree.first, tree.end) for tree in plan.trees)
    assert all(first < end for first, end in spans)
    assert [first for first, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == plan.count
    for tree in plan.trees:
        assert reaches(tree.up, tree.root)
        assert reaches(tree.down, tree.root)


@settings(max_examples=60, deadline=None)
@given(plans(), st.sampled_from([1, 2, 4]))
def test_a_uniform_plan_sends_no_more_than_it_has_to(plan: Plan, scale: int) -> None:
    """Over all members, every value goes up and down once for each member but its root."""
    sent = sum(plain + across for plain, across in plan.values_by_link().values())
    assert sent == 2 * (plan.size - 1) * plan.count


def carry_out(group: list[Mesh], rows: list[Tensor], route: Route, debts: list[Debt] | None) -> list[PlannedSum]:
    works = [
        mesh.start(
            lambda key, ranks, mesh=mesh, row=row, rank=rank: PlannedSum(  # type: ignore[misc]
                mesh, key, ranks, row, route, debt=None if debts is None else debts[rank]
            )
        )
        for rank, (mesh, row) in enumerate(zip(group, rows, strict=True))
    ]
    for _ in range(100_000):
        if all([work.is_completed() for work in works]):  # noqa: C419 - each moves its own member on
            return works
    pytest.fail(f"the sums do not come to an end: {[sorted(work.missing()) for work in works]}")


def route_of(plan: Plan, name: str) -> Route:
    small = min(300, plan.count)
    return Route(plan, message_layout([(small,), (plan.count - small, 1)]), codec(name))


@settings(max_examples=60, deadline=None)
@given(plan=plans(), seed=st.integers(0, 2**31))
def test_an_exact_plan_is_a_plain_sum_with_the_same_bits_everywhere(plan: Plan, seed: int, meshes: Meshes) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(plan.count, generator=generator) for _ in range(plan.size)]
    exact = torch.stack([row.double() for row in rows]).sum(0)
    with meshes(plan.size) as group:
        carry_out(group, rows, route_of(plan, "fp32"), None)
    torch.testing.assert_close(rows[0].double(), exact, rtol=0, atol=1e-5)
    assert all(torch.equal(row, rows[0]) for row in rows)


@settings(max_examples=40, deadline=None)
@given(plan=plans(), other=plans(), name=st.sampled_from(["bf16", "int8", "sign1", "top_k"]), seed=st.integers(0, 99))
def test_what_a_plan_loses_is_owed_and_paid_by_whatever_plan_follows(
    plan: Plan, other: Plan, name: str, seed: int, meshes: Meshes
) -> None:
    generator = torch.Generator().manual_seed(seed)
    debts = [Debt(plan.count) for _ in range(plan.size)]
    others = [p for p in (other, plan) if p.size == plan.size and p.count == plan.count]
    with meshes(plan.size) as group:
        for each in (plan, others[0], plan):
            rows = [torch.randn(plan.count, generator=generator) for _ in range(plan.size)]
            before = torch.stack([debt.owed.double() for debt in debts]).sum(0)
            exact = torch.stack([row.double() for row in rows]).sum(0) + before
            carry_out(group, rows, route_of(each, name), debts)
            for debt in debts:
                debt.commit()
            after = torch.stack([debt.owed.double() for debt in debts]).sum(0)
            assert all(torch.equal(row, rows[0]) for row in rows)
            torch.testing.assert_close(rows[0].double() + after, exact, rtol=0, atol=5e-5)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("plan", [direct(3, 9000), islands((0, 0, 1), 9000)])
def test_an_infinity_makes_its_range_nan_on_all_members_and_does_not_count(
    plan: Plan, bad: float, meshes: Meshes
) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(9000, generator=generator) for _ in range(3)]
    rows[1][5000] = bad
    debts = [Debt(9000) for _ in range(3)]
    with meshes(3) as group:
        works = carry_out(group, rows, route_of(plan, "sign1"), debts)
    for debt in debts:
        debt.commit()
    bad_range = rows[0].isnan()
    assert not any(debt.owed[bad_range].any() for debt in debts)
    assert all(work.is_poisoned for work in works)
    assert all(torch.equal(row.isnan(), rows[0].isnan()) for row in rows)
    assert bad_range.any()


def test_only_what_leaves_an_island_is_encoded() -> None:
    plan = islands((0, 0, 1, 1), 8192)
    by_link = plan.values_by_link()
    assert by_link[0, 2] == (0, 4096)  # up for the other island's ranges, down for its own: half of half, twice
    assert by_link[0, 1][0] == 4096
    assert (0, 3) not in by_link


def test_parts_of_a_slow_member_shrink_until_it_adds_up_nothing() -> None:
    assert fair_shares([1.0, 1.0]) == (0.5, 0.5)
    assert fair_shares([2.0, 2.0, 2.0, 2.0]) == pytest.approx((0.25,) * 4)
    assert fair_shares([10.0, 1.0, 10.0, 10.0])[1] == pytest.approx(0.0, abs=1e-9)
    shares, rates = fair_shares([4.0, 3.5, 4.0, 3.0]), [4.0, 3.5, 4.0, 3.0]
    times = [(1 + 2 * share) / rate for share, rate in zip(shares, rates, strict=True)]
    assert times == pytest.approx([times[0]] * 4)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=11))
def test_a_ring_passes_between_islands_no_more_often_than_it_must(island_of: list[int]) -> None:
    cost = [[1.0 if a == b else 10.0 for b in island_of] for a in island_of]
    order = ring_order(cost)
    assert sorted(order) == list(range(len(island_of)))
    crossings = sum(island_of[a] != island_of[b] for a, b in zip(order, (*order[1:], order[0]), strict=True))
    islands_left = len(set(island_of))
    assert crossings == (islands_left if islands_left > 1 else 0)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 4)])
def test_another_group_owes_what_the_old_one_did(before: int, after: int, meshes: Meshes) -> None:
    """Parts are dealt anew; whoever goes on keeps its debt, and a joiner has none."""
    generator = torch.Generator().manual_seed(2)
    debts = [Debt(6000) for _ in range(before)]
    with meshes(before) as group:
        rows = [torch.randn(6000, generator=generator) for _ in range(before)]
        carry_out(group, rows, route_of(direct(before, 6000), "sign1"), debts)
    for debt in debts:
        debt.commit()
    stay = debts[:after] + [Debt(6000) for _ in range(after - before)]
    rows = [torch.randn(6000, generator=generator) for _ in range(after)]
    exact = torch.stack([row.double() for row in rows + [debt.owed for debt in stay]]).sum(0)
    with meshes(after) as group:
        carry_out(group, rows, route_of(direct(after, 6000), "sign1"), stay)
    for debt in stay:
        debt.commit()
    owed = torch.stack([debt.owed.double() for debt in stay]).sum(0)
    torch.testing.assert_close(rows[0].double() + owed, exact, rtol=0, atol=2e-5)


def test_an_exchange_that_does_not_count_leaves_the_debt_as_it_was(meshes: Meshes) -> None:
    generator = torch.Generator().manual_seed(1)
    debts, route = [Debt(3000) for _ in range(2)], route_of(direct(2, 3000), "sign1")
    with meshes(2) as group:
        carry_out(group, [torch.randn(3000, generator=generator) for _ in range(2)], route, debts)
        for debt in debts:
            debt.commit()
        before = [debt.owed.clone() for debt in debts]
        rows = [torch.randn(3000, generator=generator) for _ in range(2)]
        first = [row.clone() for row in rows]
        carry_out(group, first, route, debts)
        assert all(torch.equal(debt.owed, owed) for debt, owed in zip(debts, before, strict=True))
        carry_out(group, rows, route, debts)
        assert torch.equal(rows[0], first[0])
