"""Tasks as rows of numbers: what policies that work with matrices of tasks by types have alike."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.schedule.policies.central_path import Floats
from plait.schedule.policies.rounds import may_run
from plait.schedule.policy import ClusterView, TaskView


@dataclass(frozen=True, slots=True, kw_only=True)
class Gangs:
    """Tasks that may run now, each at its gang size (its fewest workers), against the types of the cluster.

    ``rates`` (tasks, types) is work a second of the whole gang, consolidated; 0.0 where the gang does not fit.
    ``devices`` (tasks, types) is what it holds there; ``size`` its workers; ``capacity`` devices by type.
    """

    tasks: tuple[TaskView, ...]
    types: tuple[str, ...]
    rates: Floats
    devices: Floats
    size: Floats
    capacity: Floats
    weights: Floats

    def even_rate(self, num_tasks: float | None = None) -> Floats:
        """Returns each task's rate under an equal share: ``x_ij = W_j / (m s_i)``, rows scaled down to at most 1.

        ``num_tasks`` is m, all tasks here unless given (Gavel's isolated share; section 4 of the paper).
        """
        if not self.tasks:
            return np.zeros(0)
        share = self.even_shares(num_tasks)
        rate: Floats = (share * self.rates).sum(axis=1)
        return rate

    def even_shares(self, num_tasks: float | None = None) -> Floats:
        """Returns the equal shares themselves, (tasks, types)."""
        share = self.capacity / (len(self.tasks) if num_tasks is None else num_tasks) / self.devices
        shares: Floats = share / np.maximum(share.sum(axis=1), 1.0)[:, None]
        return shares

    def proportional_rate(self) -> Floats:
        """Returns each task's rate when its time is spread over types as devices are: ``sum_j W_j / sum(W) T_ij``."""
        rate: Floats = (self.rates * (self.capacity / max(self.capacity.sum(), 1.0))).sum(axis=1)
        return rate


def gangs_of(cluster: ClusterView, tasks: Sequence[TaskView]) -> Gangs:
    """Returns the tasks that may run and could fit some type as a gang, in the order given."""
    types = tuple(name for name, number in cluster.total.items() if number > 0)
    able = [task for task in tasks if may_run(task, cluster)]
    rows: list[list[float]] = []
    kept: list[TaskView] = []
    known: dict[tuple[int, int, tuple[int, ...]], list[float]] = {}
    for task in able:
        size, slots = task.workers.min, tuple(task.slots.get(name, 0) for name in types)
        # Tasks of one kind share one table of rates; without one the speeds differ from task to task.
        kind = (id(task.rates), size, slots) if task.rates else None
        row = known.get(kind) if kind is not None else None
        if row is None:
            row = [task.rate(name, size) if slots[j] >= size else 0.0 for j, name in enumerate(types)]
            if kind is not None:
                known[kind] = row
        if max(row, default=0.0) > 0:
            kept.append(task)
            rows.append(row)
    each = [[float(task.workers.min * task.devices_per_worker(name)) for name in types] for task in kept]
    shape = (len(kept), len(types))
    return Gangs(
        tasks=tuple(kept),
        types=types,
        rates=np.array(rows, dtype=np.float64).reshape(shape),
        devices=np.array(each, dtype=np.float64).reshape(shape),
        size=np.array([float(task.workers.min) for task in kept]),
        capacity=np.array([float(cluster.total[name]) for name in types]),
        weights=np.array([max(task.weight, 1e-9) for task in kept]),
    )
