"""The multi-objective policy: quotas and limits kept, nobody waits for ever, decisions stay, reasons have prices."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.policies.multi_objective import MultiObjective
from plait.schedule.policies.objective.goals import PRESETS, Goals, UnknownGoal, goals_of
from plait.schedule.policies.objective.options import options_of
from plait.schedule.policies.objective.projects import HALF_LIFE_S
from plait.schedule.policies.objective.remaining import lengths
from plait.schedule.policies.objective.standing import standing_of
from plait.schedule.policies.objective.waiting import Patience
from plait.schedule.policies.objective.worth import worth_of
from plait.schedule.policy import (
    NOTHING_REMEMBERED,
    ClusterView,
    Configuration,
    Memory,
    ProjectTerms,
    Rate,
    TaskView,
)
from plait.spec.job import DeviceRequest, Resources, WorkerRange

TYPES = ("A100", "T4")
ROUND_S = 60.0


def cluster(
    now_s: float = 0.0, a100: int = 4, t4: int = 8, projects: dict[str, ProjectTerms] | None = None
) -> ClusterView:
    total = {"A100": a100, "T4": t4}
    return ClusterView(
        now_s=now_s,
        total=total,
        free=total,
        prices_per_hour={"A100": 4.0, "T4": 1.0},
        on_nodes={name: (number,) for name, number in total.items()},
        hands_over=True,
        projects=projects or {},
    )


def task(
    name: str, workers: int = 1, rates: tuple[float, float] = (4.0, 1.0), left: float | None = 3600.0, **more: object
) -> TaskView:
    table = {
        Configuration(counts=((kind, workers),)): Rate(per_s=rate * workers)
        for kind, rate in zip(TYPES, rates, strict=True)
    }
    slots = {"A100": 64, "T4": 64}
    view = TaskView(
        key=TaskKey(job_id=name, task="train"),
        project="default",
        priority=0,
        submitted_at_s=0.0,
        state="waiting",
        workers=WorkerRange(min=workers, max=workers),
        resources=Resources(any_of=tuple(DeviceRequest(accelerator=kind) for kind in TYPES), mix=False),
        slots=slots,
        free_slots=slots,
        rates=table,
        remaining_work=left,
        done_work=0.0,
    )
    return replace(view, **more)  # type: ignore[arg-type]


def running(view: TaskView, decision: Decision) -> TaskView:
    if decision.allocation is None:
        return replace(view, state="waiting", allocation=None, num_nodes=0)
    return replace(view, state="running", allocation=decision.allocation, num_nodes=1)


def decide(policy: MultiObjective, view: ClusterView, tasks: list[TaskView]) -> dict[str, Decision]:
    return {decision.task.job_id: decision for decision in policy.decide(view, tasks)}


def held(decisions: dict[str, Decision], names: set[str] | None = None) -> dict[str, int]:
    found = dict.fromkeys(TYPES, 0)
    for name, decision in decisions.items():
        if decision.allocation is not None and (names is None or name in names):
            for kind, number in decision.allocation.counts:
                found[kind] += number
    return found


def crowd(draw: np.random.Generator, number: int, projects: tuple[str, ...] = ("default",)) -> list[TaskView]:
    return [
        task(
            f"j{index}",
            workers=int(draw.choice([1, 1, 2, 4])),
            rates=(float(draw.uniform(1, 6)), float(draw.uniform(0.5, 2))),
            left=float(draw.uniform(60, 40000)),
            project=str(draw.choice(projects)),
            priority=int(draw.integers(0, 2)),
            submitted_at_s=-float(draw.uniform(0, 20000)),
        )
        for index in range(number)
    ]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_capacities_limits_and_gangs_are_kept(seed: int) -> None:
    draw = np.random.default_rng(seed)
    terms = {
        "a": ProjectTerms(quota={"A100": 2}, limit={"A100": 3, "T4": 4}),
        "b": ProjectTerms(weight=2.0, quota={"T4": 2}),
    }
    tasks = crowd(draw, int(draw.integers(1, 20)), ("a", "b", "c"))
    decisions = decide(MultiObjective(), cluster(projects=terms), tasks)
    total = held(decisions)
    assert total["A100"] <= 4
    assert total["T4"] <= 8
    of_a = held(decisions, {one.key.job_id for one in tasks if one.project == "a"})
    assert of_a["A100"] <= 3
    assert of_a["T4"] <= 4
    for one in tasks:
        allocation = decisions[one.key.job_id].allocation
        assert allocation is None or allocation.num_workers == one.workers.min


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_the_same_picture_again_changes_nothing(seed: int) -> None:
    """Preemption cascades end: who was chosen stays chosen as long as nothing happens."""
    draw = np.random.default_rng(seed)
    tasks = crowd(draw, int(draw.integers(1, 20)))
    policy = MultiObjective()
    first, memory = policy.decide_remembering(cluster(), tasks, NOTHING_REMEMBERED)
    allocations = {decision.task: decision.allocation for decision in first}
    tasks = [running(one, decision) for one, decision in zip(sorted(tasks, key=_order), first, strict=True)]
    again, _ = policy.decide_remembering(cluster(), tasks, memory)
    assert {decision.task: decision.allocation for decision in again} == allocations


def _order(view: TaskView) -> tuple[float, str]:
    return view.submitted_at_s, str(view.key)


class World:
    """A cluster in rounds, whose tasks arrive as an adversary wants, with the longest wait of each."""

    def __init__(self, policy: MultiObjective, num_devices: int) -> None:
        self.policy = policy
        self.view = cluster(a100=num_devices, t4=0)
        self.memory: Memory = NOTHING_REMEMBERED
        self.open: dict[TaskKey, TaskView] = {}
        self.waits_since: dict[TaskKey, float] = {}
        self.longest_s = 0.0
        self.most_open = 0
        self.num_done = 0

    def step(self, arrivals: list[TaskView]) -> None:
        now_s = self.view.now_s
        for one in arrivals:
            self.open[one.key] = one
            self.waits_since[one.key] = now_s
        self.most_open = max(self.most_open, len(self.open))
        decisions, self.memory = self.policy.decide_remembering(self.view, list(self.open.values()), self.memory)
        assert held({str(d.task): d for d in decisions})["A100"] <= self.view.total["A100"]
        for decision in decisions:
            one = running(self.open[decision.task], decision)
            if decision.allocation is None:
                since = self.waits_since.setdefault(decision.task, now_s)
                self.longest_s = max(self.longest_s, now_s - since)
                self.open[decision.task] = one
                continue
            self.waits_since.pop(decision.task, None)
            gained = one.rate("A100", one.workers.min) * ROUND_S
            left = (one.remaining_work or 0.0) - gained
            if left <= 0:
                del self.open[decision.task]
                self.num_done += 1
            else:
                done = (one.done_work or 0.0) + gained
                self.open[decision.task] = replace(
                    one, remaining_work=left, done_work=done, runtime_s=one.runtime_s + ROUND_S
                )
        self.view = replace(self.view, now_s=now_s + ROUND_S)


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_nobody_waits_for_ever(data: st.DataObject) -> None:
    """An adversary keeps sending short tasks, which a policy that minimises completion times would always prefer."""
    patience = Patience(most_wait_s=900.0, turn_s=180.0)
    devices = data.draw(st.integers(1, 4))
    world = World(MultiObjective(Goals(fairness=0.0, throughput=1.0, cost=0.0), patience), devices)
    victims = data.draw(st.integers(1, 3))
    world.step([task(f"victim{i}", devices, (0.5, 0.0), 4000.0, submitted_at_s=0.0) for i in range(victims)])
    for number in range(80):
        size = data.draw(st.integers(0, 2))
        now_s = world.view.now_s
        shorts = [
            task(f"s{number}-{i}", data.draw(st.integers(1, devices)), (4.0, 0.0), 60.0 * 4, submitted_at_s=now_s)
            for i in range(size)
        ]
        world.step(shorts)
    bound_s = patience.most_wait_s + world.most_open * (patience.turn_s + 2 * ROUND_S) + ROUND_S
    assert world.longest_s <= bound_s


def test_without_patience_the_same_adversary_starves_a_task() -> None:
    """The bound is the turns' doing."""
    waits = []
    for patience in (Patience(most_wait_s=600.0, turn_s=120.0), Patience(most_wait_s=1e9)):
        world = World(MultiObjective(Goals(fairness=0.0, throughput=1.0, cost=0.0), patience), 1)
        world.step([task("victim", 1, (0.001, 0.0), 1e6)])
        for number in range(100):
            world.step([task(f"s{number}", 1, (4.0, 0.0), 200.0, submitted_at_s=world.view.now_s)])
        waits.append(world.longest_s)
    assert waits[1] >= 5000.0
    assert waits[0] <= waits[1] / 3


def test_quota_is_given_back_in_the_next_round() -> None:
    terms = {"own": ProjectTerms(quota={"A100": 3}), "guest": ProjectTerms()}
    guests = [task(f"g{i}", project="guest", rates=(4.0, 0.0), left=100.0) for i in range(4)]
    policy = MultiObjective()
    first, memory = policy.decide_remembering(cluster(projects=terms), guests, NOTHING_REMEMBERED)
    assert all(decision.allocation is not None for decision in first), "idle quota is borrowed"
    tasks = [running(one, decision) for one, decision in zip(guests, first, strict=True)]
    owners = [task(f"o{i}", project="own", rates=(4.0, 0.0), left=1e6) for i in range(5)]
    now, _ = policy.decide_remembering(cluster(60.0, projects=terms), [*tasks, *owners], memory)
    by_name = {decision.task.job_id: decision for decision in now}
    assert held(by_name, {f"o{i}" for i in range(5)})["A100"] >= 3


def test_a_project_beyond_its_limit_is_told_so() -> None:
    terms = {"small": ProjectTerms(limit={"A100": 1, "T4": 0})}
    tasks = [task(f"s{i}", project="small", left=1000.0 * (i + 1)) for i in range(3)]
    decisions = decide(MultiObjective(), cluster(projects=terms), tasks)
    waiting = [decision for decision in decisions.values() if decision.allocation is None]
    assert len(waiting) == 2
    assert all("limit of its project" in decision.reason for decision in waiting)


def test_fairness_among_projects_remembers() -> None:
    """Who has used much lately yields to who has not, and less so as time goes by."""
    policy = MultiObjective(Goals(fairness=0.8, throughput=0.2, cost=0.0))

    def winner(idle_s: float) -> str:
        greedy = [task(f"g{i}", project="greedy", rates=(4.0, 0.0), left=1e7) for i in range(4)]
        view = cluster()
        decisions, memory = policy.decide_remembering(view, greedy, NOTHING_REMEMBERED)
        tasks = [running(one, decision) for one, decision in zip(greedy, decisions, strict=True)]
        _, memory = policy.decide_remembering(cluster(40 * 3600.0), tasks, memory)
        start_s = 40 * 3600.0 + idle_s
        both = [
            task("late", 4, (4.0, 0.0), 9e4, project="greedy", submitted_at_s=start_s),
            task("new", 4, (4.0, 0.0), 1e5, project="modest", submitted_at_s=start_s),
        ]
        decisions, _ = policy.decide_remembering(cluster(start_s), both, memory)
        return next(decision.task.job_id for decision in decisions if decision.allocation is not None)

    assert winner(60.0) == "new"
    assert winner(40 * HALF_LIFE_S) == "late"


def test_higher_priority_goes_first_whatever_it_is_worth() -> None:
    low = [task(f"l{i}", rates=(4.0, 0.0), left=60.0) for i in range(4)]
    high = task("h", 4, (0.01, 0.0), 1e9, priority=1)
    decisions = decide(MultiObjective(), cluster(), [*low, high])
    assert decisions["h"].allocation == Allocation(counts=(("A100", 4),))


def test_deadlines_move_claims_until_they_are_lost() -> None:
    def chosen(deadline_s: float) -> str:
        tasks = [
            task("urgent", 4, (4.0, 0.0), 4 * 4 * 3000.0, deadline_at_s=deadline_s),
            task("short", 4, (4.0, 0.0), 4 * 4 * 1800.0),
        ]
        decisions = decide(MultiObjective(PRESETS["on_time"]), cluster(), tasks)
        return next(name for name, decision in decisions.items() if decision.allocation is not None)

    assert chosen(1e9) == "short"
    assert chosen(3300.0) == "urgent"
    assert chosen(100.0) == "short", "a deadline that cannot be met any more moves nothing"


def test_prices_move_tasks_to_cheaper_devices() -> None:
    def kind(a100_price: float) -> str:
        view = replace(cluster(), prices_per_hour={"A100": a100_price, "T4": 1.0})
        (decision,) = MultiObjective(PRESETS["thrifty"]).decide(view, [task("j", rates=(2.0, 1.0))])
        assert decision.allocation is not None
        return decision.allocation.counts[0][0]

    assert kind(1.5) == "A100"
    assert kind(12.0) == "T4"


def test_a_restart_must_pay_back() -> None:
    """A task near its end stays where it is; one with a long way to go moves to the faster device."""

    def kind(left: float) -> str:
        here = Allocation(counts=(("T4", 1),))
        (decision,) = MultiObjective().decide(
            cluster(), [task("j", rates=(1.6, 1.0), left=left, state="running", allocation=here, num_nodes=1)]
        )
        assert decision.allocation is not None
        return decision.allocation.counts[0][0]

    assert kind(100.0) == "T4"


def test_reasons_name_prices_and_bids() -> None:
    tasks = [task(f"j{i}", rates=(4.0, 0.0), left=100.0 + i) for i in range(6)]
    decisions = decide(MultiObjective(), cluster(), tasks)
    waiting = [decision.reason for decision in decisions.values() if decision.allocation is None]
    assert len(waiting) == 2
    assert all(reason.startswith("one A100 costs ") and "this task bids " in reason for reason in waiting)
    price, bid = (float(part.split()[0]) for part in (waiting[0][15:], waiting[0].split("bids ")[1]))
    assert price >= bid


def test_heterogeneous_unit_where_no_type_is_enough() -> None:
    view = replace(
        task("unit", 6),
        rates={},
        speeds={"A100": 4.0, "T4": 1.0},
        resources=Resources(any_of=tuple(DeviceRequest(accelerator=kind) for kind in TYPES), mix=True),
        slots={"A100": 4, "T4": 3},
        free_slots={"A100": 4, "T4": 3},
    )
    (decision,) = MultiObjective().decide(cluster(a100=4, t4=3), [view])
    assert decision.allocation == Allocation(counts=(("A100", 4), ("T4", 2)))


def test_elastic_tasks_share_what_there_is() -> None:
    rates = {Configuration(counts=(("A100", number),)): Rate(per_s=float(number) ** 0.8) for number in (1, 2, 4)}
    tasks = [
        replace(task(f"e{i}"), workers=WorkerRange(min=1, max=4), rates=rates, remaining_work=36000.0) for i in range(2)
    ]
    alone = MultiObjective(PRESETS["fair"]).decide(cluster(), tasks[:1])
    assert alone[0].allocation == Allocation(counts=(("A100", 4),))
    both = MultiObjective(PRESETS["fair"]).decide(cluster(), tasks)
    assert sorted(d.allocation.num_workers for d in both if d.allocation) == [2, 2]


def test_elastic_tasks_leave_devices_whose_speed_is_not_worth_their_price() -> None:
    rates = {Configuration(counts=(("A100", number),)): Rate(per_s=float(number) ** 0.8) for number in (1, 2, 4)}
    one = replace(task("e"), workers=WorkerRange(min=1, max=4), rates=rates, remaining_work=36000.0)

    def devices(goals: Goals) -> int:
        (decision,) = MultiObjective(goals).decide(cluster(), [one])
        return decision.allocation.num_workers if decision.allocation else 0

    sizes = [devices(Goals(fairness=0.5, throughput=0.25, cost=cost)) for cost in (0.0, 0.25, 2.0, 20.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 4
    assert sizes[-1] < 4


def test_nobody_bids_for_being_spread() -> None:
    """Placement packs a gang, so a rate that it would have when spread must not count for more than the packed one."""
    rates = {
        Configuration(counts=(("A100", 2),)): Rate(per_s=4.0),
        Configuration(counts=(("T4", 2),)): Rate(per_s=3.0),
        Configuration(counts=(("T4", 2),), is_spread=True): Rate(per_s=9.0),
    }
    (decision,) = MultiObjective(PRESETS["fair"]).decide(cluster(), [replace(task("j", 2), rates=rates)])
    assert decision.allocation == Allocation(counts=(("A100", 2),))


def test_rates_that_nobody_measured_are_worth_a_try() -> None:
    """A device that may be faster is tried once; what is measured there then counts as it is."""

    def kind(t4: Rate) -> str:
        here = Allocation(counts=(("A100", 1),))
        rates = {
            Configuration(counts=(("A100", 1),)): Rate(per_s=1.0, relative_error=0.0),
            Configuration(counts=(("T4", 1),)): t4,
        }
        one = task("j", left=36000.0, state="running", allocation=here, num_nodes=1)
        (decision,) = MultiObjective(PRESETS["fair"]).decide(cluster(), [replace(one, rates=rates)])
        assert decision.allocation is not None
        return decision.allocation.counts[0][0]

    assert kind(Rate(per_s=1.0, relative_error=0.3)) == "T4"
    assert kind(Rate(per_s=1.0, relative_error=0.0)) == "A100"


def test_memory_holds_open_tasks_only() -> None:
    policy = MultiObjective()
    memory: Memory = NOTHING_REMEMBERED
    for number in range(40):
        view = task(f"j{number}", left=None, state="running", allocation=Allocation(counts=(("A100", 1),)))
        _, memory = policy.decide_remembering(cluster(60.0 * number), [replace(view, done_work=240.0)], memory)
    for name, ledger in memory.items():
        if name != "ended_s":
            assert len(ledger) <= 2, name
    assert len(memory["ended_s"]) == 39


@given(
    st.lists(st.floats(1.0, 1e5), min_size=1, max_size=30),
    st.lists(st.floats(0.0, 1e5), max_size=30),
    st.floats(0.0, 2e5),
)
def test_residual_is_the_area_under_the_survival_curve(ended: list[float], going: list[float], served: float) -> None:
    curve = lengths(ended, going)
    (found,) = curve.residual_s(np.array([served]))
    assert found > 0
    at, survival = curve.at_s, curve.survival
    level = float(np.concatenate([[1.0], survival])[np.searchsorted(at, served, side="right")])
    area, left, now = 0.0, served, level
    for point, after in zip(at, survival, strict=True):
        if point > served:
            area += now * (point - left)
            left, now = point, float(after)
    area += float(survival[-1]) * max(3600.0, float(at[-1]) / 2)
    expected = area / level if level > 1e-9 else max(3600.0, served)
    assert found == pytest.approx(expected)


def test_lengths_that_are_bounded_make_old_tasks_short() -> None:
    bounded = lengths(list(np.linspace(1800, 28800, 50)), [])
    young, old = bounded.residual_s(np.array([0.0, 20000.0]))
    assert old < young
    heavy = lengths(list(np.logspace(2, 6, 50)), [])
    young, old = heavy.residual_s(np.array([0.0, 200000.0]))
    assert old > young


def test_weights_and_presets() -> None:
    assert goals_of({}) == PRESETS["balanced"]
    assert goals_of({"fairness": 0.7, "throughput": 0.3}) == PRESETS["fair"]
    fair = [Goals(fairness=f, throughput=1 - f, cost=0.0).rho_exponent for f in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)]
    assert fair == sorted(fair)
    assert fair[0] == 0.0
    with pytest.raises(UnknownGoal, match="did you mean 'fairness'"):
        goals_of({"fairnes": 1.0})


def test_a_fast_device_goes_to_the_one_who_gains_by_it() -> None:
    """Of two that wait for one fast device: a start costs more than the work of the shorter."""
    two = [task(name, left=left, restart_cost_s=45.0) for name, left in (("moment", 20.0), ("minutes", 600.0))]
    decisions = decide(MultiObjective({"throughput": 1.0}), cluster(a100=1, t4=8), two)
    kinds = {name: decision.allocation.counts[0][0] for name, decision in decisions.items() if decision.allocation}
    assert kinds == {"moment": "T4", "minutes": "A100"}


def test_claims_of_those_who_are_late_already_rise_slowly() -> None:
    """Twice as late is no longer worth the square of that: others can still be kept from being late."""
    others = [task(f"other{index}", left=600.0) for index in range(4)]
    waited = {"late": 40_000.0, "very late": 80_000.0}
    claims = {}
    for name, waited_s in waited.items():
        view = cluster(a100=1, t4=0)
        tasks = [*others, task(name, left=600.0, submitted_at_s=-waited_s)]
        options = options_of(view, tasks)
        standing, _ = standing_of(view, options, NOTHING_REMEMBERED)
        worth = worth_of(view, options, standing, Goals(), np.ones(len(tasks)))
        claims[name] = worth.claims[-1] / worth.claims[0]
        assert standing.rho[-1] > 1.0
    assert 1.0 < claims["late"] < claims["very late"] < 2.0 * claims["late"]
