"""Least makespan (Narayanan et al., OSDI 2020, section 4.2)."""

from collections.abc import Sequence

import numpy as np

from plait.schedule.domain import Decision
from plait.schedule.policies.central_path import Floats, Gain, Level, solve_shares
from plait.schedule.policies.gangs import Gangs
from plait.schedule.policies.max_min_fairness import constraints
from plait.schedule.policies.time_shares import Turns, take_turns
from plait.schedule.policies.work import amounts_left
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView

SHORTEST_S, LONGEST_S, STEP = 100.0, 1e6, 1.05
"""The published search: between these bounds, until the interval is within 5 % (ten times as long where needed)."""


class MinMakespan:
    """Looks for the least M with ``(Tx)_i >= rem_i / M`` for all tasks, to within 5 %, and takes the centre of those x.

    The published policy tries each M with a linear program; here one program gives the least M, and the same M is
    taken as their bisection would take.
    """

    name = "min_makespan"

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
        left = np.maximum(amounts_left(gangs), 1e-9)
        everyone = np.ones(len(gangs.tasks), dtype=np.bool_)
        unit = float(left.max() / gangs.rates.max())
        start = solve_shares(constraints(gangs), Level(scale=unit / left, counts=everyone))
        least_s = float((left / np.maximum((gangs.rates * start).sum(axis=1), 1e-300)).max())
        floors = left / max(_bisected(least_s), least_s * (1.0 + 1e-6))
        return solve_shares(constraints(gangs, floors), Gain(per_share=np.zeros_like(gangs.rates)), start), {}


def _bisected(least_s: float) -> float:
    """Returns the makespan at which the published bisection ends when ``least_s`` is the least that is feasible."""
    low, high, top = SHORTEST_S, LONGEST_S, LONGEST_S
    while True:
        best = None
        while STEP * low < high:
            middle = (low + high) / 2
            if middle >= least_s:
                best = high = middle
            else:
                low = middle
        if best is not None:
            return best
        low, high, top = top, top * 10, top * 10
