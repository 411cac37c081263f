"""A policy with a stop watch."""

import time
from collections.abc import Sequence

from plait.schedule.domain import Decision
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, Policy, TaskView, decide_with


class TimedPolicy:
    """Asks the policy and notes the CPU seconds of each answer to a round."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name
        self.solve_s: list[float] = []

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task."""
        return self.decide_remembering(cluster, tasks, NOTHING_REMEMBERED)[0]

    def decide_remembering(
        self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory
    ) -> tuple[Sequence[Decision], Memory]:
        """Returns what the policy returns."""
        began_s = time.process_time()
        answer = decide_with(self.policy, cluster, tasks, memory)
        if cluster.is_round:
            self.solve_s.append(time.process_time() - began_s)
        return answer
