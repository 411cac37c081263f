"""From the targets of a round to decisions that can be carried out now: what all policies that work in rounds share.

A simulator of rounds hands devices over at once. In the live machine a task that gives devices up holds them until its
workers are gone; whoever shall have them next starts then, between two rounds, as the remembered targets say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.policies.shares import Share, claim, listed
from plait.schedule.policy import ClusterView, Memory, TaskView

TARGET = "target"
"""The ledger that holds each task's workers by type until the next round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a policy wants for the round: allocations of those that shall run, reasons, and what it remembers."""

    targets: Mapping[TaskKey, Allocation]
    reasons: Mapping[TaskKey, str]
    memory: Memory = field(default_factory=dict)


Planner = Callable[[ClusterView, Sequence[TaskView], Memory], Plan]


def may_run(task: TaskView, cluster: ClusterView) -> bool:
    """Says whether the task may hold devices in this round: one that runs may go on, others need an open window."""
    return task.state != "waiting" or (task.window_open and task.ready_at_s <= cluster.now_s)


def in_rounds(
    cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory, planner: Planner
) -> tuple[Sequence[Decision], Memory]:
    """Plans where a round begins, and does what the last plan says in between."""
    ordered = sorted(tasks, key=lambda task: (task.submitted_at_s, str(task.key)))
    if cluster.is_round or TARGET not in memory:
        plan = planner(cluster, ordered, {name: ledger for name, ledger in memory.items() if name != TARGET})
        target = {f"{key}|{name}": float(n) for key, alloc in plan.targets.items() for name, n in alloc.counts if n > 0}
        memory = {**plan.memory, TARGET: target}
        targets, reasons = plan.targets, plan.reasons
    else:
        targets, reasons = _remembered(ordered, memory[TARGET]), {}
    if cluster.hands_over:
        return [_wished(task, targets, reasons) for task in ordered], memory
    return _Turn(cluster, ordered, targets, reasons).decide(), memory


def _remembered(tasks: Sequence[TaskView], ledger: Mapping[str, float]) -> dict[TaskKey, Allocation]:
    counts: dict[str, list[tuple[str, int]]] = {}
    for entry, number in ledger.items():
        key, _, name = entry.rpartition("|")
        counts.setdefault(key, []).append((name, int(number)))
    return {
        task.key: Allocation(counts=tuple(sorted(counts[str(task.key)]))) for task in tasks if str(task.key) in counts
    }


def _wished(task: TaskView, targets: Mapping[TaskKey, Allocation], reasons: Mapping[TaskKey, str]) -> Decision:
    target = targets.get(task.key)
    return Decision(task=task.key, allocation=target, reason=_reason(task, target, reasons))


def _reason(task: TaskView, target: Allocation | None, reasons: Mapping[TaskKey, str]) -> str:
    if task.key in reasons:
        return reasons[task.key]
    return f"keeps {listed(dict(target.counts))}" if target is not None else "not chosen in this round"


class _Turn:
    """One answer to the live machine. ``left`` counts free devices that nobody was given or promised yet."""

    def __init__(
        self,
        cluster: ClusterView,
        tasks: Sequence[TaskView],
        targets: Mapping[TaskKey, Allocation],
        reasons: Mapping[TaskKey, str],
    ) -> None:
        self.cluster = cluster
        self.tasks = tasks
        self.targets = targets
        self.reasons = reasons
        self.left = dict(cluster.free)

    def decide(self) -> list[Decision]:
        running = [task for task in self.tasks if task.state != "waiting"]
        waiting = [task for task in self.tasks if task.state == "waiting"]
        decided = [self._of_running(task) for task in running]
        started = [self._of_wanted(task) for task in waiting if task.key in self.targets]
        self._keep_promises([d for d in started if d.allocation is None])
        others = sorted((task for task in waiting if task.key not in self.targets), key=claim)
        return [*started, *(self._of_other(task) for task in others), *decided]

    def _of_running(self, task: TaskView) -> Decision:
        have = dict(task.allocation.counts) if task.allocation is not None else {}
        target = self.targets.get(task.key)
        want = dict(target.counts) if target is not None else {}
        is_settled = not self.cluster.is_round and not want
        if is_settled or _same(have, want):
            reason = _reason(task, target, self.reasons) if want else "runs on until the next round"
            return Decision(task=task.key, allocation=_allocation(have), reason=reason)
        if not want:
            reason = _reason(task, target, self.reasons)
            return Decision(task=task.key, allocation=None, reason=reason)
        if task.elastic and (task.resources.mix or set(want) == set(have)):
            return self._resized(task, have, want)
        reason = f"moves to {listed(want)}: {_reason(task, target, self.reasons)}"
        return Decision(task=task.key, allocation=None, reason=reason)

    def _resized(self, task: TaskView, have: Mapping[str, int], want: Mapping[str, int]) -> Decision:
        """Shrinks at once; grows as far as there is room now."""
        share = Share(task)
        counts = {name: min(number, want.get(name, 0)) for name, number in have.items()}
        for name, number in want.items():
            more = min(number - counts.get(name, 0), share.room(self.left, name))
            if more > 0:
                counts[name] = counts.get(name, 0) + more
                self.left[name] -= more * task.devices_per_worker(name)
        if sum(counts.values()) < min(task.workers.min, sum(have.values())):
            return Decision(task=task.key, allocation=_allocation(have), reason="waits for room on other devices")
        return Decision(
            task=task.key, allocation=_allocation(counts), reason=_reason(task, _allocation(counts), self.reasons)
        )

    def _of_wanted(self, task: TaskView) -> Decision:
        target = self.targets[task.key]
        fits = all(Share(task).room(self.left, name) >= number for name, number in target.counts)
        if fits and may_run(task, self.cluster):
            for name, number in target.counts:
                self.left[name] -= number * task.devices_per_worker(name)
            return Decision(task=task.key, allocation=target, reason=_reason(task, target, self.reasons))
        waits = f"{listed(dict(target.counts))} are its next; waits until they are given back"
        reason = f"{waits}: {self.reasons[task.key]}" if task.key in self.reasons else waits
        if not task.window_open:
            reason = "its price window is closed"
        return Decision(task=task.key, allocation=None, reason=reason, next=target if task.window_open else None)

    def _keep_promises(self, waiting: Sequence[Decision]) -> None:
        """Takes off ``left`` what those whose turn it is will need once enough is free."""
        by_key = {task.key: task for task in self.tasks}
        for decision in waiting:
            task = by_key[decision.task]
            for name, number in self.targets[task.key].counts:
                need = number * task.devices_per_worker(name)
                self.left[name] = max(0, self.left.get(name, 0) - need)

    def _of_other(self, task: TaskView) -> Decision:
        """Lets a task that the plan leaves out start on what nobody else was promised."""
        share = Share(task)
        if not may_run(task, self.cluster):
            reason = "waits for its restart" if task.window_open else "its price window is closed"
            return Decision(task=task.key, allocation=None, reason=reason)
        if share.could_ever_fit(self.cluster) and share.take_fewest(self.left, self.cluster):
            reason = f"free, and promised to nobody in this round: {share.choice(self.cluster)}"
            return Decision(task=task.key, allocation=_allocation(share.new), reason=reason)
        return Decision(task=task.key, allocation=None, reason=_reason(task, None, self.reasons))


def _same(have: Mapping[str, int], want: Mapping[str, int]) -> bool:
    return {name: n for name, n in have.items() if n} == {name: n for name, n in want.items() if n}


def _allocation(counts: Mapping[str, int]) -> Allocation:
    return Allocation(counts=tuple(sorted((name, number) for name, number in counts.items() if number > 0)))
