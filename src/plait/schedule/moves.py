"""What a dispatch does to attempts: starts them, lets them grow and shrink, clears drained nodes."""

from collections.abc import Mapping
from dataclasses import replace

from plait.schedule.attempts import release, stop
from plait.schedule.capacity import Capacity, Wish, could_hold
from plait.schedule.commands import ResizeTask, StartTask
from plait.schedule.domain import Allocation, Placement, WorkerPlacement
from plait.schedule.draft import Draft, with_note
from plait.schedule.placement.greedy import Unplaced, place
from plait.schedule.state import AttemptRecord, TaskRecord, WorkerRecord


def evacuate(draft: Draft) -> None:
    """Clears drained nodes: elastic gangs shrink where enough workers remain, others move if they fit elsewhere.

    What fits nowhere else runs on to its end. None of this uses up a restart.
    """
    draining = {name for name, record in draft.state.nodes.items() if record.is_draining}
    if not draining:
        return
    for attempt in tuple(draft.state.attempts.values()):
        there = tuple(w.placement.worker_id for w in attempt.active() if w.placement.node in draining)
        if not there or attempt.phase == "stopping" or attempt.num_finished > 0:
            continue
        nodes = ", ".join(sorted({attempt.workers[i].placement.node for i in there}))
        if attempt.can_resize and len(attempt.active()) - len(there) >= attempt.floor:
            release(draft, attempt.id, there, f"{nodes} is being drained")
        elif could_hold(draft.state, draft.task(attempt.task)):
            stop(draft, attempt.id, "requeue", f"{nodes} is being drained")
        else:
            note = f"stays on {nodes} though it is being drained: no other nodes can hold it"
            draft.put_attempt(with_note(attempt, note))


def trim(draft: Draft) -> None:
    """Shrinks elastic gangs that are larger than a person wants them by now."""
    for attempt in tuple(draft.state.attempts.values()):
        too_many = len(attempt.active()) - draft.task(attempt.task).workers.max
        if too_many > 0 and attempt.can_resize:
            newest = tuple(w.placement.worker_id for w in attempt.active()[-too_many:])
            release(draft, attempt.id, newest, f"at most {draft.task(attempt.task).workers.max} workers are wanted")


def start(
    draft: Draft,
    capacity: Capacity,
    task: TaskRecord,
    *,
    allocation: Allocation,
    wishes: Mapping[str, Wish],
    reason: str,
) -> str | None:
    """Starts a new attempt of a waiting task; returns why that is not possible now, or None."""
    placement = find_place(capacity, allocation, wishes, None)
    if isinstance(placement, Unplaced):
        return placement.reason
    attempt_id = f"{task.key}/{task.next_attempt}"
    placement = replace(placement, reasons=(reason, *placement.reasons))
    attempt = AttemptRecord(
        id=attempt_id,
        task=task.key,
        started_at_s=draft.now_s,
        floor=task.workers.min,
        next_worker=len(placement.workers),
        workers=_seat(draft, capacity, placement.workers),
        reasons=placement.reasons,
    )
    draft.put_attempt(attempt)
    draft.put_task(
        replace(
            task,
            state="starting",
            attempt_id=attempt_id,
            next_attempt=task.next_attempt + 1,
            reason=reason,
            is_impossible=False,
        )
    )
    draft.commands.append(StartTask(cause=draft.cause, attempt_id=attempt_id, task=task.key, placement=placement))
    return None


def resize(
    draft: Draft,
    capacity: Capacity,
    attempt_id: str,
    *,
    target: Allocation,
    wishes: Mapping[str, Wish],
    reason: str,
) -> None:
    """Brings an elastic attempt to another allocation, as far as its range and the free devices allow."""
    attempt = draft.state.attempts[attempt_id]
    have, want = dict(attempt.allocation().counts), dict(target.counts)
    leave: list[str] = []
    for name, number in have.items():
        too_many = number - want.get(name, 0)
        of_type = [w.placement.worker_id for w in attempt.active() if w.placement.accelerator_type == name]
        leave.extend(of_type[len(of_type) - too_many :] if too_many > 0 else ())
    more = tuple((name, want[name] - have.get(name, 0)) for name in want if want[name] > have.get(name, 0))
    # Those who come may come later or never, so those who go must leave enough behind.
    going = leave[: max(0, len(attempt.active()) - attempt.floor)]
    room = draft.task(attempt.task).workers.max - len(attempt.active()) + len(going)
    if leave and not going and room <= 0:
        stop(draft, attempt_id, "requeue", f"to start anew on other devices: {reason}")
        return
    if going:
        release(draft, attempt_id, tuple(going), reason)
    if more and draft.now_s >= attempt.grow_after_s:
        _grow(
            draft,
            capacity,
            draft.state.attempts[attempt_id],
            more=_at_most(more, room),
            wishes=wishes,
            reason=reason,
        )
    _lift_floor(draft, attempt_id)


def _grow(
    draft: Draft,
    capacity: Capacity,
    attempt: AttemptRecord,
    *,
    more: Allocation,
    wishes: Mapping[str, Wish],
    reason: str,
) -> None:
    placement = find_place(capacity, more, wishes, attempt)
    if isinstance(placement, Unplaced):
        return
    workers = {**attempt.workers, **_seat(draft, capacity, placement.workers)}
    next_worker = attempt.next_worker + len(placement.workers)
    names = ", ".join(worker.worker_id for worker in placement.workers)
    note = f"{names} added: {reason}; {'; '.join(placement.reasons)}"
    draft.put_attempt(with_note(replace(attempt, workers=workers, next_worker=next_worker), note))
    draft.commands.append(ResizeTask(cause=draft.cause, attempt_id=attempt.id, add=placement.workers, reason=reason))


def _at_most(counts: tuple[tuple[str, int], ...], room: int) -> Allocation:
    taken: list[tuple[str, int]] = []
    for name, number in counts:
        taken.append((name, max(0, min(number, room - sum(n for _, n in taken)))))
    return Allocation(counts=tuple(taken))


def _lift_floor(draft: Draft, attempt_id: str) -> None:
    """Raises the floor of a gang that a person wants larger, as far as it has grown by now."""
    attempt = draft.state.attempts[attempt_id]
    floor = min(draft.task(attempt.task).workers.min, len(attempt.active()))
    if floor > attempt.floor:
        draft.put_attempt(replace(attempt, floor=floor))


def find_place(
    capacity: Capacity, allocation: Allocation, wishes: Mapping[str, Wish], attempt: AttemptRecord | None
) -> Placement | Unplaced:
    """Returns where an allocation would go, beside what a running attempt has; or why there is no place."""
    used: dict[str, set[int]] = {}
    for worker in attempt.workers.values() if attempt is not None else ():
        used.setdefault(worker.placement.node, set()).add(worker.placement.local_rank)
    ranks = {node: frozenset(taken) for node, taken in used.items()}
    nodes, candidates = capacity.free_nodes(wishes, ranks, dict(allocation.counts))
    return place(
        allocation,
        {name: wish.count for name, wish in wishes.items()},
        nodes,
        candidates=candidates,
        next_worker=attempt.next_worker if attempt is not None else 0,
        partial=attempt is not None,
        rules=next(iter(wishes.values())).rules if wishes else None,
    )


def _seat(draft: Draft, capacity: Capacity, placements: tuple[WorkerPlacement, ...]) -> dict[str, WorkerRecord]:
    for placement in placements:
        capacity.take(placement)
        record = draft.state.nodes[placement.node]
        draft.put_node(replace(record, next_port=placement.port + 2))
    return {p.worker_id: WorkerRecord(placement=p, started_at_s=draft.now_s) for p in placements}
