"""Where work goes: gangs on unequal devices, growing and giving way, drained nodes, ports, reasons."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from plait.schedule.commands import ResizeTask, StartTask, StopTask
from plait.schedule.domain import Allocation, Decision
from plait.schedule.events import ClusterConfigured, NodeDrained, NodeJoined, NodeLost, NodeResumed, StepReported
from plait.schedule.policy import ClusterView, TaskView
from plait.schedule.scenario import Scenario, started_attempts, task_of
from plait.schedule.validate import InvariantBroken, validate
from plait.spec.cluster import Cluster, PolicyChoice, PriceWindow

GIB = 2**30


def _mixed() -> Scenario:
    scenario = Scenario()
    scenario.join("n0", "A100", 2, speed=4.0)
    scenario.join("n1", "V100", 2, speed=2.0)
    scenario.join("n2", "T4", 2, speed=1.0)
    return scenario


def _start(scenario: Scenario) -> StartTask:
    (command,) = (command for command in scenario.commands if isinstance(command, StartTask))
    return command


def test_a_gang_may_span_types_fastest_first() -> None:
    scenario = _mixed()
    scenario.submit("j", task_of("T4 V100 A100", (2, 3)))
    workers = _start(scenario).placement.workers
    assert [(w.worker_id, w.rank, w.local_rank, w.node) for w in workers] == [
        ("w0", 0, 0, "n0"),
        ("w1", 1, 1, "n0"),
        ("w2", 2, 0, "n1"),
    ]
    reasons = "; ".join(_start(scenario).placement.reasons)
    assert "fastest types first (speed of a worker: A100 4, V100 2, T4 1)" in reasons
    assert "T4 not used: no more workers are wanted" in reasons


def test_without_mix_all_workers_are_on_the_one_type_that_is_fastest() -> None:
    scenario = _mixed()
    scenario.join("n3", "T4", 8, speed=1.0)
    scenario.submit("few", task_of("T4 V100", (1, 2), mix=False))
    assert {w.accelerator_type for w in _start(scenario).placement.workers} == {"V100"}
    scenario.submit("many", task_of("T4 A100", (1, 10), mix=False))
    assert {w.accelerator_type for w in _start(scenario).placement.workers} == {"T4"}
    assert "A100 not used: all workers go on one type" in scenario.explained("many")


def test_all_devices_of_a_worker_are_on_one_node() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 3)
    scenario.join("n1", "A100", 3)
    scenario.submit("j", task_of(workers=(3, 3), count=2))
    assert scenario.task("j").is_impossible
    assert "needs 3 workers of 2 x A100, the healthy nodes can hold 2" in scenario.task("j").reason
    scenario.join("n2", "A100", 2)
    devices = [worker.placement.device_ids for worker in scenario.attempt("j/train/0").workers.values()]
    assert sorted(devices) == [("n0/0", "n0/1"), ("n1/0", "n1/1"), ("n2/0", "n2/1")]


def test_devices_with_too_little_memory_do_not_count() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2, memory_bytes=40 * GIB)
    scenario.submit("j", task_of(memory_bytes=80 * GIB))
    assert scenario.task("j").reason == (
        "impossible for now: needs 1 worker of A100 with 80 GiB, the healthy nodes can hold 0; waits for more devices"
    )
    scenario.join("n1", "A100", 1, memory_bytes=80 * GIB)
    assert scenario.devices("j/train/0") == ["n1/0"]


def test_a_type_that_no_node_has_is_told_with_the_nearest() -> None:
    scenario = _mixed()
    scenario.submit("j", task_of("A10O"))
    assert "no node has A10O; did you mean 'A100'?" in scenario.task("j").reason


def test_a_task_without_requests_takes_any_type() -> None:
    scenario = _mixed()
    scenario.submit("j", task_of("", (1, 6)))
    assert len(scenario.attempt("j/train/0").workers) == 6


def test_while_nodes_join_a_task_that_could_have_more_waits_a_moment() -> None:
    scenario = Scenario()
    scenario.submit("j", task_of(workers=(1, 4)))
    nodes = Scenario()
    nodes.join("n0", "A100", 2)
    nodes.join("n1", "A100", 2)
    assert scenario.feed(NodeJoined, node=nodes.state.nodes["n0"].node) == ()
    assert scenario.task("j").reason == "nodes are joining; starts with 2 workers unless there are more soon"
    assert started_attempts(scenario.feed(NodeJoined, node=nodes.state.nodes["n1"].node)) == ["j/train/0"]
    assert len(scenario.attempt("j/train/0").workers) == 4


def test_priority_goes_before_submission() -> None:
    scenario = Scenario()
    scenario.submit("first", task_of())
    scenario.submit("urgent", task_of(), priority=5)
    scenario.submit("second", task_of())
    commands = scenario.join("n0", "A100", 2)
    assert started_attempts(commands) == ["urgent/train/0", "first/train/0"]


def test_later_tasks_never_delay_the_head_of_the_queue() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 4)
    scenario.join("n1", "T4", 2)
    scenario.submit("runs", task_of(workers=(2, 2)))
    scenario.submit("head", task_of(workers=(4, 4)))
    scenario.submit("small", task_of("A100"))
    scenario.submit("elsewhere", task_of("T4"))
    assert sorted(scenario.state.attempts) == ["elsewhere/train/0", "runs/train/0"]
    assert "needs 4 workers of A100; 2 x A100 free; it is first in the queue" in scenario.task("head").reason
    assert "of which 2 x A100 are kept for head/train, the head of the queue" in scenario.task("small").reason
    assert started_attempts(scenario.finished("runs/train/0")) == ["head/train/0"]


def test_a_head_that_could_never_run_holds_nobody_up() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("huge", task_of(workers=(64, 64)))
    scenario.submit("small", task_of())
    assert list(scenario.state.attempts) == ["small/train/0"]


def test_every_waiting_gang_gets_its_fewest_before_anybody_gets_more() -> None:
    scenario = Scenario()
    scenario.submit("a", task_of(workers=(1, 4)))
    scenario.submit("b", task_of(workers=(2, 4)))
    scenario.join("n0", "A100", 4)
    assert len(scenario.attempt("a/train/0").workers) == 2
    assert len(scenario.attempt("b/train/0").workers) == 2


def test_an_elastic_gang_grows_on_what_nobody_waits_for() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of("A100 V100", (1, 4)))
    scenario.stepped("j/train/0")
    (grow,) = scenario.join("n1", "V100", 8)
    assert isinstance(grow, ResizeTask)
    assert [w.worker_id for w in grow.add] == ["w2", "w3"]
    assert "nobody waits" in grow.reason


def test_a_gang_grows_only_once_it_is_known_to_be_elastic() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 1)
    scenario.submit("j", task_of(workers=(1, 4)))
    scenario.started("j/train/0")
    assert scenario.join("n1", "A100", 1) == ()
    assert scenario.stepped("j/train/0", elastic=False) == ()
    (grow,) = scenario.stepped("j/train/0", step=2, elastic=True)
    assert isinstance(grow, ResizeTask)


def test_an_elastic_gang_gives_up_what_a_waiting_gang_lacks_and_no_more() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 6)
    scenario.submit("elastic", task_of(workers=(2, 5)))
    scenario.stepped("elastic/train/0")
    (shrink,) = scenario.submit("gang", task_of(workers=(3, 3)))
    assert isinstance(shrink, ResizeTask)
    assert shrink.remove == ("w3", "w4")
    assert "elastic/train gives up 2 x A100 for it" in scenario.task("gang").reason
    assert scenario.tick(1.0) == ()
    scenario.ended("elastic/train/0", "w3")
    assert started_attempts(scenario.ended("elastic/train/0", "w4")) == ["gang/train/0"]


@pytest.mark.parametrize(("elastic_priority", "wanted"), [(1, 3), (0, 5)])
def test_an_elastic_gang_gives_nothing_up_in_vain(elastic_priority: int, wanted: int) -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 6)
    scenario.submit("elastic", task_of(workers=(2, 6)), priority=elastic_priority)
    scenario.stepped("elastic/train/0")
    assert scenario.submit("gang", task_of(workers=(wanted, wanted))) == ()


@pytest.mark.parametrize("has_stepped", [True, False])
def test_a_gang_that_is_not_known_to_be_elastic_gives_nothing_up(has_stepped: bool) -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 6)
    scenario.submit("rigid", task_of(workers=(2, 6)))
    if has_stepped:
        scenario.stepped("rigid/train/0", elastic=False)
    assert scenario.submit("gang", task_of(workers=(1, 1)), priority=9) == ()
    assert scenario.task("rigid").state in ("starting", "running")


def test_a_head_that_finds_no_whole_node_keeps_what_is_free() -> None:
    scenario = Scenario()
    for name in ("n0", "n1"):
        scenario.join(name, "A100", 3)
    scenario.submit("pairs", task_of(workers=(2, 2), count=2))
    assert scenario.devices("pairs/train/0") == ["n0/0", "n0/1", "n1/0", "n1/1"]
    scenario.submit("head", task_of(workers=(1, 1), count=2))
    scenario.submit("small", task_of())
    assert "but not enough on one node for each worker; it is first in the queue" in scenario.task("head").reason
    assert scenario.task("small").state == "waiting"


def test_a_drained_node_is_left_by_an_elastic_gang_in_place() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.join("n1", "A100", 2)
    scenario.submit("j", task_of(workers=(2, 4)))
    scenario.stepped("j/train/0")
    (shrink,) = scenario.feed(NodeDrained, node="n1")
    assert isinstance(shrink, ResizeTask)
    assert shrink.remove == ("w2", "w3")
    for worker_id in shrink.remove:
        assert scenario.ended("j/train/0", worker_id) == ()
    (grow,) = scenario.feed(NodeResumed, node="n1")
    assert isinstance(grow, ResizeTask)
    assert scenario.task("j").restarts == 0


def test_a_drained_node_is_left_by_another_gang_for_other_nodes() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of(workers=(2, 2)))
    scenario.started("j/train/0")
    scenario.join("n1", "A100", 2)
    (stop,) = scenario.feed(NodeDrained, node="n0")
    assert isinstance(stop, StopTask)
    assert stop.grace_s == 10.0
    scenario.ended("j/train/0", "w0", "lost")
    assert started_attempts(scenario.ended("j/train/0", "w1", "lost")) == ["j/train/1"]
    assert scenario.devices("j/train/1") == ["n1/0", "n1/1"]
    assert scenario.task("j").restarts == 0


def test_what_fits_nowhere_else_runs_on_until_it_does() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of(workers=(2, 2)))
    assert scenario.feed(NodeDrained, node="n0") == ()
    assert "no other nodes can hold it" in scenario.explained("j")
    scenario.submit("new", task_of())
    assert "lost or drained: n0" in scenario.task("new").reason
    (start, stop) = sorted(scenario.join("n1", "A100", 3), key=lambda command: command.kind)
    assert isinstance(start, StartTask)
    assert isinstance(stop, StopTask)
    assert stop.attempt_id == "j/train/0"


def test_a_port_is_not_used_again_at_once() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2, num_ports=6)
    ports = []
    for number in range(4):
        scenario.submit(f"j{number}", task_of())
        ports.append(scenario.attempt(f"j{number}/train/0").workers["w0"].placement.port)
        scenario.finished(f"j{number}/train/0")
    assert ports == [21000, 21002, 21004, 21000]


def test_a_node_holds_no_more_workers_than_it_has_ports_for() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 4, num_ports=5)
    scenario.submit("j", task_of(workers=(3, 3)))
    assert "can hold 2" in scenario.task("j").reason
    scenario.submit("k", task_of(workers=(2, 2)))
    scenario.submit("l", task_of())
    assert list(scenario.state.attempts) == ["k/train/0"]


def test_a_gang_goes_on_as_few_nodes_as_hold_it_the_tightest_first() -> None:
    scenario = Scenario()
    for name, number in (("n0", 2), ("n1", 8), ("n2", 4)):
        scenario.join(name, "A100", number)
    scenario.submit("four", task_of(workers=(4, 4)))
    assert {w.node for w in _start(scenario).placement.workers} == {"n2"}
    scenario.submit("nine", task_of(workers=(9, 9)))
    assert [w.node for w in _start(scenario).placement.workers] == ["n1"] * 8 + ["n0"]


class _Fixed:
    """Gives every task the same, whatever is wise."""

    name = "fixed"

    def __init__(self, *counts: tuple[str, int]) -> None:
        self.counts = counts

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        allocation = Allocation(counts=self.counts) if self.counts else None
        return [Decision(task=task.key, allocation=allocation, reason="so it is") for task in tasks]


@pytest.mark.parametrize(
    ("counts", "refusal"),
    [
        ((("A100", 4),), "outside 1 to 3"),
        ((("T4", 1),), "which the task did not ask for"),
        ((("A100", 1), ("V100", 1)), "wants one type"),
        ((("A100", 3),), "3 workers need 3 A100; room for 2 of them is free"),
    ],
)
def test_a_policy_that_breaks_the_rules_is_not_obeyed(counts: tuple[tuple[str, int], ...], refusal: str) -> None:
    scenario = Scenario(policy=_Fixed(*counts))
    scenario.join("n0", "A100", 2)
    scenario.join("n1", "V100", 2)
    assert scenario.submit("j", task_of("A100 V100", (1, 3), mix=False)) == ()
    assert refusal in scenario.task("j").reason


def test_a_policy_may_pre_empt_and_that_uses_up_no_restart() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of(workers=(1, 2)))
    scenario.started("j/train/0")
    scenario.policy = _Fixed()
    (stop,) = scenario.tick(1.0)
    assert isinstance(stop, StopTask)
    assert stop.reason == "pre-empted: so it is"
    scenario.ended("j/train/0", "w0")
    scenario.ended("j/train/0", "w1", "lost")
    assert (scenario.task("j").state, scenario.task("j").restarts) == ("waiting", 0)


def test_another_allocation_resizes_elastic_gangs_and_restarts_others() -> None:
    for elastic, form in ((True, ResizeTask), (False, StopTask)):
        scenario = Scenario()
        scenario.join("n0", "A100", 2)
        scenario.submit("j", task_of(workers=(1, 2)))
        scenario.stepped("j/train/0", elastic=elastic)
        scenario.policy = _Fixed(("A100", 1))
        assert [type(command) for command in scenario.tick(1.0)] == [form]


def test_an_elastic_gang_moves_to_other_devices_without_falling_below_its_minimum() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 3)
    scenario.submit("j", task_of("A100 V100", (2, 3)))
    scenario.stepped("j/train/0")
    scenario.join("n1", "V100", 3)
    scenario.policy = _Fixed(("V100", 3))
    shrink, grow = scenario.tick(1.0)
    assert isinstance(shrink, ResizeTask)
    assert isinstance(grow, ResizeTask)
    assert (len(shrink.remove), len(grow.add)) == (1, 1)
    assert len(scenario.attempt("j/train/0").active()) == 3


def test_a_gang_that_has_no_room_to_move_in_place_starts_anew() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of("A100 V100", (2, 2)))
    scenario.stepped("j/train/0")
    scenario.join("n1", "V100", 2)
    scenario.policy = _Fixed(("V100", 2))
    (stop,) = scenario.tick(1.0)
    assert isinstance(stop, StopTask)
    scenario.finished("j/train/0")
    assert scenario.devices("j/train/1") == ["n1/0", "n1/1"]


def test_a_drain_that_would_leave_too_few_moves_the_whole_gang() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.join("n1", "A100", 1)
    scenario.submit("j", task_of(workers=(2, 3)))
    scenario.stepped("j/train/0")
    scenario.join("n2", "A100", 1)
    (stop,) = scenario.feed(NodeDrained, node="n0")
    assert isinstance(stop, StopTask)


def test_nodes_that_share_an_address_share_its_ports() -> None:
    scenario = Scenario()
    nodes = Scenario()
    for name in ("n0", "n1"):
        nodes.join(name, "A100", 2)
        node = replace(nodes.state.nodes[name].node, address="127.0.0.1")
        scenario.feed(NodeJoined, node=node)
    scenario.submit("j", task_of(workers=(4, 4)))
    assert len({worker.port for worker in _start(scenario).placement.workers}) == 4


def test_a_policy_that_is_not_installed_stops_nothing() -> None:
    scenario = Scenario(cluster=Cluster(policy=PolicyChoice(name="nobody_has_it")))
    scenario.submit("j", task_of())
    assert started_attempts(scenario.join("n0", "A100", 1)) == ["j/train/0"]


def test_the_cluster_file_may_change_while_jobs_wait() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 1)
    scenario.submit("j", task_of(run_during="always"))
    window = PriceWindow(name="always", from_s=0, to_s=0)
    cluster = Cluster(policy=PolicyChoice(name="fifo_backfill"), price_windows=(window,))
    assert started_attempts(scenario.feed(ClusterConfigured, cluster=cluster)) == ["j/train/0"]


def test_explain_tells_what_binds_who_holds_it_and_what_happened() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of(workers=(2, 2)))
    scenario.submit("next", task_of())
    scenario.feed(
        StepReported,
        attempt_id="j/train/0",
        step=5,
        total_steps=10,
        samples_per_s=3.0,
        elastic=False,
        split=(("w0", 5), ("w1", 3)),
        reason="w0 is 1.7 times as fast",
    )
    assert "w0 5, w1 3 (w0 is 1.7 times as fast)" in scenario.explained("j")
    waiting = scenario.explained("next")
    assert "needs 1 worker of A100" in waiting
    assert "j/train/0 holds 2 workers on A100, end not known" in waiting
    scenario.ended("j/train/0", "w0", "lost")
    scenario.feed(NodeLost, node="n0", reason="silent")
    told = scenario.explained("j")
    assert "j/train/0 ended and was queued for a restart after 0.0 s, cause lost: w0 on n0/0 was lost" in told
    assert "restart 1 of 10 may start in 1.0 s" in told
    assert scenario.explained("nxet") == "there is no job 'nxet'; did you mean 'next'?"


def test_validate_names_the_broken_rule() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of())
    attempt = scenario.attempt("j/train/0")
    twin = replace(attempt, id="j/train/1")
    broken = replace(scenario.state, attempts={attempt.id: attempt, twin.id: twin})
    with pytest.raises(InvariantBroken, match="one holder a device: n0/0 is held 2 times") as caught:
        validate(broken)
    assert "one worker a port" in str(caught.value)
    assert "one live attempt a task" in str(caught.value)
