"""Random events, sensible and not, in any order: the invariants hold, a replay agrees, and every job ends."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.hardware.device import Device, Node
from plait.schedule import machine
from plait.schedule.commands import AbortCollectives, Command, ResizeTask, StartTask, StopTask
from plait.schedule.domain import WorkerPlacement
from plait.schedule.events import (
    ClusterConfigured,
    DeviceLost,
    DeviceReturned,
    Event,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeResumed,
    PriceChanged,
    ResizeRequested,
    StepReported,
    Tick,
    WorkerExited,
    WorkerStarted,
)
from plait.schedule.explain import explain
from plait.schedule.scenario import task_of
from plait.schedule.state import ENDED, ClusterState
from plait.schedule.validate import validate
from plait.spec.cluster import Cluster, PriceWindow
from plait.spec.job import FailureCause, FailureRules, Job, WorkerRange
from plait.wire import Codec

GIB = 2**30
NIGHT = PriceWindow(name="night", from_s=22 * 3600, to_s=6 * 3600)
CLUSTER = Cluster(price_windows=(NIGHT,))
CAUSES: tuple[FailureCause, ...] = ("oom", "network", "device_fault", "user", "lost", "cancelled")


def _node(name: str, accelerator: str, num_devices: int, gib: int | None, speed: float) -> Node:
    devices = tuple(
        Device(
            id=f"{name}/{index}",
            node=name,
            index=index,
            accelerator_type=accelerator,
            memory_bytes=gib * GIB if gib else None,
            speed=speed,
        )
        for index in range(num_devices)
    )
    return Node(id=name, address=f"10.0.0.{name[1:]}", devices=devices, first_port=21000, num_ports=24)


NODES = (
    _node("n0", "A100", 4, 40, 4.0),
    _node("n1", "A100", 2, 80, 4.0),
    _node("n2", "V100", 4, 16, 2.0),
    _node("n3", "T4", 2, None, 1.0),
)
JOBS = (
    Job(name="one", tasks=(task_of("A100"),)),
    Job(name="gang", tasks=(task_of("A100 V100", (4, 4)),), failure=FailureRules(oom="restart", network="restart")),
    Job(name="elastic", tasks=(task_of("A100 V100 T4", (1, 6)),)),
    Job(name="pure", tasks=(task_of("A100 V100", (2, 4), mix=False),), failure=FailureRules(device_fault="restart")),
    Job(name="pairs", tasks=(task_of("A100", (1, 3), count=2),), priority=1),
    Job(name="large", tasks=(task_of("A100 V100", (1, 2), memory_bytes=32 * GIB),), failure=FailureRules(oom="fail")),
    Job(name="urgent", tasks=(task_of("T4 V100", (3, 3)),), priority=5, failure=FailureRules(max_restarts=1)),
    Job(
        name="chain",
        tasks=(
            task_of("T4", name="prepare"),
            task_of("", (1, 3), name="train", needs=("prepare",), run_during="night"),
            task_of("V100", name="test", needs=("train", "prepare")),
        ),
    ),
    Job(name="cyclic", tasks=(task_of(name="a", needs=("b",)), task_of(name="b", needs=("a",)))),
)


class World:
    """The cluster as it really is: processes that live because the commands said so, and nothing else."""

    def __init__(self) -> None:
        self.state = machine.initial(CLUSTER)
        self.events: list[Event] = []
        self.alive: dict[tuple[str, str], WorkerPlacement] = {}
        self.told_to_go: set[tuple[str, str]] = set()
        self.attempts: set[str] = set()
        self.now_s = 0.0
        self.day_s = 0
        self.num_jobs = 0

    def feed(self, form: Callable[..., Event], **fields: Any) -> None:
        self.take(form(id=len(self.events) + 1, at_s=self.now_s, **fields))

    def take(self, event: Event) -> None:
        self.events.append(event)
        self.state, commands = machine.apply(self.state, event)
        validate(self.state)
        for command in commands:
            assert command.cause == event.id
            self.obey(command)

    def obey(self, command: Command) -> None:
        match command:
            case StartTask(attempt_id=attempt_id, task=task, placement=placement):
                assert attempt_id not in self.attempts, "attempt ids are never used again"
                assert not [a for a, _ in self.alive if a.startswith(f"{task}/")], "no attempt runs beside another"
                self.attempts.add(attempt_id)
                assert placement.reasons
                self.spawn(attempt_id, placement.workers)
            case ResizeTask(attempt_id=attempt_id, add=add, remove=remove, reason=reason):
                assert attempt_id in {a for a, _ in self.alive}
                assert reason
                self.spawn(attempt_id, add)
                self.told_to_go.update((attempt_id, worker_id) for worker_id in remove)
            case StopTask(attempt_id=attempt_id, reason=reason):
                assert reason
                self.told_to_go.update(key for key in self.alive if key[0] == attempt_id)
            case AbortCollectives(attempt_id=attempt_id, lost=lost):
                assert lost
                assert attempt_id in {a for a, _ in self.alive}

    def spawn(self, attempt_id: str, workers: tuple[WorkerPlacement, ...]) -> None:
        for worker in workers:
            busy = {device for other in self.alive.values() for device in other.device_ids}
            assert busy.isdisjoint(worker.device_ids), "a device serves one worker"
            assert (attempt_id, worker.worker_id) not in self.alive
            self.alive[attempt_id, worker.worker_id] = worker

    def exit(self, key: tuple[str, str], failure: FailureCause | None) -> None:
        self.alive.pop(key, None)
        code = 0 if failure is None else 1
        self.feed(WorkerExited, attempt_id=key[0], worker_id=key[1], exit_code=code, failure=failure)

    def lose(self, node: str) -> None:
        for key, worker in tuple(self.alive.items()):
            if worker.node == node:
                del self.alive[key]
        self.feed(NodeLost, node=node, reason="silent")

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.day_s = int(self.day_s + seconds) % 86400
        self.feed(Tick, day_s=self.day_s)


def _pick(options: Any, number: int) -> Any:
    found = sorted(options)
    return found[number % len(found)] if found else None


def _happen(world: World, action: str, number: int) -> None:
    """Lets one thing happen; ``number`` decides to whom."""
    node = NODES[number % len(NODES)]
    device = node.devices[number % len(node.devices)].id
    key = _pick(world.alive, number)
    job_id = f"j{number % (world.num_jobs + 1)}"
    match action:
        case "submit":
            world.num_jobs += 1
            world.feed(JobSubmitted, job_id=f"j{world.num_jobs}", job=JOBS[number % len(JOBS)])
        case "join":
            world.feed(NodeJoined, node=node)
        case "join smaller":
            world.feed(NodeJoined, node=replace(node, devices=node.devices[: 1 + number % 2]))
        case "lose":
            world.lose(node.id)
        case "drain":
            world.feed(NodeDrained, node=node.id)
        case "resume":
            world.feed(NodeResumed, node=node.id)
        case "lose device":
            world.feed(DeviceLost, device=device, reason="fell off the bus")
        case "return device":
            world.feed(DeviceReturned, device=device)
        case "cancel":
            world.feed(JobCancelled, job_id=job_id)
        case "resize":
            fewest = 1 + number % 3
            workers = WorkerRange(min=fewest, max=fewest + number % 4)
            world.feed(ResizeRequested, job_id=job_id, task="train", workers=workers)
        case "tick":
            world.tick(float(number % 7) * 0.5)
        case _:
            _happen_to_worker(world, action, number, key)


def _happen_to_worker(world: World, action: str, number: int, key: tuple[str, str] | None) -> None:
    match action:
        case "start" if key is not None:
            world.feed(WorkerStarted, attempt_id=key[0], worker_id=key[1])
        case "start all":
            for attempt_id, worker_id in sorted(world.alive):
                world.feed(WorkerStarted, attempt_id=attempt_id, worker_id=worker_id)
        case "step" if key is not None:
            world.feed(
                StepReported,
                attempt_id=key[0],
                step=number % 50,
                total_steps=50,
                samples_per_s=1.0,
                elastic=number % 4 > 0,
                split=((key[1], 3),),
                reason="measured",
            )
        case "fail" if key is not None:
            world.exit(key, CAUSES[number % len(CAUSES)])
        case "finish" if key is not None:
            world.exit(key, None)
        case _:
            _happen_oddly(world, action, number)


def _happen_oddly(world: World, action: str, number: int) -> None:
    match action:
        case "go":
            gone = _pick(world.told_to_go & set(world.alive), number)
            if gone is not None:
                world.exit(gone, None if number % 2 else "lost")
        case "again" if world.events:
            old = world.events[number % len(world.events)]
            if not isinstance(old, NodeLost | WorkerExited) or _is_true(world, old):
                world.take(replace(old, id=len(world.events) + 1, at_s=world.now_s - 1.0))
        case "nonsense":
            for event in _nonsense(len(world.events), world.now_s):
                world.take(event)
        case _:
            pass


def _is_true(world: World, event: NodeLost | WorkerExited) -> bool:
    """A death may be told twice, but nobody is told dead who lives."""
    if isinstance(event, WorkerExited):
        return (event.attempt_id, event.worker_id) not in world.alive
    return all(worker.node != event.node for worker in world.alive.values())


def _nonsense(last_id: int, at_s: float) -> Iterator[Event]:
    rows: tuple[tuple[Any, dict[str, Any]], ...] = (
        (NodeLost, {"node": "nowhere", "reason": ""}),
        (NodeDrained, {"node": "nowhere"}),
        (NodeResumed, {"node": "nowhere"}),
        (DeviceLost, {"device": "nowhere/0", "reason": ""}),
        (DeviceReturned, {"device": "nowhere/0"}),
        (JobCancelled, {"job_id": "nobody"}),
        (ResizeRequested, {"job_id": "nobody", "task": "x", "workers": WorkerRange()}),
        (ResizeRequested, {"job_id": "j1", "task": "train", "workers": WorkerRange(min=5, max=2)}),
        (WorkerStarted, {"attempt_id": "j1/train/99", "worker_id": "w0"}),
        (WorkerStarted, {"attempt_id": "j1/train/0", "worker_id": "w99"}),
        (WorkerExited, {"attempt_id": "", "worker_id": "", "exit_code": None}),
        (WorkerExited, {"attempt_id": "j1/train/0", "worker_id": "w99", "exit_code": 1, "failure": "user"}),
        (
            StepReported,
            {"attempt_id": "j9/train/0", "step": 1, "total_steps": None, "samples_per_s": 0.0, "elastic": True},
        ),
        (PriceChanged, {"accelerator_type": "T4", "price_per_hour": float(last_id)}),
        (ClusterConfigured, {"cluster": CLUSTER}),
    )
    for offset, (form, fields) in enumerate(rows, start=1):
        yield form(id=last_id + offset, at_s=at_s - 5.0, **fields)


ACTIONS = (
    *("submit", "join", "start all", "step", "step", "finish", "go", "go", "tick"),
    *("lose", "join smaller", "drain", "resume", "lose device", "return device", "cancel", "resize"),
    *("start", "fail", "fail", "again", "nonsense"),
)
HAPPENINGS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 10_000)), max_size=60)
BEGINNING = (("join", 0), ("submit", 2), ("join", 1), ("join", 2), ("submit", 1), ("tick", 3), ("start all", 0))
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


def _play(happenings: list[tuple[str, int]]) -> World:
    world = World()
    for action, number in (*BEGINNING, *happenings):
        _happen(world, action, number)
    return world


def _calm_down(world: World) -> None:
    """All nodes are back, nobody asks for more workers than there are, workers succeed, and days pass."""
    for node in NODES:
        world.feed(NodeJoined, node=node)
        world.feed(NodeResumed, node=node.id)
        for device in node.devices:
            world.feed(DeviceReturned, device=device.id)
    for job_id, job in world.state.jobs.items():
        if any(task.is_impossible for task in job.tasks.values()):
            world.feed(ResizeRequested, job_id=job_id, task="train", workers=WorkerRange(min=1, max=2))
    for _ in range(60 * (world.num_jobs + 2)):
        if not world.state.open_jobs:
            break
        world.tick(1800.0)
        for attempt_id, worker_id in sorted(world.alive):
            world.feed(WorkerStarted, attempt_id=attempt_id, worker_id=worker_id)
            world.exit((attempt_id, worker_id), None)


@pytest.mark.timeout(600)
@settings(RELAXED, max_examples=150)
@given(HAPPENINGS)
def test_every_job_ends_once_all_nodes_are_back_and_workers_succeed(happenings: list[tuple[str, int]]) -> None:
    world = _play(happenings)
    _calm_down(world)
    left = [explain(world.state, job_id) for job_id in world.state.open_jobs]
    assert not left
    assert not world.alive
    assert not world.state.attempts
    assert all(job.state in ENDED for job in world.state.jobs.values())


@settings(RELAXED, max_examples=80)
@given(HAPPENINGS)
def test_the_recorded_events_replay_to_the_same_state(happenings: list[tuple[str, int]]) -> None:
    world = _play(happenings)
    codec: Codec[Event] = Codec(Event)
    assert {type(event) for event in world.events} <= set(get_args(Event))
    lines = [codec.encode(event) for event in world.events]
    assert machine.replay([codec.decode(line) for line in lines], state=machine.initial(CLUSTER)) == world.state


@settings(RELAXED, max_examples=80)
@given(HAPPENINGS, st.integers(0, 60))
def test_a_snapshot_goes_on_like_the_state_it_was_taken_of(happenings: list[tuple[str, int]], cut: int) -> None:
    world = _play(happenings)
    snapshots: Codec[ClusterState] = Codec(ClusterState)
    before = machine.replay(world.events[:cut], state=machine.initial(CLUSTER))
    restored = snapshots.decode(snapshots.encode(before))
    assert restored == before
    assert machine.replay(world.events[cut:], state=restored) == world.state


@settings(RELAXED, max_examples=40)
@given(HAPPENINGS)
def test_events_applied_before_change_nothing(happenings: list[tuple[str, int]]) -> None:
    world = _play(happenings)
    for event in world.events:
        assert machine.apply(world.state, event) == (world.state, ())
