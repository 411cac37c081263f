"""The configuration program's solver against the plain reference, and what its prices certify."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.schedule.allocation import Program, solve
from plait.schedule.allocation.dual import earnings
from plait.schedule.allocation.program import NOTHING, ProgramMalformed
from plait.schedule.allocation.reference import solve_exactly

Rng = np.random.Generator


def random_program(rng: Rng) -> Program:
    """A cluster of a few types, gangs of powers of two, some units of two types, some projects with limits."""
    num_types = int(rng.integers(1, 5))
    num_jobs = int(rng.integers(1, 60))
    sizes = 2 ** np.arange(int(rng.integers(1, 5)))
    rows = [np.eye(num_types)[kind] * size for kind in range(num_types) for size in sizes]
    if num_types > 1 and rng.random() < 0.4:
        rows.extend((np.eye(num_types)[0] + np.eye(num_types)[1]) * size for size in sizes)
    uses = np.array(rows, dtype=np.float64)
    capacity = rng.integers(1, 24, num_types).astype(np.float64)
    speed = rng.lognormal(0, 0.7, (num_jobs, num_types)) @ uses.T
    weight = rng.lognormal(0, rng.uniform(0, 1.5), (num_jobs, 1))
    values = weight * (speed / speed.max(axis=1, keepdims=True)) ** rng.uniform(0.3, 1.2)
    values *= rng.random(values.shape) < rng.uniform(0.3, 1.0)
    if rng.random() < 0.3:  # many alike
        values = np.repeat(values[:3], (num_jobs + 2) // 3, axis=0)[:num_jobs]
    if rng.random() < 0.4:
        num_groups = int(rng.integers(1, 4))
        limits = rng.integers(0, 12, (num_groups, num_types)).astype(np.float64)
        limits[rng.random(limits.shape) < 0.5] = np.inf
        groups = rng.integers(0, num_groups, len(values)).astype(np.intp)
        return Program(values=values, uses=uses, capacity=capacity, groups=groups, group_capacity=limits)
    return Program(values=values, uses=uses, capacity=capacity)


@given(st.integers(0, 2**32 - 1))
def test_choice_fits_and_is_close_to_the_best(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    solution = solve(program)
    assert program.is_feasible(solution.choice)
    best = program.value_of(solve_exactly(program))
    assert solution.value >= best * (1 - 0.005) - 1e-9
    assert solution.prices.bound >= best - 1e-6 * max(best, 1.0)
    assert solution.value == pytest.approx(program.value_of(solution.choice))


@pytest.mark.slow
def test_gap_on_many_instances() -> None:
    rng = np.random.default_rng(7)
    worst = 0.0
    for _ in range(300):
        program = random_program(rng)
        best = program.value_of(solve_exactly(program))
        worst = max(worst, 1 - solve(program).value / best if best > 0 else 0.0)
    assert worst <= 0.005


@given(st.integers(0, 2**32 - 1))
def test_prices_explain_the_choice(seed: int) -> None:
    """At the prices nobody earns less than nothing, what is not scarce costs nothing, and the bound is the dual's."""
    program = random_program(np.random.default_rng(seed))
    solution = solve(program)
    prices = solution.prices
    assert (prices.resources >= 0).all()
    assert (prices.groups >= 0).all()
    assert not prices.groups[np.isinf(program.group_capacity)].any()
    assert earnings(program, prices.resources, prices.groups).bound == pytest.approx(prices.bound)


def large(rng: Rng, num_jobs: int) -> Program:
    rows = [np.eye(5)[kind] * size for kind in range(5) for size in (1, 2, 4, 8, 16)]
    uses = np.array(rows, dtype=np.float64)
    speed = rng.lognormal(0, 0.5, (num_jobs, 5)) @ (uses ** rng.uniform(0.6, 1.0)).T
    values = 1.1 - (speed / speed.min(axis=1, keepdims=True)) ** -0.5
    return Program(values=values, uses=uses, capacity=np.array([900.0, 1500.0, 300.0, 64.0, 2000.0]))


@pytest.mark.parametrize("num_jobs", [200, 1000, 3000])
def test_certified_gap_at_scale(num_jobs: int) -> None:
    solution = solve(large(np.random.default_rng(num_jobs), num_jobs))
    assert solution.gap_ratio <= 0.002


def test_many_identical_jobs() -> None:
    values = np.repeat(np.array([[1.0, 0.6, 1.5, 0.9]]), 3000, axis=0)
    uses = np.array([[1.0, 0], [0, 1], [2, 0], [0, 2]])
    solution = solve(Program(values=values, uses=uses, capacity=np.array([1000.0, 1001.0])))
    assert solution.gap_ratio <= 0.002


def test_everybody_gets_the_best_where_that_fits() -> None:
    program = Program(values=np.array([[1.0, 2.0], [0.0, -1.0]]), uses=np.eye(2), capacity=np.array([1.0, 1.0]))
    solution = solve(program)
    assert solution.choice.tolist() == [1, NOTHING]
    assert solution.gap_ratio == 0.0
    assert not solution.prices.resources.any()


def test_scarce_device_has_the_price_of_the_first_one_who_waits() -> None:
    program = Program(values=np.array([[3.0], [2.0], [1.0]]), uses=np.ones((1, 1)), capacity=np.array([2.0]))
    solution = solve(program)
    assert solution.choice.tolist() == [0, 0, NOTHING]
    assert 1.0 <= solution.prices.resources[0] <= 2.0


@pytest.mark.parametrize(
    ("values", "uses", "capacity"),
    [
        (np.ones((2, 3)), np.ones((2, 1)), np.ones(1)),
        (np.ones((2, 2)), np.ones((2, 1)), np.ones(2)),
        (np.ones((2, 2)), -np.ones((2, 1)), np.ones(1)),
        (np.full((2, 2), np.nan), np.ones((2, 1)), np.ones(1)),
    ],
)
def test_arrays_that_do_not_belong_together(values: np.ndarray, uses: np.ndarray, capacity: np.ndarray) -> None:
    with pytest.raises(ProgramMalformed):
        Program(values=values, uses=uses, capacity=capacity)
