"""What keeps a task from starting whatever the policy thinks: windows, prices, limits of projects, reservations.

All of it holds for every policy: a task whose gate is closed is shown as one that may not start, and of types that it
may not take (more of) nothing is shown as free. ``obey`` takes back what runs against a limit, a reservation that has
begun, a price, or its price window.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from plait.schedule.attempts import release, stop
from plait.schedule.capacity import Capacity, Wish
from plait.schedule.domain import WorkerPlacement
from plait.schedule.draft import Draft, with_note
from plait.schedule.knowledge import Known
from plait.schedule.state import AttemptRecord, ClusterState, JobRecord, TaskRecord
from plait.schedule.windows import DAY_S, closed_reason, is_open, price_at, prices
from plait.spec.cluster import Project, Reservation
from plait.spec.job import Task

GateKind = Literal["window", "price", "quota", "reservation"]

RESTART_S = 45.0
"""Assumed where nobody says what a start costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Why a task may not start now."""

    kind: GateKind
    reason: str


class Terms:
    """Limits and reservations over one state, kept up to date while a dispatch places workers."""

    def __init__(self, state: ClusterState, capacity: Capacity) -> None:
        self.state = state
        self._capacity = capacity
        self._projects: Mapping[str, Project] = {project.name: project for project in state.config.projects}
        self.held: dict[str, Counter[str]] = {}
        self.is_needed = bool(state.config.reservations) or any(project.limit for project in state.config.projects)
        self.recount(state)

    def recount(self, state: ClusterState) -> None:
        """Counts what projects hold in this state, where limits or reservations make it matter."""
        self.state = state
        self.held.clear()
        for attempt in state.attempts.values() if self.is_needed else ():
            self.take(state.jobs[attempt.task.job_id].job.project, _placements(attempt))

    def take(self, project: str, workers: Iterable[WorkerPlacement]) -> None:
        """Books workers of a project."""
        held = self.held.setdefault(project, Counter())
        for worker in workers:
            held[worker.accelerator_type] += len(worker.device_ids)

    def limit_left(self, project: str, name: str) -> int | None:
        """Returns how many more devices of the type the project may hold; None: as many as there are."""
        terms = self._projects.get(project)
        limit = dict(terms.limit).get(name) if terms is not None else None
        return None if limit is None else limit - self.held.get(project, Counter())[name]

    def kept(self, project: str, name: str, until_s: float = 0.0) -> list[tuple[Reservation, int]]:
        """Returns reservations of other projects that hold now (or within ``until_s``), with what they still keep."""
        found = []
        for one in self.state.config.reservations:
            number = dict(one.devices).get(name, 0)
            if one.project != project and number and _begins_in_s(self.state, one) <= until_s:
                found.append((one, max(0, number - self.held.get(one.project, Counter())[name])))
        return found

    def reserved_left(self, project: str, name: str, until_s: float = 0.0) -> int | None:
        """Returns how many free devices of the type reservations leave to the project; None: all."""
        kept = sum(number for _, number in self.kept(project, name, until_s))
        return self._capacity.free(name) - kept if kept else None

    def room(self, project: str, spec: Task, wish: Wish, most: int) -> int:
        """Returns how many workers the project may add, ``most`` as far as devices go."""
        if not self.is_needed:
            return most
        limits = (
            self.limit_left(project, wish.accelerator),
            self.reserved_left(project, wish.accelerator, spec.expected_runtime_s or 0.0),
        )
        return max(0, min([most, *(left // wish.count for left in limits if left is not None)]))


def _placements(attempt: AttemptRecord) -> list[WorkerPlacement]:
    return [worker.placement for worker in attempt.workers.values()]


def _begins_in_s(state: ClusterState, one: Reservation) -> float:
    day_s = state.day_s()
    if day_s is None:
        return float("inf")
    return 0.0 if is_open(one, day_s) else (one.from_s - day_s) % DAY_S


def gate_of(terms: Terms, job: JobRecord, spec: Task, task: TaskRecord, wishes: Mapping[str, Wish]) -> Gate | None:
    """Returns what keeps a waiting task from starting whatever is free, or None."""
    state = terms.state
    closed = closed_reason(state, spec.run_during)
    if closed is not None:
        return Gate(kind="window", reason=closed)
    fair = {name: wish for name, wish in wishes.items() if not is_dear(state, spec, name)}
    if wishes and not fair:
        return Gate(kind="price", reason=_too_dear(state, spec, list(wishes)))
    if not terms.is_needed:
        return None
    project = job.job.project
    left = {name: terms.limit_left(project, name) for name in fair}
    if not _could_hold(spec, task, fair, left):
        return Gate(kind="quota", reason=_over_limit(terms, project, task, fair))
    kept = {name: terms.reserved_left(project, name, spec.expected_runtime_s or 0.0) for name in fair}
    if not _could_hold(spec, task, fair, kept):
        reason = _reserved(terms, project, spec, fair)
        return Gate(kind="reservation", reason=reason)
    return None


def is_dear(state: ClusterState, spec: Task, name: str) -> bool:
    """Says whether a device of this type costs more now than the task is willing to pay."""
    price = prices(state).get(name) if spec.max_price_per_hour is not None else None
    return price is not None and spec.max_price_per_hour is not None and price > spec.max_price_per_hour


def _could_hold(spec: Task, task: TaskRecord, wishes: Mapping[str, Wish], left: Mapping[str, int | None]) -> bool:
    rooms = [float("inf") if (some := left[n]) is None else max(0, some) // wish.count for n, wish in wishes.items()]
    return (sum(rooms) if spec.resources.mix else max(rooms, default=0)) >= task.workers.min


def _too_dear(state: ClusterState, spec: Task, names: Sequence[str]) -> str:
    now = prices(state)
    told = ", ".join(f"one {name} costs {now[name]:g} an hour" for name in names if name in now)
    falls_in_s = cheap_in_s(state, spec, names)
    when = "" if falls_in_s is None else f"; prices fall in {falls_in_s:.0f} s"
    return f"{told} now, above the {spec.max_price_per_hour:g} that it pays at most{when}"


def _over_limit(terms: Terms, project: str, task: TaskRecord, wishes: Mapping[str, Wish]) -> str:
    told = []
    for name, wish in wishes.items():
        left = terms.limit_left(project, name)
        if left is not None:
            held = terms.held.get(project, Counter())[name]
            told.append(f"holds {held} of at most {held + left} {name}")
            need = task.workers.min * wish.count
    return f"the limit of project {project}: it {' and '.join(told)}, and this task needs {need} more"


def _reserved(terms: Terms, project: str, spec: Task, wishes: Mapping[str, Wish]) -> str:
    told = []
    for name in wishes:
        for one, number in terms.kept(project, name, spec.expected_runtime_s or 0.0):
            begins_s = _begins_in_s(terms.state, one)
            when = "" if begins_s <= 0 else f" from {_clock(one.from_s)} on, before it would be done"
            told.append(f"reservation {one.name} keeps {number} x {name} for project {one.project}{when}")
    return "; ".join(dict.fromkeys(told))


def _clock(time_s: float) -> str:
    return f"{int(time_s // 3600) % 24:02d}:{int(time_s % 3600 // 60):02d}"


def cheap_in_s(state: ClusterState, spec: Task, names: Iterable[str]) -> float | None:
    """Returns in how many seconds one of these types falls to what the task pays; None where no window says so."""
    return min((at_s for name in names if (at_s := _cheap_in_s(state, spec, name)) is not None), default=None)


def _cheap_in_s(state: ClusterState, spec: Task, name: str) -> float | None:
    day_s, most = state.day_s(), spec.max_price_per_hour
    if day_s is None or most is None or name in state.prices_per_hour:
        return None
    waits = []
    for edge in {at for window in state.config.windows for at in (window.from_s % DAY_S, window.to_s % DAY_S)}:
        price = price_at(state, name, edge)
        if price is not None and price <= most:
            waits.append((edge - day_s) % DAY_S)
    return min(waits, default=None)


def obey(draft: Draft, capacity: Capacity, known: Mapping[str, Known]) -> bool:
    """Takes back what runs against a begun reservation, a limit, a price or its window; says whether anything was.

    ``known`` is by attempt.
    """
    before = len(draft.commands)
    if any(project.limit for project in draft.state.config.projects) or draft.state.config.reservations:
        _obey_terms(draft, capacity)
    has_prices = bool(draft.state.config.windows or draft.state.prices_per_hour)
    for attempt in tuple(draft.state.attempts.values()) if has_prices else ():
        spec = draft.task_spec(attempt.task)
        if spec.max_price_per_hour is not None and attempt.phase != "stopping" and attempt.num_finished == 0:
            _obey_price(draft, attempt, spec, known.get(attempt.id, Known()))
    for attempt in tuple(draft.state.attempts.values()) if draft.state.config.windows else ():
        _obey_window(draft, attempt, draft.task_spec(attempt.task).run_during)
    return len(draft.commands) > before


def _obey_terms(draft: Draft, capacity: Capacity) -> None:
    terms = Terms(draft.state, capacity)
    for project in draft.state.config.projects:
        for name, limit in project.limit:
            too_many = terms.held.get(project.name, Counter())[name] - limit - _going(draft, name, {project.name})
            if too_many > 0:
                why = f"project {project.name} holds more than its limit of {limit} {name}"
                _take_back(draft, name, too_many, {project.name}, why)
    for one in draft.state.config.reservations:
        if _begins_in_s(draft.state, one) > 0:
            continue
        others = set(terms.held) - {one.project}
        for name, number in one.devices:
            owed = number - terms.held.get(one.project, Counter())[name] - capacity.free(name)
            owed -= _going(draft, name, others)
            if owed > 0:
                why = f"reservation {one.name} keeps {number} x {name} for project {one.project}"
                _take_back(draft, name, owed, others, why)


def _going(draft: Draft, name: str, projects: set[str]) -> int:
    """Returns devices of the type that are held by workers which were told to go."""
    return sum(
        len(worker.placement.device_ids)
        for attempt in draft.state.attempts.values()
        if draft.job_spec(attempt.task).project in projects
        for worker in attempt.workers.values()
        if worker.placement.accelerator_type == name and (worker.is_leaving or attempt.phase == "stopping")
    )


def _take_back(draft: Draft, name: str, number: int, projects: set[str], why: str) -> None:
    """Frees devices: lowest priority and newest first; elastic gangs shrink where that is enough."""
    attempts = [a for a in draft.state.attempts.values() if draft.job_spec(a.task).project in projects]
    attempts.sort(key=lambda a: (draft.job_spec(a.task).priority, -draft.state.jobs[a.task.job_id].submitted_at_s))
    for attempt in attempts:
        mine = [w for w in attempt.active() if w.placement.accelerator_type == name]
        if number <= 0 or attempt.phase == "stopping" or attempt.num_finished > 0 or not mine:
            continue
        each = len(mine[0].placement.device_ids)
        enough = -(-number // each)
        if attempt.can_resize and enough <= len(mine) and len(attempt.active()) - enough >= attempt.floor:
            release(draft, attempt.id, tuple(w.placement.worker_id for w in mine[-enough:]), why)
            return
        stop(draft, attempt.id, "requeue", f"pre-empted: {why}")
        number -= each * len(mine)


def _obey_price(draft: Draft, attempt: AttemptRecord, spec: Task, known: Known) -> None:
    """Leaves types that became too dear, where that saves more than it costs."""
    dear = [w for w in attempt.active() if is_dear(draft.state, spec, w.placement.accelerator_type)]
    if not dear:
        return
    names = sorted({w.placement.accelerator_type for w in dear})
    costly = ", ".join(f"{name} costs {prices(draft.state)[name]:g} an hour" for name in names)
    why = f"{costly}, above the {spec.max_price_per_hour:g} that it pays at most"
    if attempt.can_resize and len(attempt.active()) - len(dear) >= attempt.floor:
        release(draft, attempt.id, tuple(w.placement.worker_id for w in dear), why)
        return
    saved, cost = _saving(draft, attempt, spec, known, names)
    if saved > cost:
        stop(draft, attempt.id, "requeue", f"pre-empted: {why}; that saves {saved:.2f}, a new start costs {cost:.2f}")


def _obey_window(draft: Draft, attempt: AttemptRecord, window: str | None) -> None:
    """Stops what has run out of its window and can go on in the next one, unless it is about to end."""
    state = draft.state
    if state.day_s() is None or attempt.phase == "stopping" or attempt.num_finished > 0:
        return
    if window not in {known.name for known in state.config.windows}:  # it would never start again
        return
    closed = closed_reason(state, window)
    if closed is None:
        return
    if draft.job_spec(attempt.task).checkpoint is None:
        note = f"runs on though price window {window!r} is closed: without checkpoints it would begin anew"
        draft.put_attempt(with_note(attempt, note))
        return
    if min(left_s_of(state, attempt), default=DAY_S) > RESTART_S:
        stop(draft, attempt.id, "requeue", f"pre-empted: price window {window!r} has closed; {closed}")


def _saving(
    draft: Draft, attempt: AttemptRecord, spec: Task, known: Known, names: Sequence[str]
) -> tuple[float, float]:
    """Returns what stopping until prices fall saves, and what the work that is lost and the new start cost."""
    assert spec.max_price_per_hour is not None
    state, most = draft.state, spec.max_price_per_hour
    devices = sum(len(w.placement.device_ids) for w in attempt.active())
    waits = [at_s for name in names if (at_s := _cheap_in_s(state, spec, name)) is not None]
    lasts_s = min([*waits, *left_s_of(state, attempt)], default=DAY_S)
    price = max(prices(state)[name] for name in names)
    restart_s = RESTART_S if known.restart_cost_s is None else known.restart_cost_s
    checkpoint = draft.job_spec(attempt.task).checkpoint
    ran_s = state.now_s - attempt.started_at_s
    lost_s = ran_s if checkpoint is None else min(ran_s, checkpoint.interval_s / 2)
    return (price - most) * lasts_s / 3600 * devices, most * (restart_s + lost_s) / 3600 * devices


def left_s_of(state: ClusterState, attempt: AttemptRecord) -> list[float]:
    """Returns how long the attempt will probably run on, in a list; an empty one where nobody knows."""
    job = state.jobs[attempt.task.job_id].job
    progress = attempt.progress
    if progress is not None and job.batching is not None and progress.total_steps and progress.samples_per_s > 0:
        left_s = (progress.total_steps - progress.step) * job.batching.global_batch_size / progress.samples_per_s
        return [max(0.0, left_s - (state.now_s - progress.at_s))]
    expected_s = job.task(attempt.task.task).expected_runtime_s
    return [] if expected_s is None else [max(0.0, expected_s - (state.now_s - attempt.started_at_s))]
