"""Making room by moving: small gangs leave a node, so that one that must be together can start there.

Only for tasks whose workers must be together (several devices a worker, ``within`` a node or rack) and that find enough
devices free, but scattered. The plan is tried on a state that is thrown away: the movers find other places first, as
they would, then the waiting gang must fit. It is done if the device-time that the gang gains exceeds what the movers
lose: their restart, and the work since their last checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plait.schedule.attempts import stop
from plait.schedule.capacity import PLAIN, Capacity, Wish, wishes_of
from plait.schedule.domain import Allocation, TaskKey
from plait.schedule.draft import Draft
from plait.schedule.gates import RESTART_S, Terms, left_s_of
from plait.schedule.moves import find_place
from plait.schedule.placement.greedy import Unplaced
from plait.schedule.state import AttemptRecord, ClusterState, TaskRecord

HORIZON_S = 6000.0
"""So long, it is assumed, the gang would wait otherwise where nobody knows when something ends."""
RUNS_AT_LEAST_S = 600.0
"""What has just started is not moved: no gang is moved over and over."""
MOST_MOVERS = 4
MOST_PLACES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    movers: tuple[AttemptRecord, ...]
    gain_s: float
    cost_s: float


def defragment(draft: Draft, waiting: Sequence[tuple[TaskKey, Mapping[str, Wish]]]) -> None:
    """Stops movers for the first of the waiting tasks for which that pays; at most one task at a time.

    Args:
        draft: A calm state: nothing is about to stop.
        waiting: Tasks that may start but found no place, in the order in which they are served.
    """
    for key, wishes in waiting:
        if not any(wish.count > 1 or wish.rules.within is not None for wish in wishes.values()):
            continue
        plan = _best(draft.state, key, wishes)
        if plan is None:
            continue
        why = f"to make room for {key}: it gains {plan.gain_s:.0f} device-seconds, the moves cost {plan.cost_s:.0f}"
        for mover in plan.movers:
            stop(draft, mover.id, "requeue", f"moves {why}")
        return


def _best(state: ClusterState, key: TaskKey, wishes: Mapping[str, Wish]) -> _Plan | None:
    task = state.task(key)
    capacity = Capacity(state)
    found = []
    for name, wish in wishes.items():
        if not _is_scattered(state, capacity, task, wish):
            continue
        gain_s = task.workers.min * wish.count * _wait_s(state, name)
        for movers in _tries(state, task, name):
            cost_s = sum(_cost_s(state, mover) for mover in movers)
            if cost_s < gain_s and _works(state, task, name, movers):
                found.append(_Plan(movers=movers, gain_s=gain_s, cost_s=cost_s))
    return min(found, key=lambda plan: (plan.cost_s - plan.gain_s, [m.id for m in plan.movers]), default=None)


def _is_scattered(state: ClusterState, capacity: Capacity, task: TaskRecord, wish: Wish) -> bool:
    """Says whether enough is free for the project, but not together."""
    if capacity.slots(wish, free=True) >= task.workers.min:
        return False
    job = state.jobs[task.key.job_id].job
    single = replace(wish, count=1, rules=PLAIN)
    room = Terms(state, capacity).room(job.project, job.task(task.key.task), single, capacity.slots(single, free=True))
    return room >= task.workers.min * wish.count


def _wait_s(state: ClusterState, name: str) -> float:
    """Returns how long nothing of the type will be given back, at least as far as is known."""
    holders = [a for a in state.attempts.values() if any(w.placement.accelerator_type == name for w in a.active())]
    return min([HORIZON_S, *(left_s for a in holders for left_s in left_s_of(state, a))])


def _cost_s(state: ClusterState, mover: AttemptRecord) -> float:
    """Returns the device-seconds that a move loses."""
    checkpoint = state.jobs[mover.task.job_id].job.checkpoint
    ran_s = state.now_s - mover.started_at_s
    lost_s = ran_s if checkpoint is None else min(ran_s, checkpoint.interval_s / 2)
    return (RESTART_S + lost_s) * sum(len(w.placement.device_ids) for w in mover.active())


def _tries(state: ClusterState, task: TaskRecord, name: str) -> Iterator[tuple[AttemptRecord, ...]]:
    """Yields gangs that could leave one node together, the cheapest of a node first, one more each time."""
    priority = state.jobs[task.key.job_id].job.priority
    on: dict[str, list[AttemptRecord]] = {}
    for attempt in state.attempts.values():
        nodes = {w.placement.node for w in attempt.active() if w.placement.accelerator_type == name}
        may_move = attempt.phase == "running" and not attempt.is_elastic and attempt.num_finished == 0
        may_move = may_move and state.now_s - attempt.started_at_s >= RUNS_AT_LEAST_S
        if may_move and len(nodes) == 1 and state.jobs[attempt.task.job_id].job.priority <= priority:
            on.setdefault(nodes.pop(), []).append(attempt)
    cheapest = {node: sorted(some, key=lambda a: (_cost_s(state, a), a.id)) for node, some in on.items()}
    order = sorted(cheapest, key=lambda node: (_cost_s(state, cheapest[node][0]), node))
    for node in order[:MOST_PLACES]:
        for number in range(1, min(MOST_MOVERS, len(cheapest[node])) + 1):
            yield tuple(cheapest[node][:number])


def _works(state: ClusterState, task: TaskRecord, name: str, movers: Sequence[AttemptRecord]) -> bool:
    """Tries it: the movers find places first, where they were not all left, and then the gang fits."""
    gone = {mover.id for mover in movers}
    state = replace(state, attempts={i: a for i, a in state.attempts.items() if i not in gone})
    capacity = Capacity(state)
    for mover in sorted(movers, key=lambda m: state.jobs[m.task.job_id].submitted_at_s):
        if not _seat(state, capacity, mover.task, mover.allocation()):
            return False
    return _seat(state, capacity, task.key, Allocation(counts=((name, task.workers.min),)))


def _seat(state: ClusterState, capacity: Capacity, key: TaskKey, allocation: Allocation) -> bool:
    wishes = wishes_of(state, state.jobs[key.job_id].job.task(key.task), state.task(key))
    placement = find_place(capacity, allocation, wishes, None)
    if isinstance(placement, Unplaced):
        return False
    for worker in placement.workers:
        capacity.take(worker)
    return True
