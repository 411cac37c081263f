"""One round of scheduling: show the policy what waits and runs, then do what it decides as far as it is possible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plait.schedule.attempts import stop
from plait.schedule.capacity import Capacity, Wish, room_for, wishes_of
from plait.schedule.defragment import defragment
from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.draft import Draft
from plait.schedule.gainers import gainers, told
from plait.schedule.gates import Terms, gate_of, is_dear, obey
from plait.schedule.knowledge import NOTHING_KNOWN, Knowledge, Known
from plait.schedule.moves import evacuate, resize, start, trim
from plait.schedule.phrases import of_workers
from plait.schedule.policy import Policy, TaskView, decide_with
from plait.schedule.state import AttemptRecord, ClusterState, JobRecord, TaskRecord
from plait.spec.job import Task
from plait.words import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A task that the policy decides on, and what its workers need by type."""

    view: TaskView
    wishes: Mapping[str, Wish]
    closed: str | None


def dispatch(draft: Draft, policy: Policy, knowledge: Knowledge | None = None) -> None:
    """Moves work to where it should run now."""
    evacuate(draft)
    trim(draft)
    capacity = Capacity(draft.state)
    if obey(draft, capacity, _known_of_attempts(draft.state, knowledge)):
        capacity = Capacity(draft.state)
    terms = Terms(draft.state, capacity)
    candidates = {c.view.key: c for c in _candidates(draft, capacity, terms, knowledge)}
    if not candidates:
        return
    decided = set()
    decisions = _ask(draft, policy, capacity, [c.view for c in candidates.values()])
    for decision in decisions:
        candidate = candidates.get(decision.task)
        if candidate is None or decision.task in decided:
            continue
        decided.add(decision.task)
        if candidate.view.state == "waiting":
            _decide_waiting(draft, capacity, terms, candidate, decision)
        else:
            _decide_running(draft, capacity, terms, candidate, _with_gainers(draft, candidates, decision, decisions))
    if not draft.commands and not any(attempt.phase == "stopping" for attempt in draft.state.attempts.values()):
        left = [candidates[d.task] for d in decisions if d.task in candidates]
        defragment(draft, [(c.view.key, c.wishes) for c in left if c.view.state == "waiting" and c.closed is None])


def _with_gainers(
    draft: Draft, candidates: Mapping[TaskKey, _Candidate], decision: Decision, decisions: Sequence[Decision]
) -> Decision:
    """Adds to the reason of a decision that takes devices away who gets them, and by what rule."""
    view = candidates[decision.task].view
    have = view.allocation.counts if view.allocation is not None else ()
    keeps = dict(decision.allocation.counts) if decision.allocation is not None else {}
    loses = frozenset(name for name, number in have if number > keeps.get(name, 0))
    if not loses:
        return decision
    views = {key: candidate.view for key, candidate in candidates.items()}
    found = told(gainers(view, loses, decisions, views, draft.state.config.projects))
    return replace(decision, reason=f"{decision.reason}; {found}") if found else decision


def _ask(draft: Draft, policy: Policy, capacity: Capacity, views: Sequence[TaskView]) -> Sequence[Decision]:
    """Returns the policy's decisions; begins a round where one is due and keeps what the policy wants to know then."""
    state, round_s = draft.state, draft.state.config.policy.round_s
    is_round = state.round_at_s is None or state.now_s >= state.round_at_s + round_s
    cluster = replace(capacity.view(), is_round=is_round, round_s=round_s)
    decisions, memory = decide_with(policy, cluster, views, state.memory)
    draft.set_state(
        replace(draft.state, memory=memory, round_at_s=_round_start(state) if is_round else state.round_at_s)
    )
    return decisions


def _round_start(state: ClusterState) -> float:
    """Returns when the round that begins now began by the clock: rounds do not drift with late ticks."""
    if state.round_at_s is None or state.config.policy.round_s <= 0:
        return state.now_s
    late_s = (state.now_s - state.round_at_s) % state.config.policy.round_s
    return state.now_s - late_s


def _known_of_attempts(state: ClusterState, knowledge: Knowledge | None) -> Mapping[str, Known]:
    """Returns what is known of the attempts whose task has a highest price: what a stop would cost."""
    if knowledge is None or not (state.config.windows or state.prices_per_hour):
        return {}
    priced = (
        attempt
        for attempt in state.attempts.values()
        if state.jobs[attempt.task.job_id].job.task(attempt.task.task).max_price_per_hour is not None
    )
    return {attempt.id: knowledge.of(state, attempt.task) for attempt in priced}


def _candidates(draft: Draft, capacity: Capacity, terms: Terms, knowledge: Knowledge | None) -> list[_Candidate]:
    found = []
    for job_id in draft.state.open_jobs:
        job = draft.state.jobs[job_id]
        for spec in job.job.tasks:
            task = job.tasks[spec.name]
            if task.state not in ("waiting", "starting", "running"):
                continue
            known = knowledge.of(draft.state, task.key) if knowledge is not None else NOTHING_KNOWN
            seen = _seen(draft.state, capacity, task, known)
            if seen is not None:
                found.append(seen)
                continue
            wishes = wishes_of(draft.state, spec, task)
            if task.state == "waiting" and not _is_possible(draft, capacity, spec, task, wishes):
                continue
            task = draft.task(task.key)
            fresh = _candidate(draft.state, capacity, terms, spec, task, wishes=wishes, known=known)
            _keep_in_sight(draft.state, capacity, task, fresh)
            found.append(fresh)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was made of a gang that can only run on, and all that it was made of but time and knowledge."""

    attempt: AttemptRecord
    task: TaskRecord
    shape: object
    candidate: _Candidate
    begun_s: float


_SEEN: dict[TaskKey, _Seen] = {}
_MOST_SEEN = 200_000


def _seen(state: ClusterState, capacity: Capacity, task: TaskRecord, known: Known) -> _Candidate | None:
    """Returns the candidate of last time, brought up to date: most gangs run on from one look to the next."""
    seen = _SEEN.get(task.key)
    if seen is None or seen.task is not task or seen.shape is not capacity.shape:
        return None
    if state.attempts.get(seen.attempt.id) is not seen.attempt:
        return None
    view = replace(
        seen.candidate.view,
        attained_service_s=task.service_s + len(seen.attempt.workers) * state.now_s - seen.begun_s,
        runtime_s=_runtime_s(state, task),
        rates=known.rates,
        remaining_work=known.remaining_work,
        done_work=known.done_work,
        restart_cost_s=known.restart_cost_s,
        weight=known.weight,
        deadline_at_s=_deadline(state.jobs[task.key.job_id], known),
    )
    return _Candidate(view=view, wishes=seen.candidate.wishes, closed=None)


def _keep_in_sight(state: ClusterState, capacity: Capacity, task: TaskRecord, candidate: _Candidate) -> None:
    attempt = state.attempts.get(task.attempt_id or "")
    if attempt is None or attempt.is_elastic or not candidate.view.resources.any_of:
        return
    if len(_SEEN) >= _MOST_SEEN:
        _SEEN.clear()
    begun_s = sum(worker.started_at_s for worker in attempt.workers.values())
    _SEEN[task.key] = _Seen(attempt=attempt, task=task, shape=capacity.shape, candidate=candidate, begun_s=begun_s)


def _candidate(
    state: ClusterState,
    capacity: Capacity,
    terms: Terms,
    spec: Task,
    task: TaskRecord,
    *,
    wishes: Mapping[str, Wish],
    known: Known,
) -> _Candidate:
    job = state.jobs[task.key.job_id]
    attempt = state.attempts[task.attempt_id] if task.attempt_id is not None else None
    gate = gate_of(terms, job, spec, task, wishes) if attempt is None else None
    may_change = attempt is None or (attempt.can_resize and state.now_s >= attempt.grow_after_s)
    slots = {name: capacity.slots(wish, free=False) for name, wish in wishes.items()}
    view = TaskView(
        key=task.key,
        project=job.job.project,
        priority=job.job.priority,
        submitted_at_s=job.submitted_at_s,
        state=task.state,
        workers=task.workers,
        resources=spec.resources,
        allocation=attempt.allocation() if attempt is not None else None,
        attained_service_s=service_s(state, task),
        window_open=gate is None,
        speeds={name: capacity.speed(wish) for name, wish in wishes.items() if slots[name]},
        elastic=attempt is not None and attempt.can_resize,
        ready_at_s=task.ready_at_s,
        slots=slots,
        free_slots={
            name: _room(capacity, terms, job, spec, wish) if may_change else 0 for name, wish in wishes.items()
        },
        restarts=sum(summary.outcome != "succeeded" for summary in task.history),
        runtime_s=_runtime_s(state, task),
        rates=known.rates,
        remaining_work=known.remaining_work,
        done_work=known.done_work,
        restart_cost_s=known.restart_cost_s,
        weight=known.weight,
        deadline_at_s=_deadline(job, known),
        num_nodes=len({w.placement.node for w in attempt.active()}) if attempt is not None else 0,
    )
    return _Candidate(view=view, wishes=wishes, closed=gate.reason if gate is not None else None)


def _room(capacity: Capacity, terms: Terms, job: JobRecord, spec: Task, wish: Wish) -> int:
    """Returns how many workers of the task could be added now on this type."""
    if is_dear(terms.state, spec, wish.accelerator):
        return 0
    return terms.room(job.job.project, spec, wish, capacity.slots(wish, free=True))


def _deadline(job: JobRecord, known: Known) -> float | None:
    if known.deadline_at_s is not None or job.job.deadline_s is None:
        return known.deadline_at_s
    return job.submitted_at_s + job.job.deadline_s


def service_s(state: ClusterState, task: TaskRecord) -> float:
    """Returns the worker-seconds that the task has had."""
    attempt = state.attempts.get(task.attempt_id or "")
    running = attempt.workers.values() if attempt is not None else ()
    return task.service_s + sum(state.now_s - worker.started_at_s for worker in running)


def _runtime_s(state: ClusterState, task: TaskRecord) -> float:
    """Returns how long attempts of the task have held devices, those that are still remembered and the present one."""
    attempt = state.attempts.get(task.attempt_id or "")
    past_s = sum(summary.ended_at_s - summary.started_at_s for summary in task.history)
    return past_s + (state.now_s - attempt.started_at_s if attempt is not None else 0.0)


def _is_possible(draft: Draft, capacity: Capacity, spec: Task, task: TaskRecord, wishes: Mapping[str, Wish]) -> bool:
    """Says whether the nodes there are could ever hold the task; tells at once where they could not."""
    room = room_for(capacity, wishes, mix=spec.resources.mix)
    if room >= task.workers.min:
        if task.is_impossible:
            draft.put_task(replace(task, is_impossible=False, reason="not tried yet"))
        return True
    reason = _impossible(draft.state, spec, task, wishes, room)
    draft.put_task(replace(task, is_impossible=True, reason=reason))
    return False


def _impossible(state: ClusterState, spec: Task, task: TaskRecord, wishes: Mapping[str, Wish], room: int) -> str:
    what = (" + " if spec.resources.mix else " or ").join(_describe(wish) for wish in wishes.values()) or "any device"
    types = {d.accelerator_type for record in state.nodes.values() for d in record.node.devices}
    hints = "".join(
        f"; no node has {name}{did_you_mean(name, types)}" for name in wishes if types and name not in types
    )
    away = sorted(name for name, record in state.nodes.items() if not record.takes_work)
    gone = f"; lost or drained: {', '.join(away)}" if away else ""
    held = f"the healthy nodes can hold {room}" if state.nodes else "no node has joined yet"
    needs = f"needs {of_workers(task.workers.min)} of {what}"
    return f"impossible for now: {needs}, {held}{hints}{gone}; waits for more devices"


def _describe(wish: Wish) -> str:
    size = f" with {wish.memory_bytes / 2**30:g} GiB" if wish.memory_bytes is not None else ""
    more = f" with more than {wish.above_bytes / 2**30:g} GiB" if wish.above_bytes is not None else ""
    return f"{f'{wish.count} x ' if wish.count > 1 else ''}{wish.accelerator}{size}{more}"


def _decide_waiting(draft: Draft, capacity: Capacity, terms: Terms, candidate: _Candidate, decision: Decision) -> None:
    task = draft.task(decision.task)
    reason = decision.reason
    if candidate.closed is not None:
        reason = candidate.closed
    elif draft.now_s < task.ready_at_s:
        reason = task.reason if task.history else reason
    elif decision.allocation is not None and _may_get_more(draft.state, task, decision.allocation.num_workers):
        reason = (
            f"nodes are joining; starts with {of_workers(decision.allocation.num_workers)} unless there are more soon"
        )
    elif decision.allocation is not None:
        refusal = _refusal(candidate, decision) or _beyond_terms(draft, capacity, terms, candidate, decision.allocation)
        refusal = refusal or start(
            draft, capacity, task, allocation=decision.allocation, wishes=candidate.wishes, reason=reason
        )
        if refusal is None:
            if terms.is_needed:
                attempt = draft.state.attempts[draft.task(task.key).attempt_id or ""]
                terms.take(candidate.view.project, (w.placement for w in attempt.workers.values()))
            return
        reason = refusal
    draft.put_task(replace(task, reason=reason))


def _beyond_terms(
    draft: Draft, capacity: Capacity, terms: Terms, candidate: _Candidate, allocation: Allocation
) -> str | None:
    """Returns why the allocation breaks a limit or a reservation, with what started just now; or None."""
    if not terms.is_needed:
        return None
    job = draft.state.jobs[candidate.view.key.job_id]
    spec = job.job.task(candidate.view.key.task)
    for name, number in allocation.counts:
        wish = candidate.wishes[name]
        if number > terms.room(job.job.project, spec, wish, capacity.slots(wish, free=True)):
            task = draft.task(candidate.view.key)
            gate = gate_of(terms, job, spec, task, candidate.wishes)
            return gate.reason if gate is not None else f"others of its project took the {name} that it may hold"
    return None


def _may_get_more(state: ClusterState, task: TaskRecord, num_workers: int) -> bool:
    """Says whether it pays to wait a moment, since nodes of a cluster that comes up join one after another."""
    if state.joined_at_s is None or num_workers >= task.workers.max:
        return False
    return state.now_s - state.joined_at_s < state.config.settle_s


def _refusal(candidate: _Candidate, decision: Decision) -> str | None:
    """Returns why a policy's decision breaks the task's own rules, or None."""
    allocation = decision.allocation
    assert allocation is not None
    workers, resources = candidate.view.workers, candidate.view.resources
    names = [name for name, number in allocation.counts if number > 0]
    have = candidate.view.allocation
    fewest = min(workers.min, have.num_workers) if have is not None else workers.min
    if not fewest <= allocation.num_workers <= workers.max:
        return f"the policy gave {allocation.num_workers} workers, outside {workers.min} to {workers.max}"
    if any(name not in candidate.wishes for name in names) or any(number < 0 for _, number in allocation.counts):
        return f"the policy gave {', '.join(names)}, which the task did not ask for"
    if not resources.mix and len(names) > 1:
        return f"the policy gave {' and '.join(names)} to a task that wants one type"
    return None


def _decide_running(draft: Draft, capacity: Capacity, terms: Terms, candidate: _Candidate, decision: Decision) -> None:
    attempt = draft.state.attempts.get(draft.task(decision.task).attempt_id or "")
    if attempt is None or attempt.phase == "stopping" or attempt.num_finished > 0:
        return
    if decision.allocation is None:
        stop(draft, attempt.id, "requeue", f"pre-empted: {decision.reason}")
        return
    if decision.allocation == candidate.view.allocation:
        return
    if _same(attempt, decision) or _refusal(candidate, decision) is not None:
        return
    if _grows_beyond(draft, capacity, terms, candidate, decision.allocation):
        return
    types = {name for name, number in decision.allocation.counts if number > 0}
    keeps_type = candidate.view.resources.mix or types == {name for name, _ in attempt.allocation().counts}
    if attempt.can_resize and keeps_type:
        resize(
            draft,
            capacity,
            attempt.id,
            target=decision.allocation,
            wishes=candidate.wishes,
            reason=decision.reason,
        )
        terms.recount(draft.state)
    else:
        stop(draft, attempt.id, "requeue", f"to start anew with another allocation: {decision.reason}")


def _grows_beyond(
    draft: Draft, capacity: Capacity, terms: Terms, candidate: _Candidate, allocation: Allocation
) -> bool:
    """Says whether the gang would take more than limits and reservations leave, with what started just now."""
    if not terms.is_needed or candidate.view.allocation is None:
        return False
    job = draft.state.jobs[candidate.view.key.job_id]
    spec, have = job.job.task(candidate.view.key.task), dict(candidate.view.allocation.counts)
    return any(
        number > have.get(name, 0)
        and number - have.get(name, 0) > _room(capacity, terms, job, spec, candidate.wishes[name])
        for name, number in allocation.counts
    )


def _same(attempt: AttemptRecord, decision: Decision) -> bool:
    assert decision.allocation is not None
    wanted = {name: number for name, number in decision.allocation.counts if number > 0}
    return wanted == dict(attempt.allocation().counts)
