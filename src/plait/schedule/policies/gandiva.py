"""Time slices with migration to where a task runs well (Xiao et al., OSDI 2018: Gandiva), without sharing a device."""

from collections.abc import Mapping, Sequence

from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.policies.rounds import Plan, in_rounds, may_run
from plait.schedule.policies.shares import listed
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView

GAIN = 1.1
"""A task moves to another type when it runs this much faster there than where it is."""


class Gandiva:
    """Everyone gets equal slices of time: those that ran least go first, and move where a faster type has room.

    Like Gandiva it is greedy, looks at each task's own measured rate only, and packs gangs of one size together.
    Gandiva also runs two tasks on one device when that pays; devices are not shared here.
    """

    name = "gandiva"

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
    left = dict(cluster.total)
    targets: dict[TaskKey, Allocation] = {}
    reasons: dict[TaskKey, str] = {}
    able = [task for task in tasks if may_run(task, cluster)]
    # Whole slices are compared, so that a gang is not pushed out again in the middle of one.
    order = sorted(
        able, key=lambda t: (t.runtime_s // max(cluster.round_s, 1.0), -t.workers.min, t.submitted_at_s, str(t.key))
    )
    for task in order:
        name = _type(task, left)
        if name is None:
            reasons[task.key] = f"waits for its slice after {task.runtime_s / 3600:.2f} h of running"
            continue
        number = task.workers.min
        left[name] -= number * task.devices_per_worker(name)
        targets[task.key] = Allocation(counts=((name, number),))
        reasons[task.key] = f"its slice on {listed({name: number})} after {task.runtime_s / 3600:.2f} h of running"
    return Plan(targets=targets, reasons=reasons)


def _type(task: TaskView, left: Mapping[str, int]) -> str | None:
    number = task.workers.min
    rates = {
        name: task.rate(name, number)
        for name, slots in task.slots.items()
        if slots >= number and left.get(name, 0) >= number * task.devices_per_worker(name)
    }
    rates = {name: rate for name, rate in rates.items() if rate > 0}
    if not rates:
        return None
    best = max(rates, key=lambda name: (rates[name], name))
    have = task.allocation.counts[0][0] if task.allocation is not None and task.allocation.counts else None
    return have if have in rates and rates[best] < GAIN * rates[have] else best
