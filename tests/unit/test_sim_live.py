"""The live state machine on a virtual clock: physics, failures, prices, repeatability."""

from dataclasses import replace
from pathlib import Path

import pytest

from plait.controller.journal import RECORD, Record
from plait.hardware.device import Node
from plait.schedule import machine
from plait.schedule.commands import Command
from plait.schedule.events import Event, NodeJoined
from plait.schedule.policies import policy
from plait.schedule.policy import Configuration, Rate
from plait.sim.checker import problems
from plait.sim.jobs import Rates, SimJob
from plait.sim.live import run_live
from plait.sim.live_setting import LiveOptions, node_of
from plait.sim.outcome import RunOutcome, figures
from plait.sim.recorded import NoRecord, is_recorded, read_records, reproduce
from plait.sim.tariff import Tariff
from plait.spec.cluster import PriceWindow, Project, Reservation

NODES = (node_of("a0", "A", 4, speed=2.0), node_of("a1", "A", 4, speed=2.0), node_of("b0", "B", 4, speed=1.0))
CHECKED = LiveOptions(is_checked=True, keeps_timeline=True, prices_per_hour={"A": 3.6, "B": 1.8})


def _rates(sizes: tuple[int, ...] = (1, 2, 4)) -> Rates:
    return {
        Configuration(counts=((name, size),)): Rate(per_s=speed * size)
        for name, speed in (("A", 2.0), ("B", 1.0))
        for size in sizes
    }


def _job(number: int, at_s: float, work: float, size: int = 1, *, elastic: bool = False) -> SimJob:
    return SimJob(
        id=f"j{number:03d}", submitted_at_s=at_s, num_workers=size, work=work, rates=_rates(),
        workers=(1, 4) if elastic else (0, 0),
    )  # fmt: skip


def _crowd(number: int, *, elastic: bool = False) -> list[SimJob]:
    return [_job(i, 30.0 * i, 600.0 + 97.0 * (i % 7), (1, 2, 4)[i % 3], elastic=elastic) for i in range(number)]


def _run(
    jobs: list[SimJob], name: str = "fifo_backfill", options: LiveOptions = CHECKED, nodes: tuple[Node, ...] = NODES
) -> RunOutcome:
    return run_live(jobs, nodes, policy(name), options)


def test_a_job_pays_its_start_and_ends_when_its_work_is_done() -> None:
    run = _run([_job(0, 10.0, 100.0)])
    (one,) = run.jobs
    assert one.end_s == pytest.approx(10.0 + 45.0 + 50.0)
    assert one.device_s == {"A": pytest.approx(95.0)}
    assert run.cost == pytest.approx(3.6 * 95.0 / 3600.0)
    assert one.restarts == 0


@pytest.mark.parametrize("name", ["fifo", "fifo_backfill", "srtf", "las", "gandiva", "sia", "max_min_fairness"])
def test_every_job_ends_and_the_schedule_is_right(name: str) -> None:
    jobs = _crowd(24)
    run = _run(jobs, name)
    assert figures(run)["unfinished_jobs"] == 0
    assert problems(run) == []
    for one in run.jobs:
        assert sum(one.device_s.values()) * 2.0 >= one.job.work * (1 - 1e-9), "nobody works faster than the devices"


def test_elastic_jobs_grow_and_shrink() -> None:
    run = _run(_crowd(9, elastic=True))
    assert figures(run)["unfinished_jobs"] == 0
    assert problems(run) == []
    held = {one.job.id: {len(h.devices) for h in run.timeline if h.job_id == one.job.id} for one in run.jobs}
    assert any(one.restarts == 0 and len(held[one.job.id]) >= 1 for one in run.jobs)


def test_the_same_seed_gives_the_same_schedule() -> None:
    options = LiveOptions(node_mtbf_s=2_000.0, repair_s=300.0, seed=3, keeps_timeline=True, is_checked=True)
    first, second = (_run(_crowd(12), options=options) for _ in range(2))
    assert first.timeline == second.timeline
    assert [one.end_s for one in first.jobs] == [one.end_s for one in second.jobs]
    other = _run(_crowd(12), options=LiveOptions(node_mtbf_s=2_000.0, repair_s=300.0, seed=4, keeps_timeline=True))
    assert other.timeline != first.timeline


def test_failing_nodes_cost_time_but_no_job() -> None:
    """On one type only: on two a restart may move a job to the faster one, and be a gain."""
    rough = LiveOptions(node_mtbf_s=300.0, repair_s=120.0, checkpoint_s=60.0, is_checked=True)
    calm_run, rough_run = _run(_crowd(12), nodes=NODES[:2]), _run(_crowd(12), options=rough, nodes=NODES[:2])
    assert figures(rough_run)["unfinished_jobs"] == 0
    assert (figures(rough_run)["jct_mean_h"] or 0.0) > (figures(calm_run)["jct_mean_h"] or 0.0)
    assert any(one.restarts for one in rough_run.jobs)


@pytest.mark.parametrize("name", ["fifo_backfill", "las", "sia", "max_min_fairness", "multi_objective"])
@pytest.mark.parametrize("elastic", [False, True])
def test_schedules_are_right_where_nodes_fail(name: str, *, elastic: bool) -> None:
    """Gangs of eight stand on both nodes of a type, so that one failure leaves half of them."""
    jobs = [*_crowd(12, elastic=elastic), *(_job(90 + i, 400.0 * (i + 1), 4000.0, 8) for i in range(3))]
    rates = _rates((1, 2, 4, 8))
    jobs = sorted((replace(job, rates=rates) for job in jobs), key=lambda job: job.submitted_at_s)
    options = LiveOptions(node_mtbf_s=400.0, repair_s=120.0, keeps_timeline=True, is_checked=True, seed=5)
    run = _run(jobs, name, options=options)
    assert len(run.away) > 3
    assert problems(run) == []


def test_a_queue_keeps_limits_of_projects_too() -> None:
    """It knows neither weights nor lending, but what a project may never exceed holds under every policy."""
    jobs = [replace(job, project="vision") for job in _crowd(12)]
    limits = {"vision": {"A": 4, "B": 2}}
    project = Project(name="vision", limit=(("A", 4), ("B", 2)))
    assert problems(_run(jobs), limits), "without limits it takes more"
    limited = _run(jobs, options=replace(CHECKED, projects=(project,)))
    assert figures(limited)["unfinished_jobs"] == 0
    assert problems(limited, limits) == []


def test_cycles_decide_at_rounds_only() -> None:
    options = LiveOptions(round_s=300.0, is_cyclic=True, is_checked=True, keeps_timeline=True)
    run = _run(_crowd(12), options=options)
    assert figures(run)["unfinished_jobs"] == 0
    assert problems(run) == []
    assert {held.start_s % 300.0 for held in run.timeline} == {0.0}


def test_prices_by_window_change_and_type() -> None:
    windows = (
        PriceWindow(name="day", from_s=8 * 3600, to_s=20 * 3600, price_per_hour=(("A", 4.0),)),
        PriceWindow(name="night", from_s=20 * 3600, to_s=8 * 3600, price_per_hour=(("A", 1.0),)),
    )
    tariff = Tariff({}, windows, day_s=7 * 3600)
    assert tariff.cost("A", 0.0, 2 * 3600.0) == pytest.approx(1.0 + 4.0)
    assert tariff.cost("A", 0.0, 24 * 3600.0) == pytest.approx(12 * 1.0 + 12 * 4.0)
    assert tariff.cost("B", 0.0, 3600.0) == 0.0
    spot = Tariff({"A": 2.0}, windows, changes=[(3600.0, "A", 6.0)])
    assert spot.cost("A", 1800.0, 5400.0) == pytest.approx(1.0 + 3.0), "an announced price overrides the windows"


def test_a_recorded_run_is_reproduced(tmp_path: Path) -> None:
    events: list[tuple[Event, tuple[Command, ...]]] = []
    run_live(
        _crowd(10, elastic=True), NODES, policy("fifo_backfill"), LiveOptions(), lambda e, c: events.append((e, c))
    )
    # What the live machine would have written down: its own configuration decides, without knowledge of rates.
    state, records = machine.initial(), []
    for event, _ in events:
        state, commands = machine.apply(state, event)
        records.append(Record(event=event, commands=commands))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\n".join(RECORD.encode(record) for record in records))
    assert is_recorded(path)
    answer = reproduce(read_records(path))
    assert answer.differences == ()
    assert answer.num_events == len(records)


def test_another_policy_shows_where_it_differs() -> None:
    state, records = machine.initial(), []
    jobs = _crowd(6)
    events: list[Event] = []
    run_live(jobs, NODES, policy("fifo_backfill"), LiveOptions(), lambda event, commands: events.append(event))
    for event in events:
        state, commands = machine.apply(state, event)
        records.append(Record(event=event, commands=commands))
    answer = reproduce(records, policy("las"))
    assert answer.differences
    assert reproduce(records).differences == ()


def test_what_is_no_record_is_said(tmp_path: Path) -> None:
    assert not is_recorded(tmp_path)
    with pytest.raises(NoRecord, match="no recorded run here"):
        read_records(tmp_path)
    path = tmp_path / "part.jsonl"
    event = NodeJoined(id=7, at_s=1.0, node=NODES[0])
    path.write_bytes(RECORD.encode(Record(event=event)))
    with pytest.raises(NoRecord, match="the journal has gaps"):
        read_records(path)


def test_reservations_hold_in_a_simulation() -> None:
    reserved = Reservation(name="r", project="other", from_s=3600, to_s=7200, devices=(("A", 8),))
    options = replace(CHECKED, reservations=(reserved,), day_s=0)
    jobs = [replace(_job(0, 3700.0, 900.0), allowed=("A",))]
    (one,) = _run(jobs, options=options).jobs
    assert one.start_s is not None
    assert 7200.0 <= one.start_s <= 7260.0


def test_a_reservation_that_begins_takes_devices_back_in_a_simulation() -> None:
    reserved = Reservation(name="r", project="other", from_s=3600, to_s=7200, devices=(("A", 8),))
    jobs = [replace(_job(0, 10.0, 9000.0), allowed=("A",))]
    (one,) = _run(jobs, options=replace(CHECKED, reservations=(reserved,))).jobs
    assert one.restarts == 1
    assert one.end_s is not None
    assert one.end_s > 7200.0
