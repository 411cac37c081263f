"""What the controller knows beside the scheduler's state: submissions, agents, and which worker is owed which order.

The ledger is a fold over the journal: the same records always give the same ledger, so that a restarted controller
owes every agent exactly what the dead one owed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from plait.controller.journal import Record, Registration, Report, Submission
from plait.schedule.commands import AbortCollectives, Command, ResizeTask, StartTask, StopTask, TestDevice
from plait.schedule.domain import TaskKey, WorkerPlacement
from plait.schedule.events import ClusterConfigured, JobSubmitted, NodeJoined, NodeLost, WorkerExited, WorkerStarted
from plait.spec.cluster import Cluster
from plait.spec.job import FailureCause
from plait.wire import Codec

LEAVE_GRACE_S = 30.0
"""How long a worker that a resize removes may take to leave its group by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The worker is to end: why, and how long it may take in seconds."""

    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One worker that an agent shall run; it stands until the worker's end is known."""

    attempt_id: str
    task: TaskKey
    worker: WorkerPlacement
    is_joiner: bool = False
    is_up: bool = False
    stop: Stop | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Attempt and worker: unique for ever."""
        return (self.attempt_id, self.worker.worker_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord:
    """The agent process that holds a node; ``number`` is its last report that counts. ``is_present`` until lost."""

    incarnation: str
    number: int = 0
    is_present: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnd:
    """How a worker ended; ``failure`` is None for exit code 0."""

    exit_code: int | None
    signal: int | None
    failure: FailureCause | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """The newest attempt of a task: who it started with, who joined since, and who has ended."""

    attempt_id: str
    founders: tuple[WorkerPlacement, ...]
    joiners: tuple[WorkerPlacement, ...] = ()
    ends: Mapping[str, WorkerEnd] = field(default_factory=dict)


@dataclass(slots=True)
class Ledger:
    """Submissions by job, agents by node, orders by attempt and worker, gangs and counts of attempts by task."""

    cluster: Cluster | None = None
    """The administrator's file that decisions follow."""
    submissions: dict[str, Submission] = field(default_factory=dict)
    agents: dict[str, AgentRecord] = field(default_factory=dict)
    orders: dict[str, dict[str, Order]] = field(default_factory=dict)
    gangs: dict[str, Gang] = field(default_factory=dict)
    """The newest attempt of each ``JOB/TASK``, also after its end."""
    starts: dict[str, int] = field(default_factory=dict)
    """How often each ``JOB/TASK`` was started."""

    def job_of_request(self, request_id: str) -> str | None:
        """Returns the job that this request was answered with, if it was."""
        for job_id, submission in reversed(self.submissions.items()):
            if submission.request_id == request_id:
                return job_id
        return None

    def next_job_id(self, name: str) -> str:
        """Returns ``name-n`` with the first n not taken."""
        number = 1 + sum(job_id.rpartition("-")[0] == name for job_id in self.submissions)
        while f"{name}-{number}" in self.submissions:
            number += 1
        return f"{name}-{number}"

    def of_node(self, node: str) -> tuple[Order, ...]:
        """Returns every order that this node's agent is owed."""
        return tuple(order for order in self.all_orders() if order.worker.node == node)

    def of_attempt(self, attempt_id: str) -> Mapping[str, Order]:
        """Returns the orders of one attempt by worker."""
        return self.orders.get(attempt_id, {})

    def all_orders(self) -> Iterator[Order]:
        """Goes over all orders that stand."""
        for orders in self.orders.values():
            yield from orders.values()

    def order(self, attempt_id: str, worker_id: str) -> Order | None:
        """Returns the order of this worker, or None where its end is known or it never was ordered."""
        return self.orders.get(attempt_id, {}).get(worker_id)

    def apply(self, record: Record) -> None:
        """Takes one record in."""
        self._note(record)
        match record.event:
            case WorkerStarted(attempt_id=attempt_id, worker_id=worker_id):
                order = self.order(attempt_id, worker_id)
                if order is not None:
                    self._put(replace(order, is_up=True))
            case ClusterConfigured(cluster=cluster):
                self.cluster = cluster
            case WorkerExited() as ended:
                self._end(ended)
            case NodeLost(node=node):
                # Should the node come back, what it still runs has been given up and must end before anything else.
                for order in self.of_node(node):
                    self._put(replace(order, stop=order.stop or Stop(grace_s=0.0, reason="its node was lost")))
                if node in self.agents:
                    self.agents[node] = replace(self.agents[node], is_present=False)
            case _:
                pass
        for command in record.commands:
            self._carry(command)

    def dump(self) -> bytes:
        """Returns the ledger as JSON."""
        return _CODEC.encode(self)

    @staticmethod
    def load(data: bytes) -> "Ledger":
        """Returns the ledger that ``dump`` gave."""
        return _CODEC.decode(data)

    def _note(self, record: Record) -> None:
        event, note = record.event, record.note
        if isinstance(note, Submission) and isinstance(event, JobSubmitted):
            self.submissions[event.job_id] = note
        elif isinstance(note, Registration) and isinstance(event, NodeJoined):
            before = self.agents.get(event.node.id)
            number = before.number if before is not None and before.incarnation == note.incarnation else 0
            self.agents[event.node.id] = AgentRecord(incarnation=note.incarnation, number=number)
        elif isinstance(note, Report):
            for node, agent in self.agents.items():
                if agent.incarnation == note.incarnation:
                    self.agents[node] = replace(agent, number=max(agent.number, note.number))

    def _carry(self, command: Command) -> None:
        match command:
            case StartTask(attempt_id=attempt_id, task=task, placement=placement):
                self.starts[str(task)] = self.starts.get(str(task), 0) + 1
                self.gangs[str(task)] = Gang(attempt_id=attempt_id, founders=placement.workers)
                for worker in placement.workers:
                    self._put(Order(attempt_id=attempt_id, task=task, worker=worker))
            case ResizeTask(attempt_id=attempt_id, add=add, remove=remove, reason=reason):
                task = _task_of(attempt_id)
                gang = self.gangs.get(str(task))
                if gang is not None:
                    self.gangs[str(task)] = replace(gang, joiners=(*gang.joiners, *add))
                for worker in add:
                    self._put(Order(attempt_id=attempt_id, task=task, worker=worker, is_joiner=True))
                self._stop(attempt_id, remove, Stop(grace_s=LEAVE_GRACE_S, reason=reason))
            case StopTask(attempt_id=attempt_id, grace_s=grace_s, reason=reason):
                self._stop(attempt_id, tuple(self.of_attempt(attempt_id)), Stop(grace_s=grace_s, reason=reason))
            case AbortCollectives() | TestDevice():
                pass

    def _stop(self, attempt_id: str, worker_ids: Iterable[str], stop: Stop) -> None:
        for worker_id in worker_ids:
            order = self.order(attempt_id, worker_id)
            if order is not None:
                self._put(replace(order, stop=stop))

    def _put(self, order: Order) -> None:
        self.orders.setdefault(order.attempt_id, {})[order.worker.worker_id] = order

    def _end(self, event: WorkerExited) -> None:
        gang = self.gangs.get(str(_task_of(event.attempt_id)))
        if gang is not None and gang.attempt_id == event.attempt_id:
            end = WorkerEnd(exit_code=event.exit_code, signal=event.signal, failure=event.failure, detail=event.detail)
            task = str(_task_of(event.attempt_id))
            self.gangs[task] = replace(gang, ends={**gang.ends, event.worker_id: end})
        workers = self.orders.get(event.attempt_id, {})
        workers.pop(event.worker_id, None)
        if not workers:
            self.orders.pop(event.attempt_id, None)


def _task_of(attempt_id: str) -> TaskKey:
    job_id, task, _ = attempt_id.rsplit("/", 2)
    return TaskKey(job_id=job_id, task=task)


_CODEC: Codec[Ledger] = Codec(Ledger)
