"""What the scheduling benchmarks share: where traces and tables are, the neutral cluster, runs side by side."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from plait.schedule.policy import Policy
from plait.sim.jobs import SimJob
from plait.sim.outcome import RunOutcome, figures
from plait.sim.rounds.neutral import NeutralSetting, run_neutral
from plait.sim.rounds.views import Machines
from plait.sim.tables import ThroughputTable, read_table
from plait.sim.traces.gavel import read_gavel

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "scheduling" / "gavel"
TABLE = "throughputs_isolated.csv"
NEUTRAL = ("t100_11", "t100_12", "t100_13", "dev_11", "dev_12", "dev_13")
"""The full and the reduced neutral traces."""

PRICES = {"V100": 0.74, "P100": 0.43, "K80": 0.135}
"""Dollars a device-hour."""

MACHINES = Machines(nodes=dict.fromkeys(PRICES, (4, 4, 4)), prices_per_hour=PRICES)
"""3 nodes of 4 devices of each type."""

Played = dict[str, float]
"""Figures of one run by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy on one trace. ``tells_waits`` adds the longest wait of a job, in hours, as ``longest_wait_h``."""

    policy: Policy
    jobs: Sequence[SimJob]
    machines: Machines = MACHINES
    setting: NeutralSetting = field(default_factory=NeutralSetting)
    tells_waits: bool = False


def table_of(traces: Path, table: Path | None = None) -> ThroughputTable:
    """Reads the table given, else the one beside the traces, else the shared one."""
    beside = traces / TABLE
    return read_table(table or (beside if beside.exists() else SHARED / TABLE))


def load(traces: Path, name: str, table: ThroughputTable, *, elastic: bool = False) -> tuple[SimJob, ...]:
    """Reads one trace of the folder."""
    return read_gavel(traces / f"{name}.trace", table, elastic=elastic)


def play(run: Run) -> Played:
    """Returns the figures of one run."""
    outcome = run_neutral(run.jobs, run.machines, run.policy, run.setting)
    found = {key: value or 0.0 for key, value in figures(outcome).items()}
    return {**found, "longest_wait_h": longest_wait_h(outcome)} if run.tells_waits else found


def longest_wait_h(outcome: RunOutcome) -> float:
    """Returns the longest time that any job held no device while it was open; needs the timeline."""
    last = {one.job.id: one.job.submitted_at_s for one in outcome.jobs}
    longest_s = 0.0
    for held in sorted(outcome.timeline, key=lambda held: held.start_s):
        longest_s = max(longest_s, held.start_s - last[held.job_id])
        last[held.job_id] = max(last[held.job_id], held.end_s)
    return longest_s / 3600.0


def play_side_by_side(runs: Sequence[Run]) -> list[Played]:
    """Returns the figures of many runs, each in a process of its own, as many at a time as there are processors."""
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0)), initializer=quiet) as pool:
        return list(pool.map(play, runs))


def quiet() -> None:
    """Some builds of the solver behind Sia's program print debugging lines to the standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def mean(played: Sequence[Played], key: str) -> float:
    """Returns the mean of a figure over runs."""
    return float(np.mean([one[key] for one in played]))
