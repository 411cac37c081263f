"""A first choice from prices alone: who would lose most by something else goes first and takes the best that fits."""

import numpy as np

from plait.schedule.allocation.dual import Earnings
from plait.schedule.allocation.program import NOTHING, TINY, Ints, Program

MOST_TRIES = 4
"""A job tries this many configurations, the best first, and gets nothing for now if none of them fits."""


def take_by_price(program: Program, at_prices: Earnings) -> Ints:
    """Returns a feasible choice; one pass over the jobs, so that it costs little even for tens of thousands."""
    tries = min(MOST_TRIES, program.values.shape[1])
    worth_it = np.where(program.values > 0, at_prices.net, -np.inf)
    rows = np.arange(program.num_jobs)[:, None]
    best = np.argpartition(-worth_it, tries - 1, axis=1)[:, :tries]
    best = best[rows, np.argsort(-worth_it[rows, best], axis=1, kind="stable")]
    net = worth_it[rows, best]
    second = np.maximum(net[:, 1] if tries > 1 else 0.0, 0.0)
    order = np.argsort(-(net[:, 0] - second), kind="stable")
    # Prices near zero leave many jobs indifferent, and what costs nothing may well be taken: -TINY, not zero.
    is_wanted = (net >= -TINY).tolist()
    needs = [[(int(r), float(row[r])) for r in np.flatnonzero(row)] for row in program.uses]
    left = program.capacity.tolist()
    group_left = program.group_capacity.tolist()
    groups = program.groups.tolist()
    choice = np.full(program.num_jobs, NOTHING, dtype=np.intp)
    options = best.tolist()
    for job in order.tolist():
        for option, wanted in zip(options[job], is_wanted[job], strict=True):
            if not wanted:
                break
            need = needs[option]
            limits = group_left[groups[job]] if group_left else None
            if all(left[r] + TINY >= use and (limits is None or limits[r] + TINY >= use) for r, use in need):
                choice[job] = option
                for r, use in need:
                    left[r] -= use
                    if limits is not None:
                        limits[r] -= use
                break
    return choice
