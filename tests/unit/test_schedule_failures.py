"""What follows from each cause of failure, for elastic and for other gangs."""

from dataclasses import replace

import pytest

from plait.schedule.attempts import backoff_s
from plait.schedule.commands import AbortCollectives, ResizeTask, StartTask, StopTask
from plait.schedule.events import (
    DeviceLost,
    DeviceReturned,
    NodeJoined,
    NodeLost,
    NodeResumed,
    StepReported,
    WorkerExited,
)
from plait.schedule.scenario import Scenario, started_attempts, task_of
from plait.schedule.state import MachineConfig
from plait.spec.job import FailureCause, FailureRules

GIB = 2**30


def _running(
    workers: tuple[int, int] = (2, 4),
    num_devices: int = 4,
    *,
    elastic: bool = True,
    failure: FailureRules | None = None,
) -> Scenario:
    scenario = Scenario()
    scenario.join("n0", "A100", num_devices, memory_bytes=40 * GIB)
    scenario.submit("j", task_of(workers=workers), failure=failure)
    scenario.stepped("j/train/0", elastic=elastic)
    return scenario


def test_a_user_error_fails_the_task_at_once() -> None:
    scenario = _running()
    commands = scenario.ended("j/train/0", "w1", "user", exit_code=2)
    assert [type(command) for command in commands] == [StopTask]
    for worker_id in ("w0", "w2", "w3"):
        scenario.ended("j/train/0", worker_id, "lost")
    assert (scenario.state.jobs["j"].state, scenario.state.jobs["j"].exit_code) == ("failed", 2)
    assert scenario.task("j").restarts == 0


@pytest.mark.parametrize("cause", ["lost", "network", "device_fault", "oom"])
def test_an_elastic_gang_goes_on_without_a_worker(cause: FailureCause) -> None:
    scenario = _running()
    commands = scenario.ended("j/train/0", "w0", cause)
    assert isinstance(commands[0], AbortCollectives)
    assert commands[0].lost == ("w0",)
    assert not [command for command in commands if isinstance(command, StopTask)]
    assert scenario.task("j").state == "running"
    assert scenario.task("j").restarts == 0


@pytest.mark.parametrize("cause", ["lost", "network", "device_fault", "oom"])
def test_another_gang_is_stopped_and_starts_anew_once_all_workers_are_gone(cause: FailureCause) -> None:
    scenario = _running((2, 2), num_devices=8, elastic=False)
    scenario.join("n1", "A100", 8, memory_bytes=80 * GIB)
    (stop,) = scenario.ended("j/train/0", "w0", cause)
    assert isinstance(stop, StopTask)
    scenario.tick(100.0)
    assert list(scenario.state.attempts) == ["j/train/0"]
    assert scenario.ended("j/train/0", "w1", "lost") == ()
    assert started_attempts(scenario.tick(1.0)) == ["j/train/1"]
    assert scenario.task("j").restarts == 1
    assert scenario.task("j").history[0].cause == cause


def test_a_lost_worker_is_replaced_by_a_new_one() -> None:
    scenario = _running()
    abort, grow = scenario.ended("j/train/0", "w1", "lost")
    assert isinstance(abort, AbortCollectives)
    assert isinstance(grow, ResizeTask)
    (joiner,) = grow.add
    assert (joiner.worker_id, joiner.rank, joiner.local_rank, joiner.device_ids) == ("w4", 4, 1, ("n0/1",))


def test_replacements_that_are_lost_again_come_slower_and_slower() -> None:
    scenario = _running()
    waits = []
    for worker_id in ("w0", "w4", "w5", "w6"):
        commands = scenario.ended("j/train/0", worker_id, "lost")
        waited_s = 0.0
        while not any(isinstance(command, ResizeTask) for command in commands):
            commands = scenario.tick(1.0)
            waited_s += 1.0
        waits.append(waited_s)
    assert waits == [0.0, 1.0, 2.0, 4.0]


def test_a_gang_that_falls_below_its_minimum_starts_anew() -> None:
    scenario = _running((3, 3), num_devices=3)
    scenario.ended("j/train/0", "w0", "lost")
    assert scenario.task("j").state == "stopping"
    assert "2 left, at least 3 needed" in scenario.task("j").reason


def test_restarts_wait_longer_each_time_and_end() -> None:
    scenario = _running((1, 1), num_devices=1, elastic=False, failure=FailureRules(max_restarts=3))
    waits = []
    for number in range(4):
        scenario.ended(f"j/train/{number}", "w0", "lost")
        waited_s = 0.0
        while scenario.task("j").state == "waiting":
            waited_s += 1.0
            scenario.tick(1.0)
        waits.append(waited_s)
    assert waits == [1.0, 2.0, 4.0, 0.0]
    assert scenario.state.jobs["j"].state == "failed"
    assert "all 3 restarts are used up" in scenario.state.jobs["j"].reason


def test_the_pause_before_a_restart_is_bounded() -> None:
    config = MachineConfig(backoff_base_s=1.0, backoff_max_s=60.0)
    assert [backoff_s(config, number) for number in (0, 1, 2, 7, 10_000)] == [0.0, 1.0, 2.0, 60.0, 60.0]


def test_a_task_keeps_its_devices_while_it_waits_for_its_restart() -> None:
    scenario = _running((1, 1), num_devices=1, elastic=False)
    scenario.submit("later", task_of())
    assert started_attempts(scenario.ended("j/train/0", "w0", "lost")) == []
    assert started_attempts(scenario.tick(1.0)) == ["j/train/1"]


@pytest.mark.parametrize(
    ("cause", "failure"),
    [
        ("oom", FailureRules(oom="fail")),
        ("device_fault", FailureRules(device_fault="fail")),
        ("network", FailureRules(network="fail")),
    ],
)
def test_the_rule_fail_fails_the_task(cause: FailureCause, failure: FailureRules) -> None:
    scenario = _running(failure=failure)
    scenario.ended("j/train/0", "w0", cause)
    for worker_id in ("w1", "w2", "w3"):
        scenario.ended("j/train/0", worker_id, "lost")
    assert scenario.state.jobs["j"].state == "failed"
    assert f"rule {cause}: fail" in scenario.state.jobs["j"].reason


@pytest.mark.parametrize(
    ("cause", "failure"),
    [
        ("oom", FailureRules(oom="restart")),
        ("device_fault", FailureRules(device_fault="restart")),
        ("network", FailureRules(network="restart")),
    ],
)
def test_the_rule_restart_restarts_even_an_elastic_gang_on_the_same_devices(
    cause: FailureCause, failure: FailureRules
) -> None:
    scenario = _running(failure=failure)
    scenario.ended("j/train/0", "w0", cause)
    for worker_id in ("w1", "w2", "w3"):
        scenario.ended("j/train/0", worker_id, "lost")
    scenario.tick(1.0)
    assert scenario.devices("j/train/1") == ["n0/0", "n0/1", "n0/2", "n0/3"]
    assert scenario.task("j").restarts == 1


def test_a_faulty_device_is_not_used_again_until_it_returns() -> None:
    scenario = _running()
    scenario.ended("j/train/0", "w2", "device_fault")
    scenario.tick(100.0)
    assert scenario.devices("j/train/0") == ["n0/0", "n0/1", "n0/3"]
    assert scenario.state.nodes["n0"].troubles["n0/2"].state == "quarantined"
    (grow,) = scenario.feed(DeviceReturned, device="n0/2")
    assert isinstance(grow, ResizeTask)
    assert scenario.devices("j/train/0") == ["n0/0", "n0/1", "n0/2", "n0/3"]


def test_a_person_who_resumes_a_node_vouches_for_its_quarantined_devices() -> None:
    scenario = _running()
    scenario.ended("j/train/0", "w2", "device_fault")
    scenario.feed(NodeResumed, node="n0")
    assert not scenario.state.nodes["n0"].troubles


def test_a_device_that_its_node_reports_lost_is_given_up_before_its_worker_notices() -> None:
    scenario = _running()
    abort, remove = scenario.feed(DeviceLost, device="n0/3", reason="Xid 79")
    assert isinstance(abort, AbortCollectives)
    assert isinstance(remove, ResizeTask)
    assert abort.lost == remove.remove == ("w3",)
    assert "w3" in scenario.attempt("j/train/0").workers
    scenario.ended("j/train/0", "w3", "device_fault")
    scenario.tick(100.0)
    assert scenario.devices("j/train/0") == ["n0/0", "n0/1", "n0/2"]
    assert scenario.task("j").restarts == 0


def test_a_lost_device_stops_a_gang_that_is_not_elastic() -> None:
    scenario = _running((2, 2), elastic=False)
    (stop,) = scenario.feed(DeviceLost, device="n0/1", reason="Xid 79")
    assert isinstance(stop, StopTask)
    for worker_id in ("w0", "w1"):
        scenario.ended("j/train/0", worker_id, "device_fault")
    scenario.tick(1.0)
    assert scenario.devices("j/train/1") == ["n0/0", "n0/2"]


def test_after_running_out_of_memory_only_larger_devices_are_used() -> None:
    scenario = _running((1, 2), num_devices=2)
    scenario.ended("j/train/0", "w1", "oom")
    scenario.tick(100.0)
    assert scenario.devices("j/train/0") == ["n0/0"]
    scenario.join("n1", "A100", 1, memory_bytes=80 * GIB)
    assert scenario.devices("j/train/0") == ["n0/0", "n1/0"]


def test_a_task_for_which_no_device_is_large_enough_fails() -> None:
    scenario = _running((2, 2), num_devices=4)
    scenario.ended("j/train/0", "w1", "oom")
    scenario.ended("j/train/0", "w0", "lost")
    assert scenario.state.jobs["j"].state == "failed"
    assert "no other devices with more memory can hold the task" in scenario.state.jobs["j"].reason


def test_a_larger_device_that_is_away_is_waited_for() -> None:
    scenario = _running((1, 1), num_devices=1, elastic=False)
    scenario.join("n1", "A100", 1, memory_bytes=80 * GIB)
    scenario.feed(NodeLost, node="n1", reason="silent")
    scenario.ended("j/train/0", "w0", "oom")
    assert scenario.task("j").state == "waiting"
    scenario.join("n1", "A100", 1, memory_bytes=80 * GIB)
    assert scenario.devices("j/train/1") == ["n1/0"]


def test_a_gang_whose_large_devices_are_taken_away_fails_rather_than_waits() -> None:
    scenario = _running((1, 2), num_devices=1)
    scenario.join("n1", "A100", 1, memory_bytes=80 * GIB)
    scenario.ended("j/train/0", "w0", "oom")
    assert scenario.devices("j/train/0") == ["n1/0"]
    scenario.feed(NodeJoined, node=replace(scenario.state.nodes["n1"].node, devices=()))
    scenario.ended("j/train/0", "w1", "device_fault")
    assert scenario.state.jobs["j"].state == "failed"
    assert "it ran out of memory before" in scenario.state.jobs["j"].reason


def test_a_lost_node_takes_its_workers_and_counts_once() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.join("n1", "A100", 2)
    scenario.submit("j", task_of(workers=(2, 4)))
    scenario.stepped("j/train/0")
    (abort,) = scenario.feed(NodeLost, node="n0", reason="silent for 5 s")
    assert isinstance(abort, AbortCollectives)
    assert abort.lost == ("w0", "w1")
    assert scenario.feed(NodeLost, node="n0", reason="silent for 6 s") == ()
    assert scenario.devices("j/train/0") == ["n1/0", "n1/1"]
    scenario.feed(WorkerExited, attempt_id="j/train/0", worker_id="w0", exit_code=None, signal=9)
    (grow,) = scenario.join("n0", "A100", 2)
    assert isinstance(grow, ResizeTask)
    assert [worker.worker_id for worker in grow.add] == ["w4", "w5"]


def test_a_node_that_registers_again_without_having_been_lost_frees_nothing() -> None:
    scenario = _running((4, 4))
    node = scenario.state.nodes["n0"].node
    assert scenario.feed(NodeJoined, node=node) == ()
    assert len(scenario.attempt("j/train/0").workers) == 4


def test_an_elastic_gang_that_finishes_may_lose_peers_on_the_way_out() -> None:
    scenario = _running()
    scenario.ended("j/train/0", "w0")
    scenario.ended("j/train/0", "w1", "lost")
    scenario.ended("j/train/0", "w2")
    scenario.ended("j/train/0", "w3", "network")
    assert scenario.state.jobs["j"].state == "succeeded"


def test_whoever_is_lost_last_may_have_been_writing_the_result() -> None:
    scenario = _running()
    for worker_id in ("w1", "w2", "w3"):
        scenario.ended("j/train/0", worker_id)
    scenario.ended("j/train/0", "w0", "lost")
    assert scenario.task("j").state == "waiting"
    assert "after the others had finished" in scenario.task("j").reason


def test_a_gang_that_is_not_elastic_needs_every_worker_to_finish() -> None:
    scenario = _running((2, 2), elastic=False)
    scenario.ended("j/train/0", "w0")
    assert scenario.task("j").state == "running"
    scenario.ended("j/train/0", "w1", "lost")
    assert scenario.task("j").state == "waiting"


def test_an_exit_that_nobody_explained_is_judged_by_code_and_signal() -> None:
    killed = _running((1, 1), num_devices=1, elastic=False)
    killed.feed(WorkerExited, attempt_id="j/train/0", worker_id="w0", exit_code=None, signal=9)
    assert killed.task("j").history[0].cause == "lost"
    assert "SIGKILL" in killed.task("j").reason
    unknown = _running((1, 1), num_devices=1, elastic=False)
    unknown.feed(WorkerExited, attempt_id="j/train/0", worker_id="w0", exit_code=None)
    assert unknown.task("j").history[0].cause == "lost"
    wrong = _running((1, 1), num_devices=1, elastic=False)
    wrong.feed(WorkerExited, attempt_id="j/train/0", worker_id="w0", exit_code=4)
    assert wrong.state.jobs["j"].exit_code == 4


def test_a_worker_that_was_asked_to_leave_may_end_as_it_likes() -> None:
    scenario = _running()
    scenario.submit("other", task_of(workers=(2, 2)))
    assert isinstance(scenario.commands[0], ResizeTask)
    assert scenario.ended("j/train/0", "w3") == ()
    commands = scenario.ended("j/train/0", "w2", "user", exit_code=1)
    assert [type(command) for command in commands] == [AbortCollectives, StartTask]
    assert scenario.task("j").state == "running"


def test_who_has_not_joined_when_others_finish_is_asked_to_leave() -> None:
    scenario = _running((1, 3), num_devices=2)
    scenario.tick(10.0)
    scenario.join("n1", "A100", 1, memory_bytes=40 * GIB)
    scenario.tick(10.0)
    scenario.started("j/train/0")
    assert set(scenario.attempt("j/train/0").workers) == {"w0", "w1", "w2"}
    scenario.feed(
        StepReported,
        attempt_id="j/train/0",
        step=99,
        total_steps=100,
        samples_per_s=1.0,
        elastic=True,
        split=(("w0", 1), ("w1", 1)),
    )
    (command,) = scenario.ended("j/train/0", "w0")
    assert isinstance(command, ResizeTask)
    assert command.remove == ("w2",)
    assert scenario.ended("j/train/0", "w1") == ()
    scenario.ended("j/train/0", "w2", "lost", exit_code=143)
    assert scenario.state.jobs["j"].state == "succeeded"
