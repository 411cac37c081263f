"""From the relaxation to whole choices: fill what is left, improve one job at a time, then settle the last doubts.

A vertex of the relaxation leaves at most one job in parts for each capacity, so little is left to decide. That is
decided exactly: a configuration that loses more at the prices than value and bound differ cannot be part of anything
better, so only the others are tried, by branch and bound on a handful of jobs.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from plait.schedule.allocation.dual import Earnings
from plait.schedule.allocation.program import NOTHING, TINY, Ints, Prices, Program

MOST_MOVES = 200
MOST_CANDIDATES = 8192
MOST_COLUMNS = 600
MOST_NODES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Pairs of job and configuration, with what each loses at the prices against the best of its job."""

    jobs: Ints
    configurations: Ints


def fill(program: Program, choice: Ints, at_prices: Earnings) -> Ints:
    """Returns a better choice: one job at a time takes more or something else, as long as that is worth anything.

    Of the moves that fit, the one goes first that is worth most beyond what it costs at the prices.
    """
    choice = choice.copy()
    pairs = _least_losing(program, at_prices, MOST_CANDIDATES)
    uses = program.uses[pairs.configurations]
    left, group_left = program.left_by(choice)
    nothing = np.zeros(len(program.capacity))
    net = at_prices.net[pairs.jobs, pairs.configurations]
    worth = program.values[pairs.jobs, pairs.configurations]
    for _ in range(MOST_MOVES):
        present = choice[pairs.jobs]
        is_idle = present == NOTHING
        present_worth = np.where(is_idle, 0.0, program.values[pairs.jobs, present])
        present_uses = np.where(is_idle[:, None], nothing, program.uses[present])
        fits = (uses - present_uses <= left + TINY).all(axis=1)
        if group_left.size:
            fits &= (uses - present_uses <= group_left[program.groups[pairs.jobs]] + TINY).all(axis=1)
        fits &= worth > present_worth
        if not fits.any():
            break
        present_net = np.where(is_idle, 0.0, at_prices.net[pairs.jobs, present])
        pick = int(np.where(fits, net - present_net, -np.inf).argmax())
        job = pairs.jobs[pick]
        change = uses[pick] - present_uses[pick]
        left -= change
        if group_left.size:
            group_left[program.groups[job]] -= change
        choice[job] = pairs.configurations[pick]
    return choice


def refine(program: Program, choice: Ints, prices: Prices, at_prices: Earnings, tolerance: float) -> Ints:
    """Returns the best choice among those that the gap does not rule out, as far as that is a small question."""
    gap = prices.bound - program.value_of(choice)
    pairs = _least_losing(program, at_prices, MOST_COLUMNS, within=gap)
    doubtful = np.unique(pairs.jobs)
    # A job that has a doubt takes part with its present choice too, so that nothing can get worse.
    own = doubtful[choice[doubtful] >= 0]
    jobs = np.concatenate([pairs.jobs, own])
    configurations = np.concatenate([pairs.configurations, choice[own]])
    jobs, configurations = np.unique(np.stack([jobs, configurations]), axis=1)
    if not len(jobs):
        return choice
    settled = choice.copy()
    settled[doubtful] = NOTHING
    taken = _branch_and_bound(program, jobs, configurations, settled, tolerance * prices.bound)
    if taken is None:
        return choice
    settled[jobs[taken]] = configurations[taken]
    return settled if program.value_of(settled) > program.value_of(choice) else choice


def _least_losing(program: Program, at_prices: Earnings, most: int, within: float = np.inf) -> _Pairs:
    loss = np.where(program.values > 0, at_prices.best[:, None] - at_prices.net, np.inf)
    if most < loss.size:
        within = min(within, float(np.partition(loss, most, axis=None)[most]))
    jobs, configurations = np.nonzero((loss <= within) & np.isfinite(loss))
    return _Pairs(jobs=jobs, configurations=configurations)


def _branch_and_bound(
    program: Program, jobs: Ints, configurations: Ints, settled: Ints, absolute_gap: float
) -> Ints | None:
    """Returns which of these pairs to take, when the settled jobs keep theirs; None where the solver has none."""
    members, rows = np.unique(jobs, return_inverse=True)
    size = len(jobs)
    left, group_left = program.left_by(settled)
    uses = program.uses[configurations]
    limited = np.isfinite(program.group_capacity)
    blocks = [csr_array((np.ones(size), (rows, np.arange(size))), shape=(len(members), size)), csr_array(uses.T)]
    for group, resource in np.argwhere(limited):
        blocks.append(csr_array(np.where(program.groups[jobs] == group, uses[:, resource], 0.0)[None, :]))
    limits = np.concatenate([np.ones(len(members)), left, group_left[limited]])
    worth = program.values[jobs, configurations]
    result = milp(
        -worth,
        constraints=LinearConstraint(vstack(blocks, format="csr"), ub=limits),
        integrality=np.ones(size, dtype=np.int64),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": absolute_gap / max(float(worth.sum()), 1e-300), "node_limit": MOST_NODES},
    )
    return None if result.x is None else np.flatnonzero(result.x > 0.5)
