"""What moving, pricing and resizing buy: an elastic mixed cluster against a fixed allocation of the same devices.

Fixed: who comes first takes its number of devices on the best type that is free, and keeps them to its end; others may
fill gaps (FIFO with backfill). The levers of the multi-objective policy are pulled one at a time, then together:

- ``move``: jobs may be paused and moved between types; prices do not count;
- ``price``: the same, and the price of devices counts most (``PRICED``);
- ``size``: jobs may also be resized where the throughput table has more than one size; prices do not count;
- ``all``: resized, moved, and prices count.

Performance per price is the work done per dollar of devices held, restarts included: both sides do the same work, so
the gain is the dollars of the fixed allocation over ours, less one. Mean completion times stand beside it: cheaper by
being slower does not count. Two public traces, the neutral setting's 36 devices and list prices; all in simulation.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

import report
from plait.schedule.policies.fifo_backfill import FifoBackfill
from plait.schedule.policies.multi_objective import MultiObjective
from plait.schedule.policies.objective.goals import Goals
from plait.schedule.policy import Policy
from plait.sim.jobs import SimJob
from plait.sim.traces.reading import Reading, read_trace
from sched_settings import SHARED, TABLE, Run, play_side_by_side, table_of

TRACES = ("gavel/physical_max_min_fairness.trace", "shockwave/120_dynamic.trace")
PRICELESS = Goals(fairness=0.3, throughput=0.2, cost=0.0)
PRICED = Goals(fairness=0.3, throughput=0.2, cost=1.5)
SIDES: Mapping[str, tuple[Callable[[], Policy], bool]] = {
    "fixed": (FifoBackfill, False),
    "move": (partial(MultiObjective, PRICELESS), False),
    "price": (partial(MultiObjective, PRICED), False),
    "size": (partial(MultiObjective, PRICELESS), True),
    "all": (partial(MultiObjective, PRICED), True),
}
"""Each side's policy, and whether jobs may be resized."""
SHOWN = ("cost", "jct_mean_h", "jct_p99_h", "makespan_h", "utilisation_ratio", "restarts_per_job")


def read(path: Path, *, is_elastic: bool) -> tuple[SimJob, ...]:
    reading = Reading(table=table_of(SHARED), is_elastic=is_elastic)
    jobs = read_trace(path, reading)[1]
    for reason, number in reading.left_out.items():
        print(f"{path.name}: left out {number}: {reason}")
    return jobs


def main() -> None:
    parser = report.arguments(__doc__ or "")
    parser.add_argument("--traces", type=Path, nargs="+", default=None, metavar="FILE", help="traces of Gavel's form")
    options = parser.parse_args()
    paths = options.traces or [SHARED.parent / name for name in TRACES]
    if not (SHARED / TABLE).exists():
        reason = f"no throughput table in {SHARED}"
        figure = "price_performance_gain"
        report.finish("price_elastic", options.quick, {figure: None}, {figure: reason}, options.json)
        return
    paths = paths[:1] if options.quick else paths
    gains: dict[str, list[float]] = {side: [] for side in SIDES}
    faster: dict[str, list[float]] = {side: [] for side in SIDES}
    for path in paths:
        by_kind = {is_elastic: read(path, is_elastic=is_elastic) for is_elastic in (False, True)}
        runs = [Run(policy=make(), jobs=by_kind[is_elastic]) for make, is_elastic in SIDES.values()]
        played = dict(zip(SIDES, play_side_by_side(runs), strict=True))
        if left := [side for side, one in played.items() if one["unfinished_jobs"]]:
            raise RuntimeError(f"{path.name}: some jobs never ended: {', '.join(left)}")
        print(f"\n{path.name}: {len(by_kind[True])} jobs")
        print(f"{'side':8}" + "".join(f"{key:>18}" for key in SHOWN) + f"{'work a dollar':>18}")
        for side, one in played.items():
            gains[side].append(played["fixed"]["cost"] / one["cost"] - 1.0)
            faster[side].append(one["jct_mean_h"] / played["fixed"]["jct_mean_h"])
            print(f"{side:8}" + "".join(f"{one[key]:18.3f}" for key in SHOWN) + f"{gains[side][-1]:+18.3f}")
    results: dict[str, float | None] = {
        "price_performance_gain": min(gains["all"]),
        "gain_mean": float(np.mean(gains["all"])),
        "jct_over_fixed": max(faster["all"]),
    }
    for side in ("move", "price", "size"):
        results[f"gain_{side}_alone"] = min(gains[side])
        results[f"jct_over_fixed_{side}_alone"] = max(faster[side])
    for key, value in results.items():
        print(f"{key:30} {value:8.3f}")
    report.finish("price_elastic", options.quick, results, json_path=options.json)


if __name__ == "__main__":
    main()
