"""Shortest remaining time first (Schrage 1968), by the time that is left on each task's fastest type."""

from collections.abc import Sequence

from plait.schedule.domain import Decision
from plait.schedule.policies.queues import in_order
from plait.schedule.policies.rounds import Plan, in_rounds
from plait.schedule.policies.work import UNKNOWN_S
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView


class Srtf:
    """Serves the task with the least time left first, gangs that do not fit are passed over.

    A task whose remaining work is not known counts as half done, and as an hour where it has not run yet.
    """

    name = "srtf"

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
    left_s = {task.key: time_left_s(task) for task in tasks}
    order = sorted(tasks, key=lambda task: (-task.priority, left_s[task.key], task.submitted_at_s, str(task.key)))
    return in_order(cluster, order, lambda task: f"{left_s[task.key] / 3600:.2f} h are left on its fastest type")


def time_left_s(task: TaskView) -> float:
    """Returns how long the task takes from now on its fastest type with its fewest workers."""
    best = max((task.rate(name, task.workers.min) for name in task.slots), default=0.0)
    if task.remaining_work is None:
        return max(task.runtime_s, UNKNOWN_S)
    return task.remaining_work / best if best > 0 else float("inf")
