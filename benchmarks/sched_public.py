"""Traces of public clusters: the multi-objective policy against FIFO with backfill and Gavel's max-min fairness.

The neutral setting's ticks, restart cost and placement. Our policy is asked every 5 minutes, FIFO every minute, Gavel's
every 6. Each trace gives its busiest stretch of ``--jobs`` jobs.

- Philly: one of its virtual clusters as Gavel mapped it to models, on the neutral setting's 36 devices. Arrivals and
  sizes are real, rates are those of models of like duration.
- Alibaba 2023: its pods on a cluster of its device types in about their proportions, so small that the stretch asks for
  ``LOAD`` times its work. Durations are those on the most common type; others are faster by their published figures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import report
from plait.schedule.policies.fifo_backfill import FifoBackfill
from plait.schedule.policies.max_min_fairness import MaxMinFairness
from plait.schedule.policies.multi_objective import MultiObjective
from plait.schedule.policy import Policy
from plait.sim.clusters import read_cluster
from plait.sim.jobs import SimJob
from plait.sim.rounds.neutral import NeutralSetting
from plait.sim.rounds.views import Machines
from plait.sim.traces.reading import Reading, read_trace
from sched_settings import MACHINES, SHARED, Played, Run, play_side_by_side, table_of

PHILLY = SHARED / "philly_vc_103959.trace"
ALIBABA = SHARED.parent / "alibaba-gpu-v2023"
LOAD = 1.0
NODE = 8
PRICES = {"G2": 0.6, "G3": 0.6, "P100": 0.6, "T4": 0.4, "V100M16": 1.0, "V100M32": 1.2}
"""Dollars a device-hour; the trace has none. Only the cost column depends on them, and our policy's taste."""
SIDES: Mapping[str, tuple[Policy, float]] = {
    "fifo_backfill": (FifoBackfill(), 60.0),
    "max_min_fairness": (MaxMinFairness(), 360.0),
    "multi_objective": (MultiObjective(), 300.0),
}
SHOWN = ("jct_mean_h", "jct_median_h", "jct_p99_h", "rho_max", "unfair_ratio", "makespan_h", "cost", "restarts_per_job")
BARS = ("jct_mean_h", "jct_p99_h", "unfair_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A trace and the cluster it is played on."""

    name: str
    jobs: Sequence[SimJob]
    machines: Machines


def busiest(jobs: Sequence[SimJob], number: int) -> tuple[SimJob, ...]:
    """Returns so many consecutive jobs, those that arrived in the shortest time, from time 0 on."""
    if len(jobs) <= number:
        return tuple(jobs)
    spans = [jobs[i + number - 1].submitted_at_s - jobs[i].submitted_at_s for i in range(len(jobs) - number + 1)]
    first = spans.index(min(spans))
    some = jobs[first : first + number]
    return tuple(replace(job, submitted_at_s=job.submitted_at_s - some[0].submitted_at_s) for job in some)


def philly(number: int) -> Scene:
    reading = Reading(table=table_of(SHARED))
    jobs = busiest(read_trace(PHILLY, reading)[1], number)
    return Scene(name=f"Philly, {len(jobs)} jobs", jobs=jobs, machines=MACHINES)


def alibaba(number: int) -> Scene:
    cluster = read_cluster(str(ALIBABA / "openb_node_list_gpu_node.csv"))
    reading = Reading(speeds=cluster.speeds())
    path = ALIBABA / "openb_pod_list_default.csv"
    jobs = busiest(read_trace(path, reading)[1], number)
    speeds = cluster.speeds()
    asked = sum(job.work * job.num_workers for job in jobs) / max(jobs[-1].submitted_at_s, 1.0)
    have = {name: count for name, count in cluster.capacity.items() if count >= NODE}
    power = sum(count * speeds.by_type[name] / speeds.by_type[speeds.reference] for name, count in have.items())
    share = asked / LOAD / power
    nodes = {name: (NODE,) * max(1, math.ceil(count * share / NODE)) for name, count in have.items()}
    machines = Machines(nodes=nodes, prices_per_hour=PRICES)
    return Scene(name=f"Alibaba 2023, {len(jobs)} jobs on {machines.capacity}", jobs=jobs, machines=machines)


def main() -> None:
    parser = report.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=250, help="length of each stretch")
    options = parser.parse_args()
    missing = [str(path) for path in (PHILLY, ALIBABA) if not Path(path).exists()]
    if missing:
        figures: dict[str, float | None] = {"better_in_all": None}
        reasons = {"better_in_all": f"not there: {', '.join(missing)}"}
        report.finish("sched_public", options.quick, figures, reasons, options.json)
        return
    number = options.jobs // 4 if options.quick else options.jobs
    scenes = {"philly": philly(number), "alibaba": alibaba(number)}
    runs = [
        Run(policy=policy, jobs=scene.jobs, machines=scene.machines, setting=NeutralSetting(round_s=round_s))
        for scene in scenes.values()
        for policy, round_s in SIDES.values()
    ]
    found = iter(play_side_by_side(runs))
    results: dict[str, float | None] = {}
    is_better = True
    for short, scene in scenes.items():
        played: dict[str, Played] = {name: next(found) for name in SIDES}
        print(f"\n{scene.name}\n{'policy':20}" + "".join(f"{key:>18}" for key in SHOWN))
        for name, one in played.items():
            print(f"{name:20}" + "".join(f"{one[key]:18.3f}" for key in SHOWN))
        ours = played.pop("multi_objective")
        for other, one in played.items():
            for key in BARS:
                is_better &= ours[key] < one[key]
                results[f"{short}_{key}_over_{other}"] = ours[key] / one[key] if one[key] else None
    reasons = {key: "the other has none" for key, value in results.items() if value is None}
    results["better_in_all"] = float(is_better)
    report.finish("sched_public", options.quick, results, reasons, options.json)


if __name__ == "__main__":
    main()
