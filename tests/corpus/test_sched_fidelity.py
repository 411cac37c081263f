"""The re-implemented policies against the published tables, on the shared traces."""

from pathlib import Path

import pytest

from plait.schedule.policies.finish_time_fairness import FinishTimeFairness
from plait.schedule.policies.max_min_fairness import MaxMinFairness
from plait.schedule.policies.sia import Sia
from plait.schedule.policies.time_shares import Turns
from plait.schedule.policy import Policy
from plait.sim.checker import problems
from plait.sim.outcome import figures
from plait.sim.rounds.gavel import run_gavel_conventions
from plait.sim.rounds.neutral import NeutralSetting, run_neutral
from plait.sim.rounds.views import Machines
from plait.sim.speeds import Speeds
from plait.sim.tables import read_table
from plait.sim.traces.gavel import read_gavel
from plait.sim.traces.reading import Reading, read_trace

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "scheduling"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"no traces under {DATA}")
PRICES = {"V100": 0.74, "P100": 0.43, "K80": 0.135}
MACHINES = Machines(nodes=dict.fromkeys(PRICES, (4, 4, 4)), prices_per_hour=PRICES)
TURNS = Turns(as_published=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "published"),
    [
        (MaxMinFairness(TURNS), {"jct_mean_h": 7.95, "utilisation_ratio": 0.893, "cost": 626.0, "rho_max": 2.02}),
        (FinishTimeFairness(TURNS), {"jct_mean_h": 8.33, "utilisation_ratio": 0.897, "cost": 633.0, "rho_max": 1.99}),
    ],
    ids=["max_min_fairness", "finish_time_fairness"],
)
def test_gavels_table(policy: Policy, published: dict[str, float]) -> None:
    jobs = read_gavel(DATA / "gavel" / "trace200.trace", read_table(DATA / "gavel" / "throughputs_isolated.csv"))
    found = figures(run_gavel_conventions(jobs, MACHINES, policy))
    assert {name: found[name] for name in published} == pytest.approx(published, rel=0.03)


@pytest.mark.slow
def test_sias_table() -> None:
    jobs = read_gavel(DATA / "gavel" / "dev_13.trace", read_table(DATA / "gavel" / "throughputs_isolated.csv"))
    run = run_neutral(jobs, MACHINES, Sia(), NeutralSetting(keeps_timeline=True))
    published = {"jct_mean_h": 3.736, "cost": 195.0, "makespan_h": 17.7, "utilisation_ratio": 0.59, "rho_mean": 0.68}
    found = figures(run)
    assert {name: found[name] for name in published} == pytest.approx(published, rel=0.03)
    assert problems(run) == []


@pytest.mark.parametrize(
    ("path", "form", "number"),
    [
        ("gavel/trace200.trace", "Gavel", 200),
        ("shockwave/220_dynamic.trace", "Gavel", 220),
        ("pollux/workloads/workload-2.csv", "Pollux or Sia", None),
        ("pollux/traces/philly.csv", "Philly (CSV)", 80_736),
        ("tiresias/60_job.csv", "Tiresias", 60),
        ("elasticflow/philly_103959.csv", "ElasticFlow", 876),
        ("muri/trace2.csv", "Muri", None),
        ("alibaba-gpu-v2023/openb_pod_list_gpuspec33.csv", "Alibaba 2023", None),
    ],
)
def test_public_traces_are_read(path: str, form: str, number: int | None) -> None:
    reading = Reading(
        table=read_table(DATA / "gavel" / "throughputs_isolated.csv"),
        speeds=Speeds(by_type={"V100": 2.0, "T4": 1.0}, reference="V100"),
        profiles=DATA / "pollux" / "traces",
    )
    found, jobs = read_trace(DATA / path, reading)
    assert found == form
    assert number is None or len(jobs) == number
    assert len(jobs) > 50
    assert jobs[0].submitted_at_s == 0.0
    assert all(job.work > 0 and job.num_workers > 0 for job in jobs)
