"""What the weights of the multi-objective policy mean: fairness from 0 to 1, against throughput, and the presets.

Neutral setting, rounds of 5 minutes, traces of our own generator (full and reduced). Throughput is told by the mean
completion time, fairness by the worst finish-time fairness rho of each trace, both averaged over the traces. The front
is monotone where more fairness never lowers the first and never raises the second by more than 1 %: single jobs decide
the worst rho.
"""

from itertools import pairwise

import report
from plait.schedule.policies.multi_objective import MultiObjective
from plait.schedule.policies.objective.goals import PRESETS, Goals
from plait.sim.rounds.neutral import NeutralSetting
from sched_neutral import made_trace
from sched_settings import SHARED, TABLE, Played, Run, mean, play_side_by_side, table_of

FAIRNESS = (0.0, 0.3, 0.5, 0.7, 1.0)
NAMED = 0.7
"""``fairness: 0.7, throughput: 0.3``, which shall lie on the front."""
SLACK = 0.01
SHOWN = ("jct_mean_h", "jct_p99_h", "rho_max", "rho_mean", "unfair_ratio", "cost", "makespan_h", "restarts_per_job")


def is_monotone(by_fairness: dict[float, tuple[float, float]]) -> bool:
    """Says whether more fairness costs completion time and lowers the worst rho, all within the slack."""
    return all(
        more[0] >= less[0] * (1 - SLACK) and more[1] <= less[1] * (1 + SLACK)
        for less, more in pairwise(by_fairness[one] for one in sorted(by_fairness))
    )


def is_on_front(point: tuple[float, float], others: list[tuple[float, float]]) -> bool:
    """Says whether no other point is better in both by more than the slack."""
    return not any(
        other[0] < point[0] * (1 - SLACK) and other[1] < point[1] * (1 - SLACK) for other in others if other != point
    )


def main() -> None:
    parser = report.arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5, help="traces of our own generator, of each of the two kinds")
    options = parser.parse_args()
    if not (SHARED / TABLE).exists():
        reason = f"no throughput table in {SHARED}"
        report.finish("sched_weights", options.quick, {"is_monotone": None}, {"is_monotone": reason}, options.json)
        return
    table = table_of(SHARED)
    seeds = range(options.seed + 1, options.seed + (1 if options.quick else options.seeds) + 1)
    traces = [made_trace(seed, table, reduced=reduced) for seed in seeds for reduced in (False, True)]
    sides = {f"fairness {one:g}": Goals(fairness=one, throughput=1.0 - one, cost=0.0) for one in FAIRNESS}
    sides.update({} if options.quick else {f"preset {name}": goals for name, goals in PRESETS.items()})
    setting = NeutralSetting(round_s=300.0)
    runs = [
        Run(policy=MultiObjective(goals), jobs=jobs, setting=setting) for goals in sides.values() for jobs in traces
    ]
    found = play_side_by_side(runs)
    print(f"{'weights':18}" + "".join(f"{key:>18}" for key in SHOWN))
    by_side: dict[str, list[Played]] = {}
    for number, name in enumerate(sides):
        by_side[name] = found[number * len(traces) : (number + 1) * len(traces)]
        print(f"{name:18}" + "".join(f"{mean(by_side[name], key):18.3f}" for key in SHOWN))
    front = {
        one: (mean(by_side[f"fairness {one:g}"], "jct_mean_h"), mean(by_side[f"fairness {one:g}"], "rho_max"))
        for one in FAIRNESS
    }
    results: dict[str, float | None] = {
        "is_monotone": float(is_monotone(front)),
        "named_on_front": float(is_on_front(front[NAMED], list(front.values()))),
    }
    for one, (jct_h, rho) in front.items():
        results[f"jct_h_fairness_{one:g}"] = jct_h
        results[f"worst_rho_fairness_{one:g}"] = rho
    report.finish("sched_weights", options.quick, results, json_path=options.json)


if __name__ == "__main__":
    main()
