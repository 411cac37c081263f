"""Checkpoints under faults: no restore may be wrong or impossible, and every flipped bit must be found.

A run is a chain of lives of one training job: each life restores, claims, and saves several steps while faults strike;
then it dies, and perhaps goes on writing as a zombie while its successor trains. After each life the newest checkpoint
is restored and held against what was really trained: it must be, bit for bit, the state of one step of the surviving
history, and no older than the last save that was acknowledged. Faults: death at a random byte or request, a full disk,
server errors, lost answers, truncated objects, flipped bits, zombies, clocks that jump, and two controllers at once.

Most runs go against a store in memory; others against files, with real SIGKILLs, and against real S3 servers, SeaweedFS
and rclone, which ignores If-None-Match. There, server errors and lost answers come from a proxy on the wire. Others
have all tiers on two nodes: shared memory, a disk, copies in the other node's memory, and the store behind them.
"""

import contextlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fault_proxy import fault_proxy
from faulty_stores import MemoryStore
from object_server import ServerMissing, environment, rclone, seaweedfs
from plait.train.checkpoint.stores import FileStore, Store, open_store
from report import arguments, finish
from torture_kills import killed_writers
from torture_lives import FAULTS, Run, simulated
from torture_nodes import holders
from torture_states import Verdicts
from torture_tiers import TIER_FAULTS, TieredRun, tiered

__all__ = [
    "FAULTS",
    "TIER_FAULTS",
    "FileStore",
    "MemoryStore",
    "Run",
    "TieredRun",
    "Verdicts",
    "fault_proxy",
    "holders",
    "open_store",
    "simulated",
    "tiered",
]


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="plait-torture-", dir=os.environ.get("PLAIT_BENCH_DIR", "/var/tmp")))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def on_servers(runs: int, kills: int, seed: int, verdicts: Verdicts, reasons: list[str]) -> None:
    """Runs against SeaweedFS, and against rclone, which ignores If-None-Match."""
    for where, server in (("SeaweedFS", seaweedfs), ("rclone", rclone)):
        try:
            with server() as endpoint:
                os.environ.update(environment(endpoint))
                with fault_proxy(endpoint, seed) as proxy:
                    simulated(runs, seed, lambda number: open_store(f"s3://ckpt/run{number}"), verdicts, where, proxy)
                    struck = sum(proxy.struck.values())
                    print(f"  {where}: {struck} requests failed by the wire: {dict(proxy.struck)}")
                if where == "SeaweedFS":
                    killed_writers("s3://ckpt/kills", kills, random.Random(seed), verdicts, f"{where}, processes")
        except ServerMissing as error:
            reasons.append(f"{where}: {error}")


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=None, help="runs against the store in memory; 1000")
    parser.add_argument("--no-servers", action="store_true", help="leave S3 servers out")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers end with us
    runs = options.runs or (180 if options.quick else 1000)
    verdicts, reasons = Verdicts(), list[str]()
    stores: dict[int, MemoryStore] = {}

    def in_memory(number: int) -> Store:
        # Every ninth round of faults meets a store that ignores If-None-Match.
        stores.clear()
        return stores.setdefault(number, MemoryStore(honours_create=number // len(FAULTS) % 3 != 2))

    simulated(runs, options.seed, in_memory, verdicts, "memory")
    with _directory() as directory:
        simulated(
            9 if options.quick else 90, options.seed, lambda n: FileStore(directory / f"run{n}"), verdicts, "files"
        )
        kills = 6 if options.quick else 60
        killed_writers(f"file://{directory}/kills", kills, random.Random(options.seed), verdicts, "files, processes")
        over_tiers = 2 * len(TIER_FAULTS) if options.quick else 20 * len(TIER_FAULTS)
        tiered(over_tiers, options.seed, lambda n: directory / f"tiers{n}", verdicts)
    if not options.no_servers:
        on_servers(9 if options.quick else 45, 2 if options.quick else 20, options.seed, verdicts, reasons)
    print(f"  {verdicts.runs} runs, {verdicts.restores} restores, {len(verdicts.wrong)} wrong or impossible")
    print("  by store: " + ", ".join(f"{name} {count}" for name, count in verdicts.by_store.items()))
    print("  by fault: " + ", ".join(f"{name} {count}" for name, count in verdicts.by_fault.items()))
    print(f"  flipped bits found: {verdicts.flips_found} of {verdicts.flips}")
    for line in [*verdicts.wrong[:20], *reasons]:
        print(f"  ! {line}")
    figures: dict[str, float | None] = {
        "runs": verdicts.runs,
        "wrong_restores": len(verdicts.wrong),
        "flips_found_share": verdicts.flips_found / verdicts.flips if verdicts.flips else None,
        "runs_over_tiers": verdicts.by_store["tiers"],
        "runs_on_servers": sum(
            count for name, count in verdicts.by_store.items() if name.startswith(("Sea", "rclone"))
        ),
    }
    why = {"flips_found_share": "no bit was flipped"} if not verdicts.flips else None
    finish("torture", options.quick, figures, why, options.json)
    return 1 if verdicts.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
