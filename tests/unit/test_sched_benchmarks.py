"""The scheduling benchmarks judge what they say they judge: waits, fronts, stretches of a trace, smoothed rates."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from plait.schedule.policies.fifo import Fifo
from plait.schedule.policy import Configuration, Rate
from plait.sim.jobs import SimJob
from plait.sim.rounds.neutral import NeutralSetting, run_neutral
from plait.sim.rounds.views import Machines

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from sched_elastic import smoothed
from sched_public import busiest
from sched_settings import longest_wait_h
from sched_weights import is_monotone, is_on_front


def _job(number: int, at_s: float, work: float = 600.0) -> SimJob:
    rates = {Configuration(counts=(("A", size),)): Rate(per_s=rate) for size, rate in ((1, 1.0), (2, 3.0), (4, 4.0))}
    return SimJob(id=f"j{number}", submitted_at_s=at_s, num_workers=1, work=work, rates=rates)


def test_the_longest_wait_is_that_before_the_first_device() -> None:
    machines = Machines(nodes={"A": (1,)}, prices_per_hour={})
    run = run_neutral([_job(0, 0.0), _job(1, 0.0)], machines, Fifo(), NeutralSetting(keeps_timeline=True))
    first_end_s = run.jobs[0].end_s
    assert first_end_s is not None
    start_s = run.jobs[1].start_s
    assert longest_wait_h(run) == pytest.approx(start_s / 3600.0 if start_s else 0.0)
    assert start_s == pytest.approx(first_end_s, abs=60.0)


def test_the_busiest_stretch_begins_at_zero() -> None:
    jobs = [_job(i, at_s) for i, at_s in enumerate((0.0, 1000.0, 2000.0, 2010.0, 2030.0, 9000.0))]
    found = busiest(jobs, 3)
    assert [job.id for job in found] == ["j2", "j3", "j4"]
    assert [job.submitted_at_s for job in found] == [0.0, 10.0, 30.0]
    assert busiest(jobs, 10) == tuple(jobs)


def test_smoothed_rates_are_concave_and_keep_the_job_as_long() -> None:
    job = _job(0, 0.0)
    new = smoothed(job)
    assert [rate.per_s for rate in new.rates.values()] == [1.0, 2.0, 4.0]
    assert new.work == job.work
    two = smoothed(replace(job, num_workers=2))
    assert two.work / two.rate("A", 2) == pytest.approx(job.work / job.rate("A", 2))


def test_a_front_is_monotone_within_its_slack() -> None:
    front = {0.0: (4.0, 1.2), 0.5: (4.1, 1.1), 0.9: (4.3, 1.0)}
    assert is_monotone(front)
    assert is_monotone({**front, 0.9: (4.3, 1.105)})
    assert not is_monotone({**front, 0.9: (4.3, 1.2)})
    assert not is_monotone({**front, 0.5: (3.8, 1.1)})


def test_a_point_is_on_the_front_if_nothing_is_better_in_both() -> None:
    others = [(4.0, 1.2), (4.1, 1.1)]
    assert is_on_front((4.1, 1.1), others)
    assert not is_on_front((4.3, 1.3), others)
    assert is_on_front((3.9, 1.3), others)
