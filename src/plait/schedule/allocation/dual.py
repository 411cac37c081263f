"""The dual of the configuration program: prices, what each job earns at them, and the bound that they certify.

At prices p (and q of a group's limits) job i earns max(0, max_c values[i, c] - uses[c] . (p + q of its group)); the sum
of what all earn plus the value of all capacities is an upper bound on every choice (Lagrangian duality).
"""

from dataclasses import dataclass

import numpy as np

from plait.schedule.allocation.program import NOTHING, Floats, Ints, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Earnings:
    """What the jobs earn at some prices.

    Attributes:
        net: (jobs, configurations). Value less what the configuration costs at the prices.
        best: (jobs,). The most that a job earns, at least zero.
        choice: (jobs,). With which configuration, or ``NOTHING``.
        bound: Upper bound on the value of any choice.
    """

    net: Floats
    best: Floats
    choice: Ints
    bound: float


def costs(program: Program, resources: Floats, groups: Floats) -> Floats:
    """Returns what each configuration costs: (configurations,), or (jobs, configurations) where groups have prices."""
    common: Floats = program.uses @ resources
    if not groups.any():
        return common
    of_groups: Floats = groups @ program.uses.T + common
    return of_groups[program.groups]


def earnings(program: Program, resources: Floats, groups: Floats) -> Earnings:
    """Returns what each job earns at these prices and the bound that follows; one pass over all values."""
    net = program.values - costs(program, resources, groups)
    choice = net.argmax(axis=1).astype(np.intp)
    best = np.maximum(net[np.arange(program.num_jobs), choice], 0.0)
    choice[best <= 0.0] = NOTHING
    bound = float(resources @ program.capacity + best.sum())
    if groups.any():
        limited = np.isfinite(program.group_capacity)
        bound += float((groups[limited] * program.group_capacity[limited]).sum())
    return Earnings(net=net, best=best, choice=choice, bound=bound)
