"""Solves the configuration program of a round: prices, whole choices, and how good they are for certain."""

import numpy as np

from plait.schedule.allocation.dual import earnings
from plait.schedule.allocation.greedy import take_by_price
from plait.schedule.allocation.prices import cutting_planes
from plait.schedule.allocation.program import Ints, Prices, Program, Solution
from plait.schedule.allocation.relaxation import relax
from plait.schedule.allocation.rounding import fill, refine

SMALL = 4096
"""Up to so many values the relaxation is solved at once, without looking for prices first."""
DEARER = 1.03
MOST_TRIED = 256
"""Among more jobs, what rounding loses does not matter: all combinations in doubt are tried for so many at most."""


def solve(program: Program, *, tolerance: float = 1e-3) -> Solution:
    """Returns a choice within about ``tolerance`` (a ratio) of the best one, with prices and a certified bound.

    The steps, each only while value and bound differ by more than ``tolerance``: everybody's best if that fits; prices
    by cutting planes, and a choice by them; the relaxation's core as a linear program, rounded; all
    combinations of what is still in doubt.
    """
    free = np.zeros(len(program.capacity)), np.zeros_like(program.group_capacity)
    at_prices = earnings(program, *free)
    prices = Prices(resources=free[0], groups=free[1], bound=at_prices.bound)
    if program.is_feasible(at_prices.choice):
        return _solution(program, at_prices.choice, prices, "everybody gets the best")
    if program.values.size > SMALL:
        prices, at_prices = cutting_planes(program, 0.2 * min(tolerance, 1e-3))
    choice = fill(program, take_by_price(program, at_prices), at_prices)
    if program.values.size > SMALL and not _is_good(program, choice, prices, tolerance):
        # A little dearer, fewer want what others hold: more fits at once, and filling up does the rest.
        dearer = earnings(program, prices.resources * DEARER, prices.groups * DEARER)
        choice = _better(program, choice, fill(program, take_by_price(program, dearer), at_prices))
    if _is_good(program, choice, prices, tolerance):
        return _solution(program, choice, prices, "prices")
    relaxed = relax(program, prices, at_prices, 0.1 * tolerance)
    prices, at_prices = relaxed.prices, relaxed.earnings
    choice = _better(program, choice, fill(program, relaxed.choice, at_prices))
    if program.num_jobs > MOST_TRIED or _is_good(program, choice, prices, tolerance):
        return _solution(program, choice, prices, "prices and core")
    choice = refine(program, choice, prices, at_prices, tolerance)
    return _solution(program, choice, prices, "prices, core, and what was in doubt tried")


def _is_good(program: Program, choice: Ints, prices: Prices, tolerance: float) -> bool:
    return prices.bound - program.value_of(choice) <= tolerance * prices.bound


def _better(program: Program, one: Ints, other: Ints) -> Ints:
    return one if program.value_of(one) >= program.value_of(other) else other


def _solution(program: Program, choice: Ints, prices: Prices, method: str) -> Solution:
    assert program.is_feasible(choice), "a choice exceeds the capacities"
    return Solution(choice=choice, value=program.value_of(choice), prices=prices, method=method)
