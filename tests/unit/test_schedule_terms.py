"""What cluster.yaml and job.yaml ask of any policy: limits, reservations, prices, places, deadlines, moves."""

import json
from collections.abc import Sequence

import pytest

from plait.schedule.capacity import Capacity
from plait.schedule.commands import Command, ResizeTask, StartTask, StopTask
from plait.schedule.domain import Decision
from plait.schedule.events import ClusterConfigured, JobSubmitted, PriceChanged, ResizeRequested
from plait.schedule.gates import Terms
from plait.schedule.policy import ClusterView, TaskView
from plait.schedule.scenario import Scenario, started_attempts
from plait.spec.cluster import Cluster
from plait.spec.job import WorkerRange
from plait.spec.load import parse_cluster, parse_job

HOUR_S = 3600.0


def _cluster(text: str = "") -> Cluster:
    return parse_cluster(f"apiVersion: v1\n{text}", "cluster.yaml")


def _on(text: str = "") -> Scenario:
    return Scenario(cluster=_cluster(text))


def _submit(
    scenario: Scenario, name: str, task: str = "", *, job: str = "", accelerators: str = "A100"
) -> tuple[Command, ...]:
    any_of = ", ".join(f"{{accelerator: {one}}}" for one in accelerators.split())
    resources = "" if "resources" in task else f", resources: {{any_of: [{any_of}]}}"
    text = f"apiVersion: v1\nname: {name}\n{job}\ntasks: [{{name: train, command: [train]{resources}{task}}}]\n"
    return scenario.feed(JobSubmitted, job_id=name, job=parse_job(text, "job.yaml"))


def _stopped(commands: Sequence[Command]) -> list[str]:
    return [command.attempt_id for command in commands if isinstance(command, StopTask)]


def _nodes_of(scenario: Scenario, attempt_id: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for device in scenario.devices(attempt_id):
        node = device.partition("/")[0]
        found[node] = found.get(node, 0) + 1
    return found


LIMITED = "projects: [{name: lab, limit: {A100: 3}}, {name: free}]"


def test_a_limit_holds_for_jobs_that_start_in_the_same_round() -> None:
    s = _on(LIMITED)
    for name in ("a", "b", "c"):
        _submit(s, name, ", workers: {min: 2}", job="project: lab")
    _submit(s, "d", ", workers: {min: 2}", job="project: free")
    assert sorted(started_attempts(s.join("n0", "A100", 8))) == ["a/train/0", "d/train/0"]
    assert "the limit of project lab: it holds 2 of at most 3 A100, and this task needs 2 more" in s.explained("b")
    s.finished("a/train/0")
    assert s.task("b").state == "starting"
    assert s.task("c").state == "waiting"


def test_elastic_tasks_of_a_project_grow_up_to_its_limit_together() -> None:
    s = _on(LIMITED)
    s.join("n0", "A100", 8)
    for name in ("a", "b"):
        _submit(s, name, "", job="project: lab")
        s.stepped(f"{name}/train/0")
    for name in ("a", "b"):
        s.feed(ResizeRequested, job_id=name, task="train", workers=WorkerRange(min=1, max=8))
    for _ in range(5):
        s.tick(1.0)
    assert sum(len(s.devices(f"{name}/train/0")) for name in ("a", "b")) == 3


def test_a_limit_that_is_lowered_takes_the_newest_back() -> None:
    s = _on(LIMITED)
    s.join("n0", "A100", 8)
    _submit(s, "old", "", job="project: lab")
    s.tick(10.0)
    _submit(s, "new", ", workers: {min: 2}", job="project: lab")
    commands = s.feed(ClusterConfigured, cluster=_cluster("projects: [{name: lab, limit: {A100: 1}}]"))
    assert _stopped(commands) == ["new/train/0"]
    assert "project lab holds more than its limit of 1 A100" in s.task("new").reason
    assert s.task("old").state == "starting"


RESERVED = """
reservations: [{name: course, project: teaching, from: "09:00", to: "11:00", devices: {A100: 4}}]
"""


def test_a_reservation_is_cleared_when_it_begins_and_only_its_project_uses_it() -> None:
    s = _on(RESERVED)
    s.tick(0.0, day_s=8 * 3600)
    s.join("n0", "A100", 6)
    _submit(s, "important", ", workers: {min: 2}", job="priority: 1")
    _submit(s, "old", ", workers: {min: 2}")
    s.tick(5.0)
    _submit(s, "new", ", workers: {min: 2}")
    assert {s.task(name).state for name in ("important", "old", "new")} == {"starting"}
    commands = s.tick(HOUR_S)
    assert sorted(_stopped(commands)) == ["new/train/0", "old/train/0"]
    assert "reservation course keeps 4 x A100 for project teaching" in s.task("new").reason
    for name in ("new", "old"):
        s.finished(f"{name}/train/0")
    s.tick(1.0)
    assert s.task("old").state == "waiting"
    _submit(s, "lesson", ", workers: {min: 4}", job="project: teaching")
    assert s.task("lesson").state == "starting"
    s.finished("lesson/train/0")
    commands = s.tick(2 * HOUR_S)
    assert sorted(started_attempts(commands)) == ["new/train/1", "old/train/1"]


def test_what_would_not_be_done_by_then_waits_for_a_reservation() -> None:
    s = _on(RESERVED)
    s.tick(0.0, day_s=8 * 3600)
    s.join("n0", "A100", 4)
    _submit(s, "long", ", expected_runtime: 2h")
    assert "from 09:00 on, before it would be done" in s.explained("long")
    _submit(s, "short", ", expected_runtime: 10m")
    assert s.task("short").state == "starting"


DAY_AND_NIGHT = """
price_windows:
  - {name: day, from: "08:00", to: "20:00", price_per_hour: {A100: 4.0, T4: 0.5}}
  - {name: night, from: "20:00", to: "08:00", price_per_hour: {A100: 1.0, T4: 0.5}}
"""


def test_dear_devices_by_day_are_left_and_taken_again_at_night() -> None:
    s = _on(DAY_AND_NIGHT)
    s.tick(0.0, day_s=6 * 3600)
    s.join("n0", "A100", 2)
    _submit(s, "thrifty", ", max_price_per_hour: 2.0", job='checkpoint: {url: "/tmp/c", interval: 10m}')
    s.started("thrifty/train/0")
    commands = s.tick(2 * HOUR_S)
    assert _stopped(commands) == ["thrifty/train/0"]
    assert "that saves 24.00, a new start costs 0.19" in s.attempt("thrifty/train/0").ending.reason  # type: ignore[union-attr]
    s.finished("thrifty/train/0")
    assert "prices fall in" in s.explained("thrifty")
    assert started_attempts(s.tick(12 * HOUR_S)) == ["thrifty/train/1"]


def test_a_stop_that_would_cost_more_than_it_saves_is_not_made() -> None:
    s = _on(DAY_AND_NIGHT)
    s.tick(0.0, day_s=6 * 3600)
    s.join("n0", "A100", 2)
    # Without checkpoints two hours of work would be lost for the last minutes.
    _submit(s, "nearly", ", max_price_per_hour: 2.0, expected_runtime: 125m")
    s.started("nearly/train/0")
    assert _stopped(s.tick(2 * HOUR_S)) == []


CHECKPOINTS = 'checkpoint: {url: "/tmp/c", interval: 10m}'


def test_a_task_stops_when_its_window_closes_and_goes_on_in_the_next() -> None:
    s = _on(DAY_AND_NIGHT)
    s.tick(0.0, day_s=6 * 3600)
    s.join("n0", "A100", 2)
    _submit(s, "nightly", ", run_during: night", job=f"{CHECKPOINTS}\nfailure: {{max_restarts: 0}}")
    s.started("nightly/train/0")
    assert _stopped(s.tick(HOUR_S)) == []
    assert _stopped(s.tick(HOUR_S)) == ["nightly/train/0"]
    assert "price window 'night' has closed" in s.attempt("nightly/train/0").ending.reason  # type: ignore[union-attr]
    s.finished("nightly/train/0")
    assert "which opens at 20:00" in s.explained("nightly")
    assert started_attempts(s.tick(11 * HOUR_S)) == []
    assert started_attempts(s.tick(HOUR_S)) == ["nightly/train/1"]


@pytest.mark.parametrize(
    ("task", "job"), [("", ""), (", expected_runtime: 7230s", CHECKPOINTS)], ids=["no checkpoints", "nearly done"]
)
def test_a_task_that_would_lose_by_it_runs_on_when_its_window_closes(task: str, job: str) -> None:
    s = _on(DAY_AND_NIGHT)
    s.tick(0.0, day_s=6 * 3600)
    s.join("n0", "A100", 2)
    _submit(s, "nightly", f", run_during: night{task}", job=job)
    s.started("nightly/train/0")
    assert _stopped(s.tick(2 * HOUR_S)) == []
    assert ("without checkpoints it would begin anew" in s.explained("nightly")) == (not job)


def test_an_elastic_task_leaves_only_what_is_too_dear() -> None:
    s = _on(DAY_AND_NIGHT)
    s.tick(0.0, day_s=6 * 3600)
    s.join("n0", "A100", 2)
    s.join("n1", "T4", 2)
    _submit(s, "mixed", ", workers: {min: 1, max: 4}, max_price_per_hour: 2.0", accelerators="A100 T4")
    s.stepped("mixed/train/0")
    assert _nodes_of(s, "mixed/train/0") == {"n0": 2, "n1": 2}
    (command,) = s.tick(2 * HOUR_S)
    assert isinstance(command, ResizeTask)
    assert _nodes_of(s, "mixed/train/0") == {"n1": 2}
    for worker in command.remove:
        s.ended("mixed/train/0", worker)
    s.tick(10 * HOUR_S)
    assert _nodes_of(s, "mixed/train/0") == {"n1": 2}
    s.tick(2 * HOUR_S)
    assert _nodes_of(s, "mixed/train/0") == {"n0": 2, "n1": 2}


def test_announced_prices_stop_and_start() -> None:
    s = _on()
    s.tick(0.0, day_s=0)
    s.join("n0", "A100", 1)
    s.feed(PriceChanged, accelerator_type="A100", price_per_hour=9.0)
    _submit(s, "spot", ", max_price_per_hour: 2.0")
    assert s.task("spot").state == "waiting"
    assert started_attempts(s.feed(PriceChanged, accelerator_type="A100", price_per_hour=1.0)) == ["spot/train/0"]


RACKS = "racks: {left: [n0, n1], right: [n2, n3]}"


def _four_nodes(text: str = RACKS) -> Scenario:
    s = _on(text)
    for number in range(4):
        s.join(f"n{number}", "A100", 4)
    return s


def test_within_a_rack() -> None:
    s = _four_nodes()
    _submit(s, "small", ", workers: {min: 2}")
    _submit(s, "near", ", workers: {min: 7}, placement: {within: rack}")
    assert set(_nodes_of(s, "near/train/0")) == {"n2", "n3"}
    _submit(s, "more", ", workers: {min: 7}, placement: {within: rack}")
    assert s.task("more").state == "waiting"
    assert "waits for: topology" in s.explained("more")


def test_within_a_node() -> None:
    s = _four_nodes()
    for number in range(4):
        _submit(s, f"small-{number}", ", placement: {strategy: spread}")
    for number in range(4):
        _submit(s, f"two-{number}", ", workers: {min: 2}, placement: {within: node}")
    assert all(len(_nodes_of(s, f"two-{number}/train/0")) == 1 for number in range(4))
    _submit(s, "last", ", workers: {min: 3}, placement: {within: node}")
    assert "waits for: topology" in s.explained("last")


def test_fault_domains_bound_what_one_loss_costs() -> None:
    s = _four_nodes()
    _submit(s, "careful", ", workers: {min: 6}, placement: {at_most: 3, per: rack}")
    nodes = _nodes_of(s, "careful/train/0")
    assert nodes.get("n0", 0) + nodes.get("n1", 0) == 3
    assert nodes.get("n2", 0) + nodes.get("n3", 0) == 3
    _submit(s, "never", ", workers: {min: 7}, placement: {at_most: 3, per: rack}")
    assert "impossible for now" in s.explained("never")


def test_spread_and_pack() -> None:
    s = _four_nodes()
    _submit(s, "wide", ", workers: {min: 4}, placement: {strategy: spread}")
    assert _nodes_of(s, "wide/train/0") == {"n0": 1, "n1": 1, "n2": 1, "n3": 1}
    _submit(s, "tight", ", workers: {min: 4}")
    assert len(_nodes_of(s, "tight/train/0")) == 2


def test_small_gangs_move_where_a_large_one_gains_more_than_they_lose() -> None:
    s = _on()
    for number in range(2):
        s.join(f"n{number}", "A100", 4)
    _submit(s, "three", ", workers: {min: 3}, expected_runtime: 1h")
    _submit(s, "one", "")
    s.tick(1.0)
    _submit(s, "two", ", workers: {min: 2}")
    for name in ("three", "one", "two"):
        s.started(f"{name}/train/0")
    s.tick(HOUR_S)
    s.finished("three/train/0")
    # n0 holds one, n1 holds two: five are free, no four of them together.
    commands = _submit(s, "whole", ", resources: {any_of: [{accelerator: A100, count: 4}]}")
    (moved,) = _stopped(commands)
    assert "to make room for whole/train" in s.attempt(moved).ending.reason  # type: ignore[union-attr]
    begun = started_attempts(s.finished(moved))
    assert "whole/train/0" in begun
    assert len(begun) == 2


def test_nothing_moves_that_has_just_started() -> None:
    s = _on()
    for number in range(2):
        s.join(f"n{number}", "A100", 4)
    for number in range(2):
        _submit(s, f"two-{number}", ", workers: {min: 2}, placement: {strategy: spread}")
    assert _stopped(_submit(s, "whole", ", resources: {any_of: [{accelerator: A100, count: 4}]}")) == []


class _Noting:
    """Notes what it is shown and decides nothing."""

    name = "noting"

    def __init__(self) -> None:
        self.seen: dict[str, TaskView] = {}

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        del cluster
        self.seen.update({str(task.key): task for task in tasks})
        return []


def test_a_deadline_reaches_the_policy() -> None:
    policy = _Noting()
    s = Scenario(policy=policy)
    s.join("n0", "A100", 1)
    s.tick(100.0)
    _submit(s, "urgent", "", job="deadline: 2h")
    assert policy.seen["urgent/train"].deadline_at_s == pytest.approx(s.now_s + 2 * HOUR_S)


def test_weights_and_rounds_come_from_the_file() -> None:
    weights = json.dumps({"fairness": 0.7, "throughput": 0.3})
    s = _on(f"policy: {{name: multi_objective, weights: {weights}, round: 90s}}")
    s.join("n0", "A100", 1)
    _submit(s, "a")
    _submit(s, "b", "", job="priority: 3")
    s.started("a/train/0")
    assert _stopped(s.tick(30.0)) == []
    assert _stopped(s.tick(60.0)) == ["a/train/0"]
    assert "devices go to b/train (rule priority: 3 over 0)" in s.attempt("a/train/0").ending.reason  # type: ignore[union-attr]


def test_what_was_lent_is_given_back_to_its_project() -> None:
    s = _on("policy: {name: multi_objective, round: 60s}\nprojects: [{name: owner, quota: {A100: 2}}, {name: guest}]")
    s.join("n0", "A100", 2)
    _submit(s, "lent", ", workers: {min: 2}", job="project: guest")
    s.started("lent/train/0")
    _submit(s, "own", ", workers: {min: 2}", job="project: owner")
    assert _stopped(s.tick(61.0)) == ["lent/train/0"]
    s.finished("lent/train/0")
    assert s.task("own").state == "starting"
    assert "rule quota: A100 of project owner that were lent are given back" in s.explained("lent")
    s.started("own/train/0")
    assert "waits for: quota" in s.explained("lent")


def test_terms_count_what_projects_hold() -> None:
    s = _on(LIMITED)
    s.join("n0", "A100", 8)
    _submit(s, "a", ", workers: {min: 2}", job="project: lab")
    terms = Terms(s.state, Capacity(s.state))
    assert terms.limit_left("lab", "A100") == 1
    assert terms.limit_left("free", "A100") is None
    assert isinstance(s.commands[0], StartTask)
