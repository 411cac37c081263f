"""Low rank: equal to the NumPy reference, nothing is lost, and it finds a matrix of its rank exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plait.train.compression import BadValues, reference
from plait.train.compression.low_rank import LowRank, LowRankLayout, low_rank_layout, orthonormalise

SHAPES = ((40, 30), (64,), (16, 8, 3, 3), (4, 4), (), (0, 3), (1, 500))


def step(members: list[LowRank], values: list[Tensor], errors: list[Tensor]) -> list[Tensor]:
    """One step of all members, with plain sums between the phases; errors are replaced."""
    first = torch.stack([each.first(v, e) for each, v, e in zip(members, values, errors, strict=True)]).sum(0)
    second = torch.stack([each.second(first) for each in members]).sum(0)
    outs = [torch.full_like(v, torch.nan) for v in values]
    for each, out, error in zip(members, outs, errors, strict=True):
        each.finish(second, out, error)
    return outs


def members_of(layout: LowRankLayout, number: int) -> list[LowRank]:
    return [LowRank(layout, seed=5) for _ in range(number)]


def test_only_what_gets_smaller_is_factored() -> None:
    layout = low_rank_layout(SHAPES, rank=2)
    assert [(each.rows, each.columns, each.rank) for each in layout.matrices] == [(40, 30, 2), (16, 72, 2)]
    assert layout.others == ((1200, 1264), (2416, 2432), (2432, 2433), (2433, 2433), (2433, 2933))
    assert layout.first_count == 2 * (40 + 16) + 64 + 16 + 1 + 500
    assert layout.second_count == 2 * (30 + 72)
    with pytest.raises(ValueError, match="rank is at least 1; got 0"):
        low_rank_layout(SHAPES, rank=0)


@given(
    seed=st.integers(0, 10_000), rank=st.integers(1, 4), number=st.integers(1, 4), size=st.sampled_from((1e-6, 1, 1e4))
)
def test_a_step_is_that_of_the_reference(seed: int, rank: int, number: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    parts = [(size * rng.standard_normal((20, 30))).astype(np.float32) for _ in range(number)]
    members = members_of(low_rank_layout([(20, 30)], rank), number)
    start = members[0].right.view(30, rank).numpy().copy()
    errors = [torch.zeros(600) for _ in parts]
    outs = step(members, [torch.from_numpy(part).flatten() for part in parts], errors)
    mean, lost, _ = reference.low_rank_step(parts, start)
    np.testing.assert_allclose(outs[0].numpy().reshape(20, 30), mean, atol=2e-4 * size * number)
    for error, wanted in zip(errors, lost, strict=True):
        np.testing.assert_allclose(error.numpy().reshape(20, 30), wanted, atol=2e-4 * size * number)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_nothing_is_lost_over_many_steps_whatever_the_shares(rank: int) -> None:
    layout = low_rank_layout(SHAPES, rank)
    members, shares = members_of(layout, 3), (0.5, 0.3, 0.2)
    errors = [torch.zeros(layout.count) for _ in members]
    given_sum, arrived = torch.zeros(layout.count), torch.zeros(layout.count)
    numbers = torch.Generator().manual_seed(0)
    steady = torch.randn(layout.count, generator=numbers)
    for _ in range(40):
        values = [share * (steady + 0.2 * torch.randn(layout.count, generator=numbers)) for share in shares]
        outs = step(members, values, errors)
        assert all(torch.equal(out, outs[0]) for out in outs)
        given_sum += torch.stack(values).sum(0)
        arrived += outs[0]
    assert torch.allclose(arrived + torch.stack(errors).sum(0), given_sum, rtol=0, atol=1e-3)
    assert float((arrived - given_sum).norm()) < 0.5 * float(given_sum.norm())
    loose = torch.cat([torch.arange(start, end) for start, end in layout.others])
    assert torch.allclose(arrived[loose], given_sum[loose], atol=1e-3)


def test_a_matrix_of_the_rank_arrives_whole() -> None:
    left, right = torch.randn(50, 2), torch.randn(2, 40)
    layout = low_rank_layout([(50, 40)], rank=2)
    errors = [torch.zeros(2000)]
    outs = step(members_of(layout, 1), [(left @ right).flatten()], errors)
    assert torch.allclose(outs[0].view(50, 40), left @ right, atol=1e-3)


def test_a_matrix_of_zeros_does_not_end_it() -> None:
    layout = low_rank_layout([(50, 40)], rank=2)
    members, errors = members_of(layout, 2), [torch.zeros(2000), torch.zeros(2000)]
    outs = step(members, [torch.zeros(2000), torch.zeros(2000)], errors)
    assert not bool(outs[0].any())
    values = torch.randn(2000)
    outs = step(members, [values, values], errors)
    assert float(outs[0].norm()) > 0
    assert torch.allclose(outs[0] + errors[0] + errors[1], 2 * values, atol=1e-4)


def test_a_step_that_breaks_is_begun_again() -> None:
    layout = low_rank_layout([(50, 40)], rank=1)
    once, twice = LowRank(layout), LowRank(layout)
    values, error = torch.randn(2000), torch.randn(2000)
    twice.second(twice.first(values, error))
    results = []
    for each in (once, twice):
        out, lost = torch.empty(2000), torch.empty(2000)
        each.finish(each.second(each.first(values, error)), out, lost)
        results.append((out, lost, each.right))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_phases_out_of_order_are_told() -> None:
    each = LowRank(low_rank_layout([(50, 40)], rank=1))
    with pytest.raises(RuntimeError, match="before second"):
        each.second(torch.zeros(50))
    each.first(torch.zeros(2000), None)
    with pytest.raises(RuntimeError, match="before finish"):
        each.finish(torch.zeros(40), torch.zeros(2000), None)


def test_an_infinity_is_refused_before_anything_is_sent() -> None:
    each, values = LowRank(low_rank_layout([(50, 40)], rank=1)), torch.zeros(2000)
    values[7] = torch.nan
    before = each.right.clone()
    with pytest.raises(BadValues):
        each.first(values, None)
    assert torch.equal(each.right, before)


def test_columns_are_orthonormal_and_dependent_ones_zero() -> None:
    p = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    p[:, 2] = p[:, 0] - 2 * p[:, 1]
    orthonormalise(p)
    assert torch.allclose(p.T @ p, torch.diag(torch.tensor([1.0, 1.0, 0.0, 1.0])), atol=1e-6)
