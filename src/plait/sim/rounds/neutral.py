"""The neutral setting in which policies are compared: same trace, rates, cluster, restart cost and placement for all.

The clock goes in ticks of 60 s. A policy is asked at ticks divisible by its round; devices of jobs that end in between
stay idle until then. Whoever starts, resumes, or changes its type, number of devices or number of nodes makes no
progress for ``restart_s``. A job ends at its exact second.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.schedule.policy import NOTHING_REMEMBERED, Memory, Policy
from plait.sim.beliefs import Beliefs
from plait.sim.jobs import SimJob
from plait.sim.outcome import Held, JobOutcome, RunOutcome, fair_time_s
from plait.sim.rounds.placement import Slots, Wanted, fewest_nodes, place_round
from plait.sim.rounds.views import Machines, Standing, Viewer
from plait.sim.timed import TimedPolicy

TICK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NeutralSetting:
    """What is the same for all policies of a comparison. ``round_s`` is a multiple of 60 s."""

    round_s: float = 60.0
    restart_s: float = 45.0
    beliefs: Beliefs = field(default_factory=Beliefs)
    keeps_timeline: bool = False


@dataclass(slots=True)
class _Active:
    """A job that has arrived and not ended."""

    job: SimJob
    left: float
    seat: tuple[str, Slots] | None = None
    signature: tuple[str, int, int] | None = None
    rate: float = 0.0
    start_s: float | None = None
    attained_s: float = 0.0
    runtime_s: float = 0.0
    restarts: int = 0
    ticks: int = 0
    active_sum: int = 0
    device_s: dict[str, float] = field(default_factory=dict)
    since_s: float = 0.0


def run_neutral(
    jobs: Sequence[SimJob], machines: Machines, policy: Policy, setting: NeutralSetting | None = None
) -> RunOutcome:
    """Plays a trace through; jobs must be in the order of their arrival."""
    run = _Run(jobs, machines, policy, setting or NeutralSetting())
    while run.active or run.queue:
        run.tick()
    return run.outcome()


class _Run:
    def __init__(self, jobs: Sequence[SimJob], machines: Machines, policy: Policy, setting: NeutralSetting) -> None:
        self.machines = machines
        self.policy = TimedPolicy(policy)
        self.setting = setting
        self.viewer = Viewer(machines, setting.round_s, setting.restart_s)
        self.beliefs = setting.beliefs.begin()
        self.queue = list(reversed(jobs))
        self.active: dict[str, _Active] = {}
        self.ended: list[tuple[_Active, float]] = []
        self.now_s = 0.0
        self.first_s = jobs[0].submitted_at_s if jobs else 0.0
        self.last_s = self.first_s
        self.memory: Memory = NOTHING_REMEMBERED
        self.timeline: list[Held] = []

    def tick(self) -> None:
        if not self.active and self.queue:
            self.now_s = max(self.now_s, math.ceil(self.queue[-1].submitted_at_s / TICK_S) * TICK_S)
        while self.queue and self.queue[-1].submitted_at_s <= self.now_s:
            job = self.queue.pop()
            self.active[job.id] = _Active(job=job, left=job.work)
        if self.now_s % self.setting.round_s == 0:
            self._decide()
        self._progress()
        self.now_s += TICK_S

    def _decide(self) -> None:
        seats = (one.seat for one in self.active.values() if one.seat is not None)
        cluster = self.viewer.cluster(self.now_s, ((name, len(slots)) for name, slots in seats))
        views = [self.viewer.task(one.job, self._standing(one)) for one in self.active.values()]
        decisions, self.memory = self.policy.decide_remembering(cluster, views, self.memory)
        wanted = []
        for decision in decisions:
            if decision.allocation is None or not decision.allocation.counts:
                continue
            name, number = decision.allocation.counts[0]
            one = self.active[decision.task.job_id]
            is_same = one.seat is not None and (one.seat[0], len(one.seat[1])) == (name, number)
            had = one.seat[1] if is_same and one.seat is not None else ()
            wanted.append(Wanted(job_id=one.job.id, accelerator_type=name, number=number, had=had))
        types = {task.job_id: task.accelerator_type for task in wanted}
        placed = place_round(self.machines.nodes, wanted)
        for job_id, one in self.active.items():
            slots = placed.get(job_id)
            self._seat(one, (types[job_id], slots) if slots else None)

    def _seat(self, one: _Active, seat: tuple[str, Slots] | None) -> None:
        if seat == one.seat:
            return
        self._close(one, self.now_s)
        one.seat = seat
        one.since_s = self.now_s
        if seat is not None:
            name, slots = seat
            num_nodes = len({node for node, _ in slots})
            is_spread = num_nodes > fewest_nodes(self.machines.nodes[name], len(slots))
            one.rate = one.job.rate(name, len(slots), is_spread=is_spread)

    def _close(self, one: _Active, end_s: float) -> None:
        """Notes for the timeline how long the job held what it holds."""
        if not self.setting.keeps_timeline or one.seat is None or end_s <= one.since_s:
            return
        name, slots = one.seat
        for node in sorted({node for node, _ in slots}):
            devices = tuple(device for at, device in slots if at == node)
            self.timeline.append(
                Held(
                    job_id=one.job.id,
                    node=f"{name}-{node}",
                    accelerator_type=name,
                    devices=devices,
                    start_s=one.since_s,
                    end_s=end_s,
                )
            )

    def _progress(self) -> None:
        num_active = len(self.active)
        for one in list(self.active.values()):
            one.ticks += 1
            one.active_sum += num_active
            if one.seat is None:
                one.signature = None
                continue
            name, slots = one.seat
            signature = (name, len(slots), len({node for node, _ in slots}))
            penalty_s = 0.0
            if signature != one.signature:
                penalty_s = self.setting.restart_s
                one.restarts += one.attained_s > 0
                one.signature = signature
                one.start_s = self.now_s if one.start_s is None else one.start_s
            self._run_tick(one, name, len(slots), penalty_s)

    def _run_tick(self, one: _Active, name: str, number: int, penalty_s: float) -> None:
        works_s = TICK_S - penalty_s
        is_done = one.rate * works_s >= one.left and one.rate > 0
        held_s = penalty_s + one.left / one.rate if is_done else TICK_S
        one.left -= one.rate * works_s
        one.attained_s += held_s * number
        one.runtime_s += held_s
        one.device_s[name] = one.device_s.get(name, 0.0) + held_s * number
        self.beliefs.observe(one.job, name, number, works_s)
        if is_done:
            end_s = self.now_s + held_s
            self._close(one, end_s)
            self.last_s = max(self.last_s, end_s)
            self.ended.append((one, end_s))
            del self.active[one.job.id]

    def _standing(self, one: _Active) -> Standing:
        return Standing(
            allocation=(one.seat[0], len(one.seat[1])) if one.seat is not None else None,
            num_nodes=len({node for node, _ in one.seat[1]}) if one.seat is not None else 0,
            done=one.job.work - one.left,
            remaining=self.beliefs.remaining(one.job, one.left),
            attained_service_s=one.attained_s,
            runtime_s=one.runtime_s,
            restarts=one.restarts,
            rates=self.beliefs.rates(one.job),
        )

    def outcome(self) -> RunOutcome:
        capacity, prices = self.machines.capacity, self.machines.prices_per_hour
        jobs, busy = [], dict.fromkeys(capacity, 0.0)
        for one, end_s in sorted(self.ended, key=lambda item: item[0].job.id):
            mean = one.active_sum / max(one.ticks, 1)
            for name, device_s in one.device_s.items():
                busy[name] += device_s
            jobs.append(
                JobOutcome(
                    job=one.job,
                    start_s=one.start_s,
                    end_s=end_s,
                    device_s=one.device_s,
                    restarts=one.restarts,
                    mean_active=mean,
                    fair_s=fair_time_s(one.job, capacity, mean),
                )
            )
        return RunOutcome(
            policy=self.policy.name,
            jobs=tuple(jobs),
            capacity=capacity,
            prices_per_hour=prices,
            started_at_s=self.first_s,
            ended_at_s=self.last_s,
            busy_device_s=busy,
            cost=sum(device_s * prices.get(name, 0.0) for name, device_s in busy.items()) / 3600.0,
            solve_s=tuple(self.policy.solve_s),
            timeline=tuple(self.timeline),
        )
