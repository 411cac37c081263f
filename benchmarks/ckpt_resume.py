"""What it takes to go on: from shared memory after a trainer was killed, and on another number of ranks.

A trainer takes a snapshot of each step and is killed at a random moment; a new process loads the state into the tensors
that it has. ``resume_cpu_over_memcpy`` and ``resume_wall_over_memcpy`` are what that load takes over a warm memcpy of
the same bytes in the same process, and ``steps_lost_max`` is the most steps that the trainer had finished and the new
process does not have. ``reshard_read_over_needed`` is the most that a rank reads over what it holds, where a state of
4 ranks goes to 3, or of 3 to 4.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from ckpt_stall import WarmCopy, gpt_state, work_directory
from report import arguments, finish

HERE = Path(__file__).parent


def train(place: str, megabytes: int) -> None:
    """Trains in appearance, with a snapshot of each step, until it is killed; prints the steps that are finished."""
    from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings

    state = gpt_state(megabytes)
    checkpointer = SnapshotCheckpointer(SnapshotSettings(url=place, keep=1))
    for step in range(1, 1_000_000):
        state["step"] = step
        checkpointer.snapshot(state, step)
        print(step, flush=True)


def resume(place: str, megabytes: int) -> dict[str, float | str]:
    """Loads the newest state into tensors that are there, and tells what that took."""
    import torch

    from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings

    torch.set_num_threads(1)
    state = gpt_state(megabytes)
    copy = WarmCopy(state)
    walls, cpus = [], []

    def yardstick() -> None:
        for _ in range(3):
            started_s = time.perf_counter()
            cpus.append(copy.cpu_s())
            walls.append((time.perf_counter() - started_s) * copy.scale)

    yardstick()
    checkpointer = SnapshotCheckpointer(SnapshotSettings(url=place, keep=1))
    started_s, cpu_s = time.perf_counter(), time.thread_time()
    found = checkpointer.load(into=state)
    wall_s, cpu_s = time.perf_counter() - started_s, time.thread_time() - cpu_s
    yardstick()
    assert found is not None
    assert found.state["step"] == found.step
    return {
        "step": found.step,
        "where": found.where,
        "cpu_over_memcpy": cpu_s / median(cpus),
        "wall_over_memcpy": wall_s / median(walls),
    }


def _part(what: str, place: Path, megabytes: int) -> list[str]:
    return [sys.executable, __file__, "--part", what, "--place", str(place), "--megabytes", str(megabytes)]


@contextlib.contextmanager
def saver() -> Iterator[dict[str, str]]:
    """Runs a saver as a node's agent does, and yields the environment of its trainers."""
    name = f"resume-{os.getpid()}-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "plait.train.checkpoint.saver", "--name", name, "--linger-s", "600"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield {**os.environ, "PLAIT_SAVER": name}
    finally:
        process.terminate()
        process.wait()


def killed_and_resumed(megabytes: int, chance: random.Random) -> dict[str, float]:
    """Kills one trainer and goes on from what it has left."""
    with work_directory() as place, saver() as variables:
        command = _part("train", place, megabytes)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as trainer:
            assert trainer.stdout is not None
            finished = int(trainer.stdout.readline())
            timer = threading.Timer(chance.uniform(0.1, 1.0), trainer.kill)
            timer.start()
            for line in trainer.stdout:
                finished = int(line)
            timer.join()
        command = _part("resume", place, megabytes)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
        told = json.loads(done.stdout.splitlines()[-1])
        print(f"  killed after step {finished}, on from step {told['step']}, from {told['where']}")
        return {**told, "lost": max(0, finished - told["step"])}


def reshard(savers: int, loaders: int) -> float:
    """Returns the most that a rank reads over what it holds."""
    with work_directory() as place:
        command = [
            sys.executable,
            str(HERE / "workers" / "reshard_ranks.py"),
            str(place / "x"),
            str(savers),
            str(loaders),
        ]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return max(float(one["read"]) / float(one["held"]) for one in told)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=500, help="size of the state")
    parser.add_argument("--part", choices=("train", "resume"), help="(used by the script itself)")
    parser.add_argument("--place", help="(used by the script itself)")
    options = parser.parse_args()
    if options.part == "train":
        train(options.place, options.megabytes)
        return 0
    if options.part == "resume":
        print(json.dumps(resume(options.place, options.megabytes)))
        return 0
    chance = random.Random(options.seed)
    rounds = [killed_and_resumed(options.megabytes, chance) for _ in range(2 if options.quick else 10)]
    reads = {f"{one} to {other} ranks": reshard(one, other) for one, other in ((4, 3), (3, 4))}
    for name, ratio in reads.items():
        print(f"  {name}: {ratio:.4f} of the bytes needed are read")
    figures: dict[str, float | None] = {
        "resume_cpu_over_memcpy": median(one["cpu_over_memcpy"] for one in rounds),
        "resume_wall_over_memcpy": median(one["wall_over_memcpy"] for one in rounds),
        "steps_lost_max": max(one["lost"] for one in rounds),
        "reshard_read_over_needed": max(reads.values()),
    }
    finish("ckpt_resume", options.quick, figures, None, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
