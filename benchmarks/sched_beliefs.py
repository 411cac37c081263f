"""Estimates that are wrong, and restarts that are free: does the multi-objective policy still hold?

1. Neutral setting, all neutral traces. Each job's rate on each type and number of workers is told with a lognormal
   error (standard deviation 0.2, 0.3), drawn once; after a minute on a type the measured rate replaces the estimate.
   Ratios are to the run with true rates. A job starves if it never ends, or once goes without devices for longer than
   ``BOUND_H``.
2. Gavel's own conventions, where a restart costs nothing, on its trace of 200 jobs: there the best published figures
   are 7.90 h, rho 1.99 and 611 dollars, each of another policy.
"""

import report
from plait.schedule.policies.multi_objective import MultiObjective
from plait.sim.beliefs import Beliefs
from plait.sim.outcome import figures
from plait.sim.rounds.gavel import run_gavel_conventions
from plait.sim.rounds.neutral import NeutralSetting
from sched_settings import MACHINES, NEUTRAL, SHARED, TABLE, Played, Run, load, mean, play_side_by_side, table_of

BELIEFS = {
    "true": Beliefs(),
    "20 %, corrected": Beliefs(rate_error=0.2),
    "30 %, corrected": Beliefs(rate_error=0.3),
    "20 %, never corrected": Beliefs(rate_error=0.2, is_corrected=False),
}
BOUND_H = 6.0 + 1.0
"""The policy's own bound where one other job has waited longer."""
SHOWN = ("jct_mean_h", "jct_p99_h", "cost", "makespan_h", "rho_max", "unfair_ratio", "longest_wait_h")
WORST = ("rho_max", "longest_wait_h")


def main() -> None:
    options = report.arguments(__doc__ or "").parse_args()
    if not (SHARED / TABLE).exists():
        reason = f"no throughput table in {SHARED}"
        report.finish("sched_beliefs", options.quick, {"jct_20": None}, {"jct_20": reason}, options.json)
        return
    table = table_of(SHARED)
    names = NEUTRAL[-1:] if options.quick else NEUTRAL
    traces = [load(SHARED, name, table) for name in names]
    runs = [
        Run(
            policy=MultiObjective(),
            jobs=jobs,
            setting=NeutralSetting(beliefs=beliefs, keeps_timeline=True),
            tells_waits=True,
        )
        for beliefs in BELIEFS.values()
        for jobs in traces
    ]
    found = play_side_by_side(runs)
    by_side: dict[str, list[Played]] = {}
    print(f"{'rates':24}" + "".join(f"{key:>18}" for key in SHOWN))
    for number, name in enumerate(BELIEFS):
        by_side[name] = found[number * len(traces) : (number + 1) * len(traces)]
        worst = {key: max(one[key] for one in by_side[name]) for key in WORST}
        print(f"{name:24}" + "".join(f"{worst.get(key, mean(by_side[name], key)):18.3f}" for key in SHOWN))
    true_h = mean(by_side["true"], "jct_mean_h")
    thirty = by_side["30 %, corrected"]
    results: dict[str, float | None] = {
        "jct_20_over_true": mean(by_side["20 %, corrected"], "jct_mean_h") / true_h,
        "jct_30_over_true": mean(thirty, "jct_mean_h") / true_h,
        "jct_20_uncorrected_over_true": mean(by_side["20 %, never corrected"], "jct_mean_h") / true_h,
        "longest_wait_h_30": max(one["longest_wait_h"] for one in thirty),
        "worst_rho_30": max(one["rho_max"] for one in thirty),
        "starved_30": float(sum(one["longest_wait_h"] > BOUND_H or one["unfinished_jobs"] > 0 for one in thirty)),
    }
    free = figures(run_gavel_conventions(load(SHARED, "trace200", table), MACHINES, MultiObjective()))
    for key in ("jct_mean_h", "jct_p99_h", "rho_max", "cost", "makespan_h", "unfair_ratio"):
        results[f"free_restarts_{key}"] = free[key] or 0.0
    for key, value in results.items():
        print(f"{key:30} {value:8.3f}")
    report.finish("sched_beliefs", options.quick, results, json_path=options.json)


if __name__ == "__main__":
    main()
