"""``plait explain comm``: what was measured between a job's workers, and which all-reduce is used for which size."""

import json
from pathlib import Path
from typing import Any

from plait.cli.connection import state_directory
from plait.cli.failures import OK, unknown
from plait.cli.output import print_json, print_table, say
from plait.errors import PlaitError


def explain_comm(subject: str, state: Path | None, *, as_json: bool) -> int:
    """Prints the newest table of a job, or of a folder or file of tables."""
    document = _read(_newest(subject, state))
    if as_json:
        print_json(document)
        return OK
    _print_network(document["network"])
    _print_rows(document["rows"])
    for line in document["switches"]:
        say(f"switched: {line}")
    return OK


def _newest(subject: str, state: Path | None) -> Path:
    path = Path(subject)
    if path.is_file():
        return path
    folder = path if path.is_dir() else _folder_of_job(subject, state)
    tables = sorted(folder.glob("*.json"), key=lambda table: table.stat().st_mtime)
    if not tables:
        raise PlaitError(
            f"{subject} has no table of its communication: its script did not call CommEngine.tune(), or its session"
            " has not measured the network, since all workers are on one island or the run is short"
        )
    return tables[-1]


def _folder_of_job(job_id: str, state: Path | None) -> Path:
    from plait.controller.orders import job_directory, run_directory

    home = state_directory(state)
    job = job_directory(home, job_id)
    if not job.is_dir():
        raise unknown("job", job_id, [other.name for other in job.parent.glob("*")])
    return run_directory(home, job_id) / "comm"


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows, network = document["rows"], document["network"]
    except (ValueError, KeyError, TypeError) as error:
        raise PlaitError(f"{path} is no table of communication: {error}") from error
    if not isinstance(rows, list) or not isinstance(network, dict):
        raise PlaitError(f"{path} is no table of communication: its rows are {type(rows).__name__}")
    return document


def _print_network(network: dict[str, Any]) -> None:
    island_of = network["island_of"]
    rows = []
    for island, uplink in enumerate(network["uplink_bytes_per_s"]):
        members = ", ".join(str(rank) for rank, own in enumerate(island_of) if own == island)
        latencies = [s for other, s in enumerate(network["latency_s"][island]) if other != island]
        rows.append((island, members, f"{uplink * 8 / 1e6:.0f}", f"{max(latencies) * 1e3:.2f}" if latencies else None))
    print_table(("ISLAND", "RANKS", ">UPLINK MBIT/S", ">LATENCY MS"), rows)
    for codec, seconds in network["codec_s_per_byte"].items():
        say(f"{codec}: {1e-9 / seconds:.2g} GB/s of fp32, encoded and decoded")


def _print_rows(rows: list[dict[str, Any]]) -> None:
    shown = []
    for row in rows:
        rivals = ", ".join(f"{name} {_ms(seconds)}" for name, seconds in row["rivals"][:2])
        shown.append((_size(row["size_bytes"]), row["choice"], _ms(row["predicted_s"]), rivals or None, row["reason"]))
    print_table((">SIZE", "CHOICE", ">MS", "NEXT, MS", "WHY"), shown)


def _size(size_bytes: int) -> str:
    return f"{size_bytes // 2**20} MiB" if size_bytes >= 2**20 else f"{size_bytes // 2**10} KiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
