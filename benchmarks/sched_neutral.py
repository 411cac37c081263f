"""Policies in one neutral setting: same traces, rates, cluster, restart cost and placement for all.

36 devices of three types, ticks of 60 s, 45 s for each restart (Gavel's policies are asked every 360 s, the others
every 60 s). ``--traces DIR`` plays each ``*.trace`` of a folder, with its ``throughputs_isolated.csv`` if it has one.
Without it the full and the reduced neutral traces of the data folder are played, then traces of a generator of our own
(``--seeds``). Ratios are of means over the traces; the better of Sia's two variants counts. All wins are in simulation.
"""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import report
from plait.schedule.policies.finish_time_fairness import FinishTimeFairness
from plait.schedule.policies.max_min_fairness import MaxMinFairness
from plait.schedule.policies.multi_objective import MultiObjective
from plait.schedule.policies.sia import Sia
from plait.schedule.policy import Policy
from plait.sim.beliefs import Beliefs
from plait.sim.jobs import SimJob
from plait.sim.outcome import figures
from plait.sim.rounds.neutral import NeutralSetting, run_neutral
from plait.sim.tables import ThroughputTable
from sched_settings import MACHINES, NEUTRAL, SHARED, TABLE, Played, load, quiet, table_of

SHOWN = (
    "jct_mean_h",
    "jct_p99_h",
    "cost",
    "makespan_h",
    "utilisation_ratio",
    "rho_max",
    "unfair_ratio",
    "restarts_per_job",
    "solve_ms_mean",
)
REDUCED_OUT = ("ResNet-50", "LM", "CycleGAN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A policy with the setting in which it plays."""

    make: Callable[[], Policy]
    round_s: float = 60.0
    knows_remaining: bool = True


CONTENDERS: Mapping[str, Contender] = {
    "max_min_fairness": Contender(make=MaxMinFairness, round_s=360.0),
    "finish_time_fairness": Contender(make=FinishTimeFairness, round_s=360.0),
    "sia": Contender(make=Sia),
    "sia, unfit kept": Contender(make=partial(Sia, keeps_unfit=True)),
    "multi_objective": Contender(make=MultiObjective),
    "multi_objective, unknown": Contender(make=MultiObjective, knows_remaining=False),
}
SIA = ("sia", "sia, unfit kept")


def made_trace(seed: int, table: ThroughputTable, *, reduced: bool) -> tuple[SimJob, ...]:
    """Returns a trace like the neutral ones: 100 jobs, Poisson 700 s, kinds drawn evenly, half an hour to 8 h on V100.

    Of the models with several sizes 70 % take 1 device, 10 % take 2, 20 % take 4. ``reduced``: three models left out,
    and arrivals brought together so that the devices wanted an hour stay the same.
    """
    draw = random.Random(seed)
    kinds = sorted(table.steps_per_s, key=str)
    jobs, now_s = [], 0.0
    for number in range(100):
        model, batch = draw.choice(kinds)
        size = 1 if len(table.sizes(model, batch)) == 1 else draw.choices((1, 2, 4), (0.7, 0.1, 0.2))[0]
        rates = table.rates(model, batch, size)
        hours = draw.randint(1, 16) / 2
        job = SimJob(
            id=f"j{number:06d}",
            submitted_at_s=float(int(now_s)),
            num_workers=size,
            work=1.0,
            rates=rates,
            kind=f"{model} (batch size {batch})" if batch else model,
        )
        jobs.append(replace(job, work=float(int(3600 * hours * job.rate("V100", size)))))
        now_s += draw.expovariate(1 / 700)
    if not reduced:
        return tuple(jobs)
    kept = [job for job in jobs if not job.kind.startswith(REDUCED_OUT)]
    share = sum(map(_device_s, kept)) / sum(map(_device_s, jobs))
    first_s = kept[0].submitted_at_s
    return tuple(replace(job, submitted_at_s=float(int((job.submitted_at_s - first_s) * share))) for job in kept)


def _device_s(job: SimJob) -> float:
    return job.num_workers * job.work / job.rate("V100", job.num_workers)


def play(name: str, jobs: Sequence[SimJob]) -> Played:
    """Returns the figures of one contender on one trace."""
    contender = CONTENDERS[name]
    setting = NeutralSetting(round_s=contender.round_s, beliefs=Beliefs(knows_remaining=contender.knows_remaining))
    return {key: value or 0.0 for key, value in figures(run_neutral(jobs, MACHINES, contender.make(), setting)).items()}


def play_all(traces: Mapping[str, Sequence[SimJob]]) -> dict[str, dict[str, Played]]:
    """Returns figures by contender and trace."""
    pairs = [(name, trace) for trace in traces for name in CONTENDERS]
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0)), initializer=quiet) as pool:
        found = list(pool.map(play, [name for name, _ in pairs], [traces[trace] for _, trace in pairs]))
    played: dict[str, dict[str, Played]] = {name: {} for name in CONTENDERS}
    for (name, trace), one in zip(pairs, found, strict=True):
        played[name][trace] = one
    return played


def mean(played: Mapping[str, Played], key: str) -> float:
    return float(np.mean([one[key] for one in played.values()]))


def compare(title: str, traces: Mapping[str, Sequence[SimJob]]) -> dict[str, float]:
    """Plays all contenders over some traces, prints their table and returns the figures."""
    played = play_all(traces)
    print(f"\n{title}: {', '.join(traces)}")
    print(f"{'policy':26}" + "".join(f"{key:>18}" for key in SHOWN))
    for name, one in played.items():
        worst = {"rho_max": max(run["rho_max"] for run in one.values())}
        print(f"{name:26}" + "".join(f"{worst.get(key, mean(one, key)):18.3f}" for key in SHOWN))
    ours, gavel = played["multi_objective"], played["max_min_fairness"]
    sia = min((played[name] for name in SIA), key=lambda one: mean(one, "jct_mean_h"))
    unknown = played["multi_objective, unknown"]

    def over(one: Mapping[str, Played], other: Mapping[str, Played], key: str) -> float:
        return mean(one, key) / mean(other, key)

    return {
        "jct_over_gavel": over(ours, gavel, "jct_mean_h"),
        "cost_over_gavel": over(ours, gavel, "cost"),
        "jct_over_sia": over(ours, sia, "jct_mean_h"),
        "cost_over_sia": over(ours, sia, "cost"),
        "makespan_over_sia": over(ours, sia, "makespan_h"),
        "p99_over_sia": over(ours, sia, "jct_p99_h"),
        "restarts_over_sia": over(ours, sia, "restarts_per_job"),
        "solve_over_sia": over(ours, sia, "solve_ms_mean"),
        "worst_rho": max(run["rho_max"] for run in ours.values()),
        "unfair_share": mean(ours, "unfair_ratio"),
        "jct_over_sia_unknown": over(unknown, sia, "jct_mean_h"),
        "cost_over_sia_unknown": over(unknown, sia, "cost"),
        "worst_rho_unknown": max(run["rho_max"] for run in unknown.values()),
    }


def main() -> None:
    parser = report.arguments(__doc__ or "")
    parser.add_argument("--traces", type=Path, default=None, metavar="DIR", help="play every *.trace of this folder")
    parser.add_argument("--table", type=Path, default=None, metavar="FILE", help="throughputs by model, batch and size")
    parser.add_argument("--seeds", type=int, default=10, help="traces of our own generator, of each of the two kinds")
    options = parser.parse_args()
    folder = options.traces or SHARED
    if options.table is None and not (folder / TABLE).exists() and not (SHARED / TABLE).exists():
        reason = f"no throughput table in {folder} or {SHARED}: give --traces or --table"
        report.finish("sched_neutral", options.quick, {"jct_over_sia": None}, {"jct_over_sia": reason}, options.json)
        return
    table = table_of(folder, options.table)
    names = sorted(path.stem for path in folder.glob("*.trace")) if options.traces else list(NEUTRAL)
    if options.quick:
        names = sorted(names, key=lambda name: (folder / f"{name}.trace").stat().st_size)[:1]
    found = compare("traces", {name: load(folder, name, table) for name in names})
    results: dict[str, float | None] = dict(found)
    if options.traces is None and options.seeds and not options.quick:
        seeds = range(options.seed + 1, options.seed + options.seeds + 1)
        own = {
            f"{'reduced' if reduced else 'full'}-{seed}": made_trace(seed, table, reduced=reduced)
            for reduced in (False, True)
            for seed in seeds
        }
        results.update({f"own_{key}": value for key, value in compare("our own traces", own).items()})
    for key, value in results.items():
        print(f"{key:30} {value:8.3f}")
    report.finish("sched_neutral", options.quick, results, json_path=options.json)


if __name__ == "__main__":
    main()
