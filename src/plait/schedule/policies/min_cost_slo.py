"""Least cost while deadlines hold (Narayanan et al., OSDI 2020, section 4.2)."""

from collections.abc import Sequence

import numpy as np

from plait.schedule.domain import Decision
from plait.schedule.policies.central_path import Floats, Gain, Level, Shares, solve_shares
from plait.schedule.policies.gangs import Gangs
from plait.schedule.policies.max_min_fairness import constraints
from plait.schedule.policies.max_sum_throughput import gain
from plait.schedule.policies.time_shares import Turns, take_turns
from plait.schedule.policies.work import amounts_left
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView


class MinCostSlo:
    """Maximises ``sum_ij T_ij / c_j x_ij`` subject to ``(Tx)_i >= rem_i / (deadline_i - t)`` for tasks with a deadline.

    Where not all deadlines can hold, the least violated ratio is made as large as it can be, and those bounds hold.
    """

    name = "min_cost_slo"

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
        del memory
        goal = Gain(per_share=gain(gangs, cluster, by_cost=True))
        due = _due_rates(gangs, cluster)
        if not (due > 0).any():
            return solve_shares(constraints(gangs), goal), {}
        shares, start = feasible_floors(gangs, due)
        return solve_shares(shares, goal, start), {}


def _due_rates(gangs: Gangs, cluster: ClusterView) -> Floats:
    """Returns the rate at which each task would just make its deadline; 0 where there is none or it has passed."""
    left = amounts_left(gangs)
    times = [task.deadline_at_s - cluster.now_s if task.deadline_at_s is not None else 0.0 for task in gangs.tasks]
    return np.array([left[i] / time_s if time_s > 0 else 0.0 for i, time_s in enumerate(times)])


def feasible_floors(gangs: Gangs, rates: Floats) -> tuple[Shares, Floats]:
    """Returns constraints that hold these rates, or the largest common part of them that fits, and a point inside."""
    asked = rates > 0
    scale = np.where(asked, 1.0 / np.where(asked, rates, 1.0), 0.0)
    start = solve_shares(constraints(gangs), Level(scale=scale, counts=asked))
    reached = float((scale * (gangs.rates * start).sum(axis=1))[asked].min())
    floors = rates * min(1.0, reached) * (1.0 - 1e-3)
    return constraints(gangs, floors), start
