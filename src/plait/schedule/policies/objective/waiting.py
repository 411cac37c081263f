"""Nobody waits for ever: since when tasks wait, and whose turn it is to go before all others.

The task that has waited longest, once that is longer than ``most_wait_s``, has the turn. It keeps it until it has run
for ``turn_s`` or has ended; then the next one may have it. So no task that the cluster could hold waits longer than
``most_wait_s`` plus ``turn_s`` and two rounds for each open task of its rank that has waited longer. Ranks are priority
and whether a task is within its project's quota; what a higher rank takes is not given to a lower one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plait.schedule.policy import ClusterView, Memory, TaskView

Rank = tuple[bool, int]
"""Within the project's quota, and priority."""

SINCE = "waits_since_s"
"""Ledger: when a task that does not run last ran, or was submitted."""
TURN = "turn_since_s"
"""Ledger: the tasks that have the turn in their rank, and since when they have run in it (-1: not yet)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """After how long a wait a task goes first, and for how long it then keeps what it gets."""

    most_wait_s: float = 6 * 3600.0
    turn_s: float = 1800.0


def whose_turn(
    cluster: ClusterView, tasks: Sequence[TaskView], ranks: Sequence[Rank], memory: Memory, patience: Patience
) -> tuple[dict[Rank, int], Memory]:
    """Returns by rank the index of the task whose turn it is, and the ledgers to remember."""
    since: dict[str, float] = {}
    before, had = memory.get(SINCE, {}), memory.get(TURN, {})
    for task in tasks:
        key = str(task.key)
        if task.allocation is None or task.state == "waiting":
            since[key] = before.get(key, cluster.now_s if task.runtime_s > 0 else task.submitted_at_s)
    turns: dict[Rank, int] = {}
    ledger: dict[str, float] = {}
    for index, task in enumerate(tasks):
        key = str(task.key)
        if key not in had or ranks[index] in turns:
            continue
        began_s = had[key]
        if key in since:
            began_s = -1.0
        elif began_s < 0:
            began_s = cluster.now_s
        if began_s < 0 or cluster.now_s - began_s < patience.turn_s:
            turns[ranks[index]] = index
            ledger[key] = began_s
    by_wait = sorted(range(len(tasks)), key=lambda i: (since.get(str(tasks[i].key), cluster.now_s), str(tasks[i].key)))
    for index in by_wait:
        key = str(tasks[index].key)
        if key in since and ranks[index] not in turns and cluster.now_s - since[key] > patience.most_wait_s:
            turns[ranks[index]] = index
            ledger[key] = -1.0
    return turns, {SINCE: since, TURN: ledger}
