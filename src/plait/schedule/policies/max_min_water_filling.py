"""Max-min fairness carried through: water filling (Narayanan et al., OSDI 2020, section 4.3, algorithm 1)."""

from collections.abc import Sequence

import numpy as np

from plait.schedule.domain import Decision
from plait.schedule.policies.central_path import Floats, Level, solve_shares
from plait.schedule.policies.gangs import Gangs
from plait.schedule.policies.max_min_fairness import constraints, fair_scale
from plait.schedule.policies.time_shares import Turns, take_turns
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView

PINNED = 1e-4
"""A task whose rate exceeds the level by no more than this part is a bottleneck; the published slack."""


class MaxMinWaterFilling:
    """Raises the level of all tasks, freezes those that cannot rise further, and goes on with the others.

    The published policy finds the bottlenecks with a mixed-integer program. At the centre of the optimal face only
    tasks that no optimum could raise are at the level (strict complementarity), so that one look at the slacks does.
    """

    name = "max_min_water_filling"

    def __init__(self, turns: Turns | None = None) -> None:
        self.turns = turns or Turns()

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task."""
        return self.decide_remembering(cluster, tasks, NOTHING_REMEMBERED)[0]

    def decide_remembering(
        self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory
    ) -> tuple[Sequence[Decision], Memory]:
        """Returns one decision a task, and the shares with the time that each task got of them."""
        return take_turns(cluster, tasks, memory, self.turns, self._shares)

    def _shares(self, gangs: Gangs, cluster: ClusterView, memory: Memory) -> tuple[Floats, Memory]:
        del cluster, memory
        return filled(gangs, fair_scale(gangs)), {}


def filled(gangs: Gangs, scale: Floats) -> Floats:
    """Returns shares (tasks, types) that are max-min fair through and through in ``scale[i] * rate[i]``."""
    rising = np.ones(len(gangs.tasks), dtype=np.bool_)
    floors = np.zeros(len(gangs.tasks))
    x: Floats | None = None
    while rising.any():
        x = solve_shares(constraints(gangs, floors), Level(scale=scale, counts=rising), x)
        level = scale * (gangs.rates * x).sum(axis=1)
        least = float(level[rising].min())
        pinned = rising & (level <= least * (1.0 + PINNED))
        rising &= ~pinned
        # A little below what they have, so that the next program has a point strictly inside.
        floors = np.where(pinned, least / scale * (1.0 - 1e-6), floors)
        floors = np.where(rising, least / scale * (1.0 - 1e-6), floors)
    assert x is not None
    return x
