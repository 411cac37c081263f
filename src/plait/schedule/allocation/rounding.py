"""From the relaxation to whole choices: fill what is left, improve one job at a time, then settle the last doubts.

A vertex of the relaxation leaves at most one job in parts for each capacity, so little is left to decide. That is
decided exactly: a configuration that loses more at the prices than value and bound differ cannot be part of anything
better, so only the others are tried, all combinations of a few jobs.
"""

from dataclasses import dataclass

import numpy as np

from plait.schedule.allocation.dual import Earnings
from plait.schedule.allocation.exact import Room, Ways, best_ways
from plait.schedule.allocation.program import NOTHING, TINY, Floats, Ints, Prices, Program

MOST_MOVES = 200
MOST_CANDIDATES = 8192
MOST_DOUBTFUL = 64
MOST_STATES = 2000
AT_A_TIME = 12
MOST_IN_VAIN = 40


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
    """Returns a better choice among those that the gap does not rule out; the best one if these are few.

    If there are many, a few jobs at a time change their ways, until nothing has come of it for a while.
    """
    loss = np.where(program.values > 0, at_prices.best[:, None] - at_prices.net, np.inf)
    doubtful = _doubtful(choice, loss, at_prices, prices.bound - program.value_of(choice))
    choice, is_certain = _best_of(program, choice, prices, at_prices, doubtful)
    draw = np.random.default_rng(len(doubtful))
    in_vain = 0
    while not is_certain and in_vain < MOST_IN_VAIN and program.value_of(choice) < (1.0 - tolerance) * prices.bound:
        some = np.sort(draw.permutation(len(doubtful))[:AT_A_TIME])
        better, _ = _best_of(program, choice, prices, at_prices, doubtful[some])
        in_vain = in_vain + 1 if program.value_of(better) <= program.value_of(choice) else 0
        choice = better
    return choice


def _doubtful(choice: Ints, loss: Floats, at_prices: Earnings, gap: float) -> Ints:
    """Returns the jobs that may have another way in a better choice, those in least doubt first."""
    others = np.where(loss < gap, loss, np.inf)
    has = np.flatnonzero(choice >= 0)
    others[has, choice[has]] = np.inf
    nothing = np.where((choice >= 0) & (at_prices.best < gap), at_prices.best, np.inf)
    doubt = np.minimum(others.min(axis=1, initial=np.inf), nothing)
    doubtful = np.flatnonzero(np.isfinite(doubt))
    return doubtful[np.argsort(doubt[doubtful], kind="stable")][:MOST_DOUBTFUL][::-1]


def _best_of(program: Program, choice: Ints, prices: Prices, at_prices: Earnings, jobs: Ints) -> tuple[Ints, bool]:
    """Returns the best choice in which only these jobs change, and whether none better was missed."""
    if not len(jobs):
        return choice, True
    settled = choice.copy()
    settled[jobs] = NOTHING
    limits = _Limits(program, settled)
    has = np.flatnonzero(settled >= 0)
    # What the others lose is lost already.
    lost = float((at_prices.best[has] - at_prices.net[has, settled[has]]).sum())
    idle = np.setdiff1d(np.flatnonzero(settled == NOTHING), jobs)
    lost += float(at_prices.best[idle].sum())
    gap = prices.bound - program.value_of(choice) - lost
    loss = np.where(program.values[jobs] > 0, at_prices.best[jobs, None] - at_prices.net[jobs], np.inf)
    options = [np.flatnonzero(row < gap) for row in loss]
    ways = [
        limits.ways(job, some, row, float(at_prices.best[job]))
        for job, some, row in zip(jobs.tolist(), options, loss, strict=True)
    ]
    best = best_ways(ways, Room(capacity=limits.room, prices=limits.prices(prices)), gap, MOST_STATES)
    if best.ways is not None:
        for job, some, way in zip(jobs.tolist(), options, best.ways, strict=True):
            settled[job] = some[way] if way < len(some) else NOTHING
        if program.value_of(settled) > program.value_of(choice):
            choice = settled
    return choice, best.is_certain


class _Limits:
    """What settled jobs leave, in one vector: of each resource, then of each limit of a group."""

    def __init__(self, program: Program, settled: Ints) -> None:
        self._program = program
        left, group_left = program.left_by(settled)
        self._limited = np.argwhere(np.isfinite(program.group_capacity))
        self.room: Floats = np.concatenate([left, [group_left[group, resource] for group, resource in self._limited]])

    def prices(self, prices: Prices) -> Floats:
        """Returns prices in the same order."""
        of_groups = [prices.groups[group, resource] for group, resource in self._limited]
        return np.concatenate([prices.resources, of_groups])

    def ways(self, job: int, options: Ints, loss: Floats, nothing_loses: float) -> Ways:
        """Returns the ways of a job: these options, or nothing."""
        uses = self._program.uses[options]
        columns = [uses]
        for group, resource in self._limited:
            is_member = self._program.groups[job] == group
            columns.append(uses[:, [resource]] if is_member else np.zeros((len(options), 1)))
        takes = np.vstack([np.hstack(columns), np.zeros(len(self.room))])
        return Ways(
            loss=np.append(loss[options], nothing_loses),
            value=np.append(self._program.values[job, options], 0.0),
            takes=takes,
        )


def _least_losing(program: Program, at_prices: Earnings, most: int, within: float = np.inf) -> _Pairs:
    loss = np.where(program.values > 0, at_prices.best[:, None] - at_prices.net, np.inf)
    if most < loss.size:
        within = min(within, float(np.partition(loss, most, axis=None)[most]))
    jobs, configurations = np.nonzero((loss <= within) & np.isfinite(loss))
    return _Pairs(jobs=jobs, configurations=configurations)
