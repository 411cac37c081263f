"""What every scheduling policy has to keep, whatever it strives for. A new policy is one more line in ``POLICIES``."""

from copy import deepcopy
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.events import JobCancelled
from plait.schedule.policies import policy, policy_names
from plait.schedule.policy import ClusterView, TaskView
from plait.schedule.scenario import Scenario, task_of
from plait.spec.job import DeviceRequest, Resources, WorkerRange

QUICK = (
    "fifo",
    "fifo_backfill",
    "gandiva",
    "isolated",
    "las",
    "max_sum_throughput",
    "multi_objective",
    "pollux",
    "sia",
    "srtf",
)
SLOW = (
    "finish_time_fairness",
    "max_min_fairness",
    "max_min_water_filling",
    "max_sum_throughput_by_cost",
    "min_cost_slo",
    "min_makespan",
)
"""They share their turns with ``max_sum_throughput`` and differ only in the programs that they solve."""

POLICIES = (*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW))
TYPES = ("A100", "V100", "T4")
NOW_S = 1000.0

Picture = tuple[ClusterView, list[TaskView]]


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    """A cluster with tasks that wait and run, as the machine could show it."""
    total = {name: draw(st.integers(0, 12)) for name in TYPES}
    free = dict(total)
    tasks = [draw(_tasks(number, total, free)) for number in range(draw(st.integers(0, 8)))]
    releasing = {name: draw(st.integers(0, free[name])) for name in TYPES}
    for name, number in releasing.items():
        free[name] -= number
    cluster = ClusterView(now_s=NOW_S, total=total, free=free, releasing=releasing)
    return cluster, [_with_slots(task, cluster) for task in tasks]


@st.composite
def _tasks(draw: st.DrawFn, number: int, total: dict[str, int], free: dict[str, int]) -> TaskView:
    wanted = draw(st.lists(st.sampled_from(TYPES), unique=True, max_size=3))
    count = draw(st.integers(1, 2))
    fewest = draw(st.integers(1, 5))
    mix = draw(st.booleans())
    view = TaskView(
        key=TaskKey(job_id=f"j{number}", task="train"),
        project=draw(st.sampled_from(("vision", "speech"))),
        priority=draw(st.integers(0, 2)),
        submitted_at_s=float(draw(st.integers(0, 5))),
        state="waiting",
        workers=WorkerRange(min=fewest, max=fewest + draw(st.integers(0, 4))),
        resources=Resources(any_of=tuple(DeviceRequest(accelerator=name, count=count) for name in wanted), mix=mix),
        window_open=draw(st.integers(0, 4)) > 0,
        ready_at_s=NOW_S + draw(st.sampled_from((-5.0, -5.0, -5.0, 5.0))),
        speeds={name: float(draw(st.integers(1, 8))) for name in (wanted or TYPES)},
    )
    allocation = _allocation(draw, view, free) if draw(st.booleans()) else None
    if allocation is None:
        return view
    return _running(view, allocation, elastic=draw(st.booleans()))


def _allocation(draw: st.DrawFn, view: TaskView, free: dict[str, int]) -> Allocation | None:
    """Takes devices for a running task off ``free``, or returns None where they do not reach."""
    wanted = draw(st.integers(view.workers.min, view.workers.max))
    counts: dict[str, int] = {}
    for name in view.speeds:
        fits = min(free[name] // view.devices_per_worker(name), wanted - sum(counts.values()))
        if fits and (view.resources.mix or fits == wanted):
            counts[name] = fits
    if sum(counts.values()) < wanted:
        return None
    for name, number in counts.items():
        free[name] -= number * view.devices_per_worker(name)
    return Allocation(counts=tuple(sorted(counts.items())))


def _running(view: TaskView, allocation: Allocation, *, elastic: bool) -> TaskView:
    return TaskView(
        key=view.key,
        project=view.project,
        priority=view.priority,
        submitted_at_s=view.submitted_at_s,
        state="running",
        workers=view.workers,
        resources=view.resources,
        allocation=allocation,
        speeds=view.speeds,
        elastic=elastic,
    )


def _with_slots(view: TaskView, cluster: ClusterView) -> TaskView:
    """Fills in what each type holds, less one worker where node boundaries are in the way."""
    edge = 1 if int(view.key.job_id[1:]) % 3 == 0 else 0
    slots = {name: cluster.total[name] // view.devices_per_worker(name) for name in view.speeds}
    free = {
        name: max(0, cluster.free[name] // view.devices_per_worker(name) - edge) if _may_change(view) else 0
        for name in view.speeds
    }
    fields = {name: getattr(view, name) for name in TaskView.__dataclass_fields__}
    return TaskView(**{**fields, "slots": slots, "free_slots": free})


def _may_change(view: TaskView) -> bool:
    return view.state == "waiting" or view.elastic


def _decided(name: str, picture: Picture) -> dict[TaskKey, Decision]:
    cluster, tasks = picture
    decisions = policy(name).decide(cluster, tasks)
    assert sorted(str(d.task) for d in decisions) == sorted(str(t.key) for t in tasks), "one decision a task"
    return {decision.task: decision for decision in decisions}


def _counts(allocation: Allocation | None) -> dict[str, int]:
    return {} if allocation is None else {name: number for name, number in allocation.counts if number}


def test_the_list_names_every_built_in_policy() -> None:
    assert {*QUICK, *SLOW} <= set(policy_names())


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=25)
@given(picture=pictures())
def test_allocations_stay_in_range_and_keep_the_wishes(name: str, picture: Picture) -> None:
    decisions = _decided(name, picture)
    for task in picture[1]:
        counts = _counts(decisions[task.key].allocation)
        if not counts:
            continue
        have = sum(_counts(task.allocation).values())
        lowest = min(task.workers.min, have) if task.state == "running" else task.workers.min
        assert lowest <= sum(counts.values()) <= max(task.workers.max, have)
        assert set(counts) <= set(task.slots)
        assert task.resources.mix or len(counts) == 1
        assert all(isinstance(number, int) and number > 0 for number in counts.values())


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=25)
@given(picture=pictures())
def test_no_device_is_given_twice(name: str, picture: Picture) -> None:
    cluster, tasks = picture
    decisions = _decided(name, picture)
    taken = dict.fromkeys(TYPES, 0)
    for task in tasks:
        have, want = _counts(task.allocation), _counts(decisions[task.key].allocation)
        for accelerator, number in want.items():
            more = max(0, number - have.get(accelerator, 0))
            assert more <= task.free_slots[accelerator]
            taken[accelerator] += more * task.devices_per_worker(accelerator)
    assert all(taken[accelerator] <= cluster.free[accelerator] for accelerator in TYPES)


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=25)
@given(picture=pictures())
def test_closed_windows_back_off_and_impossible_tasks_are_respected(name: str, picture: Picture) -> None:
    decisions = _decided(name, picture)
    for task in picture[1]:
        room = sum(task.slots.values()) if task.resources.mix else max(task.slots.values())
        may_start = task.window_open and task.ready_at_s <= NOW_S and room >= task.workers.min
        if task.state == "waiting" and not may_start:
            assert decisions[task.key].allocation is None


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=25)
@given(picture=pictures())
def test_every_decision_has_a_reason(name: str, picture: Picture) -> None:
    for decision in _decided(name, picture).values():
        assert len(decision.reason.split()) >= 2
        assert "\n" not in decision.reason


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=25)
@given(picture=pictures(), seed=st.integers(0, 100))
def test_decisions_follow_from_the_picture_alone(name: str, picture: Picture, seed: int) -> None:
    cluster, tasks = picture
    before = deepcopy(picture)
    first = policy(name).decide(cluster, tasks)
    assert picture == before, "a policy changes nothing that it is shown"
    assert list(policy(name).decide(cluster, tasks)) == list(first)
    shuffled = Random(seed).sample(tasks, len(tasks))
    assert {d.task: d for d in policy(name).decide(cluster, shuffled)} == {d.task: d for d in first}


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=25)
@given(picture=pictures())
def test_an_idle_cluster_is_not_left_idle(name: str, picture: Picture) -> None:
    """Where nothing runs, somebody who could start does."""
    cluster, tasks = picture
    waiting = [task for task in tasks if task.state == "waiting"]
    could = [t for t in waiting if t.window_open and t.ready_at_s <= NOW_S and _fits_now(t)]
    blocked = [t for t in waiting if t.window_open and (t.ready_at_s > NOW_S or not _fits_now(t))]
    if len(waiting) < len(tasks) or any(cluster.releasing.values()) or blocked or not could:
        return
    if any(dict(task.free_slots) != dict(task.slots) for task in waiting):
        return  # where all devices are free, what fits at all fits now
    decisions = _decided(name, picture)
    assert any(decisions[task.key].allocation is not None for task in could)


def _fits_now(task: TaskView) -> bool:
    room = sum(task.free_slots.values()) if task.resources.mix else max(task.free_slots.values())
    return room >= task.workers.min


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10_000))
def test_every_job_of_a_crowd_ends(name: str, seed: int) -> None:
    random = Random(seed)
    scenario = Scenario(policy=policy(name))
    for node, accelerator, number in (("n0", "A100", 4), ("n1", "V100", 4), ("n2", "T4", 2)):
        scenario.join(node, accelerator, number)
    for number in range(8):
        fewest = random.randint(1, 4)
        wanted = " ".join(random.sample(("A100", "V100"), random.randint(1, 2)))
        scenario.submit(f"j{number}", task_of(wanted, (fewest, fewest + random.randint(0, 3))), priority=number % 3)
    scenario.feed(JobCancelled, job_id="j3")
    for _ in range(400):
        if not scenario.state.open_jobs:
            break
        attempts = sorted(scenario.state.attempts)
        if attempts:
            attempt_id = random.choice(attempts)
            scenario.stepped(attempt_id, elastic=random.random() < 0.7)
            leaving = [i for i, w in scenario.attempt(attempt_id).workers.items() if w.is_leaving]
            for worker_id in leaving or list(scenario.attempt(attempt_id).workers):
                scenario.ended(attempt_id, worker_id)
        scenario.tick(1.0)
    assert not scenario.state.open_jobs
