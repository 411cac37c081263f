"""Max-min fairness over accelerator types (Narayanan et al., OSDI 2020, section 4.1: heterogeneity-aware LAS)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from plait.schedule.domain import Decision
from plait.schedule.policies.central_path import Floats, Level, Shares, solve_shares
from plait.schedule.policies.gangs import Gangs
from plait.schedule.policies.time_shares import Turns, take_turns
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView


class MaxMinFairness:
    """Maximises the least ``s_i / (w_i T_i^prop) sum_j T_ij x_ij``: everyone's rate over that of a proportional share.

    Only the least is optimised; where the worst-off are bound by one type, ``max_min_water_filling`` goes on with the
    others. With ``is_type_agnostic`` all types count the same, as in schedulers that know devices only by number.
    """

    name = "max_min_fairness"

    def __init__(self, turns: Turns | None = None, *, is_type_agnostic: bool = False) -> None:
        self.turns = turns or Turns()
        self.is_type_agnostic = is_type_agnostic

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
        if self.is_type_agnostic:
            gangs = replace(gangs, rates=np.ones_like(gangs.rates))
        everyone = np.ones(len(gangs.tasks), dtype=np.bool_)
        return solve_shares(constraints(gangs), Level(scale=fair_scale(gangs), counts=everyone)), {}


def fair_scale(gangs: Gangs) -> Floats:
    """Returns what each task's rate is multiplied with to be compared: ``s_i / (w_i T_i^prop)``."""
    scale: Floats = gangs.size / (gangs.weights * np.maximum(gangs.proportional_rate(), 1e-300))
    return scale


def constraints(gangs: Gangs, floors: Floats | None = None) -> Shares:
    """Returns Gavel's base constraints: ``x >= 0``, ``sum_j x_ij <= 1``, ``sum_i s_i x_ij <= W_j``."""
    return Shares(
        rates=gangs.rates,
        devices=gangs.devices,
        capacity=gangs.capacity,
        floors=np.zeros(len(gangs.tasks)) if floors is None else floors,
    )
