"""Sia's goodput program (Jayaram Subramanya et al., SOSP 2023): one configuration a task, by an integer program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.schedule.domain import Allocation, Decision
from plait.schedule.policies.central_path import Floats
from plait.schedule.policies.rounds import Plan, in_rounds, may_run
from plait.schedule.policies.shares import listed
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView

POWER = -0.5
UNSERVED = 1.1
"""Lambda: what a task that gets nothing costs in the objective."""

RESTART_S = 30.0
"""Assumed cost of a restart where the task does not say."""

Indices = NDArray[np.int64]

FLOOR = 1e-4
DECIMALS = 2
LARGEST = 3000.0
GAP = 0.0


class Sia:
    """Minimises ``sum_ic A_ic G_ic^p + lambda (J - sum A)`` over one configuration c a task, p = -0.5, lambda = 1.1.

    G is a task's goodput over its smallest entry (a rigid task: its size at its slowest type). Entries other than the
    present configuration are multiplied by ``r = max(age - restarts S, 0) / (age + S)`` first: what is left of the time
    after restarts at the pace so far. G^p is rounded to two decimals and clipped at 3000, as in the published code.

    ``keeps_unfit`` gives types that a rigid task does not fit a rate of 1e-9, as the published rows have it: after the
    rounding such a task no longer tells its other types apart. Without it those types are left out.
    """

    name = "sia"

    def __init__(self, *, restart_s: float | None = RESTART_S, keeps_unfit: bool = False) -> None:
        self.restart_s = restart_s
        self.keeps_unfit = keeps_unfit

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task."""
        return self.decide_remembering(cluster, tasks, NOTHING_REMEMBERED)[0]

    def decide_remembering(
        self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory
    ) -> tuple[Sequence[Decision], Memory]:
        """Returns one decision a task, and the configurations of this round."""
        return in_rounds(cluster, tasks, memory, self._plan)

    def _plan(self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory) -> Plan:
        del memory
        rows = [
            row for row in (self._row(cluster, task) for task in tasks if may_run(task, cluster)) if row is not None
        ]
        types = tuple(cluster.total)
        chosen = _solve(rows, types, np.array([float(cluster.total[name]) for name in types]))
        targets, reasons = {}, {}
        for row, pick in zip(rows, chosen, strict=True):
            if pick is None:
                reasons[row.task.key] = "left out of this round: others gain more goodput from the same devices"
                continue
            name, number = row.options[pick]
            targets[row.task.key] = Allocation(counts=((name, number),))
            keeps = f", {row.damping:.2f} of it for leaving its present place" if row.damping < 1 else ""
            reasons[row.task.key] = (
                f"goodput {row.goodput[pick]:.2f} of its least on {listed({name: number})}, best for all{keeps}"
            )
        return Plan(targets=targets, reasons=reasons)

    def _row(self, cluster: ClusterView, task: TaskView) -> "_Row | None":
        """Returns the task's configurations with their goodputs, or None where none fits."""
        options = configurations(cluster, task)
        rates = [task.rate(name, number) for name, number in options]
        usable = [i for i, rate in enumerate(rates) if rate > 0]
        if not usable:
            return None
        kept = [options[i] for i in usable]
        goodput = np.array([rates[i] for i in usable])
        is_rigid = task.workers.min == task.workers.max
        least = float(goodput.min())
        if is_rigid and self.keeps_unfit and len(task.slots) < len(cluster.total):
            least = 1e-9
        goodput = np.maximum(goodput / least * (float(task.workers.min) if is_rigid else 1.0), FLOOR)
        damping = self._damping(cluster, task, is_rigid=is_rigid)
        have = task.allocation.counts if task.allocation is not None else ()
        if have:
            stays = np.array([((name, number),) == tuple(have) for name, number in kept])
            goodput = np.where(stays, goodput, goodput * damping)
        else:
            damping = 1.0
        return _Row(task=task, options=tuple(kept), goodput=goodput, damping=damping)

    def _damping(self, cluster: ClusterView, task: TaskView, *, is_rigid: bool) -> float:
        cost_s = self.restart_s if self.restart_s is not None else (task.restart_cost_s or RESTART_S)
        age_s = cluster.now_s - task.submitted_at_s
        if (task.attained_service_s if is_rigid else age_s) < cost_s:
            return 1.0
        return max(age_s - task.restarts * cost_s, 0.0) / (age_s + cost_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One task of the program: its options as (type, workers), and the goodput of each over its least."""

    task: TaskView
    options: tuple[tuple[str, int], ...]
    goodput: Floats
    damping: float


def configurations(cluster: ClusterView, task: TaskView) -> tuple[tuple[str, int], ...]:
    """Returns what an elastic task may get: powers of two within a node, whole nodes beyond, within its range.

    A rigid task has one size on each type.
    """
    found: list[tuple[str, int]] = []
    for name in cluster.total:
        if task.workers.min == task.workers.max:
            sizes = [task.workers.min] if task.slots.get(name, 0) >= task.workers.min else []
        else:
            node = max(1, cluster.devices_per_node(name) // task.devices_per_worker(name))
            sizes = [number for number in task.sizes(name) if _is_whole(number, node)]
        found.extend((name, number) for number in sizes)
    return tuple(found)


def _is_whole(number: int, node: int) -> bool:
    return number % node == 0 if number > node else number & (number - 1) == 0


def _solve(rows: Sequence[_Row], types: Sequence[str], capacity: Floats) -> list[int | None]:
    """Returns the option chosen for each row, an exact optimum.

    Rounded utilities tie often, and which of the equal optima comes out is the solver's choice.
    """
    if not rows:
        return []
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    at = {name: j for j, name in enumerate(types)}
    owner, kind, used, value = _columns(rows, at)
    num_rows, num_columns = len(rows), len(value)
    columns = np.arange(num_columns)
    one_each = csr_matrix((np.ones(num_columns), (owner, columns)), shape=(num_rows, num_columns), dtype=np.float64)
    fits = csr_matrix((used, (kind, columns)), shape=(len(types), num_columns), dtype=np.float64)
    answer = milp(
        c=value - UNSERVED,
        constraints=[LinearConstraint(fits, ub=capacity), LinearConstraint(one_each, ub=np.ones(num_rows))],
        integrality=np.ones(num_columns, dtype=np.int64),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": GAP},
    )
    chosen: list[int | None] = [None] * num_rows
    if answer.x is None:  # only without any columns, or where the solver gave up: nobody moves
        return chosen
    first = np.zeros(num_rows, dtype=int)
    first[1:] = np.cumsum([len(row.options) for row in rows])[:-1]
    for column in np.flatnonzero(answer.x > 0.5):
        chosen[owner[column]] = int(column - first[owner[column]])
    return chosen


def _columns(rows: Sequence[_Row], at: Mapping[str, int]) -> tuple[Indices, Indices, Floats, Floats]:
    """Returns for each (task, option): the task, the type, the devices it uses, and its rounded utility."""
    owner = np.repeat(np.arange(len(rows), dtype=np.int64), [len(row.options) for row in rows])
    kind = np.array([at[name] for row in rows for name, _ in row.options], dtype=np.int64)
    used = np.array([float(number * row.task.devices_per_worker(name)) for row in rows for name, number in row.options])
    goodput: Floats = np.concatenate([row.goodput for row in rows])
    value: Floats = np.minimum(np.round(np.maximum(goodput, 1e-12) ** POWER, DECIMALS), LARGEST)
    return owner, kind, used, value
