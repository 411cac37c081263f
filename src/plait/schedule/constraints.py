"""Which constraint keeps a waiting task from starting: the one without which it would start.

What is asked is always the same: with this one thing different, and all else as it is, would there be a place? Limits,
reservations, memory, node boundaries and prices are taken off the task one at a time and the free devices are counted
again. What depends on the policy (whether a higher bid, a higher priority, or no quotas of others would help) is asked
of the policy itself, on a state that is thrown away.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from plait.schedule import machine
from plait.schedule.capacity import PLAIN, Capacity, Wish, could_hold, room_for, wishes_of
from plait.schedule.commands import StartTask
from plait.schedule.domain import TaskKey
from plait.schedule.events import Tick
from plait.schedule.gates import Terms, gate_of, is_dear
from plait.schedule.knowledge import NOTHING_KNOWN, Knowledge, Known
from plait.schedule.phrases import of_workers
from plait.schedule.policies import policy_or_default
from plait.schedule.policies.rounds import TARGET
from plait.schedule.policy import Policy, RememberingPolicy
from plait.schedule.state import ENDED, ClusterState, JobRecord, TaskRecord
from plait.spec.job import Task
from plait.spec.scenario import ConstraintKind

KINDS: Mapping[ConstraintKind, str] = {
    "dependency": "tasks that must have succeeded first",
    "window": "its price window is closed",
    "price": "devices cost more than it pays or bids",
    "quota": "what its project may hold, or what others are guaranteed",
    "reservation": "free devices are kept for somebody else",
    "priority": "work of higher priority has the devices",
    "topology": "enough devices are free, but not together as it needs them",
    "memory": "free devices have too little memory",
    "gang": "some of its workers could start, but not all at once",
    "devices": "all devices that it could use are held, lost or drained, or there are none",
    "restart": "the pause before a restart",
}
"""What each constraint means."""

HIGHEST_BID = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """The binding constraint of one task that does not run.

    ``also`` lists others without which it would start too.
    """

    kind: ConstraintKind
    reason: str
    also: tuple[ConstraintKind, ...] = ()


def binding(
    state: ClusterState, key: TaskKey, policy: Policy | None = None, knowledge: Knowledge | None = None
) -> Constraint | None:
    """Returns what a task waits for, or None where it does not wait.

    Args:
        state: The cluster as it is.
        key: A known task.
        policy: Who decides; None takes the one that the cluster's file names.
        knowledge: What is known of tasks beyond their files.
    """
    job, task = state.jobs[key.job_id], state.task(key)
    if task.state == "blocked":
        return Constraint(kind="dependency", reason=_missing(job, task))
    if task.state != "waiting":
        return None
    return _Question(state, job, task, policy, knowledge).answer()


def _missing(job: JobRecord, task: TaskRecord) -> str:
    needs = [name for name in job.job.task(task.key.task).needs if job.tasks[name].state != "succeeded"]
    told = ", ".join(f"{name} ({job.tasks[name].state})" for name in needs)
    return f"needs {told} to have succeeded"


class _Question:
    """One waiting task, and what is free for it under different conditions."""

    def __init__(
        self,
        state: ClusterState,
        job: JobRecord,
        task: TaskRecord,
        policy: Policy | None,
        knowledge: Knowledge | None,
    ) -> None:
        self.state = state
        self.job = job
        self.task = task
        self.spec: Task = job.job.task(task.key.task)
        choice = state.config.policy
        self.policy = policy or policy_or_default(choice.name, choice.weights)[0]
        self.knowledge = knowledge
        self.wishes = wishes_of(state, self.spec, task)
        self.capacity = Capacity(state)
        self.terms = Terms(state, self.capacity)
        self.fewest = task.workers.min

    def answer(self) -> Constraint:
        """Returns the first constraint that holds, from what lasts longest to what passes soonest."""
        if room_for(self.capacity, self.wishes, mix=self.spec.resources.mix) < self.fewest:
            return self._impossible()
        gate = gate_of(self.terms, self.job, self.spec, self.task, self.wishes)
        if gate is not None:
            return Constraint(kind=gate.kind, reason=gate.reason)
        if self.task.ready_at_s > self.state.now_s:
            return Constraint(kind="restart", reason=self.task.reason)
        if self.room() >= self.fewest:
            return self._room_but_not_for_it()
        kinds = list(dict.fromkeys(self._relaxed()))
        if kinds:
            return Constraint(kind=kinds[0], reason=self._told(kinds[0]), also=tuple(kinds[1:]))
        return Constraint(kind="devices", reason=self._told("devices"))

    def room(
        self,
        *,
        state: ClusterState | None = None,
        terms: bool = True,
        memory: bool = True,
        together: bool = True,
        price: bool = True,
    ) -> int:
        """Returns how many of its workers could start now, with some of its conditions taken off."""
        capacity = self.capacity if state is None else Capacity(state)
        known = Terms(state or self.state, capacity)
        rooms = []
        for name, wish in self.wishes.items():
            if price and is_dear(self.state, self.spec, name):
                continue
            wanted = wish if memory else replace(wish, memory_bytes=None, above_bytes=None, avoid=())
            number = capacity.slots(replace(wanted, rules=PLAIN) if not together else wanted, free=True)
            if not together:
                number = max(number, capacity.slots(replace(wanted, count=1, rules=PLAIN), free=True) // wish.count)
            rooms.append(known.room(self.job.job.project, self.spec, wish, number) if terms else number)
        return sum(rooms) if self.spec.resources.mix else max(rooms, default=0)

    def _impossible(self) -> Constraint:
        """The nodes there are could not hold it even when idle."""
        mix = self.spec.resources.mix
        without_memory = _changed(self.wishes, memory_bytes=None, above_bytes=None, avoid=())
        if room_for(self.capacity, without_memory, mix=mix) >= self.fewest:
            return Constraint(kind="memory", reason=self.task.reason)
        total = {name: self.capacity.slots(replace(w, count=1, rules=PLAIN), free=False) // w.count
                 for name, w in self.wishes.items()}  # fmt: skip
        if (sum(total.values()) if mix else max(total.values(), default=0)) >= self.fewest:
            return Constraint(kind="topology", reason=self.task.reason)
        if could_hold(self.state, self.task, with_absent=True):
            return Constraint(kind="devices", reason=self.task.reason)
        some = room_for(self.capacity, self.wishes, mix=mix)
        return Constraint(kind="gang" if some > 0 and self.fewest > 1 else "devices", reason=self.task.reason)

    def _room_but_not_for_it(self) -> Constraint:
        """Enough is free, and the policy gives it to nobody or to others."""
        found = [kind for kind in self._asked() if kind != "priority"] if self._has_rounds() else []
        if found:
            return Constraint(kind=found[0], reason=self.task.reason, also=tuple(found[1:]))
        if not self._is_outranked():
            return Constraint(kind="reservation", reason=self.task.reason)
        # Who would come first at the same priority waits for priority; who would come later all the same, does not.
        if self._would_win(self._raised(by=0), _Bidding(self.knowledge, self.task.key)):
            return Constraint(kind="priority", reason=self.task.reason, also=("reservation",))
        return Constraint(kind="reservation", reason=self.task.reason, also=("priority",))

    def _relaxed(self) -> Iterator[ConstraintKind]:
        """Yields every constraint without which there would be a place, the most particular first."""
        if self.room(terms=False) >= self.fewest:
            no_reservations = replace(self.state, config=replace(self.state.config, reservations=()))
            yield "reservation" if self.room(state=no_reservations) >= self.fewest else "quota"
        if self.room(memory=False) >= self.fewest:
            yield "memory"
        if self.room(together=False) >= self.fewest:
            yield "topology"
        if self.room(price=False) >= self.fewest:
            yield "price"
        some = self.room()
        if self._has_rounds():
            yield from self._asked()
        elif some == 0 and self._without_higher() >= self.fewest:
            yield "priority"
        if 0 < some < self.fewest:
            yield "gang"
        if self._without_higher() >= self.fewest:
            yield "priority"

    def _asked(self) -> Iterator[ConstraintKind]:
        """Yields what would make the policy choose the task in a round that began now."""
        if self._would_win(self.state, _Bidding(self.knowledge, self.task.key)):
            yield "price"
        projects = tuple(replace(project, quota=()) for project in self.state.config.projects)
        if any(project.quota for project in self.state.config.projects):
            config = replace(self.state.config, projects=projects)
            if self._would_win(replace(self.state, config=config), _Bidding(self.knowledge, self.task.key)):
                yield "quota"
        if self._is_outranked() and self._would_win(self._raised(), _Bidding(self.knowledge, self.task.key)):
            yield "priority"

    def _would_win(self, state: ClusterState, knowledge: Knowledge) -> bool:
        state = replace(state, round_at_s=None, joined_at_s=None)
        day_s = int(state.day_s() or 0.0)
        event = Tick(id=state.last_event_id + 1, at_s=state.now_s, day_s=day_s)
        after, commands = machine.apply(state, event, self.policy, knowledge)
        if any(isinstance(command, StartTask) and command.task == self.task.key for command in commands):
            return True
        return any(entry.rpartition("|")[0] == str(self.task.key) for entry in after.memory.get(TARGET, {}))

    def _raised(self, by: int = 1) -> ClusterState:
        """Returns the state with the task at the highest priority of all, and ``by`` above that."""
        highest = max(self.state.jobs[job_id].job.priority for job_id in self.state.open_jobs)
        raised = replace(self.job, job=replace(self.job.job, priority=highest + by))
        return replace(self.state, jobs={**self.state.jobs, self.job.id: raised})

    def _has_rounds(self) -> bool:
        return isinstance(self.policy, RememberingPolicy)

    def _is_outranked(self) -> bool:
        """Says whether an open task of higher priority has, or waits for, something that this one could use."""
        return any(
            self.state.jobs[job_id].job.priority > self.job.job.priority and not self._is_apart(job_id)
            for job_id in self.state.open_jobs
        )

    def _is_apart(self, job_id: str) -> bool:
        other = self.state.jobs[job_id]
        for spec in other.job.tasks:
            if other.tasks[spec.name].state in ENDED or other.tasks[spec.name].state == "blocked":
                continue
            types = {request.accelerator for request in spec.resources.any_of}
            if not types or types & set(self.wishes):
                return False
        return True

    def _without_higher(self) -> int:
        """Returns how many workers could start if what has a higher priority were gone."""
        mine = self.job.job.priority
        rest = {i: a for i, a in self.state.attempts.items() if self.state.jobs[a.task.job_id].job.priority <= mine}
        if len(rest) == len(self.state.attempts):
            return 0
        return self.room(state=replace(self.state, attempts=rest))

    def _told(self, kind: ConstraintKind) -> str:
        need = f"needs {of_workers(self.fewest)} of {' or '.join(self.wishes) or 'any type'}"
        told = {
            "gang": self._told_gang,
            "topology": self._told_topology,
            "memory": self._told_memory,
            "priority": self._told_priority,
            "price": self._told_price,
        }.get(kind)
        rest = told() if told is not None else ""
        return f"{need}{rest}" if rest else self.task.reason

    def _told_gang(self) -> str:
        return f" at once; {of_workers(self.room())} could start now"

    def _told_topology(self) -> str:
        number = self.room(together=False)
        return f", together as it asks; {of_workers(number)} could be had if they could be anywhere"

    def _told_memory(self) -> str:
        least = max((w.memory_bytes or w.above_bytes or 0 for w in self.wishes.values()), default=0) / 2**30
        return f" with {least:g} GiB; devices with less are free"

    def _told_priority(self) -> str:
        mine = self.job.job.priority
        higher = [
            f"{attempt.task} ({priority})"
            for attempt in self.state.attempts.values()
            if (priority := self.state.jobs[attempt.task.job_id].job.priority) > mine
        ]
        return f"; {', '.join(sorted(higher)) or 'others'} of higher priority than its {mine} come first"

    def _told_price(self) -> str:
        dear = [name for name in self.wishes if is_dear(self.state, self.spec, name)]
        return f"; {' and '.join(dear)} cost more than the {self.spec.max_price_per_hour:g} it pays" if dear else ""


def _changed(wishes: Mapping[str, Wish], **fields: tuple[str, ...] | None) -> Mapping[str, Wish]:
    return {name: replace(wish, **fields) for name, wish in wishes.items()}  # type: ignore[arg-type]


class _Bidding:
    """Knowledge by which one task's claim is larger than all others."""

    def __init__(self, knowledge: Knowledge | None, key: TaskKey) -> None:
        self._knowledge = knowledge
        self._key = key

    def of(self, state: ClusterState, key: TaskKey) -> Known:
        """Returns what is known, with the one task's weight raised."""
        known = self._knowledge.of(state, key) if self._knowledge is not None else NOTHING_KNOWN
        return replace(known, weight=known.weight * HIGHEST_BID) if key == self._key else known
