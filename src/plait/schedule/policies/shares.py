"""What one task gets in a round, filled from the devices that are left: the part that queueing policies have alike."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.schedule.domain import TaskKey
from plait.schedule.phrases import of_workers
from plait.schedule.policy import ClusterView, TaskView


def claim(task: TaskView) -> tuple[int, float, str]:
    """Orders tasks: higher priority first, then earlier submission, then name."""
    return (-task.priority, task.submitted_at_s, str(task.key))


def usable_types(task: TaskView, cluster: ClusterView) -> tuple[str, ...]:
    """Returns the types that the task wants and the cluster has, fastest first, then cheapest, then by name."""
    wanted = [request.accelerator for request in task.resources.any_of] or list(cluster.total)
    usable = [name for name in dict.fromkeys(wanted) if most_slots(task, cluster, name) > 0]
    price = cluster.prices_per_hour
    return tuple(sorted(usable, key=lambda name: (-task.speeds.get(name, 0.0), price.get(name, 0.0), name)))


def most_slots(task: TaskView, cluster: ClusterView, name: str) -> int:
    """Returns how many workers of the task this type holds when all else is idle."""
    by_devices = cluster.total.get(name, 0) // task.devices_per_worker(name)
    return min(by_devices, task.slots.get(name, by_devices))


def num_workers(counts: Mapping[str, int]) -> int:
    """Returns workers over all types."""
    return sum(counts.values())


def listed(counts: Mapping[str, int]) -> str:
    """Returns ``2 x A100 + 1 x T4``; types without any are left out."""
    return " + ".join(f"{number} x {name}" for name, number in counts.items() if number)


@dataclass(slots=True)
class Share:
    """A task and the workers that it newly gets, by type."""

    task: TaskView
    new: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> TaskKey:
        """The task's key."""
        return self.task.key

    def could_ever_fit(self, cluster: ClusterView) -> bool:
        """Says whether the fewest workers fit when all else is idle."""
        slots = [most_slots(self.task, cluster, name) for name in usable_types(self.task, cluster)]
        room = (sum(slots) if self.task.resources.mix else max(slots)) if slots else 0
        return room >= self.task.workers.min

    def room(self, left: Mapping[str, int], name: str) -> int:
        """Returns how many more workers of this type fit on what is left."""
        by_devices = left.get(name, 0) // self.task.devices_per_worker(name)
        free = self.task.free_slots.get(name, by_devices if not self.task.free_slots else 0)
        return max(0, min(by_devices, free - self.new.get(name, 0)))

    def take_fewest(self, left: dict[str, int], cluster: ClusterView) -> bool:
        """Takes the fewest workers that the task runs with, or nothing where they do not fit; says which."""
        fewest, types = self.task.workers.min, usable_types(self.task, cluster)
        if self.task.resources.mix:
            if sum(self.room(left, name) for name in types) < fewest:
                return False
            for name in types:
                self._take(left, name, min(self.room(left, name), fewest - num_workers(self.new)))
            return True
        fitting = [name for name in types if self.room(left, name) >= fewest]
        if not fitting:
            return False
        self._take(left, max(fitting, key=lambda name: self._power(left, name)), fewest)
        return True

    def take_more(self, left: dict[str, int], cluster: ClusterView, kept: frozenset[str]) -> None:
        """Takes more workers, up to the task's maximum, on types that are not ``kept`` for others."""
        have = dict(self.task.allocation.counts) if self.task.allocation is not None else {}
        types = [name for name in usable_types(self.task, cluster) if name not in kept]
        if not self.task.resources.mix:
            types = [name for name in types if name in {**have, **self.new}]
        for name in types:
            wanted = self.task.workers.max - num_workers(have) - num_workers(self.new)
            self._take(left, name, max(0, min(wanted, self.room(left, name))))

    def _power(self, left: Mapping[str, int], name: str) -> float:
        """The speed of the task on this type alone; ``usable_types`` breaks ties by its order."""
        return self.task.speeds.get(name, 0.0) * min(self.task.workers.max, self.room(left, name))

    def _take(self, left: dict[str, int], name: str, number: int) -> None:
        if number > 0:
            self.new[name] = self.new.get(name, 0) + number
            left[name] -= number * self.task.devices_per_worker(name)

    def needs(self) -> str:
        """Returns what the task needs at least, in words."""
        requests = self.task.resources.any_of
        names = [f"{r.count} x {r.accelerator}" if r.count > 1 else r.accelerator for r in requests] or ["any type"]
        joined = (" + " if self.task.resources.mix else " or ").join(names)
        return f"needs {of_workers(self.task.workers.min)} of {joined}"

    def choice(self, cluster: ClusterView) -> str:
        """Returns why these types and not others."""
        workers, total = self.task.workers, num_workers(self.new)
        wanted = f"{workers.min} to {workers.max} wanted" if workers.min < workers.max else "all that it wants"
        text = f"{of_workers(total)} on {listed(self.new)} ({wanted})"
        types = usable_types(self.task, cluster)
        if len(types) > 1:
            speeds = ", ".join(f"{name} {self.task.speeds.get(name, 0.0):g}" for name in types)
            rule = "fastest types first" if self.task.resources.mix else "the one type that is fastest for it"
            text += f"; {rule} (speed of a worker: {speeds})"
        others = [self._why_not(cluster, name, total) for name in types if name not in self.new]
        return "; ".join([text, *others])

    def _why_not(self, cluster: ClusterView, name: str, total: int) -> str:
        if not cluster.free.get(name, 0):
            return f"{name} not used: none is free"
        if not self.task.free_slots.get(name, 1):
            return f"{name} not used: no worker fits on what is free"
        if not self.task.resources.mix:
            return f"{name} not used: all workers go on one type"
        if total >= self.task.workers.max:
            return f"{name} not used: no more workers are wanted"
        return f"{name} not used: kept for tasks that wait"
