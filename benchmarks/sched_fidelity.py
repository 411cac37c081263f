"""Do the re-implemented policies reproduce the measured tables of the originals?

Two parts. Gavel's policies run under Gavel's own conventions on the 200-job trace, against what its own simulator gave.
Sia's rigid program runs in the neutral setting on three traces, against the table of that setting (means over the
traces). Bar: 3 %.

What is compared: mean completion time, utilisation, cost, and the largest rho. The largest rho is one job's; where it
moves by more than 3 % when the throughput table is shaken by 0.1 %, or where the order of types is drawn at random, it
says nothing about the policy, and it is printed but not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import report
from plait.schedule.policies.finish_time_fairness import FinishTimeFairness
from plait.schedule.policies.isolated import Isolated
from plait.schedule.policies.max_min_fairness import MaxMinFairness
from plait.schedule.policies.max_min_water_filling import MaxMinWaterFilling
from plait.schedule.policies.max_sum_throughput import MaxSumThroughput, MaxSumThroughputByCost
from plait.schedule.policies.min_makespan import MinMakespan
from plait.schedule.policies.sia import Sia
from plait.schedule.policies.time_shares import Turns
from plait.schedule.policy import Policy, Rate
from plait.sim.jobs import Rates, SimJob
from plait.sim.outcome import figures
from plait.sim.rounds.gavel import run_gavel_conventions
from plait.sim.rounds.neutral import run_neutral
from sched_settings import MACHINES, SHARED, load, table_of

SHAKE_RATIO = 1e-3
SETTLED_RATIO = 0.03
TURNS = Turns(as_published=True)
RANDOM_TYPES = Turns(as_published=True, type_order_seed=5)
"""Gavel draws the order of types for policies that know none, from a generator seeded with 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy and its published figures: mean JCT in hours, utilisation, cost, largest rho."""

    name: str
    policy: Policy
    jct_h: float
    utilisation: float
    cost: float
    rho_max: float
    is_random: bool = False


ROWS = (
    Row(name="max-min", policy=MaxMinFairness(TURNS), jct_h=7.95, utilisation=0.893, cost=626, rho_max=2.02),
    Row(name="water-filling", policy=MaxMinWaterFilling(TURNS), jct_h=7.90, utilisation=0.896, cost=619, rho_max=2.02),
    Row(name="FTF", policy=FinishTimeFairness(TURNS), jct_h=8.33, utilisation=0.897, cost=633, rho_max=1.99),
    Row(name="max-sum", policy=MaxSumThroughput(TURNS), jct_h=9.13, utilisation=0.850, cost=634, rho_max=16.6),
    Row(
        name="max-sum / cost", policy=MaxSumThroughputByCost(TURNS), jct_h=8.70, utilisation=0.873, cost=629,
        rho_max=13.98,
    ),
    Row(name="makespan", policy=MinMakespan(TURNS), jct_h=25.15, utilisation=0.943, cost=611, rho_max=23.7),
    Row(
        name="isolated", policy=Isolated(RANDOM_TYPES), jct_h=8.92, utilisation=0.895, cost=695, rho_max=2.74,
        is_random=True,
    ),
    Row(
        name="max-min, type-agnostic", policy=MaxMinFairness(RANDOM_TYPES, is_type_agnostic=True), jct_h=8.94,
        utilisation=0.891, cost=695, rho_max=2.92, is_random=True,
    ),
    Row(
        name="FTF, type-agnostic", policy=FinishTimeFairness(RANDOM_TYPES, is_type_agnostic=True), jct_h=9.87,
        utilisation=0.882, cost=694, rho_max=2.69, is_random=True,
    ),
)  # fmt: skip
QUICK_ROWS = ("max-min", "water-filling", "FTF")

SIA = {
    "jct_mean_h": (4.112, 4.328, 3.736),
    "jct_p99_h": (11.8, 10.8, 11.9),
    "cost": (190.0, 251.0, 195.0),
    "makespan_h": (17.8, 21.0, 17.7),
    "utilisation_ratio": (0.60, 0.68, 0.59),
    "rho_mean": (0.71, 0.71, 0.68),
    "rho_max": (1.00, 1.81, 0.83),
    "restarts_per_job": (2.2, 3.1, 2.2),
}
"""The neutral table, by trace."""

SIA_TRACES = ("dev_11", "dev_12", "dev_13")
NOT_COUNTED = "restarts_per_job"
"""Sia rounds utilities to 0.01, so that many optima tie, and which one the solver returns decides who is restarted."""


def main() -> None:
    parser = report.arguments(__doc__ or "")
    parser.add_argument("--traces", type=Path, default=SHARED, metavar="DIR", help="folder of the traces")
    parser.add_argument("--table", type=Path, default=None, metavar="FILE", help="throughput table")
    arguments = parser.parse_args()
    table = table_of(arguments.traces, arguments.table)
    gavel = _gavel(load(arguments.traces, "trace200", table), quick=arguments.quick, seed=arguments.seed)
    traces = SIA_TRACES[-1:] if arguments.quick else SIA_TRACES
    sia = _sia([load(arguments.traces, name, table) for name in traces], traces)
    report.finish(
        "sched_fidelity", arguments.quick, {"gavel_error_max": gavel, "sia_error_max": sia},
        json_path=arguments.json,
    )  # fmt: skip


def _gavel(jobs: Sequence[SimJob], *, quick: bool, seed: int) -> float:
    print(f"Gavel's conventions, {len(jobs)} jobs (reached / published, error)")
    print(f"{'policy':24}{'mean JCT h':>22}{'utilisation':>22}{'cost $':>20}{'rho max':>24}{'shaken':>9}")
    worst = 0.0
    for row in ROWS:
        if quick and row.name not in QUICK_ROWS:
            continue
        got = _run(jobs, row.policy)
        spread = 0.0 if quick else _spread(jobs, row.policy, got[3], seed)
        is_settled = spread <= SETTLED_RATIO and not row.is_random
        wanted = (row.jct_h, row.utilisation, row.cost, row.rho_max)
        errors = [reached / published - 1.0 for reached, published in zip(got, wanted, strict=True)]
        worst = max(worst, *(abs(error) for error in (errors if is_settled else errors[:3])))
        cells = [
            f"{reached:.{places}f} / {published:g} {error:+.1%}"
            for reached, published, error, places in zip(got, wanted, errors, (2, 3, 0, 2), strict=True)
        ]
        note = "" if is_settled else " (not counted)"
        print(f"{row.name:24}{cells[0]:>22}{cells[1]:>22}{cells[2]:>20}{cells[3]:>24}{spread:>9.1%}{note}")
    return worst


def _run(jobs: Sequence[SimJob], policy: Policy) -> tuple[float, float, float, float]:
    found = figures(run_gavel_conventions(jobs, MACHINES, policy))
    names = ("jct_mean_h", "utilisation_ratio", "cost", "rho_max")
    first, second, third, fourth = (float(found[name] or 0.0) for name in names)
    return first, second, third, fourth


def _spread(jobs: Sequence[SimJob], policy: Policy, rho_max: float, seed: int) -> float:
    """Returns the largest move of the largest rho when all rates are shaken by 0.1 %."""
    shaken = [_run(_shaken(jobs, 3 * seed + number), policy)[3] for number in (1, 2, 3)]
    return max(abs(value / rho_max - 1.0) for value in shaken)


def _shaken(jobs: Sequence[SimJob], seed: int) -> tuple[SimJob, ...]:
    random, known = Random(seed), dict[int, Rates]()
    for job in jobs:
        if id(job.rates) not in known:
            known[id(job.rates)] = {
                configuration: Rate(per_s=rate.per_s * (1.0 + random.uniform(-SHAKE_RATIO, SHAKE_RATIO)))
                for configuration, rate in job.rates.items()
            }
    return tuple(replace(job, rates=known[id(job.rates)]) for job in jobs)


def _sia(traces: Sequence[Sequence[SimJob]], names: Sequence[str]) -> float:
    runs = [figures(run_neutral(jobs, MACHINES, Sia())) for jobs in traces]
    print(f"\nSia rigid, neutral setting, means over {', '.join(names)} (reached / published, error)")
    worst = 0.0
    for figure, by_trace in SIA.items():
        published = [by_trace[SIA_TRACES.index(name)] for name in names]
        wanted = sum(published) / len(published)
        got = sum(float(run[figure] or 0.0) for run in runs) / len(runs)
        error = got / wanted - 1.0
        each = ", ".join(f"{float(run[figure] or 0.0):.3g}" for run in runs)
        note = "  (not counted: ties)" if figure == NOT_COUNTED else ""
        print(f"{figure:20}{got:>10.3f} / {wanted:<10.3f}{error:+7.1%}   [{each}]{note}")
        if figure != NOT_COUNTED:
            worst = max(worst, abs(error))
    return worst


if __name__ == "__main__":
    main()
