"""Step overhead: a Plait session against plain DDP, four equal ranks, a transformer of 1.7 million parameters.

Blocks of steps of the two alternate in one run and the order rotates; both read the same data set through a loader.
``overhead_ratio`` is the median over the rounds of (seconds of a step under Plait) / (under DDP).
"""

import sys
from statistics import median

from fleet import TORCH_MODULES, Nursery, Ports, clean_end
from lanes import spread
from report import BenchmarkFailed, arguments, finish
from unequal_dp import equal_devices


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    rounds, steps = (8, 5) if options.quick else (24, 10)
    try:
        with clean_end() as directory, Nursery([*TORCH_MODULES, "plait.train.session"]) as nursery:
            pairs = equal_devices(nursery, directory, Ports(), rounds, steps)
    except BenchmarkFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    ratios = [ddp / plait for plait, ddp in pairs]
    print(f"  Plait samples/s                     {spread([plait for plait, _ in pairs])}")
    print(f"  plain DDP samples/s                 {spread([ddp for _, ddp in pairs])}")
    print(f"  step of Plait over step of DDP      {spread(ratios)}")
    finish("step_overhead", options.quick, {"overhead_ratio": median(ratios)}, None, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
