"""Least attained service, in discrete queues (Gu et al., NSDI 2019: Tiresias, 2D-LAS)."""

from bisect import bisect_right
from collections.abc import Sequence

from plait.schedule.domain import Decision
from plait.schedule.policies.queues import in_order
from plait.schedule.policies.rounds import Plan, in_rounds
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView

QUEUE_LIMITS_S = (3600.0, 36_000.0)
"""Worker-seconds after which a task falls into the next queue."""

PROMOTION = 8.0
"""A task that has waited this many times as long as it ran goes back to the first queue, so that none starves."""


class Las:
    """Serves tasks by queue of attained service (workers times time), first come first served within a queue.

    It needs to know nothing of the tasks. Few queues instead of a continuous order keep equals from taking each other's
    devices round after round.
    """

    name = "las"

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
    queue = {task.key: _queue(cluster, task) for task in tasks}
    order = sorted(tasks, key=lambda task: (-task.priority, queue[task.key], task.submitted_at_s, str(task.key)))
    return in_order(
        cluster,
        order,
        lambda task: f"queue {queue[task.key] + 1} after {task.attained_service_s / 3600:.2f} worker-hours",
    )


def _queue(cluster: ClusterView, task: TaskView) -> int:
    waited_s = cluster.now_s - task.submitted_at_s - task.runtime_s
    if task.state == "waiting" and task.runtime_s > 0 and waited_s > PROMOTION * task.runtime_s:
        return 0
    return bisect_right(QUEUE_LIMITS_S, task.attained_service_s)
