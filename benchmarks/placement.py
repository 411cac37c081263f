"""How good the chosen groups of devices are: against exhaustive search, against usual ways to choose, and the bound.

The objective is the slowest link of the best ring over the group. Nodes come from a directory of dumps (``--corpus``)
and from boards written down here; up to 16 devices every choice is compared with a plain exhaustive search.
"""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from placement_instances import CLUSTERS, Instance, Matrix, cluster, corpus_nodes, empty, mixed, occupied, written_nodes
from plait.hardware.grouping import best_group
from report import arguments, finish

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "data" / "topology"


def ring(matrix: Matrix, devices: Sequence[int], floor: float = -1.0) -> float:
    """Returns the slowest link of the best ring, or something no better than ``floor`` where it is no better."""
    inner = matrix[np.ix_(devices, devices)]
    levels = sorted(
        {value for value in inner[np.triu_indices(len(devices), 1)].tolist() if value > floor}, reverse=True
    )
    return next((level for level in levels if has_ring(graph(inner, level))), floor)


def exhaustive(matrix: Matrix, free: Sequence[int], k: int) -> float:
    """Looks at every set at every speed, from the fastest on."""
    inner = matrix[np.ix_(free, free)]
    for level in np.unique(inner[np.triu_indices(len(free), 1)])[::-1]:
        near = graph(inner, level)
        for devices in itertools.combinations(range(len(free)), k):
            group = sum(1 << d for d in devices)
            if all((near[d] & group).bit_count() >= min(2, k - 1) for d in devices) and has_ring(among(near, devices)):
                return float(level)
    raise AssertionError("the slowest speed joins every set")


def graph(inner: Matrix, level: float) -> list[int]:
    """Returns each device's neighbours over links of at least this speed, as bits."""
    return [
        sum(1 << j for j, speed in enumerate(row) if speed >= level and i != j) for i, row in enumerate(inner.tolist())
    ]


def among(near: Sequence[int], devices: Sequence[int]) -> list[int]:
    """Returns the graph of these devices alone, renumbered."""
    return [sum(1 << j for j, other in enumerate(devices) if near[d] >> other & 1) for d in devices]


def has_ring(near: Sequence[int]) -> bool:
    """Returns whether a ring passes all devices of a graph, by the ends that paths from device 0 over each set have."""
    k = len(near)
    if k == 2:
        return bool(near[0])
    if min(row.bit_count() for row in near) < 2:
        return False
    ends = [0] * (1 << k)
    ends[1] = 1
    for mask in range(1, 1 << k, 2):
        left = ends[mask]
        while left:
            end = (left & -left).bit_length() - 1
            left &= left - 1
            onward = near[end] & ~mask
            while onward:
                bit = onward & -onward
                onward ^= bit
                ends[mask | bit] |= bit
    return bool(ends[-1] & near[0])


def first(instance: Instance) -> tuple[int, ...]:
    return instance.free[: instance.k]


def score_sum(instance: Instance) -> tuple[int, ...]:
    scores = instance.node.scores
    sets = np.array(list(itertools.combinations(instance.free, instance.k)))
    totals = sum(scores[sets[:, i], sets[:, j]] for i, j in itertools.combinations(range(instance.k), 2))
    return tuple(sets[int(np.argmax(totals))].tolist())


def greedy(instance: Instance) -> tuple[int, ...]:
    speeds = instance.node.bytes_per_s
    grown = []
    for seed in instance.free:
        group = [seed]
        while len(group) < instance.k:
            group.append(
                max(
                    (d for d in instance.free if d not in group),
                    key=lambda d: (sorted((speeds[d, g] for g in group), reverse=True)[:2], -d),
                )
            )
        grown.append(tuple(sorted(group)))
    best, value = grown[0], ring(speeds, grown[0])
    for other in grown[1:]:
        if (better := ring(speeds, other, value)) > value:
            best, value = other, better
    return best


BASELINES: dict[str, Callable[[Instance], tuple[int, ...]]] = {
    "first k": first,
    "largest sum of scores": score_sum,
    "greedy from every seed": greedy,
}


def compare(title: str, instances: Sequence[Instance], repetitions: int) -> tuple[float, float]:
    """Prints a table; returns the smallest ratio of our choice to the optimum and the most CPU milliseconds."""
    ratios: dict[str, list[float]] = {"plait": [], **{name: [] for name in BASELINES}}
    slowest_ms = 0.0
    for instance in instances:
        speeds = instance.node.bytes_per_s
        times = []
        for _ in range(repetitions):
            start = time.process_time()
            group = best_group(speeds, instance.free, instance.k)
            times.append(1e3 * (time.process_time() - start))
        slowest_ms = max(slowest_ms, sorted(times)[len(times) // 2])
        best = exhaustive(speeds, instance.free, instance.k)
        ratios["plait"].append(ring(speeds, group.devices) / best)
        for name, choose in BASELINES.items():
            ratios[name].append(ring(speeds, choose(instance)) / best)
    print(f"\n{title}: {len(instances)} instances on {len({id(i.node) for i in instances})} nodes")
    print(f"   {'choice':24} {'optimal':>8} {'mean ratio':>11} {'worst ratio':>12}")
    for name, values in ratios.items():
        hits = sum(value >= 1.0 for value in values) / len(values)
        print(f"   {name:24} {100 * hits:7.1f}% {np.mean(values):11.3f} {min(values):12.3f}")
    print(f"   plait takes at most {slowest_ms:.1f} ms of CPU time")
    return min(ratios["plait"]), slowest_ms


def large(sizes: Sequence[int], seed: int) -> float:
    """Prints the ratio to the bound on clusters; returns its mean."""
    rng = np.random.default_rng(seed)
    ratios = []
    print("\nclusters, some devices taken: value over the bound")
    print(f"   {'cluster':24} {'devices':>8} {'k':>5} {'ratio':>7} {'CPU s':>7}")
    for kind, n in itertools.product(CLUSTERS, sizes):
        matrix = cluster(kind, n, rng)
        free = sorted(rng.choice(n, int(n * 0.8), replace=False).tolist())
        for k in (n // 8, n // 2 - 3, len(free) - 2):
            start = time.process_time()
            group = best_group(matrix, free, k)
            took_s = time.process_time() - start
            ratio = group.bound_ratio
            assert ratio is not None
            ratios.append(ratio)
            print(f"   {kind:24} {n:8} {k:5} {ratio:7.4f} {took_s:7.2f}")
    print(f"   mean {np.mean(ratios):.4f}, worst {min(ratios):.4f}")
    return float(np.mean(ratios))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--corpus", type=Path, default=CORPUS, metavar="DIR", help="dumps of real machines")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    dumped = list(corpus_nodes(options.corpus)) if options.corpus.is_dir() else []
    print(f"{len(dumped)} nodes from dumps under {options.corpus}" if dumped else "no dumps: written boards alone")
    nodes = [*dumped, *written_nodes()]
    repetitions, per_node, num_mixed = (1, 3, 30) if options.quick else (3, 20, 200)
    results = [
        compare("empty nodes", empty(nodes), repetitions),
        compare("partly occupied nodes", occupied(nodes, per_node, rng), repetitions),
        compare("mixed nodes, partly occupied", mixed(nodes, num_mixed, rng), repetitions),
    ]
    figures: dict[str, float | None] = {
        "optimal_ratio_min": min(ratio for ratio, _ in results),
        "ms_max": round(max(ms for _, ms in results), 2),
        "bound_ratio_mean_large": round(large((64, 256) if options.quick else (64, 256, 1024), options.seed), 5),
    }
    finish("placement", options.quick, figures, json_path=options.json)


if __name__ == "__main__":
    main()
