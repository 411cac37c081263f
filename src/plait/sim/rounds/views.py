"""What a policy is shown by a simulator of rounds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from plait.schedule.domain import Allocation, TaskKey
from plait.schedule.policy import ClusterView, TaskView
from plait.sim.jobs import Rates, SimJob
from plait.spec.job import DeviceRequest, Resources, WorkerRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """A cluster for the round simulators: ``nodes[type]`` lists the devices of each node, prices are by device-hour."""

    nodes: Mapping[str, tuple[int, ...]]
    prices_per_hour: Mapping[str, float]

    @property
    def capacity(self) -> dict[str, int]:
        """Devices by type."""
        return {name: sum(devices) for name, devices in self.nodes.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a job stands when the policy is asked. ``remaining`` and ``rates`` are what the policy may believe."""

    allocation: tuple[str, int] | None
    num_nodes: int
    done: float
    remaining: float | None
    attained_service_s: float
    runtime_s: float
    restarts: int
    rates: Rates


class Viewer:
    """Makes the views of one run; what does not change over it is made once."""

    def __init__(self, machines: Machines, round_s: float, restart_cost_s: float) -> None:
        self.machines = machines
        self.round_s = round_s
        self.restart_cost_s = restart_cost_s
        self.capacity = machines.capacity
        self.free = dict(self.capacity)
        self._on_nodes = {name: tuple(sorted(nodes, reverse=True)) for name, nodes in machines.nodes.items()}
        self._keys: dict[str, TaskKey] = {}
        self._slots: dict[tuple[int, int], dict[str, int]] = {}

    def key(self, job: SimJob) -> TaskKey:
        """Returns the key under which decisions about the job come back."""
        key = self._keys.get(job.id)
        if key is None:
            key = self._keys[job.id] = TaskKey(job_id=job.id, task="train")
        return key

    def cluster(self, now_s: float, held: Iterable[tuple[str, int]]) -> ClusterView:
        """Returns the cluster; ``held`` are the devices, by type, of each job that holds some.

        A policy that decides on all devices anew need not look at what is free; one that lets jobs run on has to.
        """
        self.free = dict(self.capacity)
        for name, number in held:
            self.free[name] -= number
        return ClusterView(
            now_s=now_s,
            total=self.capacity,
            free=self.free,
            prices_per_hour=self.machines.prices_per_hour,
            on_nodes=self._on_nodes,
            round_s=self.round_s,
            hands_over=True,
        )

    def task(self, job: SimJob, standing: Standing) -> TaskView:
        """Returns the job as the policy sees it, beside the cluster of the last :meth:`cluster`."""
        slots = self._usable(job)
        fewest, most = job.size_range
        allocation = Allocation(counts=(standing.allocation,)) if standing.allocation is not None else None
        return TaskView(
            key=self.key(job),
            project=job.project,
            priority=job.priority,
            submitted_at_s=job.submitted_at_s,
            state="waiting" if allocation is None else "running",
            workers=WorkerRange(min=fewest, max=most),
            resources=Resources(any_of=tuple(DeviceRequest(accelerator=name) for name in slots), mix=False),
            allocation=allocation,
            attained_service_s=standing.attained_service_s,
            speeds=_speeds(standing.rates, slots, fewest),
            slots=slots,
            free_slots={name: min(number, self.free[name]) for name, number in slots.items()},
            rates=standing.rates,
            remaining_work=standing.remaining,
            done_work=standing.done,
            runtime_s=standing.runtime_s,
            restarts=standing.restarts,
            restart_cost_s=self.restart_cost_s,
            num_nodes=standing.num_nodes,
            weight=job.weight,
            deadline_at_s=job.deadline_at_s,
        )

    def _usable(self, job: SimJob) -> dict[str, int]:
        """Returns the devices of each type on which the job runs at one of its sizes."""
        known = self._slots.get((id(job.rates), job.num_workers))
        if known is None or job.allowed:
            fewest, most = job.size_range
            known = {
                name: number
                for name, number in self.capacity.items()
                if (not job.allowed or name in job.allowed) and _runs(job.rates, name, fewest, most)
            }
            if not job.allowed:
                self._slots[id(job.rates), job.num_workers] = known
        return known


def _speeds(rates: Rates, names: Iterable[str], num_workers: int) -> dict[str, float]:
    """Returns what one of so many workers does on each type; 0 where that is not known."""
    found = dict.fromkeys(names, 0.0)
    for configuration, rate in rates.items():
        name = configuration.counts[0][0]
        if len(configuration.counts) == 1 and configuration.num_workers == num_workers and name in found:
            found[name] = max(found[name], rate.per_s / num_workers)
    return found


def _runs(rates: Rates, name: str, fewest: int, most: int) -> bool:
    return any(
        c.counts[0][0] == name and fewest <= c.num_workers <= most and rate.per_s > 0
        for c, rate in rates.items()
        if len(c.counts) == 1
    )
