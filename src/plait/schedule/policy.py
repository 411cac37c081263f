"""The interface of a scheduling policy: a pure function of a view of the cluster.

A policy that needs to know what it did before gets a ``Memory`` and returns the next one; it keeps nothing itself, so
that a recorded run can be replayed and two clusters can share one policy object.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from plait.schedule.domain import Allocation, Decision, TaskKey, TaskState
from plait.spec.job import Resources, WorkerRange

Memory = Mapping[str, Mapping[str, float]]
"""Named ledgers of numbers by key, such as ``{"time_s": {"j1/train": 180.0}}``, that a policy wants to know in its
next round. Plain numbers, so that it is stored with the state of the cluster and survives a restart. Never changed in
place."""

NOTHING_REMEMBERED: Memory = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One way to run a task: so many workers by type (sorted), on as few nodes as hold them or spread over more.

    More than one type is a heterogeneous unit. ``is_spread`` where placement needs more nodes than the fewest that
    could hold the workers.
    """

    counts: tuple[tuple[str, int], ...]
    is_spread: bool = False

    @property
    def num_workers(self) -> int:
        """Workers over all types."""
        return sum(number for _, number in self.counts)

    @property
    def allocation(self) -> Allocation:
        """What placement gets to see of it."""
        return Allocation(counts=self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How much work a configuration does a second (the whole gang, statistical efficiency included).

    ``relative_error`` is the standard deviation of the estimate over its value; None where it is not known.
    """

    per_s: float
    relative_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """What a policy may know of one task that waits or runs.

    Work is counted in one unit a task (steps, samples): that of ``rates``, ``done_work`` and ``remaining_work``. Only
    ratios within a task mean something.

    Attributes:
        speeds: Predicted samples/s of one worker by accelerator type (up to a common factor).
        elastic: Its workers regroup in process, so it can be resized while it runs. Another allocation for a running
            task that is not elastic means: stop it and start it anew.
        ready_at_s: A restart may not be tried earlier; the task keeps its place in the queue meanwhile.
        slots: How many of its workers each type can hold on healthy, undrained nodes when all else is idle. It takes
            memory, devices a worker and node boundaries into account; a type that is missing is not wanted.
        free_slots: The same with the devices that are free now.
        attained_service_s: Worker-seconds that it held devices.
        rates: Work a second by configuration, where somebody measured or predicted it. Tasks of the same kind may
            share one mapping object. Empty: ``rate`` falls back on ``speeds``, in proportion to the workers.
        remaining_work: None where nobody knows.
        done_work: Work that counts by now; None where it is not reported.
        runtime_s: Seconds during which it held devices, whatever their number.
        restarts: Starts after the first one in which it had got any work done before.
        restart_cost_s: Seconds without progress when it starts or changes its configuration; None where not known.
        num_nodes: Nodes that its present allocation is on; 0 while it waits.
        weight: Its claim on a fair share against others; priority is another thing: it goes first.
        deadline_at_s: When it should have finished; None where it does not matter.
    """

    key: TaskKey
    project: str
    priority: int
    submitted_at_s: float
    state: TaskState
    workers: WorkerRange
    resources: Resources
    allocation: Allocation | None = None
    attained_service_s: float = 0.0
    window_open: bool = True
    speeds: Mapping[str, float] = field(default_factory=dict)
    elastic: bool = False
    ready_at_s: float = 0.0
    slots: Mapping[str, int] = field(default_factory=dict)
    free_slots: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[Configuration, Rate] = field(default_factory=dict)
    remaining_work: float | None = None
    done_work: float | None = None
    runtime_s: float = 0.0
    restarts: int = 0
    restart_cost_s: float | None = None
    num_nodes: int = 0
    weight: float = 1.0
    deadline_at_s: float | None = None

    def devices_per_worker(self, accelerator_type: str) -> int:
        """Returns how many devices of this type one worker takes; without requests any type does, one each."""
        for request in self.resources.any_of:
            if request.accelerator == accelerator_type:
                return request.count
        return 1

    def rate(self, accelerator_type: str, num_workers: int, *, is_spread: bool = False) -> float:
        """Returns work a second with so many workers of one type; 0.0 where it does not run so.

        Without a rate of its own, a spread configuration is taken to be as fast as a consolidated one. Without any
        rates the speed of one worker counts, times their number.
        """
        if not self.rates:
            return self.speeds.get(accelerator_type, 0.0) * num_workers
        counts = ((accelerator_type, num_workers),)
        known = self.rates.get(Configuration(counts=counts, is_spread=is_spread))
        if known is None and is_spread:
            known = self.rates.get(Configuration(counts=counts))
        return known.per_s if known is not None else 0.0

    def sizes(self, accelerator_type: str) -> tuple[int, ...]:
        """Returns the numbers of workers of one type with which it runs, ascending: within its range and its slots."""
        most = min(self.workers.max, self.slots.get(accelerator_type, 0))
        if not self.rates:
            return tuple(range(self.workers.min, most + 1))
        known = {
            number
            for configuration, rate in self.rates.items()
            if rate.per_s > 0 and len(configuration.counts) == 1
            for name, number in configuration.counts
            if name == accelerator_type
        }
        return tuple(sorted(number for number in known if self.workers.min <= number <= most))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectTerms:
    """What a project may count on: devices guaranteed and at most, by type; its weight beyond what is guaranteed."""

    weight: float = 1.0
    quota: Mapping[str, int] = field(default_factory=dict)
    limit: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What a policy may know of the cluster: healthy, undrained devices by type, and how many are free.

    ``releasing`` counts devices that are still held but whose workers were told to go. ``memory_bytes`` is the smallest
    of each type. ``on_nodes`` lists by type how many devices each node has, the largest first; ``free_on_nodes`` how
    many are free there (nodes with none are left out).

    Policies that decide anew in rounds do so where ``is_round`` is True; between two rounds they leave what runs alone.
    Rounds are ``round_s`` apart. With ``hands_over`` (a simulator of rounds) devices that one task gives up can go to
    another in the same answer; otherwise they are free only once their workers are gone. Projects that are not in
    ``projects`` have weight 1, no quota and no limit.
    """

    now_s: float
    total: Mapping[str, int]
    free: Mapping[str, int]
    releasing: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)
    on_nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    free_on_nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    is_round: bool = True
    round_s: float = 60.0
    hands_over: bool = False
    projects: Mapping[str, ProjectTerms] = field(default_factory=dict)

    def devices_per_node(self, accelerator_type: str) -> int:
        """Returns how many devices of this type the best equipped node has; all there are where that is not known."""
        nodes = self.on_nodes.get(accelerator_type)
        return nodes[0] if nodes else self.total.get(accelerator_type, 0)


class Policy(Protocol):
    """Decides how much of which type each task gets now; placement picks the devices afterwards."""

    name: str

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task, in the order in which placement should try them."""
        ...


@runtime_checkable
class RememberingPolicy(Protocol):
    """A policy whose decisions depend on what it saw before, as far as the memory says.

    Its ``decide`` is ``decide_remembering`` with nothing remembered.
    """

    name: str

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task, in the order in which placement should try them."""
        ...

    def decide_remembering(
        self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory
    ) -> tuple[Sequence[Decision], Memory]:
        """Returns the decisions and what to show it next time, which must not grow beyond what open tasks need."""
        ...


def decide_with(
    policy: Policy, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory
) -> tuple[Sequence[Decision], Memory]:
    """Asks any policy; one that does not remember leaves the memory as it is."""
    if isinstance(policy, RememberingPolicy):
        return policy.decide_remembering(cluster, tasks, memory)
    return policy.decide(cluster, tasks), memory
