"""Devices that failed: when they are kept from work, when they are tested, and what people are told."""

from dataclasses import replace

import pytest

from plait.schedule.commands import ResizeTask, TestDevice
from plait.schedule.events import (
    ClusterConfigured,
    DeviceLost,
    DeviceTested,
    NodeJoined,
    NodeLost,
    NodeResumed,
    WorkerExited,
)
from plait.schedule.explain import explain_job
from plait.schedule.quarantine import judged
from plait.schedule.scenario import Scenario, task_of
from plait.schedule.state import DeviceFaults
from plait.spec.cluster import Cluster, Quarantine
from plait.spec.job import FailureRules

RULES = Quarantine(faults=3, window_s=1000.0, cool_down_s=100.0, longest_s=350.0, test_limit_s=10.0)


def _running(failure: FailureRules | None = None, count: int = 1, num_devices: int = 4) -> Scenario:
    scenario = Scenario()
    scenario.feed(ClusterConfigured, cluster=Cluster(quarantine=RULES))
    scenario.join("n0", "A100", num_devices)
    scenario.submit("j", task_of(workers=(1, 4), count=count), failure=failure)
    scenario.stepped("j/train/0")
    return scenario


def _fail(scenario: Scenario, device: str, *, is_transient: bool = False, blamed: tuple[str, ...] = ()) -> None:
    """The worker that is on the device ends by a fault of it."""
    (attempt,) = scenario.state.attempts.values()
    worker_id = next(i for i, w in attempt.workers.items() if device in w.placement.device_ids)
    scenario.feed(
        WorkerExited,
        attempt_id=attempt.id,
        worker_id=worker_id,
        exit_code=77,
        failure="device_fault",
        is_transient=is_transient,
        faulty_devices=blamed,
    )


def _due(scenario: Scenario, seconds: float) -> TestDevice:
    (test,) = (command for command in scenario.tick(seconds) if isinstance(command, TestDevice))
    return test


def _answer(scenario: Scenario, test: TestDevice, *, passed: bool) -> None:
    scenario.feed(DeviceTested, device=test.device, test=test.cause, passed=passed, detail="as found")


def _state(scenario: Scenario, device: str = "n0/2") -> str:
    trouble = scenario.state.nodes["n0"].troubles.get(device)
    return trouble.state if trouble is not None else "healthy"


def test_a_device_that_passes_its_test_works_again_and_then_fails_for_twice_as_long() -> None:
    scenario = _running()
    _fail(scenario, "n0/2")
    assert not [c for c in scenario.tick(99.0) if isinstance(c, TestDevice)]
    test = _due(scenario, 1.0)
    assert (test.node, test.device, test.limit_s) == ("n0", "n0/2", 10.0)
    assert _state(scenario) == "probation"
    assert "n0/2" not in scenario.devices("j/train/0"), "no work goes there while it is tested"
    _answer(scenario, test, passed=True)
    assert "n0/2" in scenario.devices("j/train/0")
    _fail(scenario, "n0/2", is_transient=True)
    assert _state(scenario) == "quarantined", "while it is watched nothing is forgiven"
    assert not [c for c in scenario.tick(199.0) if isinstance(c, TestDevice)]
    assert _due(scenario, 1.0).device == "n0/2"


def test_each_test_that_fails_doubles_the_time_up_to_the_bound() -> None:
    scenario = _running()
    _fail(scenario, "n0/2")
    waits = []
    for _ in range(4):
        waited_s = 0.0
        while _state(scenario) == "quarantined":
            waited_s += 50.0
            commands = scenario.tick(50.0)
        waits.append(waited_s)
        (test,) = (command for command in commands if isinstance(command, TestDevice))
        _answer(scenario, test, passed=False)
    assert waits == [100.0, 200.0, 350.0, 350.0]
    assert "last test: failed, as found" in scenario_told(scenario)


def scenario_told(scenario: Scenario) -> str:
    scenario.submit("later", task_of(workers=(4, 4)))
    return scenario.explained("later")


def test_faults_of_a_moment_are_forgiven_until_there_are_too_many_of_them() -> None:
    scenario = _running()
    for _ in range(2):
        _fail(scenario, "n0/2", is_transient=True)
        scenario.tick(100.0)
        assert _state(scenario) == "healthy"
        assert "n0/2" in scenario.devices("j/train/0")
    _fail(scenario, "n0/2", is_transient=True)
    assert _state(scenario) == "quarantined"
    told = scenario.explained("j")
    assert "n0/2 is forgiven as one of a moment: fault 1 of 3 in 17 min" in told
    assert "n0/2 is quarantined: it failed 3 times in 17 min, tested in 100 s" in told


def test_faults_far_apart_do_not_count_together() -> None:
    scenario = _running()
    for _ in range(4):
        _fail(scenario, "n0/2", is_transient=True)
        scenario.tick(600.0)
    assert _state(scenario) == "healthy"


def test_a_job_that_does_not_drop_devices_takes_none_from_others_by_one_fault() -> None:
    scenario = _running(FailureRules(device_fault="restart"))
    _fail(scenario, "n0/2")
    assert _state(scenario) == "healthy"
    assert scenario.state.nodes["n0"].faults["n0/2"].times_s


def test_only_the_device_that_failed_is_kept_from_work_where_that_is_known() -> None:
    scenario = _running(count=2)
    _fail(scenario, "n0/2", blamed=("n0/3", "n9/0"))
    assert (_state(scenario, "n0/2"), _state(scenario, "n0/3")) == ("healthy", "quarantined")
    other = _running(count=2)
    _fail(other, "n0/2")
    assert (_state(other, "n0/2"), _state(other, "n0/3")) == ("quarantined", "quarantined")


def test_a_device_that_its_node_calls_lost_is_tested_as_well() -> None:
    scenario = _running()
    scenario.feed(DeviceLost, device="n0/2", reason="Xid 79")
    assert _state(scenario) == "lost"
    assert not [c for c in scenario.tick(100.0) if isinstance(c, TestDevice)], "its worker has not ended yet"
    scenario.ended("j/train/0", "w2", "device_fault")
    test = _due(scenario, 1.0)
    _answer(scenario, test, passed=True)
    assert _state(scenario) == "healthy"


def test_a_test_without_an_answer_has_failed() -> None:
    scenario = _running()
    _fail(scenario, "n0/2")
    test = _due(scenario, 100.0)
    scenario.tick(19.0)
    assert _state(scenario) == "probation"
    scenario.tick(1.0)
    assert _state(scenario) == "quarantined"
    _answer(scenario, test, passed=True)
    assert _state(scenario) == "quarantined", "an answer that comes too late is not that of the next test"
    assert "its test gave no answer" in scenario_told(scenario)


def test_a_node_that_starts_anew_is_asked_for_the_test_again() -> None:
    scenario = _running()
    _fail(scenario, "n0/2")
    first = _due(scenario, 100.0)
    node = scenario.state.nodes["n0"].node
    scenario.feed(NodeLost, node="n0", reason="silent")
    scenario.tick(1000.0)
    scenario.feed(NodeJoined, node=node)
    second = _due(scenario, 1.0)
    assert second.cause != first.cause
    _answer(scenario, first, passed=True)
    assert _state(scenario) == "probation"
    _answer(scenario, second, passed=True)
    assert _state(scenario) == "healthy"


def test_a_device_that_is_away_is_tested_once_it_is_there_again() -> None:
    scenario = _running()
    node = scenario.state.nodes["n0"].node
    _fail(scenario, "n0/2")
    scenario.feed(NodeJoined, node=replace(node, devices=node.devices[:2]))
    scenario.ended("j/train/0", "w3", "device_fault")
    assert not [c for c in scenario.tick(500.0) if isinstance(c, TestDevice)]
    scenario.feed(NodeJoined, node=node)
    assert "n0/3" in {c.device for c in scenario.tick(1.0) if isinstance(c, TestDevice)}


def test_a_person_who_vouches_for_a_node_ends_quarantine_and_the_watch() -> None:
    scenario = _running()
    _fail(scenario, "n0/2")
    test = _due(scenario, 100.0)
    scenario.feed(NodeResumed, node="n0")
    assert _state(scenario) == "healthy"
    assert not scenario.state.nodes["n0"].faults
    _answer(scenario, test, passed=False)
    assert _state(scenario) == "healthy"
    _fail(scenario, "n0/2", is_transient=True)
    assert _state(scenario) == "healthy"


def test_what_people_are_told_of_a_quarantined_device() -> None:
    scenario = _running()
    _fail(scenario, "n0/2")
    scenario.tick(40.0)
    told = scenario_told(scenario)
    assert "n0/2 is quarantined since 40 s: j/train/0: w2 on n0/2 had a device fault (exit code 77)" in told
    assert "tested in 60 s" in told


def test_a_job_is_expected_to_start_when_the_device_will_be_tested() -> None:
    scenario = Scenario()
    scenario.feed(ClusterConfigured, cluster=Cluster(quarantine=RULES))
    scenario.join("n0", "A100", 1)
    scenario.submit("j", task_of())
    scenario.started("j/train/0")
    _fail(scenario, "n0/0")
    scenario.tick(40.0)
    (told,) = explain_job(scenario.state, scenario.state.jobs["j"])
    assert told.starts_in_s == 60.0
    assert "expected to start in 60 s" in told.starts


def test_growth_follows_a_passed_test_at_once() -> None:
    scenario = _running()
    _fail(scenario, "n0/2")
    test = _due(scenario, 100.0)
    _answer(scenario, test, passed=True)
    assert any(isinstance(command, ResizeTask) for command in scenario.commands)


@pytest.mark.parametrize(
    ("faults", "at_s", "is_transient", "cool_down_s"),
    [
        (DeviceFaults(), 0.0, False, 100.0),
        (DeviceFaults(), 0.0, True, None),
        (DeviceFaults(times_s=(1.0, 2.0)), 3.0, True, 100.0),
        (DeviceFaults(times_s=(1.0, 2.0)), 1001.5, True, None),
        (DeviceFaults(cool_down_s=100.0, watched_until_s=50.0), 49.0, True, 200.0),
        (DeviceFaults(cool_down_s=100.0, watched_until_s=50.0), 50.0, True, None),
        (DeviceFaults(cool_down_s=100.0, watched_until_s=50.0), 50.0, False, 100.0),
        (DeviceFaults(cool_down_s=300.0, watched_until_s=50.0), 49.0, False, 350.0),
    ],
)
def test_how_long_a_fault_keeps_a_device_from_work(
    faults: DeviceFaults, at_s: float, is_transient: bool, cool_down_s: float | None
) -> None:
    found = judged(faults, RULES, at_s, is_transient=is_transient)
    assert found.cool_down_s == cool_down_s
    assert found.faults.times_s[-1] == at_s
