"""First in, first out: no preemption, and the head of the line blocks."""

from collections.abc import Sequence

from plait.schedule.domain import Decision
from plait.schedule.policies.queues import in_order
from plait.schedule.policies.rounds import Plan, in_rounds
from plait.schedule.policies.shares import claim
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView


class Fifo:
    """By priority, then by submission; each task on its fastest free type; nobody passes a task that does not fit."""

    name = "fifo"

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
    order = sorted(tasks, key=claim)
    place = {task.key: index for index, task in enumerate(order)}
    return in_order(cluster, order, lambda task: f"{place[task.key]} came before it", preempts=False, blocks=True)
