"""What each published policy is known for, on pictures small enough to be worked out by hand."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.schedule.domain import Allocation, TaskKey
from plait.schedule.policies import policy
from plait.schedule.policies.max_min_fairness import MaxMinFairness
from plait.schedule.policies.max_sum_throughput import MaxSumThroughput
from plait.schedule.policies.sia import Sia
from plait.schedule.policies.time_shares import Turns, _type_order
from plait.schedule.policy import (
    NOTHING_REMEMBERED,
    ClusterView,
    Configuration,
    Memory,
    Policy,
    Rate,
    TaskView,
    decide_with,
)
from plait.spec.job import DeviceRequest, Resources, WorkerRange

HOUR_S = 3600.0


def _cluster(now_s: float = 0.0, **total: int) -> ClusterView:
    nodes = {name: (4,) * (number // 4) + ((number % 4,) if number % 4 else ()) for name, number in total.items()}
    return ClusterView(
        now_s=now_s, total=total, free=total, on_nodes=nodes, free_on_nodes=nodes, hands_over=True, round_s=360.0,
        prices_per_hour={"A": 4.0, "B": 1.0},
    )  # fmt: skip


def _task(
    name: str,
    cluster: ClusterView,
    rates: dict[str, float],
    *,
    size: int = 1,
    most: int | None = None,
    at_s: float = 0.0,
    on: tuple[str, int] | None = None,
    remaining: float | None = 36_000.0,
    deadline_s: float | None = None,
    runtime_s: float = 0.0,
    attained_s: float = 0.0,
    restarts: int = 0,
) -> TaskView:
    sizes = (size,) if most is None else tuple(n for n in (1, 2, 4, 8) if size <= n <= most)
    table = {
        Configuration(counts=((kind, n),)): Rate(per_s=rate * (n / size) ** 0.8)
        for kind, rate in rates.items()
        for n in sizes
        if rate > 0
    }
    slots = {kind: cluster.total[kind] for kind, rate in rates.items() if rate > 0}
    return TaskView(
        key=TaskKey(job_id=name, task="train"),
        project="p",
        priority=0,
        submitted_at_s=at_s,
        state="waiting" if on is None else "running",
        workers=WorkerRange(min=size, max=most or size),
        resources=Resources(any_of=tuple(DeviceRequest(accelerator=kind) for kind in slots), mix=False),
        allocation=Allocation(counts=(on,)) if on is not None else None,
        slots=slots,
        free_slots=slots,
        rates=table,
        remaining_work=remaining,
        runtime_s=runtime_s,
        attained_service_s=attained_s,
        restarts=restarts,
        restart_cost_s=45.0,
        deadline_at_s=deadline_s,
    )


def _given(name: str, cluster: ClusterView, tasks: list[TaskView]) -> dict[str, tuple[tuple[str, int], ...]]:
    decisions = policy(name).decide(cluster, tasks)
    return {d.task.job_id: d.allocation.counts for d in decisions if d.allocation is not None}


def test_fifo_lets_the_head_block_the_line() -> None:
    cluster = _cluster(A=4)
    tasks = [
        _task("large", cluster, {"A": 1.0}, size=3, at_s=1.0, on=("A", 3)),
        _task("head", cluster, {"A": 1.0}, size=2, at_s=2.0),
        _task("small", cluster, {"A": 1.0}, at_s=3.0),
    ]
    assert _given("fifo", cluster, tasks) == {"large": (("A", 3),)}


def test_srtf_serves_the_shortest_first_and_preempts() -> None:
    cluster = _cluster(A=1)
    tasks = [
        _task("long", cluster, {"A": 1.0}, on=("A", 1), remaining=9_000.0),
        _task("short", cluster, {"A": 1.0}, at_s=50.0, remaining=600.0),
    ]
    assert _given("srtf", cluster, tasks) == {"short": (("A", 1),)}


def test_las_puts_those_that_had_much_behind_newcomers() -> None:
    cluster = _cluster(now_s=50_000.0, A=1)
    old = _task("old", cluster, {"A": 1.0}, on=("A", 1), runtime_s=40_000.0, attained_s=40_000.0)
    new = _task("new", cluster, {"A": 1.0}, at_s=49_000.0)
    assert _given("las", cluster, [old, new]) == {"new": (("A", 1),)}


def test_las_promotes_what_has_waited_for_long() -> None:
    cluster = _cluster(now_s=900_000.0, A=1)
    starved = _task("starved", cluster, {"A": 1.0}, at_s=0.0, runtime_s=40_000.0, attained_s=40_000.0)
    new = _task("new", cluster, {"A": 1.0}, at_s=899_000.0)
    assert _given("las", cluster, [starved, new]) == {"starved": (("A", 1),)}


def test_gandiva_gives_the_next_slice_to_who_ran_least() -> None:
    cluster = _cluster(A=1)
    tasks = [
        _task("first", cluster, {"A": 1.0}, on=("A", 1), runtime_s=720.0),
        _task("second", cluster, {"A": 1.0}, at_s=1.0),
    ]
    assert _given("gandiva", cluster, tasks) == {"second": (("A", 1),)}


def _turns_of(chosen: Policy, tasks: list[str], rounds: int, **rates: dict[str, float]) -> dict[str, list[str]]:
    """Plays rounds of 360 s and returns the type that each task had in each."""
    ran = dict.fromkeys(tasks, 0.0)
    on: dict[str, tuple[str, int] | None] = dict.fromkeys(tasks)
    seen: dict[str, list[str]] = {name: [] for name in tasks}
    memory: Memory = NOTHING_REMEMBERED
    for number in range(rounds):
        cluster = _cluster(now_s=360.0 * number, A=1, B=1)
        views = [_task(name, cluster, rates[name], on=on[name], runtime_s=ran[name]) for name in tasks]
        decisions, memory = decide_with(chosen, cluster, views, memory)
        for decision in decisions:
            name = decision.task.job_id
            held = decision.allocation.counts[0] if decision.allocation is not None else None
            on[name] = held
            ran[name] += 360.0 if held is not None else 0.0
            seen[name].append(held[0] if held is not None else "-")
    return seen


def test_max_min_lets_equals_take_turns_on_the_faster_type() -> None:
    rates = {"A": 4.0, "B": 1.0}
    seen = _turns_of(MaxMinFairness(), ["x", "y"], 20, x=rates, y=rates)
    for name in ("x", "y"):
        assert seen[name].count("A") == pytest.approx(10, abs=1)


def test_max_sum_gives_a_type_to_those_it_speeds_up_most() -> None:
    seen = _turns_of(MaxSumThroughput(), ["deep", "wide"], 20, deep={"A": 8.0, "B": 1.0}, wide={"A": 1.2, "B": 1.0})
    assert seen["deep"].count("A") >= 18
    assert seen["wide"].count("B") >= 18


def test_what_is_remembered_is_bounded_by_open_tasks() -> None:
    rates = {"A": 4.0, "B": 1.0}
    chosen, memory = MaxMinFairness(), NOTHING_REMEMBERED
    for number in range(60):
        cluster = _cluster(now_s=2_000.0 * number, A=1, B=1)
        tasks = [_task(f"j{number + i}", cluster, rates, at_s=2_000.0 * (number + i)) for i in range(2)]
        _, memory = chosen.decide_remembering(cluster, tasks, memory)
    names = {entry.partition("/")[0] for ledger in memory.values() for entry in ledger if entry.startswith("j")}
    assert names <= {"j59", "j60"}


def test_water_filling_goes_on_where_max_min_stops() -> None:
    """Two tasks share the only type that they fit, a third has another for itself: it must get all of that."""
    cluster = _cluster(A=1, B=1)
    tasks = [
        _task("a1", cluster, {"A": 1.0}),
        _task("a2", cluster, {"A": 1.0}),
        _task("b", cluster, {"A": 0.1, "B": 1.0}),
    ]
    _, memory = decide_with(policy("max_min_water_filling"), cluster, tasks, NOTHING_REMEMBERED)
    share = memory["share"]
    assert share["b/train|B"] == pytest.approx(1.0, abs=1e-3)
    assert share["a1/train|A"] == pytest.approx(0.5, abs=1e-3)


def test_makespan_lets_all_end_together() -> None:
    cluster = _cluster(A=1)
    tasks = [
        _task("long", cluster, {"A": 1.0}, remaining=30_000.0),
        _task("short", cluster, {"A": 1.0}, remaining=10_000.0),
    ]
    _, memory = decide_with(policy("min_makespan"), cluster, tasks, NOTHING_REMEMBERED)
    assert memory["share"]["long/train|A"] / memory["share"]["short/train|A"] == pytest.approx(3.0, rel=0.15)


def test_cost_goes_to_the_cheaper_type_unless_a_deadline_asks_for_the_faster() -> None:
    cluster = _cluster(A=1, B=1)
    relaxed = _task("x", cluster, {"A": 2.0, "B": 1.0}, remaining=7_200.0, deadline_s=20 * HOUR_S)
    pressed = _task("x", cluster, {"A": 2.0, "B": 1.0}, remaining=7_200.0, deadline_s=1.05 * HOUR_S)
    for task, cheap in ((relaxed, True), (pressed, False)):
        _, memory = decide_with(policy("min_cost_slo"), cluster, [task], NOTHING_REMEMBERED)
        assert (memory["share"]["x/train|B"] > 0.9) == cheap
        assert (memory["share"]["x/train|A"] > 0.85) != cheap


def test_finish_time_fairness_favours_who_is_behind() -> None:
    cluster = _cluster(now_s=40_000.0, A=1)
    tasks = [
        _task("late", cluster, {"A": 1.0}, at_s=0.0, remaining=10_000.0),
        _task("fresh", cluster, {"A": 1.0}, at_s=39_000.0, remaining=10_000.0),
    ]
    _, memory = decide_with(policy("finish_time_fairness"), cluster, tasks, NOTHING_REMEMBERED)
    assert memory["share"]["late/train|A"] > memory["share"]["fresh/train|A"]


def test_pollux_grows_who_gains_most() -> None:
    cluster = _cluster(A=5)
    scaling = _task("scaling", cluster, {"A": 1.0}, most=4)
    table = {c: Rate(per_s=1.0 + 0.01 * c.num_workers) for c in scaling.rates}
    fields = {name: getattr(scaling, name) for name in TaskView.__dataclass_fields__}
    stuck = TaskView(**{**fields, "key": TaskKey(job_id="stuck", task="train"), "rates": table})
    got = _given("pollux", cluster, [scaling, stuck])
    assert got["stuck"] == (("A", 1),)
    assert got["scaling"] == (("A", 4),)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_sia_finds_the_best_of_all_choices(data: st.DataObject) -> None:
    """Against all combinations of up to four tasks with up to two sizes on two types."""
    cluster = _cluster(now_s=HOUR_S, A=data.draw(st.integers(1, 4)), B=data.draw(st.integers(1, 4)))
    tasks = []
    for number in range(data.draw(st.integers(1, 4))):
        rates = {"A": data.draw(st.floats(0.5, 8.0)), "B": data.draw(st.floats(0.5, 8.0))}
        held = data.draw(st.sampled_from([None, ("A", 1), ("B", 1)]))
        most = data.draw(st.sampled_from([None, 2]))
        tasks.append(_task(f"t{number}", cluster, rates, most=most, on=held, attained_s=600.0, restarts=1))
    rows = [row for row in (Sia()._row(cluster, task) for task in tasks) if row is not None]

    def cost(choice: tuple[int | None, ...]) -> float:
        used, total = {"A": 0, "B": 0}, 0.0
        for row, pick in zip(rows, choice, strict=True):
            if pick is None:
                total += 1.1
                continue
            name, number = row.options[pick]
            used[name] += number
            total += round(float(row.goodput[pick]) ** -0.5, 2)
        return total if all(used[name] <= cluster.total[name] for name in used) else float("inf")

    best = min(cost(choice) for choice in product(*([None, *range(len(row.options))] for row in rows)))
    chosen = {d.task: d.allocation for d in Sia().decide(cluster, tasks)}
    picks: list[int | None] = []
    for row in rows:
        allocation = chosen[row.task.key]
        picks.append(row.options.index(allocation.counts[0]) if allocation is not None else None)
    assert cost(tuple(picks)) == pytest.approx(best, abs=1e-6)


def test_sia_stays_where_a_restart_costs_more_than_it_gains() -> None:
    cluster = _cluster(now_s=600.0, A=1, B=1)
    settled = _task("x", cluster, {"A": 1.05, "B": 1.0}, on=("B", 1), attained_s=600.0, restarts=5)
    assert _given("sia", cluster, [settled]) == {"x": (("B", 1),)}
    fresh = _task("x", cluster, {"A": 1.5, "B": 1.0}, on=("B", 1), attained_s=600.0)
    assert _given("sia", cluster, [fresh]) == {"x": (("A", 1),)}


def test_shuffles_of_types_follow_from_seed_and_round_alone() -> None:
    orders = [_type_order(5, number, 3) for number in range(1500)]
    assert orders[1200] == _type_order(5, 1200, 3)
    assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2)}
    assert len(set(orders)) == 6


def test_rounds_are_not_shorter_than_asked() -> None:
    chosen = MaxMinFairness(Turns(round_s=360.0))
    cluster = _cluster(now_s=0.0, A=1)
    tasks = [_task(name, cluster, {"A": 1.0}) for name in ("x", "y")]
    first, memory = chosen.decide_remembering(cluster, tasks, NOTHING_REMEMBERED)
    later = _cluster(now_s=120.0, A=1)
    second, _ = chosen.decide_remembering(later, tasks, memory)
    assert [d.allocation for d in first] == [d.allocation for d in second]
