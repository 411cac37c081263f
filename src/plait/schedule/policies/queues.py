"""Devices by rank: what policies that work through a list of tasks in some order have alike."""

from collections.abc import Callable, Mapping, Sequence

from plait.schedule.domain import Allocation, TaskKey
from plait.schedule.policies.rounds import Plan, may_run
from plait.schedule.policies.shares import listed
from plait.schedule.policy import ClusterView, TaskView

MOVES_FOR = 1.5
"""A running task is moved to a type on which it is at least this much faster: a move costs a restart."""


def in_order(
    cluster: ClusterView,
    tasks: Sequence[TaskView],
    told: Callable[[TaskView], str],
    *,
    preempts: bool = True,
    blocks: bool = False,
) -> Plan:
    """Goes through the tasks in order and gives each its fewest workers, then what is left to those that take more.

    Args:
        cluster: The devices.
        tasks: In the order in which they are served.
        told: Says why a task stands where it stands.
        preempts: Running tasks keep nothing that an earlier one of the list wants.
        blocks: Nobody is served after the first task that does not fit.
    """
    left = dict(cluster.total)
    given: dict[TaskKey, tuple[str, int]] = {}
    reasons: dict[TaskKey, str] = {}
    if not preempts:
        for task in tasks:
            _keep(task, left, given, reasons)
    is_blocked = False
    for task in tasks:
        if task.key in given or not may_run(task, cluster):
            continue
        name = None if is_blocked else _best(task, left)
        if name is None:
            is_blocked = is_blocked or (blocks and _could_ever_run(task))
            reasons[task.key] = f"waits: {told(task)}"
            continue
        _give(task, name, task.workers.min, left, given)
        reasons[task.key] = f"{listed(dict([given[task.key]]))}: {told(task)}"
    if not is_blocked:
        _top_up(tasks, left, given)
    targets = {key: Allocation(counts=(counts,)) for key, counts in given.items()}
    return Plan(targets=targets, reasons=reasons)


def _keep(
    task: TaskView, left: dict[str, int], given: dict[TaskKey, tuple[str, int]], reasons: dict[TaskKey, str]
) -> None:
    have = task.allocation.counts if task.allocation is not None and task.state != "waiting" else ()
    if len(have) == 1:
        _give(task, have[0][0], have[0][1], left, given)
        reasons[task.key] = "runs on: nothing is taken from a task that runs"


def _give(task: TaskView, name: str, number: int, left: dict[str, int], given: dict[TaskKey, tuple[str, int]]) -> None:
    given[task.key] = (name, number)
    left[name] = left.get(name, 0) - number * task.devices_per_worker(name)


def _best(task: TaskView, left: Mapping[str, int]) -> str | None:
    """Returns the fastest type with room for the fewest workers; its own unless another is well ahead."""
    fewest = task.workers.min
    fitting = [
        name
        for name, slots in task.slots.items()
        if slots >= fewest
        and left.get(name, 0) >= fewest * task.devices_per_worker(name)
        and task.rate(name, fewest) > 0
    ]
    order = list(task.slots)
    best = max(fitting, key=lambda name: (task.rate(name, fewest), -order.index(name)), default=None)
    have = [name for name, _ in task.allocation.counts] if task.allocation is not None else []
    if best is None or not have or have[0] not in fitting:
        return best
    return best if task.rate(best, fewest) > MOVES_FOR * task.rate(have[0], fewest) else have[0]


def _could_ever_run(task: TaskView) -> bool:
    return any(slots >= task.workers.min for slots in task.slots.values())


def _top_up(tasks: Sequence[TaskView], left: dict[str, int], given: dict[TaskKey, tuple[str, int]]) -> None:
    for task in tasks:
        if task.key not in given:
            continue
        name, number = given[task.key]
        each = task.devices_per_worker(name)
        sizes = [n for n in task.sizes(name) if number < n and (n - number) * each <= left.get(name, 0)]
        faster = [n for n in sizes if task.rate(name, n) > task.rate(name, number)]
        if faster:
            left[name] -= (max(faster) - number) * each
            given[task.key] = (name, max(faster))
