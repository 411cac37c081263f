"""What is kept for the head of the queue, and what elastic tasks give up for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.schedule.domain import TaskKey
from plait.schedule.policies.shares import Share, claim, listed, most_slots, num_workers, usable_types
from plait.schedule.policy import ClusterView, TaskView


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """``kept``: free devices that only the head may use; ``reclaimed``: workers that tasks give up, by type."""

    kept: Mapping[str, int]
    reclaimed: Mapping[TaskKey, Mapping[str, int]]
    reason: str


def reserve(
    head: TaskView, cluster: ClusterView, left: dict[str, int], running: Mapping[TaskKey, Share]
) -> Reservation:
    """Keeps devices for the head and takes them off ``left``.

    What the head needs is kept exactly where that is known: when devices that are free, being released or reclaimed
    suffice, and workers take one device each. Otherwise every free device that it could use is kept.
    """
    types = usable_types(head, cluster)
    coming = {name: left.get(name, 0) + cluster.releasing.get(name, 0) for name in types}
    is_simple = all(head.devices_per_worker(name) == 1 for name in types)
    groups = [types] if head.resources.mix else [(name,) for name in types]
    tried = [_plan(head, cluster, coming, group, running) for group in groups] if is_simple else []
    plans = [plan for plan in tried if plan is not None]
    if not plans:
        kept = {name: left.get(name, 0) for name in types}
        left.update(dict.fromkeys(types, 0))
        return Reservation(kept=kept, reclaimed={}, reason=_reason(head, cluster, kept, {}))
    plan = min(plans, key=lambda plan: num_workers(plan.gained))
    kept = {}
    for name, number in plan.need.items():
        spare = max(0, coming[name] + plan.gained.get(name, 0) - number)
        kept[name] = max(0, left.get(name, 0) - spare)
        left[name] = left.get(name, 0) - kept[name]
    reason = _reason(head, cluster, kept, plan.reclaimed)
    return Reservation(kept=kept, reclaimed=plan.reclaimed, reason=reason)


@dataclass(slots=True)
class _Plan:
    """How the head would get its workers: devices needed and gained by type, workers reclaimed by task."""

    need: dict[str, int] = field(default_factory=dict)
    gained: dict[str, int] = field(default_factory=dict)
    reclaimed: dict[TaskKey, dict[str, int]] = field(default_factory=dict)

    def reclaim(self, victim: TaskView, name: str) -> int:
        """Takes one worker of this type from the victim; returns how many devices that frees."""
        each = victim.devices_per_worker(name)
        self.gained[name] = self.gained.get(name, 0) + each
        taken = self.reclaimed.setdefault(victim.key, {})
        taken[name] = taken.get(name, 0) + 1
        return each


def _plan(
    head: TaskView,
    cluster: ClusterView,
    coming: Mapping[str, int],
    types: tuple[str, ...],
    running: Mapping[TaskKey, Share],
) -> _Plan | None:
    """Returns how the head could have its workers on these types, or None where all that can be had is not enough."""
    plan = _Plan()
    room = {name: most_slots(head, cluster, name) for name in types}
    lacking = head.workers.min - sum(min(room[name], coming[name]) for name in types)
    for share in sorted(running.values(), key=lambda share: claim(share.task), reverse=True):
        victim = share.task
        if not victim.elastic or victim.priority > head.priority or victim.allocation is None:
            continue
        offers = [name for name, number in victim.allocation.counts for _ in range(number) if name in room]
        for name in offers[: max(0, victim.allocation.num_workers - victim.workers.min)]:
            if lacking > 0 and coming[name] + plan.gained.get(name, 0) < room[name]:
                lacking -= plan.reclaim(victim, name)
    if lacking > 0:
        return None
    for name in types:  # fastest first
        most = min(room[name], coming[name] + plan.gained.get(name, 0))
        plan.need[name] = min(most, head.workers.min - num_workers(plan.need))
    return plan


def _reason(
    head: TaskView, cluster: ClusterView, kept: Mapping[str, int], reclaimed: Mapping[TaskKey, Mapping[str, int]]
) -> str:
    types = usable_types(head, cluster)
    free = listed({name: cluster.free.get(name, 0) for name in types}) or "none"
    going = listed({name: cluster.releasing.get(name, 0) for name in types})
    parts = [f"{Share(head).needs()}; {free} free" + (f", {going} being released" if going else "")]
    total = sum(cluster.free.get(name, 0) // head.devices_per_worker(name) for name in types)
    if total >= head.workers.min and any(head.devices_per_worker(name) > 1 for name in types):
        parts.append("but not enough on one node for each worker")
    for key, counts in reclaimed.items():
        parts.append(f"{key} gives up {listed(counts)} for it")
    parts.append("it is first in the queue" + (f" and {listed(kept)} are kept for it" if listed(kept) else ""))
    return "; ".join(parts)
