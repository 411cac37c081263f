"""Gavel's own simulator, convention by convention, so that policies can be compared with its published tables.

Rounds of 360 s end when the slowest task ends, whole steps only, no restart cost, devices of finished jobs idle until
the round ends, steps given out to workers in whole numbers: a micro-task with fewer steps than workers fails, and a job
that fails five times in a row is dropped. None of this is recommended; the neutral setting is another module.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.schedule.policy import NOTHING_REMEMBERED, Memory, Policy
from plait.sim.jobs import SimJob
from plait.sim.outcome import JobOutcome, RunOutcome, fair_time_s
from plait.sim.rounds.views import Machines, Standing, Viewer
from plait.sim.timed import TimedPolicy

ROUND_S = 360.0
MOST_FAILURES = 5


@dataclass(slots=True)
class _Running:
    """A job that has arrived and not ended."""

    job: SimJob
    steps_done: int = 0
    runtime_s: float = 0.0
    failures: int = 0
    restarts: int = 0
    last: tuple[str, int] | None = None
    start_s: float | None = None
    device_s: dict[str, float] = field(default_factory=dict)

    @property
    def steps_left(self) -> int:
        return int(self.job.work) - self.steps_done


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A micro-task of the round under way."""

    running: _Running
    accelerator_type: str
    steps: int
    end_s: float


def run_gavel_conventions(jobs: Sequence[SimJob], machines: Machines, policy: Policy) -> RunOutcome:
    """Plays a trace through; jobs must be in the order of their arrival."""
    run = _Run(jobs, machines, policy)
    while run.active or run.queue:
        run.round()
    return run.outcome()


class _Run:
    def __init__(self, jobs: Sequence[SimJob], machines: Machines, policy: Policy) -> None:
        self.machines = machines
        self.policy = TimedPolicy(policy)
        self.viewer = Viewer(machines, ROUND_S, restart_cost_s=0.0)
        self.queue = list(jobs)
        self.active: dict[str, _Running] = {}
        self.under_way: list[_Task] = []
        self.ended: list[tuple[_Running, float | None]] = []
        self.now_s = jobs[0].submitted_at_s if jobs else 0.0
        self.round_start_s = 0.0
        self.round_end_s: float | None = None
        self.memory: Memory = NOTHING_REMEMBERED
        self.cost = 0.0

    def round(self) -> None:
        self._advance()
        while self.queue and self.queue[0].submitted_at_s <= self.now_s:
            job = self.queue.pop(0)
            self.active[job.id] = _Running(job=job)
        self._schedule()

    def _advance(self) -> None:
        """Jumps to the end of the round, or to the next arrival where nothing ran."""
        if not self.under_way:
            if self.queue:
                self.now_s = max(self.now_s, self.queue[0].submitted_at_s)
            return
        if self.round_end_s is not None:
            self.round_start_s = self.round_end_s
        self.now_s = self.round_end_s = max(task.end_s for task in self.under_way)
        for task in sorted(self.under_way, key=lambda task: -task.end_s):
            self._finish(task)
        self.under_way = []

    def _finish(self, task: _Task) -> None:
        running, job = task.running, task.running.job
        if task.steps // job.num_workers == 0:
            running.failures += 1
            if running.failures >= MOST_FAILURES:
                self._end(running, None)
            return
        running.failures = 0
        held_s = task.end_s - self.round_start_s
        self.cost += self.machines.prices_per_hour.get(task.accelerator_type, 0.0) * held_s / 3600.0 * job.num_workers
        device_s = running.device_s.get(task.accelerator_type, 0.0)
        running.device_s[task.accelerator_type] = device_s + held_s * job.num_workers
        running.runtime_s += held_s
        running.steps_done += task.steps
        if running.steps_left <= 0:
            self._end(running, task.end_s)

    def _end(self, running: _Running, end_s: float | None) -> None:
        self.ended.append((running, end_s))
        del self.active[running.job.id]

    def _schedule(self) -> None:
        held = (running.last for running in self.active.values() if running.last is not None)
        cluster = self.viewer.cluster(self.now_s, held)
        views = [self.viewer.task(running.job, self._standing(running)) for running in self.active.values()]
        decisions, self.memory = self.policy.decide_remembering(cluster, views, self.memory)
        for running in self.active.values():
            running.last = None
        for decision in decisions:
            if decision.allocation is None:
                continue
            running = self.active[decision.task.job_id]
            (name, size) = decision.allocation.counts[0]
            if running.start_s is None:
                running.start_s = self.now_s
            running.last = (name, size)
            rate = running.job.rate(name, size)
            steps = min(int(rate * ROUND_S), running.steps_left)
            self.under_way.append(
                _Task(running=running, accelerator_type=name, steps=steps, end_s=self.now_s + steps / rate)
            )

    def _standing(self, running: _Running) -> Standing:
        return Standing(
            allocation=running.last,
            num_nodes=0,
            done=float(running.steps_done),
            remaining=float(running.steps_left),
            attained_service_s=sum(running.device_s.values()),
            runtime_s=running.runtime_s,
            restarts=0,
            rates=running.job.rates,
        )

    def outcome(self) -> RunOutcome:
        capacity = self.machines.capacity
        spans = [(r.job.submitted_at_s, end_s) for r, end_s in self.ended if end_s is not None]
        jobs = []
        for running, end_s in sorted(self.ended, key=lambda item: item[0].job.id):
            mean = _mean_active(running.job.submitted_at_s, end_s, spans) if end_s is not None else 0.0
            jobs.append(
                JobOutcome(
                    job=running.job,
                    start_s=running.start_s,
                    end_s=end_s,
                    device_s=running.device_s,
                    restarts=running.restarts,
                    mean_active=mean,
                    fair_s=fair_time_s(running.job, capacity, mean) if end_s is not None else None,
                )
            )
        busy: dict[str, float] = {}
        for running, _ in self.ended:
            for name, device_s in running.device_s.items():
                busy[name] = busy.get(name, 0.0) + device_s
        return RunOutcome(
            policy=self.policy.name,
            jobs=tuple(jobs),
            capacity=capacity,
            prices_per_hour=self.machines.prices_per_hour,
            started_at_s=0.0,
            ended_at_s=self.now_s,
            busy_device_s=busy,
            cost=self.cost,
            solve_s=tuple(self.policy.solve_s),
        )


def _mean_active(start_s: float, end_s: float, spans: Sequence[tuple[float, float]]) -> float:
    """Returns how many jobs were active on average from start to end."""
    if end_s <= start_s:
        return 1.0
    shared_s = sum(max(0.0, min(end_s, other_end) - max(start_s, other_start)) for other_start, other_end in spans)
    return shared_s / (end_s - start_s)
