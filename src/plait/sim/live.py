"""The live state machine on a virtual clock: the simulator only feeds events and carries out commands.

What it adds to the scheduler is physics: how long workers take to start, how fast a gang works where it is, what a
stopped gang loses, when nodes fail and come back. All of it follows from the trace, the options and a seed.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from plait.hardware.device import Node
from plait.schedule import machine
from plait.schedule.commands import Command, ResizeTask, StartTask, StopTask
from plait.schedule.domain import TaskKey, WorkerPlacement
from plait.schedule.events import (
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    PriceChanged,
    StepReported,
    Tick,
    WorkerExited,
    WorkerStarted,
)
from plait.schedule.knowledge import Known
from plait.schedule.policy import Policy, RememberingPolicy
from plait.schedule.state import ENDED, ClusterState
from plait.schedule.validate import validate
from plait.sim.gangs import Book, Gang, Hardware
from plait.sim.jobs import SimJob
from plait.sim.live_setting import LiveOptions, initial_state, spec_of
from plait.sim.outcome import Away, Held, JobOutcome, RunOutcome, fair_time_s
from plait.sim.tariff import Tariff
from plait.sim.timed import TimedPolicy

SIGTERM = 15


def run_live(
    jobs: Sequence[SimJob],
    nodes: Sequence[Node],
    policy: Policy,
    options: LiveOptions | None = None,
    on_event: Callable[[Event, tuple[Command, ...]], None] | None = None,
) -> RunOutcome:
    """Plays a trace through the scheduler that a live controller runs.

    Args:
        jobs: In the order of submission.
        nodes: All join at the beginning.
        policy: Who decides.
        options: Costs, failures, prices.
        on_event: Is told each event with the commands that followed.
    """
    run = _Run(jobs, nodes, policy, options or LiveOptions())
    run.on_event = on_event
    run.play()
    return run.outcome()


class _Run:
    def __init__(self, jobs: Sequence[SimJob], nodes: Sequence[Node], policy: Policy, options: LiveOptions) -> None:
        self.options = options
        self.policy = TimedPolicy(policy)
        self.on_event: Callable[[Event, tuple[Command, ...]], None] | None = None
        self.state = initial_state(options)
        self.now_s = 0.0
        self.number = 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.jobs = list(jobs)
        self.next_job = 0
        self.books: dict[str, Book] = {}
        self.gangs: dict[str, Gang] = {}
        self.ended: list[JobOutcome] = []
        self.hardware = Hardware(nodes)
        self.random = Random(options.seed)
        self.beliefs = options.beliefs.begin()
        self.tariff = Tariff(options.prices_per_hour, options.windows, options.price_changes, options.day_s)
        self.timeline: list[Held] = []
        self.away: list[Away] = []
        self.cost = 0.0
        self.active_integral = 0.0
        self.active_now = 0
        self.active_since_s = 0.0
        self.next_tick_s: float | None = None
        self.settled_at = -1
        self.has_times = bool(options.windows or options.reservations)
        self.has_rounds = isinstance(policy, RememberingPolicy) or self.has_times or options.is_cyclic

    # The clock.

    def play(self) -> None:
        for node in self.hardware.nodes.values():
            self.feed(NodeJoined, node=node)
            self._plan_failure(node)
        for name, price in self.options.prices_per_hour.items():
            self.feed(PriceChanged, accelerator_type=name, price_per_hour=price)
        for at_s, name, price in self.options.price_changes:
            self.at(at_s, partial(self.feed, PriceChanged, accelerator_type=name, price_per_hour=price))
        self._plan_submission()
        while self.queue and (self.next_job < len(self.jobs) or self.state.open_jobs):
            self.now_s, _, act = heapq.heappop(self.queue)
            act()

    def at(self, at_s: float, act: Callable[[], None]) -> None:
        """Puts something into the calendar; what was put in first goes first among equals."""
        self.number += 1
        heapq.heappush(self.queue, (max(at_s, self.now_s), self.number, act))

    def feed(self, form: Any, **fields: Any) -> None:
        """Applies one event and carries out what follows."""
        event: Event = form(id=self.state.last_event_id + 1, at_s=self.now_s, **fields)
        decides = not self.options.is_cyclic or isinstance(event, Tick)
        self.state, commands = machine.apply(self.state, event, self.policy, self, decides=decides)
        if self.options.is_checked:
            validate(self.state)
        if self.on_event is not None:
            self.on_event(event, commands)
        for command in commands:
            self._carry_out(command)
        if isinstance(event, WorkerExited):
            self._close_jobs(event.attempt_id)
        if self.has_rounds and not isinstance(event, Tick):
            self._plan_tick()

    def _plan_tick(self) -> None:
        """Puts the next round into the calendar, unless nothing can come of it.

        A policy that remembers nothing decides at each event. The others need rounds while something waits, and one
        more after each event: tasks may move to what became free.
        """
        if self.next_tick_s is not None or not self.state.open_jobs:
            return
        self.next_tick_s = (self.now_s // self.options.round_s + 1) * self.options.round_s
        self.at(self.next_tick_s, self._tick)

    def _tick(self) -> None:
        self.next_tick_s = None
        if not self.state.open_jobs:
            return
        before = self.state.last_event_id
        self.feed(Tick, day_s=int(self.options.day_s + self.now_s) % 86400)
        is_settled = self.settled_at == before and not self._has_waiting()
        self.settled_at = self.state.last_event_id
        # A reservation begins by the clock alone.
        if self.has_rounds and (self.options.reservations or not is_settled):
            self._plan_tick()

    def _has_waiting(self) -> bool:
        return any(
            task.state == "waiting"
            for job_id in self.state.open_jobs
            for task in self.state.jobs[job_id].tasks.values()
        )

    def _plan_submission(self) -> None:
        if self.next_job < len(self.jobs):
            job = self.jobs[self.next_job]
            self.at(job.submitted_at_s, lambda: self._submit(job))

    def _submit(self, job: SimJob) -> None:
        self.next_job += 1
        self._count_active(+1)
        self.books[job.id] = Book(job=job, left=job.work, active_at_submit=self.active_integral)
        if not self.state.open_jobs and self.has_times:
            self.feed(Tick, day_s=int(self.options.day_s + self.now_s) % 86400)
        self.feed(JobSubmitted, job_id=job.id, job=spec_of(job))
        self._plan_submission()

    def _count_active(self, change: int) -> None:
        self.active_integral += self.active_now * (self.now_s - self.active_since_s)
        self.active_since_s = self.now_s
        self.active_now += change

    # What the scheduler asks for.

    def _carry_out(self, command: Command) -> None:
        match command:
            case StartTask():
                self._start(command)
            case StopTask():
                self._stop(command.attempt_id)
            case ResizeTask():
                self._resize(command)
            case _:
                pass

    def _start(self, command: StartTask) -> None:
        book = self.books[command.task.job_id]
        book.restarts += book.has_worked
        book.start_s = self.now_s if book.start_s is None else book.start_s
        gang = Gang(
            attempt_id=command.attempt_id,
            job=book.job,
            saved=book.left,
            left=book.left,
            since_s=self.now_s,
            works_from_s=self.now_s + self.options.restart_s,
        )
        self.gangs[command.attempt_id] = gang
        self._seat(gang, command.placement.workers)
        self._schedule_end(gang)
        self.at(self.now_s, lambda: self._started(gang, tuple(gang.workers)))

    def _started(self, gang: Gang, workers: Sequence[str]) -> None:
        for worker_id in workers:
            if self.gangs.get(gang.attempt_id) is gang and not gang.is_stopping and worker_id in gang.workers:
                self.feed(WorkerStarted, attempt_id=gang.attempt_id, worker_id=worker_id)
        fewest, most = gang.job.size_range
        if fewest < most and self.gangs.get(gang.attempt_id) is gang and not gang.is_stopping:
            self.feed(
                StepReported,
                attempt_id=gang.attempt_id,
                step=0,
                total_steps=None,
                samples_per_s=gang.rate,
                elastic=True,
            )

    def _stop(self, attempt_id: str) -> None:
        gang = self.gangs[attempt_id]
        self._advance(gang)
        gang.is_stopping = True
        gang.version += 1
        self.at(self.now_s, lambda: self._exit_all(gang, exit_code=None, signal=SIGTERM))

    def _exit_all(self, gang: Gang, *, exit_code: int | None, signal: int | None = None) -> None:
        self._save(gang, is_finished=exit_code == 0)
        for worker_id in list(gang.workers):
            if worker_id in gang.workers:
                self._leave(gang, worker_id)
                self.feed(
                    WorkerExited, attempt_id=gang.attempt_id, worker_id=worker_id, exit_code=exit_code, signal=signal
                )
        self.gangs.pop(gang.attempt_id, None)

    def _resize(self, command: ResizeTask) -> None:
        gang = self.gangs[command.attempt_id]
        self._advance(gang)
        self._seat(gang, command.add)
        gang.works_from_s = self.now_s + self.options.restart_s
        added = tuple(worker.worker_id for worker in command.add)
        if added:
            self.at(self.now_s, lambda: self._started(gang, added))
        if command.remove:
            self.at(self.now_s, lambda: self._removed(gang, command.remove))
        self._schedule_end(gang)

    def _removed(self, gang: Gang, worker_ids: Sequence[str]) -> None:
        if self.gangs.get(gang.attempt_id) is not gang:
            return
        self._advance(gang)
        for worker_id in worker_ids:
            if worker_id in gang.workers:
                self._leave(gang, worker_id)
                self.feed(WorkerExited, attempt_id=gang.attempt_id, worker_id=worker_id, exit_code=0)
        if self.gangs.get(gang.attempt_id) is gang and not gang.is_stopping:
            self._schedule_end(gang)

    # Physics.

    def _seat(self, gang: Gang, workers: Sequence[WorkerPlacement]) -> None:
        for worker in workers:
            gang.workers[worker.worker_id] = worker
            gang.held_since_s[worker.worker_id] = self.now_s
        gang.rate = self.hardware.rate(gang)

    def _leave(self, gang: Gang, worker_id: str) -> None:
        """Takes a worker off its devices and books what that cost."""
        worker, since_s = gang.workers.pop(worker_id), gang.held_since_s.pop(worker_id)
        name, held_s = worker.accelerator_type, self.now_s - since_s
        device_s = self.books[gang.job.id].device_s
        device_s[name] = device_s.get(name, 0.0) + held_s * len(worker.device_ids)
        self.cost += self.tariff.cost(name, since_s, self.now_s) * len(worker.device_ids)
        if self.options.keeps_timeline and held_s > 0:
            self.timeline.append(
                Held(
                    job_id=gang.job.id,
                    node=worker.node,
                    accelerator_type=name,
                    devices=tuple(int(device.rpartition("/")[2]) for device in worker.device_ids),
                    start_s=since_s,
                    end_s=self.now_s,
                )
            )
        if gang.workers:
            gang.rate = self.hardware.rate(gang)

    def _advance(self, gang: Gang) -> None:
        """Books the work done since the last look."""
        worked_s = gang.work_until(self.now_s)
        if worked_s > 0:
            self.books[gang.job.id].has_worked = True
            counts = gang.counts()
            if len(counts) == 1:
                ((name, number),) = counts.items()
                self.beliefs.observe(gang.job, name, number, worked_s)

    def _schedule_end(self, gang: Gang) -> None:
        gang.version += 1
        end_s, version = gang.end_s(self.now_s), gang.version
        if end_s is not None:
            self.at(end_s, lambda: self._finish(gang, version))

    def _finish(self, gang: Gang, version: int) -> None:
        if self.gangs.get(gang.attempt_id) is gang and gang.version == version:
            self._advance(gang)
            gang.left = 0.0
            gang.is_stopping = True
            self._exit_all(gang, exit_code=0)

    def _save(self, gang: Gang, *, is_finished: bool) -> None:
        """Notes what of the work counts once the gang is gone."""
        book = self.books[gang.job.id]
        book.left = 0.0 if is_finished else min(book.left, gang.left_after_stop(self.options.checkpoint_s))

    # Failures of nodes.

    def _plan_failure(self, node: Node) -> None:
        if self.options.node_mtbf_s is not None:
            self.at(self.now_s + self.random.expovariate(1.0 / self.options.node_mtbf_s), lambda: self._fail(node))

    def _fail(self, node: Node) -> None:
        hit = [gang for gang in self.gangs.values() if any(w.node == node.id for w in gang.workers.values())]
        for gang in hit:
            self._advance(gang)
            self._save(gang, is_finished=False)
            for worker_id in [i for i, worker in gang.workers.items() if worker.node == node.id]:
                self._leave(gang, worker_id)
        self.feed(NodeLost, node=node.id, reason="failed in the simulation")
        for gang in hit:
            if self.gangs.get(gang.attempt_id) is gang and not gang.workers:
                del self.gangs[gang.attempt_id]
            elif not gang.is_stopping:
                gang.works_from_s = self.now_s + self.options.restart_s
                self._schedule_end(gang)
        self._close_jobs(None)
        back_s = self.now_s + self.options.repair_s
        self.away.append(Away(node=node.id, start_s=self.now_s, end_s=back_s))
        self.at(back_s, lambda: self._repaired(node))

    def _repaired(self, node: Node) -> None:
        self.feed(NodeJoined, node=node)
        self._plan_failure(node)

    # What policies may know, and what is kept of jobs that ended.

    def of(self, state: ClusterState, key: TaskKey) -> Known:
        """Returns what the policy is told of a task."""
        book = self.books[key.job_id]
        gang = self.gangs.get(state.task(key).attempt_id or "")
        if gang is not None:
            self._advance(gang)
        left = gang.left if gang is not None else book.left
        return Known(
            rates=self.beliefs.rates(book.job),
            remaining_work=self.beliefs.remaining(book.job, max(left, 0.0)),
            done_work=book.job.work - left,
            restart_cost_s=self.options.restart_s,
            weight=book.job.weight,
            deadline_at_s=book.job.deadline_at_s,
        )

    def _close_jobs(self, attempt_id: str | None) -> None:
        """Books jobs that have ended and drops them from the state, which otherwise grows with the trace."""
        candidates = [attempt_id.partition("/")[0]] if attempt_id is not None else list(self.books)
        closed = [i for i in candidates if i in self.state.jobs and self.state.jobs[i].state in ENDED]
        for job_id in closed:
            self._count_active(-1)
            self._book(self.books.pop(job_id), has_succeeded=self.state.jobs[job_id].state == "succeeded")
        if closed:
            self.state = machine.forget_ended(self.state)

    def _book(self, book: Book, *, has_succeeded: bool) -> None:
        span_s = self.now_s - book.job.submitted_at_s
        mean = (self.active_integral - book.active_at_submit) / span_s if span_s > 0 else 1.0
        self.ended.append(
            JobOutcome(
                job=book.job,
                start_s=book.start_s,
                end_s=self.now_s if has_succeeded else None,
                device_s=book.device_s,
                restarts=book.restarts,
                mean_active=mean,
                fair_s=fair_time_s(book.job, self.hardware.capacity, mean) if has_succeeded else None,
            )
        )

    def outcome(self) -> RunOutcome:
        for book in self.books.values():
            self._book(book, has_succeeded=False)
        busy = dict.fromkeys(self.hardware.capacity, 0.0)
        for one in self.ended:
            for name, device_s in one.device_s.items():
                busy[name] = busy.get(name, 0.0) + device_s
        ends = [one.end_s for one in self.ended if one.end_s is not None]
        first_s = self.jobs[0].submitted_at_s if self.jobs else 0.0
        return RunOutcome(
            policy=self.policy.name,
            jobs=tuple(sorted(self.ended, key=lambda one: one.job.id)),
            capacity=self.hardware.capacity,
            prices_per_hour=self.options.prices_per_hour,
            started_at_s=first_s,
            ended_at_s=max(ends, default=first_s),
            busy_device_s=busy,
            cost=self.cost,
            solve_s=tuple(self.policy.solve_s),
            timeline=tuple(self.timeline),
            away=tuple(self.away),
        )
