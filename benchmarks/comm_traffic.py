"""What 1-bit Adam sends in a whole run, warm-up included, and what becomes of the loss.

Three small tasks (the next byte of Python's library, digits, a noisy function) are trained from start to end by four
ranks, each in a network namespace of its own: by AdamW with fp32 gradients, and by 1-bit Adam with 15 % of the steps as
warm-up in bf16. Both see the same samples in the same order. Bytes are those that a rank's end of its veth pair counts
as sent, everything included: payload, scales, headers, votes, heart-beats, TCP/IP. Losses are of held-out samples after
the last step; the ratio of a task is of means over the seeds.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from fleet import HERE, QUIET_THREADS, clean_end, plait_environment, python_path
from report import BenchmarkFailed, run
from testbed import Host, Testbed
from workers.comm_task import TASKS

WORLD = 4
METHODS = ("adam", "onebit_adam")
STEPS = 1500
QUICK_STEPS = 200
TIME_OUT_S = 3600.0


def train(bed: Testbed, directory: Path, number: int, told: dict[str, str]) -> list[dict[str, Any]]:
    """Returns what each rank of one run has written."""
    seeds = {f"w{rank}": f"{bed.address(f'h{rank}')}:{bed.ports(f'h{rank}')[0] + number}" for rank in range(WORLD)}
    processes, logs = [], []
    for rank, name in enumerate(seeds):
        logs.append(directory / f"{number}-{name}.log")
        environment = {
            **os.environ,
            **QUIET_THREADS,
            **plait_environment(name, seeds[name], seeds, directory / f"run-{number}"),
            **told,
            "PYTHONPATH": python_path(),
            "GLOO_SOCKET_IFNAME": "eth0",
            "BENCH_RESULT": str(directory / f"{number}-{name}.json"),
        }
        with logs[-1].open("wb") as log:
            words = [sys.executable, str(HERE / "workers" / "comm_task.py")]
            processes.append(bed.popen(f"h{rank}", words, env=environment, stdout=log, stderr=subprocess.STDOUT))
    for process, log_path in zip(processes, logs, strict=True):
        try:
            code = process.wait(TIME_OUT_S)
        except subprocess.TimeoutExpired:
            code = -1
        if code != 0:
            for each in processes:
                each.kill()
            raise BenchmarkFailed(f"a rank ended with {code}:\n{log_path.read_text(errors='replace')[-3000:]}")
    return [json.loads((directory / f"{number}-{name}.json").read_text(encoding="utf-8")) for name in seeds]


def measure(quick: bool, first_seed: int) -> dict[str, float | None]:
    steps = QUICK_STEPS if quick else STEPS
    losses: dict[tuple[str, str], list[float]] = {}
    sent: dict[tuple[str, str], list[float]] = {}
    number = 0
    print(
        f"{'task':12s}{'seed':>5s}  {'method':12s}{'loss':>9s}{'MB sent a rank':>16s}{'of the ring':>13s}", flush=True
    )
    with clean_end() as directory, Testbed([Host(name=f"h{rank}") for rank in range(WORLD)]) as bed:
        for limitation in bed.limitations:
            print(limitation)
        for task in TASKS:
            for seed in range(first_seed, first_seed + (1 if quick else 3)):
                for method in METHODS:
                    told = {
                        "BENCH_TASK": task,
                        "BENCH_SEED": str(seed),
                        "BENCH_METHOD": method,
                        "BENCH_STEPS": str(steps),
                    }
                    found = train(bed, directory, number, told)
                    number += 1
                    mean_bytes = fmean(rank["sent_bytes"] for rank in found)
                    losses.setdefault((task, method), []).append(found[0]["loss"])
                    sent.setdefault((task, method), []).append(mean_bytes)
                    ring = 2 * (WORLD - 1) / WORLD * found[0]["values"] * 4 * steps
                    print(
                        f"{task:12s}{seed:5d}  {method:12s}{found[0]['loss']:9.4f}{mean_bytes / 1e6:16.1f}"
                        f"{mean_bytes / ring:13.3f}",
                        flush=True,
                    )
    ratios = {task: fmean(losses[task, "onebit_adam"]) / fmean(losses[task, "adam"]) for task in TASKS}
    for task, ratio in ratios.items():
        print(f"{task}: loss over Adam's {ratio:.4f}")
    reductions = {task: 1 - fmean(sent[task, "onebit_adam"]) / fmean(sent[task, "adam"]) for task in TASKS}
    return {
        "traffic_reduction_vs_fp32": min(reductions.values()),
        "loss_over_adam_max": max(ratios.values()),
    }


if __name__ == "__main__":
    raise SystemExit(run("comm_traffic", __doc__, lambda options: measure(options.quick, options.seed)))
