"""Sums of small tensors between three processes: over direct connections, and by what gloo offers.

Two sizes: 32 values, like the vote that closes a step, and 57,000, like the gradients of a small model. The methods
alternate within each turn; all members meet before each sum, so what is timed is the sum alone.
"""

import json
import sys
from pathlib import Path
from statistics import median

from fleet import Nursery, Ports, clean_end
from report import BenchmarkFailed, arguments, finish

WORLD = 3
SIZES = {"vote": 32, "gradients": 57_000}
LABELS = {"ring": "gloo, ring", "all_to_all": "gloo, all-to-all and a local sum", "direct": "direct connections"}


def measure(turns: int) -> dict[str, list[float]]:
    """Returns the seconds of each sum as rank 0 saw them, by ``method/size``."""
    with clean_end() as directory, Nursery(["torch", "torch.distributed"]) as nursery:
        port = Ports().pair()
        workers = []
        for rank in range(WORLD):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(WORLD),
                "MASTER_PORT": str(port),
                "BENCH_TURNS": str(turns),
                "GLOO_SOCKET_IFNAME": "lo",
            }
            log = Path(directory) / f"rank{rank}.log"
            workers.append(nursery.spawn(f"rank{rank}", "sums_member.py", environment, log))
        for worker in workers:
            if not worker.exited.wait(300.0) or worker.exit_code != 0:
                raise BenchmarkFailed(worker.log_tail())
        times: dict[str, list[float]] = json.loads(workers[0].log_tail().splitlines()[-1])
        return times


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    try:
        times = measure(150 if options.quick else 600)
    except BenchmarkFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    figures: dict[str, float | None] = {}
    for size, count in SIZES.items():
        medians = {name: median(times[f"{name}/{count}"][20:]) for name in LABELS}
        print(f"{size}, {count} values: median ms")
        for name, label in LABELS.items():
            print(f"  {label:34s} {medians[name] * 1e3:.3f}")
        figures[f"ring_over_direct_{size}"] = medians["ring"] / medians["direct"]
        figures[f"all_to_all_over_direct_{size}"] = medians["all_to_all"] / medians["direct"]
    finish("small_sums", options.quick, figures, None, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
