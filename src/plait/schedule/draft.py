"""A working copy of the state while one event is applied: maps are copied when first touched, then frozen again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from plait.schedule.commands import Command
from plait.schedule.domain import TaskKey
from plait.schedule.state import AttemptRecord, ClusterState, JobRecord, NodeRecord, TaskRecord
from plait.spec.job import Job, Task

V = TypeVar("V")

NOTES_KEPT = 20
"""In-process changes of an attempt that are remembered for people; older ones fall off."""


class Draft:
    """Collects the changes and commands of one event. Lives only inside one call of ``apply``."""

    def __init__(self, state: ClusterState, cause: int) -> None:
        self._state = state
        self._own: dict[str, dict[str, object]] = {}
        self.cause = cause
        self.commands: list[Command] = []
        self._touched: set[str] = set()

    def take_touched(self) -> list[JobRecord]:
        """Returns the jobs that changed since the last call, in the order of their submission."""
        jobs = [self._state.jobs[job_id] for job_id in self._touched if job_id in self._state.jobs]
        self._touched.clear()
        return sorted(jobs, key=lambda job: (job.submitted_at_s, job.number, job.id))

    @property
    def state(self) -> ClusterState:
        """The state as it stands now; do not keep it over a change."""
        return self._state

    def set_state(self, state: ClusterState) -> None:
        """Replaces scalar fields; the maps must be those of ``self.state``."""
        self._state = state

    @property
    def now_s(self) -> float:
        """The time of the event."""
        return self._state.now_s

    def _touch(self, name: str, current: Mapping[str, V]) -> dict[str, V]:
        own = self._own.get(name)
        if own is not current:
            own = dict(current)
            self._own[name] = own
            self._state = replace(self._state, **{name: own})  # type: ignore[arg-type]
        return own  # type: ignore[return-value]

    def put_job(self, job: JobRecord) -> None:
        """Adds or replaces a job."""
        self._touch("jobs", self._state.jobs)[job.id] = job
        self._touched.add(job.id)

    def put_task(self, task: TaskRecord) -> None:
        """Replaces a task of a known job."""
        job = self._state.jobs[task.key.job_id]
        if job.tasks[task.key.task] != task:
            self.put_job(replace(job, tasks={**job.tasks, task.key.task: task}))

    def put_node(self, node: NodeRecord) -> None:
        """Adds or replaces a node."""
        self._touch("nodes", self._state.nodes)[node.node.id] = node

    def put_attempt(self, attempt: AttemptRecord) -> None:
        """Adds or replaces an attempt."""
        self._touch("attempts", self._state.attempts)[attempt.id] = attempt
        self._touched.add(attempt.task.job_id)

    def drop_attempt(self, attempt_id: str) -> None:
        """Forgets an attempt that holds nothing any more."""
        attempt = self._touch("attempts", self._state.attempts).pop(attempt_id)
        self._touched.add(attempt.task.job_id)

    def task(self, key: TaskKey) -> TaskRecord:
        """Returns the record of a known task."""
        return self._state.task(key)

    def job_spec(self, key: TaskKey) -> Job:
        """Returns what the user wrote of the job."""
        return self._state.jobs[key.job_id].job

    def task_spec(self, key: TaskKey) -> Task:
        """Returns what the user wrote of the task."""
        return self.job_spec(key).task(key.task)


def with_note(attempt: AttemptRecord, note: str) -> AttemptRecord:
    """Returns the attempt with one more line for people; a line that is there already is not repeated."""
    if attempt.notes and attempt.notes[-1] == note:
        return attempt
    return replace(attempt, notes=(*attempt.notes, note)[-NOTES_KEPT:])
