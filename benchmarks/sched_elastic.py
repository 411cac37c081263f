"""Jobs that may be resized: the multi-objective policy against Sia's elastic program, in the same neutral simulator.

36 devices of three types, ticks of 60 s, 45 s for each restart, jobs with 1, 2, 4 or 8 workers where the throughput
table has their model with more than one size. The three reduced neutral traces are played (or all of ``--traces DIR``),
then traces of our own generator (``--seeds``), full and reduced. Ratios are of means over the traces.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import report
from plait.schedule.policies.multi_objective import MultiObjective
from plait.schedule.policies.sia import Sia
from plait.schedule.policy import Configuration, Policy, Rate
from plait.sim.beliefs import Beliefs
from plait.sim.jobs import Rates, SimJob
from plait.sim.rounds.neutral import NeutralSetting
from plait.sim.tables import ThroughputTable
from plait.sim.traces.gavel import made_elastic
from sched_neutral import SHOWN, made_trace, mean
from sched_settings import SHARED, TABLE, Played, Run, load, play_side_by_side, table_of

REDUCED = ("dev_11", "dev_12", "dev_13")
CONTENDERS: Mapping[str, tuple[Callable[[], Policy], bool]] = {
    "sia": (Sia, True),
    "multi_objective": (MultiObjective, True),
    "multi_objective, unknown": (MultiObjective, False),
}
"""Each policy, and whether it is told how much work is left."""


def smoothed(job: SimJob) -> SimJob:
    """Returns the job with rates that grow at most in proportion to the workers, and less for each further one.

    Some rows of the table are faster than linear, which no amount of scheduling explains.
    """
    new: dict[Configuration, Rate] = dict(job.rates)
    for is_spread in (False, True):
        for name in {name for c in job.rates for name, _ in c.counts}:
            sizes = sorted(c.num_workers for c in job.rates if c.counts[0][0] == name and c.is_spread == is_spread)
            before, slope = (0, 0.0), float("inf")
            for size in sizes:
                here = Configuration(counts=((name, size),), is_spread=is_spread)
                slope = min(slope, max(0.0, (job.rates[here].per_s - before[1]) / (size - before[0])))
                before = (size, before[1] + slope * (size - before[0]))
                new[here] = Rate(per_s=before[1])
    rates: Rates = new
    kept = max(rates[c].per_s / job.rates[c].per_s for c in rates if c.num_workers == job.num_workers)
    return replace(job, rates=rates, work=job.work * kept)


def compare(title: str, traces: Mapping[str, Sequence[SimJob]]) -> dict[str, float]:
    """Plays all contenders over some traces, prints their table and returns the figures."""
    pairs = [(name, trace) for trace in traces for name in CONTENDERS]
    settings = {name: NeutralSetting(beliefs=Beliefs(knows_remaining=knows)) for name, (_, knows) in CONTENDERS.items()}
    found = play_side_by_side(
        [Run(policy=CONTENDERS[name][0](), jobs=traces[trace], setting=settings[name]) for name, trace in pairs]
    )
    played: dict[str, dict[str, Played]] = {name: {} for name in CONTENDERS}
    for (name, trace), one in zip(pairs, found, strict=True):
        played[name][trace] = one
    print(f"\n{title}: {', '.join(traces)}")
    print(f"{'policy':26}" + "".join(f"{key:>18}" for key in SHOWN))
    for name, runs in played.items():
        worst = {"rho_max": max(run["rho_max"] for run in runs.values())}
        print(f"{name:26}" + "".join(f"{worst.get(key, mean(runs, key)):18.3f}" for key in SHOWN))
    ours, sia, unknown = played["multi_objective"], played["sia"], played["multi_objective, unknown"]
    return {
        "jct_over_sia": mean(ours, "jct_mean_h") / mean(sia, "jct_mean_h"),
        "cost_over_sia": mean(ours, "cost") / mean(sia, "cost"),
        "makespan_over_sia": mean(ours, "makespan_h") / mean(sia, "makespan_h"),
        "p99_over_sia": mean(ours, "jct_p99_h") / mean(sia, "jct_p99_h"),
        "restarts_over_sia": mean(ours, "restarts_per_job") / mean(sia, "restarts_per_job"),
        "worst_rho": max(run["rho_max"] for run in ours.values()),
        "worst_rho_sia": max(run["rho_max"] for run in sia.values()),
        "unfair_share": mean(ours, "unfair_ratio"),
        "jct_over_sia_unknown": mean(unknown, "jct_mean_h") / mean(sia, "jct_mean_h"),
        "cost_over_sia_unknown": mean(unknown, "cost") / mean(sia, "cost"),
    }


def made(seed: int, table: ThroughputTable, *, reduced: bool) -> tuple[SimJob, ...]:
    return tuple(made_elastic(job, table) for job in made_trace(seed, table, reduced=reduced))


def main() -> None:
    parser = report.arguments(__doc__ or "")
    parser.add_argument("--traces", type=Path, default=None, metavar="DIR", help="play every *.trace of this folder")
    parser.add_argument("--table", type=Path, default=None, metavar="FILE", help="throughputs by model, batch and size")
    parser.add_argument("--seeds", type=int, default=5, help="traces of our own generator, of each of the two kinds")
    options = parser.parse_args()
    folder = options.traces or SHARED
    if options.table is None and not (folder / TABLE).exists() and not (SHARED / TABLE).exists():
        reason = f"no throughput table in {folder} or {SHARED}: give --traces or --table"
        report.finish("sched_elastic", options.quick, {"jct_over_sia": None}, {"jct_over_sia": reason}, options.json)
        return
    table = table_of(folder, options.table)
    names = sorted(path.stem for path in folder.glob("*.trace")) if options.traces else list(REDUCED)
    names = names[:1] if options.quick else names
    traces = {name: load(folder, name, table, elastic=True) for name in names}
    results: dict[str, float | None] = dict(compare("traces", traces))
    if not options.quick:
        even = {name: tuple(smoothed(job) for job in jobs) for name, jobs in traces.items()}
        results.update({f"smooth_{key}": value for key, value in compare("rates made concave", even).items()})
    if options.traces is None and options.seeds and not options.quick:
        seeds = range(options.seed + 1, options.seed + options.seeds + 1)
        kinds = {"full": False, "reduced": True}
        own = {f"{k}-{seed}": made(seed, table, reduced=kinds[k]) for k in kinds for seed in seeds}
        results.update({f"own_{key}": value for key, value in compare("our own traces", own).items()})
    for key, value in results.items():
        print(f"{key:34} {value:8.3f}")
    report.finish("sched_elastic", options.quick, results, json_path=options.json)


if __name__ == "__main__":
    main()
