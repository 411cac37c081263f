"""Most work a second, or for the money (Narayanan et al., OSDI 2020, section 4.2)."""

from collections.abc import Sequence

import numpy as np

from plait.schedule.domain import Decision
from plait.schedule.policies.central_path import Floats, Gain, solve_shares
from plait.schedule.policies.gangs import Gangs
from plait.schedule.policies.max_min_fairness import constraints
from plait.schedule.policies.time_shares import Turns, take_turns
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView


class MaxSumThroughput:
    """Maximises ``sum_ij T_ij x_ij``, with ``by_cost`` ``sum_ij T_ij / c_j x_ij``.

    Rates of different tasks are added as they are, in each task's own unit, so that tasks of small steps win.
    """

    name = "max_sum_throughput"

    def __init__(self, turns: Turns | None = None, *, by_cost: bool = False) -> None:
        self.turns = turns or Turns()
        self.by_cost = by_cost

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
        return solve_shares(constraints(gangs), Gain(per_share=gain(gangs, cluster, by_cost=self.by_cost))), {}


def gain(gangs: Gangs, cluster: ClusterView, *, by_cost: bool) -> Floats:
    """Returns what a share of time yields, (tasks, types), the largest scaled to 1. Types without a price cost 1."""
    prices = [cluster.prices_per_hour.get(name, 0.0) if by_cost else 1.0 for name in gangs.types]
    value = gangs.rates / np.array([price if price > 0 else 1.0 for price in prices])
    scaled: Floats = value / max(float(value.max(initial=0.0)), 1e-300)
    return scaled


class MaxSumThroughputByCost(MaxSumThroughput):
    """Most work for the money: ``max_sum_throughput`` with each type's rates divided by its price."""

    name = "max_sum_throughput_by_cost"

    def __init__(self, turns: Turns | None = None) -> None:
        super().__init__(turns, by_cost=True)
