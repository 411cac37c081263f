"""From the relaxation to whole choices: fill what is left, improve one job at a time, then settle the last doubts.

A vertex of the relaxation leaves at most one job in parts for each capacity, so little is left to decide. That is
decided exactly: a configuration that loses more at the prices than value and bound differ cannot be part of anything
better, so only the others are tried, all combinations of a few jobs.
"""

import numpy as np

from plait.schedule.allocation.dual import Earnings
from plait.schedule.allocation.exact import Room, Ways, best_ways
from plait.schedule.allocation.program import NOTHING, TINY, Floats, Ints, Prices, Program

MOST_MOVES = 200
MOST_CANDIDATES = 8192
MOST_DOUBTFUL = 64
MOST_STATES = 2000
AT_A_TIME = (20, 8)
"""Jobs that change their ways together, in turn: many, as far as the states reach, and few, in all combinations."""
MOST_IN_VAIN = 60


def fill(program: Program, choice: Ints, at_prices: Earnings) -> Ints:
    """Returns a better choice: one job at a time takes more or something else, as long as that is worth anything.

    Of the moves that fit, the one goes first that is worth most beyond what it costs at the prices.
    """
    choice = choice.copy()
    candidates = _least_losing(program, at_prices, MOST_CANDIDATES)
    pairs, is_whole = candidates, True
    left, group_left = program.left_by(choice)
    for _ in range(MOST_MOVES):
        job, configuration = pairs
        present = choice[job]
        is_idle = present == NOTHING
        change = program.uses[configuration] - np.where(is_idle[:, None], 0.0, program.uses[present])
        fits = (change <= left + TINY).all(axis=1)
        if group_left.size:
            fits &= (change <= group_left[program.groups[job]] + TINY).all(axis=1)
        fits &= program.values[job, configuration] > np.where(is_idle, 0.0, program.values[job, present])
        kept = np.flatnonzero(fits)
        if not len(kept):
            if is_whole:
                break
            pairs, is_whole = candidates, True
            continue
        # Moves take more than they give back: what does not fit now is looked at again when nothing else fits.
        pairs, is_whole = (job[kept], configuration[kept]), False
        net = at_prices.net[pairs] - np.where(is_idle[kept], 0.0, at_prices.net[pairs[0], present[kept]])
        pick = int(net.argmax())
        mover = pairs[0][pick]
        left = left - change[kept[pick]]
        if group_left.size:
            group_left[program.groups[mover]] -= change[kept[pick]]
        choice[mover] = pairs[1][pick]
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
        some = np.sort(draw.permutation(len(doubtful))[: AT_A_TIME[in_vain % len(AT_A_TIME)]])
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


def _least_losing(program: Program, at_prices: Earnings, most: int) -> tuple[Ints, Ints]:
    """Returns the pairs of job and configuration that lose least at the prices against the best of their job."""
    loss = np.where(program.values > 0, at_prices.best[:, None] - at_prices.net, np.inf)
    within = float(np.partition(loss, most, axis=None)[most]) if most < loss.size else np.inf
    jobs, configurations = np.nonzero((loss <= within) & np.isfinite(loss))
    return jobs, configurations
