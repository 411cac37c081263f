"""CPU seconds to simulate many jobs: ``plait simulate`` itself, from the trace file to the figures.

The trace is drawn here: Poisson arrivals, gangs of 1 to 8 (most of one), log-normal durations of 2 h on average, at
85 % of what 512 devices of two types can do, with rounds of six minutes. It is written to a file as a cluster's log and
played by the live state machine and by the simulator of rounds.
"""

import math
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import report
from plait.sim.clusters import read_cluster
from plait.sim.experiment import Experiment, fitting, run
from plait.sim.outcome import figures
from plait.sim.traces.reading import Reading, read_trace

JOBS = 100_000
QUICK_JOBS = 2_000
CLUSTER = "V100:32x8,T4:32x8"
LOAD = 0.85
"""Of what all devices together do, slow ones counted by their speed: more would let the queue grow without end."""
REFERENCE = "V100"
MEAN_S = 2 * 3600.0
ROUND_S = 360.0
SIZES, SHARES = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)
RUNS = (("live", "fifo_backfill"), ("live", "multi_objective"), ("rounds", "fifo_backfill"))


def write_trace(path: Path, number: int, seed: int) -> None:
    """Writes a trace in the columns of Helios: recorded durations on one type."""
    draw = np.random.default_rng(seed)
    sizes = draw.choice(SIZES, size=number, p=SHARES)
    sigma = 1.5
    lengths = np.clip(draw.lognormal(math.log(MEAN_S) - sigma**2 / 2, sigma, size=number), 60.0, 72 * 3600.0)
    cluster = read_cluster(CLUSTER)
    speeds = cluster.speeds(REFERENCE).by_type
    devices = sum(number * speeds[name] / speeds[REFERENCE] for name, number in cluster.capacity.items())
    gap_s = float((sizes * lengths).mean()) / (LOAD * devices)
    arrivals = np.cumsum(draw.exponential(gap_s, size=number))
    with path.open("w", encoding="utf-8") as file:
        file.write("job_id,submit_time,gpu_num,duration,vc,state\n")
        for index in range(number):
            file.write(f"{index},{arrivals[index]:.0f},{sizes[index]},{lengths[index]:.0f},lab,COMPLETED\n")


def measure(path: Path, engine: str, policy: str) -> tuple[float, int, float]:
    """Returns CPU seconds, jobs that ended, and their mean completion time in hours."""
    began_s = time.process_time()
    cluster = read_cluster(CLUSTER)
    _, jobs = read_trace(path, Reading(speeds=cluster.speeds(REFERENCE)))
    kept, _ = fitting(jobs, cluster)
    outcome = run(Experiment(jobs=kept, cluster=cluster, engine=engine, round_s=ROUND_S, many_jobs=0), policy)  # type: ignore[arg-type]
    found = figures(outcome)
    ended = sum(one.end_s is not None for one in outcome.jobs)
    return time.process_time() - began_s, ended, found["jct_mean_h"] or math.nan


def main() -> None:
    """Prints one line a run."""
    parser = report.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=None, help=f"jobs of the trace ({JOBS}; quick: {QUICK_JOBS})")
    options = parser.parse_args()
    number = options.jobs or (QUICK_JOBS if options.quick else JOBS)
    taken: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(path, number, options.seed)
        print(f"{'engine':8s}{'policy':18s}{'jobs':>8s}{'ended':>8s}{'CPU s':>9s}{'mean JCT h':>12s}")
        for engine, policy in RUNS:
            seconds, ended, mean_h = measure(path, engine, policy)
            print(f"{engine:8s}{policy:18s}{number:8d}{ended:8d}{seconds:9.1f}{mean_h:12.2f}")
            sys.stdout.flush()
            taken[f"sim_s_{engine}_{policy}"] = round(seconds, 1)
            if ended != number:
                raise SystemExit(f"only {ended} of {number} jobs ended")
    worst = max(value for value in taken.values() if value is not None)
    report.finish("sched_sim_scale", options.quick, {"jobs": number, "sim_s": worst, **taken}, json_path=options.json)


if __name__ == "__main__":
    main()
