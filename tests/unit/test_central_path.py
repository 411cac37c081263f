"""The interior-point method against linear programs, and where in the optimal face it ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from plait.schedule.policies.central_path import Delay, Floats, Gain, Level, Shares, solve_shares


def _random(seed: int, num_tasks: int) -> tuple[Shares, Floats]:
    random = np.random.default_rng(seed)
    size = random.choice([1.0, 1.0, 2.0, 4.0], num_tasks)
    shares = Shares(
        rates=random.uniform(0.5, 10.0, (num_tasks, 3)),
        devices=np.repeat(size[:, None], 3, axis=1),
        capacity=random.integers(2, 13, 3).astype(float),
        floors=np.zeros(num_tasks),
    )
    return shares, size


def _constraints(shares: Shares) -> tuple[Floats, Floats]:
    num_tasks, num_types = shares.rates.shape
    rows = np.zeros((num_tasks + num_types, num_tasks * num_types))
    for i in range(num_tasks):
        rows[i, i * num_types : (i + 1) * num_types] = 1.0
        for j in range(num_types):
            rows[num_tasks + j, i * num_types + j] = shares.devices[i, j]
    return rows, np.concatenate([np.ones(num_tasks), shares.capacity])


def _is_feasible(shares: Shares, x: Floats) -> bool:
    rows, bounds = _constraints(shares)
    return bool((x >= 0).all() and (rows @ x.ravel() <= bounds * (1 + 1e-9)).all())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), num_tasks=st.integers(1, 25))
def test_the_least_level_is_that_of_the_linear_program(seed: int, num_tasks: int) -> None:
    shares, size = _random(seed, num_tasks)
    scale = size / shares.rates.mean(axis=1)
    x = solve_shares(shares, Level(scale=scale, counts=np.ones(num_tasks, dtype=np.bool_)))
    rows, bounds = _constraints(shares)
    level = np.zeros((num_tasks, rows.shape[1] + 1))
    for i in range(num_tasks):
        level[i, i * 3 : i * 3 + 3] = -scale[i] * shares.rates[i]
        level[i, -1] = 1.0
    matrix = np.vstack([np.hstack([rows, np.zeros((len(rows), 1))]), level])
    objective = np.zeros(matrix.shape[1])
    objective[-1] = -1.0
    best = linprog(objective, A_ub=matrix, b_ub=np.concatenate([bounds, np.zeros(num_tasks)]))
    assert _is_feasible(shares, x)
    assert float((scale * (shares.rates * x).sum(axis=1)).min()) == pytest.approx(-(best.fun or 0.0), rel=1e-6)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), num_tasks=st.integers(1, 25))
def test_the_largest_sum_is_that_of_the_linear_program(seed: int, num_tasks: int) -> None:
    shares, _ = _random(seed, num_tasks)
    gain = shares.rates / shares.rates.max()
    x = solve_shares(shares, Gain(per_share=gain))
    rows, bounds = _constraints(shares)
    best = linprog(-gain.ravel(), A_ub=rows, b_ub=bounds)
    assert _is_feasible(shares, x)
    assert float((gain * x).sum()) == pytest.approx(-(best.fun or 0.0), rel=1e-6)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), num_tasks=st.integers(1, 12))
def test_no_lower_delay_is_feasible(seed: int, num_tasks: int) -> None:
    shares, _ = _random(seed, num_tasks)
    random = np.random.default_rng(seed + 1)
    age, remaining = random.uniform(0, 5_000, num_tasks), random.uniform(1e3, 1e5, num_tasks)
    fair = age + remaining / (shares.rates.mean(axis=1) * 0.5)
    x = solve_shares(shares, Delay(age_s=age, remaining=remaining, fair_s=fair))
    assert _is_feasible(shares, x)
    reached = float(((age + remaining / (shares.rates * x).sum(axis=1)) / fair).max())
    rows, bounds = _constraints(shares)
    asked = reached * (1 - 1e-4) * fair - age
    needs = np.zeros((num_tasks, rows.shape[1]))
    for i in range(num_tasks):
        needs[i, i * 3 : i * 3 + 3] = -shares.rates[i]
    rates = np.where(asked > 0, remaining / np.where(asked > 0, asked, 1.0), 1e12)
    better = linprog(np.zeros(rows.shape[1]), A_ub=np.vstack([rows, needs]), b_ub=np.concatenate([bounds, -rates]))
    assert better.status == 2, "a lower delay than the one found would be feasible"


def test_equals_get_equal_shares() -> None:
    """A vertex would serve some of them only; the centre of the optimal face serves all alike."""
    shares = Shares(
        rates=np.full((5, 2), 3.0), devices=np.ones((5, 2)), capacity=np.array([2.0, 1.0]), floors=np.zeros(5)
    )
    x = solve_shares(shares, Gain(per_share=np.ones((5, 2))))
    assert x.sum() == pytest.approx(3.0, rel=1e-6)
    assert np.allclose(x, x[0], atol=1e-6)


def test_floors_hold() -> None:
    shares, _ = _random(3, 6)
    even = solve_shares(shares, Level(scale=np.ones(6), counts=np.ones(6, dtype=np.bool_)))
    floors = 0.8 * (shares.rates * even).sum(axis=1)
    bounded = Shares(rates=shares.rates, devices=shares.devices, capacity=shares.capacity, floors=floors)
    x = solve_shares(bounded, Gain(per_share=shares.rates / shares.rates.max()), even)
    assert ((shares.rates * x).sum(axis=1) >= floors * (1 - 1e-9)).all()


def test_a_face_on_which_newtons_system_is_singular_is_walked_all_the_same() -> None:
    rates = [[15, 40, 25], [4, 8, 5], [24, 18, 9], [4, 0, 8], [0, 5, 0], [10, 25, 30]]
    devices = [[5, 5, 5], [1, 1, 1], [6, 6, 6], [2, 2, 2], [1, 2, 1], [5, 5, 5]]
    shares = Shares(
        rates=np.array(rates, dtype=np.float64),
        devices=np.array(devices, dtype=np.float64),
        capacity=np.array([7.0, 9.0, 6.0]),
        floors=np.zeros(6),
    )
    gain = shares.rates / 40.0
    x = solve_shares(shares, Gain(per_share=gain))
    rows, bounds = _constraints(shares)
    best = linprog(-gain.ravel(), A_ub=rows, b_ub=bounds)
    assert _is_feasible(shares, x)
    assert float((gain * x).sum()) == pytest.approx(-float(best.fun or 0.0), rel=1e-6)
