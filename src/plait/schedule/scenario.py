"""A cluster on paper: feeds the machine events one after another and looks at the invariants after each.

For tests, for trying out a policy, and for pages of the documentation; nothing runs and no time passes by itself.
"""

from typing import Any

from plait.hardware.device import Device, Node
from plait.schedule import machine
from plait.schedule.commands import Command, StartTask
from plait.schedule.domain import TaskKey
from plait.schedule.events import Event, JobSubmitted, NodeJoined, StepReported, Tick, WorkerExited, WorkerStarted
from plait.schedule.explain import explain
from plait.schedule.policy import Policy
from plait.schedule.state import AttemptRecord, ClusterState, TaskRecord
from plait.schedule.validate import validate
from plait.spec.cluster import Cluster
from plait.spec.job import DeviceRequest, FailureCause, FailureRules, Job, Resources, Task, WorkerRange


class Scenario:
    """Keeps the state, every event and the commands that the last one led to."""

    def __init__(self, policy: Policy | None = None, cluster: Cluster | None = None) -> None:
        self.state: ClusterState = machine.initial(cluster)
        self.policy = policy
        self.events: list[Event] = []
        self.commands: tuple[Command, ...] = ()
        self.now_s = 0.0

    def feed(self, form: Any, **fields: Any) -> tuple[Command, ...]:
        """Applies one event of this class; id and time are added."""
        event: Event = form(id=len(self.events) + 1, at_s=self.now_s, **fields)
        self.events.append(event)
        self.state, self.commands = machine.apply(self.state, event, self.policy)
        validate(self.state)
        return self.commands

    def join(
        self,
        name: str,
        accelerator: str,
        num_devices: int = 1,
        *,
        speed: float = 1.0,
        memory_bytes: int | None = None,
        num_ports: int = 1000,
    ) -> tuple[Command, ...]:
        """Lets a node join that has so many devices of one type, and lets it settle."""
        devices = tuple(
            Device(
                id=f"{name}/{index}",
                node=name,
                index=index,
                accelerator_type=accelerator,
                speed=speed,
                memory_bytes=memory_bytes,
            )
            for index in range(num_devices)
        )
        node = Node(id=name, address=f"{name}.example", devices=devices, num_ports=num_ports)
        commands = self.feed(NodeJoined, node=node)
        return commands + self.tick(self.state.config.settle_s)

    def submit(
        self,
        job_id: str,
        *tasks: Task,
        priority: int = 0,
        failure: FailureRules | None = None,
    ) -> tuple[Command, ...]:
        """Submits a job of these tasks."""
        job = Job(name=job_id, tasks=tasks, priority=priority, failure=failure or FailureRules())
        return self.feed(JobSubmitted, job_id=job_id, job=job)

    def tick(self, seconds: float = 1.0, day_s: int | None = None) -> tuple[Command, ...]:
        """Lets time pass; the time of day goes on from the last tick (midnight at first) unless it is given."""
        self.now_s += seconds
        if day_s is None:
            day_s = int((self.state.day_s() or 0.0) + self.now_s - self.state.now_s) % 86400
        return self.feed(Tick, day_s=day_s)

    def started(self, attempt_id: str) -> None:
        """Reports that every worker of the attempt started."""
        for worker_id in tuple(self.attempt(attempt_id).workers):
            self.feed(WorkerStarted, attempt_id=attempt_id, worker_id=worker_id)

    def stepped(self, attempt_id: str, step: int = 1, *, elastic: bool = True) -> tuple[Command, ...]:
        """Reports a step of the attempt, whose workers all started."""
        self.started(attempt_id)
        return self.feed(
            StepReported, attempt_id=attempt_id, step=step, total_steps=100, samples_per_s=1.0, elastic=elastic
        )

    def ended(
        self, attempt_id: str, worker_id: str, failure: FailureCause | None = None, exit_code: int | None = None
    ) -> tuple[Command, ...]:
        """Reports the end of a worker; without a failure it exited with 0."""
        code = 0 if failure is None else exit_code
        return self.feed(WorkerExited, attempt_id=attempt_id, worker_id=worker_id, exit_code=code, failure=failure)

    def finished(self, attempt_id: str) -> tuple[Command, ...]:
        """Reports that every worker of the attempt exited with 0; returns the commands of all these events."""
        commands: tuple[Command, ...] = ()
        for worker_id in tuple(self.attempt(attempt_id).workers):
            commands += self.ended(attempt_id, worker_id)
        return commands

    def attempt(self, attempt_id: str) -> AttemptRecord:
        """Returns a live attempt."""
        return self.state.attempts[attempt_id]

    def task(self, job_id: str, task: str = "train") -> TaskRecord:
        """Returns the record of a task."""
        return self.state.task(TaskKey(job_id=job_id, task=task))

    def devices(self, attempt_id: str) -> list[str]:
        """Returns the devices that active workers of the attempt hold, sorted."""
        return sorted(device for w in self.attempt(attempt_id).active() for device in w.placement.device_ids)

    def explained(self, job_id: str) -> str:
        """Returns every reason of the job as one text."""
        return "\n".join(explain(self.state, job_id))


def task_of(
    accelerators: str = "A100",
    workers: tuple[int, int] = (1, 1),
    *,
    name: str = "train",
    needs: tuple[str, ...] = (),
    mix: bool = True,
    count: int = 1,
    memory_bytes: int | None = None,
    run_during: str | None = None,
) -> Task:
    """Returns a task that wants devices of these types, divided by blanks."""
    any_of = tuple(
        DeviceRequest(accelerator=accelerator, count=count, memory_bytes=memory_bytes)
        for accelerator in accelerators.split()
    )
    return Task(
        name=name,
        command=("python", "train.py"),
        needs=needs,
        workers=WorkerRange(min=workers[0], max=workers[1]),
        resources=Resources(any_of=any_of, mix=mix),
        run_during=run_during,
    )


def started_attempts(commands: tuple[Command, ...]) -> list[str]:
    """Returns the attempts that these commands start, in order."""
    return [command.attempt_id for command in commands if isinstance(command, StartTask)]
