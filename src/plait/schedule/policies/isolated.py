"""Equal shares of every type: what a static partition of the cluster would give (Gavel's baseline)."""

from collections.abc import Sequence

from plait.schedule.domain import Decision
from plait.schedule.policies.central_path import Floats
from plait.schedule.policies.gangs import Gangs
from plait.schedule.policies.time_shares import Turns, take_turns
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView


class Isolated:
    """Gives each of m tasks ``x_ij = W_j / (m s_i)``, rows scaled down to at most 1: rho is measured against this."""

    name = "isolated"

    def __init__(self, turns: Turns | None = None) -> None:
        self.turns = turns or Turns()

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task."""
        return self.decide_remembering(cluster, tasks, NOTHING_REMEMBERED)[0]

    def decide_remembering(
        self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory
    ) -> tuple[Sequence[Decision], Memory]:
        """Returns one decision a task, and the shares with the time that each task got of them."""
        return take_turns(cluster, tasks, memory, self.turns, _shares)


def _shares(gangs: Gangs, cluster: ClusterView, memory: Memory) -> tuple[Floats, Memory]:
    del cluster, memory
    return gangs.even_shares(), {}
