"""Finish-time fairness over accelerator types (Mahajan et al., NSDI 2020; Narayanan et al., OSDI 2020, section 4.2)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from plait.schedule.domain import Decision
from plait.schedule.policies.central_path import Delay, Floats, solve_shares
from plait.schedule.policies.gangs import Gangs
from plait.schedule.policies.max_min_fairness import constraints
from plait.schedule.policies.time_shares import Turns, take_turns
from plait.schedule.policies.work import amounts_left
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView

FAIR = "fair_s"
"""Ledger: the time that a task's work so far would have taken on its equal share of the cluster as it was then."""
LEFT = "left"
EVEN = "even_rate"


class FinishTimeFairness:
    """Minimises the largest ``rho_i = (age_i + rem_i / (Tx)_i) / (tau_i + rem_i / T_i^iso)``.

    ``T^iso`` is the rate on an equal share now, ``tau`` the time that the work so far would have taken on the equal
    shares of the past. Tasks whose remaining work is not known are taken to be half done (``amounts_left``). With
    ``is_type_agnostic`` each task's rate on the first type stands for all types.
    """

    name = "finish_time_fairness"

    def __init__(self, turns: Turns | None = None, *, is_type_agnostic: bool = False) -> None:
        self.turns = turns or Turns()
        self.is_type_agnostic = is_type_agnostic

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task."""
        return self.decide_remembering(cluster, tasks, NOTHING_REMEMBERED)[0]

    def decide_remembering(
        self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory
    ) -> tuple[Sequence[Decision], Memory]:
        """Returns one decision a task, and besides the shares what rho is counted from."""
        return take_turns(cluster, tasks, memory, self.turns, self._shares)

    def _shares(self, gangs: Gangs, cluster: ClusterView, memory: Memory) -> tuple[Floats, Memory]:
        if self.is_type_agnostic:
            gangs = replace(gangs, rates=np.repeat(gangs.rates[:, :1], len(gangs.types), axis=1))
        keys = [str(task.key) for task in gangs.tasks]
        left = np.maximum(amounts_left(gangs), 1e-9)
        even = np.maximum(gangs.even_rate(), 1e-300)
        tau = np.array(
            [
                memory.get(FAIR, {}).get(key, 0.0) + self._gained(memory, key, float(left[i]))
                for i, key in enumerate(keys)
            ]
        )
        age = np.array([cluster.now_s - task.submitted_at_s for task in gangs.tasks])
        fair = tau + left / even
        shares = solve_shares(constraints(gangs), Delay(age_s=age, remaining=left, fair_s=fair))
        ledgers = {
            FAIR: dict(zip(keys, (float(value) for value in tau), strict=True)),
            LEFT: dict(zip(keys, (float(value) for value in left), strict=True)),
            EVEN: dict(zip(keys, (float(value) for value in even), strict=True)),
        }
        return shares, ledgers

    def _gained(self, memory: Memory, key: str, left: float) -> float:
        """Returns the fair time of the work done since the last solve, at the equal share as it was then."""
        before, rate = memory.get(LEFT, {}).get(key), memory.get(EVEN, {}).get(key)
        return max(0.0, before - left) / rate if before is not None and rate else 0.0
