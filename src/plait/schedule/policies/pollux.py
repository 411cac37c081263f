"""Pollux's goodput (Qiao et al., OSDI 2021): sizes by the power mean of speedups, blind to types of device."""

from collections.abc import Sequence

import numpy as np

from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.policies.central_path import Floats
from plait.schedule.policies.rounds import Plan, in_rounds, may_run
from plait.schedule.policies.shares import listed
from plait.schedule.policies.sia import RESTART_S
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView

POWER = -1.0
"""p of the power mean; -1 is the published default."""

UNSERVED = 0.1
"""The speedup that a task without workers counts for: the power mean itself would be zero."""


class Pollux:
    """Chooses numbers of workers that maximise the power mean (p = -1) of the tasks' speedups.

    A speedup is goodput over that on the fewest workers; both are means over the types, for Pollux knows none. Like the
    published policy it weighs a change by the share of time that restarts have left. Since the power mean is separable,
    marginal gains find the optimum for concave goodputs, where the original uses a genetic algorithm.
    """

    name = "pollux"

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task."""
        return self.decide_remembering(cluster, tasks, NOTHING_REMEMBERED)[0]

    def decide_remembering(
        self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory
    ) -> tuple[Sequence[Decision], Memory]:
        """Returns one decision a task, and the allocations of this round."""
        return in_rounds(cluster, tasks, memory, _plan)


def _plan(cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory) -> Plan:
    del memory
    able = [task for task in tasks if may_run(task, cluster)]
    sizes = _sizes(cluster, able)
    left = dict(cluster.total)
    targets: dict[TaskKey, Allocation] = {}
    reasons: dict[TaskKey, str] = {}
    # Large gangs are seated first: types are filled like nodes.
    for task in sorted(able, key=lambda task: (-sizes.get(task.key, 0), task.submitted_at_s, str(task.key))):
        wanted = sizes.get(task.key, 0)
        name, number = _seat(task, left, wanted)
        if name is None:
            reasons[task.key] = "left out of this round: others gain more speedup from the same devices"
            continue
        left[name] -= number * task.devices_per_worker(name)
        targets[task.key] = Allocation(counts=((name, number),))
        reasons[task.key] = f"{listed({name: number})}: no other size adds more to the mean of speedups"
    return Plan(targets=targets, reasons=reasons)


def _curve(cluster: ClusterView, task: TaskView) -> tuple[list[int], Floats]:
    """Returns its sizes, and the goodput at each as a mean over the types, devices counting alike."""
    types = [name for name, slots in task.slots.items() if slots >= task.workers.min]
    sizes = sorted({size for name in types for size in task.sizes(name)})
    weights = np.array([float(cluster.total.get(name, 0)) for name in types])
    goodput = [
        float((np.array([task.rate(name, size) for name in types]) * weights).sum() / max(weights.sum(), 1.0))
        for size in sizes
    ]
    return sizes, np.array(goodput)


def _sizes(cluster: ClusterView, tasks: Sequence[TaskView]) -> dict[TaskKey, int]:
    """Returns the workers of each task by marginal gain of ``-speedup^p`` per worker."""
    free = sum(cluster.total.values())
    chosen: dict[TaskKey, int] = {}
    options: list[tuple[float, int, int, TaskKey]] = []
    for index, task in enumerate(tasks):
        sizes, goodput = _curve(cluster, task)
        if not sizes or goodput[0] <= 0:
            continue
        speedup = np.maximum(goodput / goodput[0], 1e-9) * _kept(cluster, task, sizes)
        value = np.concatenate([[-(UNSERVED**POWER)], -(speedup**POWER)])
        steps = [0, *sizes]
        at = 0
        while at < len(steps) - 1:  # along the upper hull of value by workers, so that no step waits for a worse one
            gains = [(value[k] - value[at]) / (steps[k] - steps[at]) for k in range(at + 1, len(steps))]
            best = int(np.argmax(gains))
            if gains[best] <= 0:
                break
            options.append((float(gains[best]), -index, steps[at + 1 + best], task.key))
            at += 1 + best
    for _, _, size, key in sorted(options, key=lambda option: (-option[0], -option[1], option[2])):
        more = size - chosen.get(key, 0)
        if 0 < more <= free:
            chosen[key] = size
            free -= more
    return chosen


def _kept(cluster: ClusterView, task: TaskView, sizes: Sequence[int]) -> Floats:
    """Returns by size what restarts leave of the time: 1 where nothing changes."""
    if task.allocation is None:
        return np.ones(len(sizes))
    age_s = cluster.now_s - task.submitted_at_s
    cost_s = task.restart_cost_s if task.restart_cost_s is not None else RESTART_S
    kept = max(age_s - task.restarts * cost_s, 0.0) / (age_s + cost_s) if age_s >= cost_s else 1.0
    return np.array([1.0 if size == task.allocation.num_workers else max(kept, 1e-3) for size in sizes])


def _seat(task: TaskView, left: dict[str, int], wanted: int) -> tuple[str | None, int]:
    """Returns a type with room for the size, its own if that has; else the largest smaller size that fits."""
    have = [name for name, _ in task.allocation.counts] if task.allocation is not None else []
    types = sorted(task.slots, key=lambda name: (name not in have, -left.get(name, 0), name))
    sizes = {size for name in types for size in task.sizes(name) if size <= wanted}
    for size in sorted(sizes, reverse=True):
        for name in types:
            if size in task.sizes(name) and size * task.devices_per_worker(name) <= left.get(name, 0):
                return name, size
    return None, 0
