"""The neutral setting, second by second, on traces small enough to be worked out by hand."""

import pytest

from plait.schedule.policies.fifo import Fifo
from plait.schedule.policies.fifo_backfill import FifoBackfill
from plait.schedule.policies.max_min_fairness import MaxMinFairness
from plait.schedule.policy import Configuration, Policy, Rate
from plait.sim.beliefs import Beliefs
from plait.sim.checker import problems
from plait.sim.jobs import Rates, SimJob
from plait.sim.outcome import RunOutcome, figures
from plait.sim.rounds.neutral import NeutralSetting, run_neutral
from plait.sim.rounds.placement import Wanted, fewest_nodes, place_round
from plait.sim.rounds.views import Machines

ONE_TYPE = Machines(nodes={"A": (4, 4)}, prices_per_hour={"A": 3.6})


def _rates(**by_type: float) -> Rates:
    return {
        Configuration(counts=((name, size),)): Rate(per_s=rate) for name, rate in by_type.items() for size in (1, 4)
    }


def _job(number: int, at_s: float, work: float, *, size: int = 1, rates: Rates | None = None) -> SimJob:
    return SimJob(
        id=f"j{number}", submitted_at_s=at_s, num_workers=size, work=work, rates=rates or _rates(A=1.0), kind="test"
    )


def _run(jobs: list[SimJob], machines: Machines = ONE_TYPE, policy: Policy | None = None) -> RunOutcome:
    return run_neutral(jobs, machines, policy or Fifo(), NeutralSetting(keeps_timeline=True))


def test_a_job_counts_from_the_next_tick_pays_its_start_and_ends_at_its_second() -> None:
    (one,) = _run([_job(0, 30.0, 100.0)]).jobs
    assert one.end_s == pytest.approx(60.0 + 45.0 + 100.0)
    assert one.jct_s == pytest.approx(175.0)
    assert one.restarts == 0
    assert one.device_s["A"] == pytest.approx(145.0)


def test_cost_counts_the_start_and_the_devices() -> None:
    run = _run([_job(0, 0.0, 15.0, size=4)])
    assert run.cost == pytest.approx(3.6 * 4 * 60.0 / 3600.0)


def test_a_split_gang_runs_at_its_own_rate() -> None:
    rates = {
        Configuration(counts=(("A", 4),)): Rate(per_s=2.0),
        Configuration(counts=(("A", 4),), is_spread=True): Rate(per_s=0.5),
        Configuration(counts=(("A", 1),)): Rate(per_s=1.0),
    }
    machines = Machines(nodes={"A": (2, 2)}, prices_per_hour={})
    # Four devices on nodes of two: as few nodes as hold them, so this is consolidated.
    (whole,) = _run([_job(0, 0.0, 150.0, size=4, rates=rates)], machines).jobs
    assert whole.end_s == pytest.approx(45.0 + 75.0)
    machines = Machines(nodes={"A": (4, 2)}, prices_per_hour={})
    jobs = [_job(0, 0.0, 5_000.0, rates=rates), _job(1, 0.0, 150.0, size=4, rates=rates)]
    split = _run(jobs, machines).jobs[1]
    assert split.end_s == pytest.approx(45.0 + 150.0 / 2.0), "the large gang is placed first, on the node of four"


def test_turns_restart_jobs_and_the_restarts_are_counted() -> None:
    machines = Machines(nodes={"A": (1,)}, prices_per_hour={})
    jobs = [_job(0, 0.0, 1_000.0), _job(1, 0.0, 1_000.0)]
    run = _run(jobs, machines, MaxMinFairness())
    assert sum(one.restarts for one in run.jobs) >= 2
    # Work, and 45 s for each of the two first starts and for every restart.
    restarts = sum(one.restarts for one in run.jobs)
    assert sum(one.device_s["A"] for one in run.jobs) == pytest.approx(2_000.0 + 45.0 * (2 + restarts))


def test_rho_compares_with_an_equal_share() -> None:
    run = _run([_job(0, 0.0, 3_600.0)])
    (one,) = run.jobs
    assert one.mean_active == pytest.approx(1.0)
    assert one.rho == pytest.approx((3_600.0 + 45.0) / 3_600.0)
    assert figures(run)["unfair_ratio"] == pytest.approx(1.0)


def test_the_clock_jumps_over_idle_times() -> None:
    run = _run([_job(0, 0.0, 10.0), _job(1, 1_000_000.0, 10.0)])
    assert len(run.solve_s) <= 4
    assert run.ended_at_s == pytest.approx(1_000_020.0 + 45.0 + 10.0)


def test_a_policy_that_lets_jobs_run_on_sees_what_is_free_and_which_type_is_fastest() -> None:
    """The slow type is the cheaper one, and comes first by name."""
    machines = Machines(nodes={"A": (1, 1), "B": (1,)}, prices_per_hour={"A": 1.0, "B": 5.0})
    rates = _rates(A=1.0, B=4.0)
    outcome = _run([_job(number, 0.0, 4000.0, rates=rates) for number in range(4)], machines, FifoBackfill())
    on = [sorted(one.device_s) for one in sorted(outcome.jobs, key=lambda one: one.job.id)]
    assert on == [["B"], ["A"], ["A"], ["B"]]
    assert all(one.restarts == 0 for one in outcome.jobs)


def test_schedules_pass_the_checker() -> None:
    jobs = [_job(i, 40.0 * i, 300.0 + 10 * i, size=4 if i % 3 == 0 else 1) for i in range(12)]
    for policy in (Fifo(), MaxMinFairness()):
        assert problems(_run(jobs, policy=policy)) == []


def test_errors_are_drawn_by_seed_and_corrected_by_what_is_measured() -> None:
    job = _job(0, 0.0, 100.0, rates=_rates(A=2.0, B=3.0))
    knowledge = Beliefs(rate_error=0.2, seed=4).begin()
    again = Beliefs(rate_error=0.2, seed=4).begin()
    packed = Configuration(counts=(("A", 1),))
    assert knowledge.rates(job) == again.rates(job)
    assert knowledge.rates(job)[packed].per_s != 2.0
    knowledge.observe(job, "A", 1, 30.0)
    assert knowledge.rates(job) == again.rates(job), "half a minute says nothing yet"
    knowledge.observe(job, "A", 1, 30.0)
    assert knowledge.rates(job)[packed].per_s == pytest.approx(2.0)
    assert knowledge.rates(job)[packed].relative_error == 0.0
    other = Configuration(counts=(("B", 1),))
    assert knowledge.rates(job)[other] == again.rates(job)[other]


def test_remaining_work_may_be_unknown_or_off() -> None:
    job = _job(0, 0.0, 100.0)
    assert Beliefs(knows_remaining=False).begin().remaining(job, 50.0) is None
    assert Beliefs().begin().remaining(job, 50.0) == 50.0
    off = Beliefs(work_error=0.7).begin()
    assert off.remaining(job, 50.0) == pytest.approx(0.5 * (off.remaining(job, 100.0) or 0.0))
    assert off.remaining(job, 50.0) != 50.0


def test_placement_keeps_what_is_packed_and_fills_the_fullest_node() -> None:
    nodes = {"A": (4, 4)}
    stay = Wanted(job_id="stay", accelerator_type="A", number=1, had=((1, 0),))
    new = Wanted(job_id="new", accelerator_type="A", number=2)
    placed = place_round(nodes, [stay, new])
    assert placed["stay"] == ((1, 0),), "a larger gang comes first but leaves it room"
    assert placed["new"] == ((0, 0), (0, 1))
    tight = place_round(nodes, [Wanted(job_id=f"w{i}", accelerator_type="A", number=3) for i in range(3)])
    assert set(tight) == {"w0", "w1"}, "the third finds only one device on each node, two in all"
    split = place_round(nodes, [*(Wanted(job_id=f"w{i}", accelerator_type="A", number=3) for i in range(2)),
                                Wanted(job_id="two", accelerator_type="A", number=2)])  # fmt: skip
    assert {node for node, _ in split["two"]} == {0, 1}


def test_a_split_gang_does_not_stay_split() -> None:
    had = ((0, 3), (1, 3))
    (slots,) = place_round({"A": (4, 4)}, [Wanted(job_id="x", accelerator_type="A", number=2, had=had)]).values()
    assert len({node for node, _ in slots}) == 1


def test_fewest_nodes() -> None:
    assert [fewest_nodes((4, 4, 2), number) for number in (1, 4, 5, 8, 9, 11)] == [1, 1, 2, 2, 3, 4]
