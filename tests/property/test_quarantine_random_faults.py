"""Random faults, tests, losses and returns: no work on what is kept out, and no healthy device lost for ever."""

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.hardware.device import Device, Node
from plait.schedule import machine
from plait.schedule.commands import Command, ResizeTask, StartTask, TestDevice
from plait.schedule.events import (
    DeviceLost,
    DeviceReturned,
    DeviceTested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeResumed,
    StepReported,
    Tick,
    WorkerExited,
    WorkerStarted,
)
from plait.schedule.scenario import task_of
from plait.schedule.state import ClusterState
from plait.schedule.validate import validate
from plait.spec.cluster import Cluster, Quarantine
from plait.spec.job import FailureRules, Job
from plait.wire import Codec

RULES = Quarantine(faults=2, window_s=300.0, cool_down_s=50.0, longest_s=400.0, test_limit_s=10.0)
CLUSTER = Cluster(quarantine=RULES)
FOREVER = FailureRules(max_restarts=10**6)


def _node(name: str, count: int) -> Node:
    devices = tuple(Device(id=f"{name}/{i}", node=name, index=i, accelerator_type="A100") for i in range(count))
    return Node(id=name, address=f"10.0.0.{name[1:]}", devices=devices)


NODES = (_node("n0", 3), _node("n1", 2))
DEVICES = tuple(device.id for node in NODES for device in node.devices)


class World:
    """Workers that live, tests that were asked for, and which devices are healthy in truth."""

    def __init__(self) -> None:
        self.state = machine.initial(CLUSTER)
        self.events: list[Event] = []
        self.alive: dict[tuple[str, str], tuple[str, ...]] = {}
        self.asked: list[TestDevice] = []
        self.now_s = 0.0
        for node in NODES:
            self.feed(NodeJoined, node=node)
        job = Job(name="j", tasks=(task_of(workers=(1, 5)),), failure=FOREVER)
        self.feed(JobSubmitted, job_id="j", job=job)

    def feed(self, form: type[Any], **fields: Any) -> None:
        event = form(id=len(self.events) + 1, at_s=self.now_s, **fields)
        self.events.append(event)
        self.state, commands = machine.apply(self.state, event)
        validate(self.state)
        self._check()
        self._obey(commands)

    def _check(self) -> None:
        for record in self.state.nodes.values():
            for device, trouble in record.troubles.items():
                assert device not in {d.id for d in record.healthy()}, "a device has one state"
                assert (trouble.state == "probation") == (trouble.test is not None)
                assert trouble.until_s is not None
                faults = record.faults[device]
                assert 0.0 < faults.cool_down_s <= RULES.longest_s

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            assert command.cause == len(self.events)
            if isinstance(command, TestDevice):
                held = {device for devices in self.alive.values() for device in devices}
                assert command.device not in held, "a test has the device for itself"
                self.asked.append(command)
            elif isinstance(command, StartTask | ResizeTask):
                new = command.placement.workers if isinstance(command, StartTask) else command.add
                for worker in new:
                    for device in worker.device_ids:
                        assert device not in self.state.nodes[worker.node].troubles, "it gets no work"
                    self.alive[command.attempt_id, worker.worker_id] = worker.device_ids

    def end(self, key: tuple[str, str], **fields: Any) -> None:
        del self.alive[key]
        self.feed(WorkerExited, attempt_id=key[0], worker_id=key[1], exit_code=77, **fields)

    def answer(self, number: int, *, passed: bool) -> None:
        if self.asked:
            test = self.asked.pop(number % len(self.asked))
            self.feed(DeviceTested, device=test.device, test=test.cause, passed=passed, detail="found")

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.feed(Tick)


def _happen(world: World, action: str, number: int) -> None:
    keys = sorted(world.alive)
    key = keys[number % len(keys)] if keys else None
    device = DEVICES[number % len(DEVICES)]
    match action:
        case "fault" if key is not None:
            blamed = world.alive[key] if number % 2 else ()
            world.end(key, failure="device_fault", is_transient=number % 3 == 0, faulty_devices=blamed)
        case "loss" if key is not None:
            world.end(key, failure="lost")
        case "step" if key is not None:
            world.feed(WorkerStarted, attempt_id=key[0], worker_id=key[1])
            world.feed(
                StepReported, attempt_id=key[0], step=1, total_steps=None, samples_per_s=1.0, elastic=number % 4 > 0
            )
        case "device lost":
            world.feed(DeviceLost, device=device, reason="fell off the bus")
        case "device back":
            world.feed(DeviceReturned, device=device)
        case "node lost" | "node back" | "vouch":
            _happen_to_node(world, action, NODES[number % len(NODES)])
        case "pass" | "fail":
            world.answer(number, passed=action == "pass")
        case "tick":
            world.tick(float(number % 90))
        case _:
            pass


def _happen_to_node(world: World, action: str, node: Node) -> None:
    if action == "node lost":
        for key, devices in tuple(world.alive.items()):
            if devices[0].startswith(f"{node.id}/"):
                del world.alive[key]
        world.feed(NodeLost, node=node.id, reason="silent")
    elif action == "node back":
        world.feed(NodeJoined, node=node)
    else:
        world.feed(NodeResumed, node=node.id)


ACTIONS = (
    *("fault", "fault", "fault", "tick", "tick", "tick", "pass", "fail", "step", "loss"),
    *("device lost", "device back", "node lost", "node back", "vouch"),
)
FEW = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
HAPPENINGS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 10_000)), max_size=50)


def _played(happenings: Sequence[tuple[str, int]]) -> World:
    world = World()
    for action, number in happenings:
        _happen(world, action, number)
    return world


def _is_going(world: World, key: tuple[str, str]) -> bool:
    attempt = world.state.attempts[key[0]]
    return attempt.phase == "stopping" or attempt.workers[key[1]].is_leaving


@FEW
@given(HAPPENINGS)
def test_healthy_devices_all_come_back_by_themselves(happenings: list[tuple[str, int]]) -> None:
    world = _played(happenings)
    for node in NODES:
        world.feed(NodeJoined, node=node)
    for _ in range(30):
        world.tick(60.0)
        for key in sorted(world.alive):
            if _is_going(world, key):
                world.end(key, failure="lost")
        while world.asked:
            world.answer(0, passed=True)
    assert not any(record.troubles for record in world.state.nodes.values())
    assert world.state.next_test_s is None


@FEW
@given(HAPPENINGS)
def test_the_recorded_events_lead_to_the_same_devices(happenings: list[tuple[str, int]]) -> None:
    world = _played(happenings)
    events: Codec[Event] = Codec(Event)
    states: Codec[ClusterState] = Codec(ClusterState)
    again = [events.decode(events.encode(event)) for event in world.events]
    half = machine.replay(again[: len(again) // 2], state=machine.initial(CLUSTER))
    whole = machine.replay(again[len(again) // 2 :], state=states.decode(states.encode(half)))
    assert whole == world.state


@FEW
@given(HAPPENINGS)
def test_a_broken_device_costs_ever_fewer_tests(happenings: list[tuple[str, int]]) -> None:
    world = _played(happenings)
    world.feed(NodeJoined, node=NODES[0])
    for key, devices in tuple(world.alive.items()):
        if "n0/0" in devices:
            world.end(key, failure="device_fault", faulty_devices=("n0/0",))
    world.asked.clear()
    asked = 0
    for _ in range(40):
        world.tick(100.0)
        for key in sorted(world.alive):
            if _is_going(world, key):
                world.end(key, failure="lost")
            elif "n0/0" in world.alive[key]:
                world.end(key, failure="device_fault", faulty_devices=("n0/0",))
        asked += sum(test.device == "n0/0" for test in world.asked)
        while world.asked:
            world.answer(0, passed=world.asked[0].device != "n0/0")
    assert asked <= 4000.0 / RULES.longest_s + 8
