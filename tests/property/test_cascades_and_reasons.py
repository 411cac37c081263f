"""Under any policy: preemption cascades end, limits and reservations hold, and every waiting task has a reason."""

from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.schedule import machine
from plait.schedule.commands import ResizeTask, StartTask, StopTask
from plait.schedule.constraints import KINDS
from plait.schedule.events import (
    Event,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeResumed,
    PriceChanged,
    StepReported,
    Tick,
    WorkerExited,
    WorkerStarted,
)
from plait.schedule.explain import explain_job
from plait.schedule.on_paper import node_on_paper
from plait.schedule.state import ClusterState
from plait.schedule.validate import validate
from plait.spec.cluster import Cluster, EmulatedNode, PolicyChoice, PriceWindow, Project, Reservation
from plait.spec.job import DeviceRequest, Job, PlacementRules, Resources, Task, WorkerRange

POLICIES = ("fifo_backfill", "multi_objective", "las", "srtf", "gandiva", "sia")
LIMIT = {"A100": 3}
WINDOWS = (
    PriceWindow(name="day", from_s=8 * 3600, to_s=20 * 3600, price_per_hour=(("A100", 4.0),)),
    PriceWindow(name="night", from_s=20 * 3600, to_s=8 * 3600, price_per_hour=(("A100", 1.0),)),
)
RESERVED = Reservation(name="r", project="other", from_s=9 * 3600, to_s=10 * 3600, devices=(("T4", 2),))
NODES = (("n0", "A100", 4), ("n1", "A100", 2), ("n2", "T4", 4))

tasks = st.builds(
    lambda types, low, more, count, rules, window, price, runtime: Task(
        name="train",
        command=("x",),
        workers=WorkerRange(min=low, max=low + more),
        resources=Resources(
            any_of=tuple(DeviceRequest(accelerator=name, count=count) for name in sorted(types)), mix=False
        ),
        placement=rules,
        run_during=window,
        max_price_per_hour=price,
        expected_runtime_s=runtime,
    ),
    st.sets(st.sampled_from(["A100", "T4"]), min_size=1),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([1, 1, 1, 2]),
    st.builds(
        PlacementRules,
        within=st.sampled_from([None, None, "node", "rack"]),
        at_most=st.sampled_from([None, None, 2]),
        strategy=st.sampled_from(["pack", "spread"]),
    ),
    st.sampled_from([None, None, "night"]),
    st.sampled_from([None, None, 2.0]),
    st.sampled_from([None, 600.0, 7200.0]),
)
jobs = st.builds(
    lambda task, project, priority: Job(name="j", tasks=(task,), project=project, priority=priority),
    tasks,
    st.sampled_from(["lab", "other"]),
    st.integers(0, 2),
)
happenings = st.lists(
    st.one_of(
        jobs,
        st.integers(1, 20_000),
        st.sampled_from(["drain", "resume", "elastic", "finish", "price"]),
    ),
    min_size=3,
    max_size=14,
)


def _started(attempt_id: str, worker_id: str) -> WorkerStarted:
    return WorkerStarted(id=0, at_s=0.0, attempt_id=attempt_id, worker_id=worker_id)


class _World:
    """Feeds events and carries commands out at once, counting what is stopped for each event from outside."""

    def __init__(self, policy: str) -> None:
        cluster = Cluster(
            policy=PolicyChoice(name=policy),
            price_windows=WINDOWS,
            projects=(Project(name="lab", limit=tuple(LIMIT.items())),),
            reservations=(RESERVED,),
            racks=(("left", ("n0", "n1")),),
        )
        self.state: ClusterState = machine.initial(cluster)
        self.now_s = 0.0
        self.num_jobs = 0
        self.feed(Tick(id=0, at_s=0.0, day_s=7 * 3600))
        for name, kind, slots in NODES:
            node = node_on_paper(EmulatedNode(name=name, accelerator=kind, slots=slots))
            self.feed(NodeJoined(id=0, at_s=0.0, node=node))
        self.now_s = 5.0

    def feed(self, event: Event) -> None:
        queue: list[Event] = [event, Tick(id=0, at_s=0.0, day_s=int(7 * 3600 + self.now_s) % 86400)]
        stopped: Counter[str] = Counter()
        while queue:
            one = replace(queue.pop(0), id=self.state.last_event_id + 1, at_s=self.now_s)
            self.state, commands = machine.apply(self.state, one)
            validate(self.state)
            self.check_terms()
            for command in commands:
                match command:
                    case StartTask(attempt_id=attempt_id, placement=placement):
                        queue.extend(_started(attempt_id, w.worker_id) for w in placement.workers)
                    case ResizeTask(attempt_id=attempt_id, add=add, remove=remove):
                        queue.extend(_started(attempt_id, w.worker_id) for w in add)
                        queue.extend(self.exits(attempt_id, remove))
                    case StopTask(attempt_id=attempt_id):
                        stopped[attempt_id.rpartition("/")[0]] += 1
                        queue.extend(self.exits(attempt_id, tuple(self.state.attempts[attempt_id].workers)))
                    case _:
                        pass
            # A task may be stopped for another one once, and for a rule once more, before time passes.
            assert all(number <= 2 for number in stopped.values()), stopped

    def exits(self, attempt_id: str, workers: tuple[str, ...], code: int | None = None) -> list[Event]:
        return [
            WorkerExited(
                id=0, at_s=0.0, attempt_id=attempt_id, worker_id=i, exit_code=code, signal=None if code == 0 else 15
            )
            for i in workers
        ]

    def check_terms(self) -> None:
        """No gang that is not on its way out lets the project hold more than its limit."""
        held: Counter[str] = Counter()
        for attempt in self.state.attempts.values():
            if self.state.jobs[attempt.task.job_id].job.project == "lab" and attempt.phase != "stopping":
                for worker in attempt.active():
                    held[worker.placement.accelerator_type] += len(worker.placement.device_ids)
        assert all(held[name] <= limit for name, limit in LIMIT.items()), held

    def happen(self, what: Job | int | str) -> None:
        attempts = list(self.state.attempts.values())
        match what:
            case Job():
                self.num_jobs += 1
                self.feed(JobSubmitted(id=0, at_s=0.0, job_id=f"j{self.num_jobs}", job=what))
            case int():
                self.now_s += what
                self.feed(Tick(id=0, at_s=0.0, day_s=int(7 * 3600 + self.now_s) % 86400))
            case "drain":
                self.feed(NodeDrained(id=0, at_s=0.0, node="n1"))
            case "resume":
                self.feed(NodeResumed(id=0, at_s=0.0, node="n1"))
            case "price":
                self.feed(PriceChanged(id=0, at_s=0.0, accelerator_type="T4", price_per_hour=self.now_s % 4))
            case "elastic" if attempts:
                report = StepReported(
                    id=0, at_s=0.0, attempt_id=attempts[0].id, step=1, total_steps=None, samples_per_s=1.0, elastic=True
                )
                self.feed(report)
            case "finish" if attempts:
                for event in self.exits(attempts[0].id, tuple(attempts[0].workers), 0):
                    self.feed(event)
            case _:
                pass


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policy=st.sampled_from(POLICIES), script=happenings)
def test_cascades_end_and_whoever_waits_has_a_reason(policy: str, script: list[Job | int | str]) -> None:
    world = _World(policy)
    for what in script:
        world.happen(what)
    for job_id in world.state.open_jobs:
        for told in explain_job(world.state, world.state.jobs[job_id]):
            waits = told.state in ("waiting", "blocked")
            assert waits == (told.constraint is not None)
            if told.constraint is not None:
                assert told.constraint.kind in KINDS
                assert told.constraint.reason
                assert told.starts
