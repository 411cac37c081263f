"""The machine played by itself: gangs end when they are expected to, stopped ones are gone at once, time passes.

Two uses: a *forecast* plays on from the present state, which tells when waiting tasks will probably start; a scenario
on paper is played up to the moment that is asked about. Gangs end when their progress or their ``expected_runtime``
says so, windows and reservations open and close by the clock. Nothing else happens by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plait.schedule import machine
from plait.schedule.commands import Command, ResizeTask, StartTask, StopTask, TestDevice
from plait.schedule.domain import TaskKey
from plait.schedule.events import DeviceTested, Event, StepReported, Tick, WorkerExited, WorkerStarted
from plait.schedule.gates import left_s_of
from plait.schedule.knowledge import Knowledge
from plait.schedule.policies import policy_or_default
from plait.schedule.policy import Policy, RememberingPolicy
from plait.schedule.state import ClusterState
from plait.schedule.windows import DAY_S
from plait.spec.cluster import PolicyChoice

HORIZON_S = 14 * 24 * 3600.0
MOST_LOOKS = 20_000
"""Tasks looked at in one forecast, over all steps: about a second of one core."""
FEWEST_STEPS = 50
SIGTERM = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Starts that are expected, by task.

    Attributes:
        starts_at_s: When each task starts that is expected to.
        until_s: How far was looked.
        is_cut: Whether there was more to come, which would have taken too long to look at.
    """

    starts_at_s: Mapping[TaskKey, float]
    until_s: float
    is_cut: bool


def forecast(state: ClusterState, policy: Policy | None = None, knowledge: Knowledge | None = None) -> Forecast:
    """Returns when the tasks that wait now are expected to start."""
    play = Rehearsal(replace(state, joined_at_s=None), policy, knowledge)
    open_tasks = sum(len(state.jobs[job_id].tasks) for job_id in state.open_jobs)
    steps = max(FEWEST_STEPS, MOST_LOOKS // max(1, open_tasks))
    until_s = state.now_s + HORIZON_S
    play.feed()
    is_cut = False
    while play.has_waiting() and (at_s := play.next_at_s()) is not None:
        steps -= 1
        is_cut = steps < 0 or at_s > until_s
        if is_cut:
            break
        play.step(at_s)
    return Forecast(starts_at_s=play.starts, until_s=play.now_s, is_cut=is_cut)


def is_in_rounds(choice: PolicyChoice, policy: Policy | None = None) -> bool:
    """Says whether the policy (None: the one that the cluster's file names) decides in rounds, not at each event."""
    return isinstance(policy or policy_or_default(choice.name, choice.weights)[0], RememberingPolicy)


class Rehearsal:
    """A state that is played on.

    Args:
        state: Where it begins.
        policy: Who decides; None takes the one that the cluster's file names.
        knowledge: What is known of tasks beyond their files.
        elastic: Tasks whose workers regroup by themselves once they run.
    """

    def __init__(
        self,
        state: ClusterState,
        policy: Policy | None = None,
        knowledge: Knowledge | None = None,
        elastic: frozenset[TaskKey] = frozenset(),
    ) -> None:
        self.state = state
        self.now_s = state.now_s
        self.starts: dict[TaskKey, float] = {}
        self._policy = policy
        self._knowledge = knowledge
        self._elastic = elastic
        self._left_s: dict[TaskKey, float] = {}
        self._ticks: set[float] = set()
        self._has_rounds = is_in_rounds(state.config.policy, policy)
        self._ends = {
            attempt.id: self.now_s + left_s
            for attempt in state.attempts.values()
            for left_s in left_s_of(state, attempt)
        }
        self._expect_edges()

    def next_at_s(self) -> float | None:
        """Returns when something happens next, or None where nothing will."""
        return min([*self._ends.values(), *self._ticks], default=None)

    def step(self, at_s: float) -> None:
        """Plays what happens at this time, the next one or an earlier one."""
        self.now_s = max(self.now_s, at_s)
        self._ticks = {tick for tick in self._ticks if tick > self.now_s}
        over = [attempt_id for attempt_id, end_s in self._ends.items() if end_s <= self.now_s]
        self.feed(*(event for attempt_id in over for event in self.exits(attempt_id, exit_code=0)))

    def play_until(self, at_s: float) -> None:
        """Plays all that happens up to this time, this time included."""
        while (next_s := self.next_at_s()) is not None and next_s <= at_s:
            self.step(next_s)
        self.step(at_s)

    def feed(self, *events: Event) -> None:
        """Applies events at the present time, a tick behind them, and all that follows at once.

        Their ids and times are replaced.
        """
        queue: list[Event] = [*events, Tick(id=0, at_s=0.0)]
        while queue:
            event = queue.pop(0)
            stamp: dict[str, Any] = {"id": self.state.last_event_id + 1, "at_s": self.now_s}
            if isinstance(event, Tick):
                stamp["day_s"] = round(self._day_s()) % DAY_S
            self.state, commands = machine.apply(self.state, replace(event, **stamp), self._policy, self._knowledge)
            queue.extend(self._followed(commands))
        if self._has_rounds and self._ends and self.has_waiting():
            self._ticks.add(self.now_s + max(1.0, self.state.config.policy.round_s))

    def has_waiting(self) -> bool:
        """Says whether a task waits that has not started since the beginning."""
        return any(
            task.state in ("waiting", "blocked") and task.key not in self.starts
            for job_id in self.state.open_jobs
            for task in self.state.jobs[job_id].tasks.values()
        )

    def exits(self, attempt_id: str, *, exit_code: int | None) -> Iterator[Event]:
        """Yields the ends of all workers of an attempt; without an exit code they were killed."""
        end_s = self._ends.pop(attempt_id, None)
        attempt = self.state.attempts.get(attempt_id)
        if attempt is None:
            return
        if end_s is not None:
            self._left_s[attempt.task] = end_s - self.now_s
        yield from (_exited(attempt_id, worker_id, exit_code) for worker_id in attempt.workers)

    def _expect_edges(self) -> None:
        """Puts the times at which windows and reservations open and close, and pauses end, into the calendar."""
        day_s, config = self.state.day_s(), self.state.config
        if day_s is not None:
            edges = [edge for one in config.windows for edge in (one.from_s, one.to_s)]
            edges += [edge for one in config.reservations for edge in (one.from_s, one.to_s)]
            for edge in edges:
                in_s = (edge - day_s) % DAY_S or DAY_S
                self._ticks |= {self.now_s + in_s, self.now_s + in_s + DAY_S}
        for job_id in self.state.open_jobs:
            tasks = self.state.jobs[job_id].tasks.values()
            self._ticks |= {t.ready_at_s for t in tasks if t.state == "waiting" and t.ready_at_s > self.now_s}
        for record in self.state.nodes.values():
            due = (trouble.until_s for trouble in record.troubles.values())
            self._ticks |= {until_s for until_s in due if until_s is not None and until_s > self.now_s}

    def _day_s(self) -> float:
        known = self.state.day_s()
        return known + (self.now_s - self.state.now_s) if known is not None else 0.0

    def _followed(self, commands: Sequence[Command]) -> Iterator[Event]:
        for command in commands:
            match command:
                case StartTask(attempt_id=attempt_id, task=key, placement=placement):
                    self._begin(attempt_id, key)
                    yield from (_started(attempt_id, worker.worker_id) for worker in placement.workers)
                    if key in self._elastic:
                        yield StepReported(
                            id=0, at_s=0.0, attempt_id=attempt_id, step=0, total_steps=None, samples_per_s=0.0,
                            elastic=True,
                        )  # fmt: skip
                case ResizeTask(attempt_id=attempt_id, add=add, remove=remove):
                    yield from (_started(attempt_id, worker.worker_id) for worker in add)
                    yield from (_exited(attempt_id, worker_id, 0) for worker_id in remove)
                case StopTask(attempt_id=attempt_id):
                    yield from self.exits(attempt_id, exit_code=None)
                case TestDevice(device=device, cause=test):
                    yield DeviceTested(id=0, at_s=0.0, device=device, test=test, passed=True, detail="as is hoped")
                case _:
                    pass

    def _begin(self, attempt_id: str, key: TaskKey) -> None:
        self.starts.setdefault(key, self.now_s)
        left_s = self._left_s.get(key, self.state.jobs[key.job_id].job.task(key.task).expected_runtime_s)
        if left_s is not None:
            self._ends[attempt_id] = self.now_s + left_s


def _started(attempt_id: str, worker_id: str) -> WorkerStarted:
    return WorkerStarted(id=0, at_s=0.0, attempt_id=attempt_id, worker_id=worker_id)


def _exited(attempt_id: str, worker_id: str, exit_code: int | None) -> WorkerExited:
    signal = None if exit_code is not None else SIGTERM
    return WorkerExited(id=0, at_s=0.0, attempt_id=attempt_id, worker_id=worker_id, exit_code=exit_code, signal=signal)
