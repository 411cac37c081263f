"""Gangs at work in a simulation: how fast, how much is left, what a stopped one loses."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.hardware.device import Node
from plait.schedule.domain import WorkerPlacement
from plait.sim.jobs import SimJob


@dataclass(slots=True)
class Book:
    """What is noted of one job until it ends. ``left`` is the work that remains by what is saved."""

    job: SimJob
    left: float
    active_at_submit: float
    start_s: float | None = None
    restarts: int = 0
    has_worked: bool = False
    device_s: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Gang:
    """An attempt that is alive: it works from ``works_from_s`` on, at ``rate``; ``saved`` was left at its start.

    ``version`` tells plans for its end apart: only that of the last change counts.
    """

    attempt_id: str
    job: SimJob
    saved: float
    left: float
    since_s: float
    works_from_s: float
    workers: dict[str, WorkerPlacement] = field(default_factory=dict)
    held_since_s: dict[str, float] = field(default_factory=dict)
    rate: float = 0.0
    version: int = 0
    is_stopping: bool = False

    def work_until(self, now_s: float) -> float:
        """Books the work done since the last look; returns the seconds that were worked."""
        begins_s = max(self.since_s, self.works_from_s)
        worked_s = max(0.0, now_s - begins_s) if not self.is_stopping else 0.0
        self.left -= self.rate * worked_s
        self.since_s = max(self.since_s, now_s)
        return worked_s

    def end_s(self, now_s: float) -> float | None:
        """Returns when it finishes if nothing changes, or None where it never does."""
        if self.rate <= 0 or self.is_stopping:
            return None
        return max(now_s, self.works_from_s) + max(self.left, 0.0) / self.rate

    def counts(self) -> dict[str, int]:
        """Returns its workers by type."""
        found: dict[str, int] = {}
        for worker in self.workers.values():
            found[worker.accelerator_type] = found.get(worker.accelerator_type, 0) + 1
        return found

    def left_after_stop(self, checkpoint_s: float) -> float:
        """Returns what is left when it stops now: work since the last checkpoint is lost."""
        done = max(self.saved - self.left, 0.0)
        if checkpoint_s > 0 and self.rate > 0:
            each = checkpoint_s * self.rate
            done = done // each * each
        return self.saved - done


class Hardware:
    """What the simulation has to know of the nodes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.capacity: dict[str, int] = {}
        self._largest: dict[str, int] = {}
        for node in nodes:
            here: dict[str, int] = {}
            for device in node.devices:
                here[device.accelerator_type] = here.get(device.accelerator_type, 0) + 1
            for name, number in here.items():
                self.capacity[name] = self.capacity.get(name, 0) + number
                self._largest[name] = max(self._largest.get(name, 0), number)

    def rate(self, gang: Gang) -> float:
        """Returns work a second of the gang where it is; a mixed gang does the sum of what its parts would do."""
        rate = 0.0
        for name, number in gang.counts().items():
            on = {worker.node for worker in gang.workers.values() if worker.accelerator_type == name}
            fewest = -(-number // max(self._largest.get(name, 1), 1))
            rate += gang.job.rate(name, number, is_spread=len(on) > fewest)
        return rate
