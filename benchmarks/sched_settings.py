"""What the scheduling benchmarks share: where traces and tables are, and the cluster of the neutral setting."""

from pathlib import Path

from plait.sim.jobs import SimJob
from plait.sim.rounds.views import Machines
from plait.sim.tables import ThroughputTable, read_table
from plait.sim.traces.gavel import read_gavel

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "scheduling" / "gavel"
TABLE = "throughputs_isolated.csv"
PRICES = {"V100": 0.74, "P100": 0.43, "K80": 0.135}
"""Dollars a device-hour."""

MACHINES = Machines(nodes=dict.fromkeys(PRICES, (4, 4, 4)), prices_per_hour=PRICES)
"""3 nodes of 4 devices of each type."""


def table_of(traces: Path, table: Path | None = None) -> ThroughputTable:
    """Reads the table given, else the one beside the traces, else the shared one."""
    beside = traces / TABLE
    return read_table(table or (beside if beside.exists() else SHARED / TABLE))


def load(traces: Path, name: str, table: ThroughputTable, *, elastic: bool = False) -> tuple[SimJob, ...]:
    """Reads one trace of the folder."""
    return read_gavel(traces / f"{name}.trace", table, elastic=elastic)
