"""The linear relaxation by its core: only configurations that could matter at the present prices are columns.

Jobs that have only one way within a margin of their best are settled; the rest goes into a small linear program
(HiGHS), whose duals are better prices. What jobs would rather have at those becomes a column too, until the bound that
the prices certify meets what the program is worth.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from plait.schedule.allocation.dual import Earnings, earnings
from plait.schedule.allocation.program import NOTHING, Floats, Ints, Prices, Program

Mask = npt.NDArray[np.bool_]

MOST_ROUNDS = 8
MOST_COLUMNS = 12000
"""A larger linear program takes more time than it is worth: rounding by prices is good where there are many jobs."""
WHOLE = 1.0 - 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """The linear relaxation, solved.

    Attributes:
        choice: (jobs,). What jobs got whole; ``NOTHING`` for those that got nothing or only parts.
        prices: The best prices found, with the bound that they certify.
        earnings: What the jobs earn at these prices.
    """

    choice: Ints
    prices: Prices
    earnings: Earnings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """Part of the columns. Jobs in ``settled`` have their choice already; the capacities are what these leave."""

    jobs: Ints
    configurations: Ints
    settled: Ints
    left: Floats
    group_left: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    value: float
    choice: Ints
    resources: Floats
    groups: Floats


def relax(program: Program, start: Prices, at_start: Earnings, tolerance: float) -> Relaxation:
    """Solves the relaxation until its value is within ``tolerance`` (a ratio) of the bound, from starting prices."""
    now = at_start
    best, at_best, choice = start, now, np.full(program.num_jobs, NOTHING, dtype=np.intp)
    columns = np.zeros(program.values.shape, dtype=np.bool_)
    for _ in range(MOST_ROUNDS):
        near, margin = _near(program, now)
        columns |= near
        core = _core(program, columns, now, margin)
        answer = _solve(program, core) if core is not None else None
        if answer is None:
            break
        choice = answer.choice
        now = earnings(program, answer.resources, answer.groups)
        if now.bound <= best.bound:
            best = Prices(resources=answer.resources, groups=answer.groups, bound=now.bound)
            at_best = now
        if now.bound - answer.value <= tolerance * now.bound:
            break
    return Relaxation(choice=choice, prices=best, earnings=at_best)


def _near(program: Program, now: Earnings) -> tuple[Mask, float]:
    """Returns the wanted pairs of job and configuration that lose least against the job's best, and how much."""
    loss = np.where(program.values > 0, now.best[:, None] - now.net, np.inf)
    most = min(loss.size - 1, program.num_jobs + program.num_jobs // 8 + 256)
    margin = float(np.partition(loss, most, axis=None)[most])
    if not np.isfinite(margin):
        margin = float(loss[np.isfinite(loss)].max(initial=0.0))
    return loss <= margin, margin


def _core(program: Program, columns: Mask, now: Earnings, margin: float) -> _Core | None:
    has_best = now.choice >= 0
    is_settled = has_best & (now.best > margin) & (columns.sum(axis=1) == 1)
    settled = np.where(is_settled, now.choice, NOTHING)
    left, group_left = program.left_by(settled)
    if (left < 0).any() or (group_left < 0).any():  # the prices are too low yet: nobody is sure of anything
        is_settled[:] = False
        settled[:] = NOTHING
        left, group_left = program.left_by(settled)
    jobs, configurations = np.nonzero(columns & ~is_settled[:, None])
    if len(jobs) > MOST_COLUMNS:
        return None
    return _Core(jobs=jobs, configurations=configurations, settled=settled, left=left, group_left=group_left)


def _solve(program: Program, core: _Core) -> _Answer | None:
    """Returns the core's best fractional choice and its duals; None where the solver gives up."""
    unsettled, rows = np.unique(core.jobs, return_inverse=True)
    size = len(core.jobs)
    once = csr_array((np.ones(size), (rows, np.arange(size))), shape=(len(unsettled), size))
    uses = program.uses[core.configurations]
    limited = np.isfinite(program.group_capacity)
    blocks = [once, csr_array(uses.T)]
    for group, resource in np.argwhere(limited):
        blocks.append(csr_array(np.where(program.groups[core.jobs] == group, uses[:, resource], 0.0)[None, :]))
    limits = np.concatenate([np.ones(len(unsettled)), core.left, core.group_left[limited]])
    worth = program.values[core.jobs, core.configurations]
    result = linprog(-worth, A_ub=vstack(blocks, format="csr"), b_ub=limits, bounds=(0, None), method="highs-ds")
    if result.x is None:
        return None
    duals = np.maximum(-result.ineqlin.marginals, 0.0)[len(unsettled) :]
    groups = np.zeros_like(program.group_capacity)
    groups[limited] = duals[len(core.left) :]
    choice = core.settled.copy()
    whole = result.x >= WHOLE
    choice[core.jobs[whole]] = core.configurations[whole]
    value = program.value_of(core.settled) + float(worth @ result.x)
    return _Answer(value=value, choice=choice, resources=duals[: len(core.left)], groups=groups)
