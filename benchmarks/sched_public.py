"""Traces of public clusters: the multi-objective policy against FIFO with backfill and Gavel's max-min fairness.

The neutral setting's ticks, restart cost and placement. Gavel's policy is asked every 6 minutes, FIFO every minute,
ours every 5 minutes on Philly (whose jobs run for hours) and every minute on Alibaba (whose jobs run for minutes). Each
trace gives its busiest stretch.

- Philly: one of its virtual clusters as Gavel mapped it to models, on the neutral setting's 36 devices. Arrivals and
  sizes are real, rates are those of models of like duration.
- Alibaba 2023: its pods, on nodes of its five most frequent types. The trace asks for a dozen devices at a time, so its
  arrivals are brought together until it asks for ``LOAD`` times the work that the cluster does. Durations are those on
  the most common type; others are faster by their published figures.
"""

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
NODES = {"G2": (8, 8, 8), "T4": (8,), "G3": (8,), "P100": (8,), "V100M32": (8,)}
PRICES = {"G2": 0.6, "G3": 0.6, "P100": 0.6, "T4": 0.4, "V100M16": 1.0, "V100M32": 1.2}
"""Dollars a device-hour; the trace has none. Only the cost column depends on them, and our policy's taste."""
SIDES: Mapping[str, tuple[Policy, float]] = {
    "fifo_backfill": (FifoBackfill(), 60.0),
    "max_min_fairness": (MaxMinFairness(), 360.0),
}
OURS = "multi_objective"
SHOWN = ("jct_mean_h", "jct_median_h", "jct_p99_h", "rho_max", "unfair_ratio", "makespan_h", "cost", "restarts_per_job")
BARS = ("jct_mean_h", "jct_p99_h", "unfair_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A trace and the cluster it is played on."""

    name: str
    jobs: Sequence[SimJob]
    machines: Machines
    round_s: float

    def runs(self) -> dict[str, Run]:
        """Returns the runs of all policies on it."""
        sides = {**SIDES, OURS: (MultiObjective(), self.round_s)}
        return {
            name: Run(policy=policy, jobs=self.jobs, machines=self.machines, setting=NeutralSetting(round_s=round_s))
            for name, (policy, round_s) in sides.items()
        }


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
    return Scene(name=f"Philly, {len(jobs)} jobs", jobs=jobs, machines=MACHINES, round_s=300.0)


def alibaba(number: int) -> Scene:
    cluster = read_cluster(str(ALIBABA / "openb_node_list_gpu_node.csv"))
    speeds = cluster.speeds()
    jobs = busiest(read_trace(ALIBABA / "openb_pod_list_default.csv", Reading(speeds=speeds))[1], number)
    machines = Machines(nodes=NODES, prices_per_hour=PRICES)
    speed = sum(count * speeds.by_type[name] for name, count in machines.capacity.items())
    span_s = sum(job.work * job.num_workers for job in jobs) / (LOAD * speed / speeds.by_type[speeds.reference])
    factor = span_s / max(jobs[-1].submitted_at_s, 1.0)
    together = tuple(replace(job, submitted_at_s=job.submitted_at_s * factor) for job in jobs)
    name = f"Alibaba 2023, {len(jobs)} jobs on {machines.capacity}, arrivals {1 / factor:.1f} times as dense"
    return Scene(name=name, jobs=together, machines=machines, round_s=60.0)


def main() -> None:
    parser = report.arguments(__doc__ or "")
    options = parser.parse_args()
    missing = [str(path) for path in (PHILLY, ALIBABA) if not Path(path).exists()]
    if missing:
        figures: dict[str, float | None] = {"better_in_all": None}
        reasons = {"better_in_all": f"not there: {', '.join(missing)}"}
        report.finish("sched_public", options.quick, figures, reasons, options.json)
        return
    part = 4 if options.quick else 1
    scenes = {"philly": philly(250 // part), "alibaba": alibaba(600 // part)}
    found = iter(play_side_by_side([run for scene in scenes.values() for run in scene.runs().values()]))
    results: dict[str, float | None] = {}
    is_better = True
    for short, scene in scenes.items():
        played: dict[str, Played] = {name: next(found) for name in scene.runs()}
        print(f"\n{scene.name}\n{'policy':20}" + "".join(f"{key:>18}" for key in SHOWN))
        for name, one in played.items():
            print(f"{name:20}" + "".join(f"{one[key]:18.3f}" for key in SHOWN))
        ours = played.pop(OURS)
        for other, one in played.items():
            for key in BARS:
                is_better &= ours[key] < one[key]
                results[f"{short}_{key}_over_{other}"] = ours[key] / one[key] if one[key] else None
    reasons = {key: "the other has none" for key, value in results.items() if value is None}
    results["better_in_all"] = float(is_better)
    report.finish("sched_public", options.quick, results, reasons, options.json)


if __name__ == "__main__":
    main()
