"""First come, first served, with backfill: by priority, then by submission; the head of the queue reserves.

The rules, in order:

1. Each waiting task gets its fewest workers, by claim (priority, then submission), on the fastest types that it wants.
2. The first one that does not fit is the *head*. What it could use is kept for it; if it would then still not fit but
   would with workers that elastic tasks of no higher priority hold beyond their minimum, these are asked to leave: the
   lowest claim first, no more than the head lacks, and none where that is not enough.
3. Later tasks start only on what is left: they never delay the head.
4. What is left tops up the tasks that start now, by claim, except with types that a waiting task of higher claim wants;
   then elastic tasks that run, except with types that any waiting task wants.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.phrases import of_workers
from plait.schedule.policies.reservation import Reservation, reserve
from plait.schedule.policies.shares import Share, claim, listed, num_workers, usable_types
from plait.schedule.policy import ClusterView, TaskView


class FifoBackfill:
    """Priority, then first come first served; conservative backfill; elastic tasks take what nobody waits for."""

    name = "fifo_backfill"

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns a decision for each task, waiting ones first, by claim."""
        queue = sorted((task for task in tasks if task.state == "waiting"), key=claim)
        running = sorted((task for task in tasks if task.state != "waiting"), key=claim)
        turn = _Turn(cluster=cluster, left=dict(cluster.free), running={task.key: Share(task) for task in running})
        for task in queue:
            turn.consider(task)
        for share in turn.granted.values():
            turn.top_up(
                share,
                kept=frozenset(
                    t
                    for other in turn.refused
                    if claim(other) < claim(share.task)
                    for t in usable_types(other, cluster)
                ),
            )
        wanted = frozenset(t for other in turn.refused for t in usable_types(other, cluster))
        for share in turn.running.values():
            turn.grow(share, kept=wanted)
        return [*(turn.of_waiting(task) for task in queue), *(turn.of_running(task) for task in running)]


@dataclass(slots=True, kw_only=True)
class _Turn:
    """The working values of one decision round. ``left`` counts free devices that nobody was promised."""

    cluster: ClusterView
    left: dict[str, int]
    running: dict[TaskKey, Share]
    granted: dict[TaskKey, Share] = field(default_factory=dict)
    refused: list[TaskView] = field(default_factory=list)
    reasons: dict[TaskKey, str] = field(default_factory=dict)
    head: TaskKey | None = None
    reservation: Reservation | None = None

    def consider(self, task: TaskView) -> None:
        """Gives a waiting task its fewest workers, makes it the head, or lets it wait behind the head."""
        share = Share(task)
        if not task.window_open:
            self.reasons[task.key] = "its price window is closed"
        elif not share.could_ever_fit(self.cluster):
            self.reasons[task.key] = f"impossible for now: {share.needs()}, more than the healthy nodes hold"
        elif share.take_fewest(self.left, self.cluster):
            self.granted[task.key] = share
        elif self.head is None:
            self.head = task.key
            self.refused.append(task)
            self.reservation = reserve(task, self.cluster, self.left, self.running)
            self.reasons[task.key] = self.reservation.reason
        else:
            self.refused.append(task)
            assert self.reservation is not None
            kept = listed(self.reservation.kept)
            keeps = f", of which {kept} are kept for {self.head}, the head of the queue" if kept else ""
            types = usable_types(task, self.cluster)
            free = listed({name: self.cluster.free.get(name, 0) for name in types}) or "none"
            self.reasons[task.key] = f"{share.needs()}; {free} free{keeps}"

    def top_up(self, share: Share, kept: frozenset[str]) -> None:
        """Gives a task that starts now more workers, up to its maximum."""
        share.take_more(self.left, self.cluster, kept)

    def grow(self, share: Share, kept: frozenset[str]) -> None:
        """Gives a running elastic task more workers, unless it has just given some up."""
        if share.task.elastic and share.task.key not in (self.reservation.reclaimed if self.reservation else {}):
            share.take_more(self.left, self.cluster, kept)

    def of_waiting(self, task: TaskView) -> Decision:
        """Returns what a waiting task gets."""
        share = self.granted.get(task.key)
        if share is None:
            return Decision(task=task.key, allocation=None, reason=self.reasons[task.key])
        if self.cluster.now_s < task.ready_at_s:
            reason = f"waits for its restart; {listed(share.new)} are kept for it"
            return Decision(task=task.key, allocation=None, reason=reason)
        return Decision(task=task.key, allocation=_allocation(share.new), reason=share.choice(self.cluster))

    def of_running(self, task: TaskView) -> Decision:
        """Returns what a running task gets: what it has, more, or less."""
        share = self.running[task.key]
        have = dict(task.allocation.counts) if task.allocation is not None else {}
        taken = self.reservation.reclaimed.get(task.key) if self.reservation is not None else None
        if taken:
            fewer = {name: number - taken.get(name, 0) for name, number in have.items()}
            reason = f"gives up {listed(taken)} beyond its minimum of {task.workers.min} for {self.head}, which waits"
            return Decision(task=task.key, allocation=_allocation(fewer), reason=reason)
        if not share.new:
            return Decision(task=task.key, allocation=_allocation(have), reason="runs on")
        more = {name: have.get(name, 0) + share.new.get(name, 0) for name in {**have, **share.new}}
        reason = f"grows by {listed(share.new)} to {of_workers(num_workers(more))}: free, and nobody waits for them"
        return Decision(task=task.key, allocation=_allocation(more), reason=reason)


def _allocation(counts: dict[str, int]) -> Allocation:
    return Allocation(counts=tuple(sorted((name, number) for name, number in counts.items() if number > 0)))
