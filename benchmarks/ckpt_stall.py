"""What a save costs the training thread: snapshots into shared memory against DCP's asynchronous save.

Both save the same state (a GPT-like model with Adam, 0.5 and 1.5 GB) in one process by turns; a pretended training
step goes on until the save is durable. The figure is CPU time of the training thread in the call over that of a warm
memcpy of the same bytes, taken just before. The first save of each is told apart from the later, warm ones.
``extra_memory_over_state`` is what shared memory and saver process take, over the size of the state.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from report import arguments, finish

YARDSTICK_BYTES = 300_000_000


def gpt_state(megabytes: int) -> dict[str, Any]:
    """Returns fp32 parameters of a GPT-like model with Adam's moments, of this size in all."""
    import torch

    wanted = megabytes * 1e6 / 12
    width, vocabulary = 256, 8192
    while (layers := max(1, int((wanted - vocabulary * width) / (12 * width * width)))) > 24:
        width += 64
    shapes: dict[str, tuple[int, ...]] = {"wte": (vocabulary, width)}
    for layer in range(layers):
        for name, shape in (
            ("attn.qkv.w", (3 * width, width)), ("attn.qkv.b", (3 * width,)), ("attn.proj.w", (width, width)),
            ("attn.proj.b", (width,)), ("mlp.fc.w", (4 * width, width)), ("mlp.fc.b", (4 * width,)),
            ("mlp.proj.w", (width, 4 * width)), ("mlp.proj.b", (width,)), ("ln1.w", (width,)), ("ln1.b", (width,)),
            ("ln2.w", (width,)), ("ln2.b", (width,)),
        ):  # fmt: skip
            shapes[f"h.{layer}.{name}"] = shape
    generator = torch.Generator().manual_seed(0)
    return {
        "model": {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()},
        "optimizer": {
            "state": {
                name: {
                    "step": torch.tensor(10.0),
                    "exp_avg": torch.randn(shape, generator=generator),
                    "exp_avg_sq": torch.rand(shape, generator=generator),
                }
                for name, shape in shapes.items()
            }
        },
        "step": 123,
    }


def tensors_of(state: Any) -> list[Any]:
    """Returns the tensors of a nested state."""
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in tensors_of(value)]
    return [] if isinstance(state, int) else [state]


def size_of(state: Any) -> int:
    """Returns its bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))


class WarmCopy:
    """A memcpy of up to 300 MB of the state into memory that is there already, scaled to the whole state."""

    def __init__(self, state: Any) -> None:
        import torch

        self.sources: list[Any] = []
        total = 0
        for tensor in tensors_of(state):
            if total < YARDSTICK_BYTES:
                self.sources.append(tensor)
                total += tensor.numel() * tensor.element_size()
        self.scale = size_of(state) / total
        self.targets = [torch.empty_like(tensor).copy_(tensor) for tensor in self.sources]

    def cpu_s(self) -> float:
        """Returns the CPU time of one copy of the whole state."""
        started_s = time.thread_time()
        for target, source in zip(self.targets, self.sources, strict=True):
            target.copy_(source)
        return (time.thread_time() - started_s) * self.scale


@dataclass(slots=True)
class Saves:
    """Ratios of one method: the first save, and the warm ones."""

    first: float | None = None
    warm: list[float] = field(default_factory=list)

    def add(self, ratio: float) -> None:
        if self.first is None:
            self.first = ratio
        else:
            self.warm.append(ratio)


def pretend_step(a: Any, b: Any, small: list[Any]) -> None:
    """One step: products that let other threads in, and many small operations that do not."""
    import torch

    for _ in range(8):
        torch.mm(a, b)
    for tensor in small:
        tensor.add_(1)


def memory_bytes(pids: list[int]) -> int:
    """Returns the proportional memory of processes: what they share is counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """Yields a directory on a real disk."""
    directory = Path(tempfile.mkdtemp(prefix="plait-stall-", dir=os.environ.get("PLAIT_BENCH_DIR", "/var/tmp")))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(megabytes: int, warm_saves: int, num_slots: int) -> dict[str, Any]:
    """Measures both methods in this process."""
    warnings.simplefilter("ignore")
    import torch
    from torch.distributed.checkpoint.state_dict_saver import async_save

    from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings

    torch.set_num_threads(1)
    state = gpt_state(megabytes)
    copy = WarmCopy(state)
    a, b, small = torch.randn(384, 384), torch.randn(384, 384), [torch.zeros(16) for _ in range(300)]
    ours, theirs = Saves(), Saves()
    with work_directory() as directory:
        checkpointer = SnapshotCheckpointer(SnapshotSettings(url=str(directory / "plait"), keep=1, num_slots=num_slots))
        checkpointer.prepare(state)
        for number in range(warm_saves + 1):
            turns = ("plait", "dcp") if number % 2 == 0 else ("dcp", "plait")
            for method in turns:
                yardstick_s = median(copy.cpu_s() for _ in range(3))
                state["step"] = number
                started_s = time.thread_time()
                if method == "plait":
                    checkpointer.save(state, number)
                    ours.add((time.thread_time() - started_s) / yardstick_s)
                    while checkpointer.is_saving:
                        pretend_step(a, b, small)
                    checkpointer.wait()
                else:
                    target = directory / f"dcp-{number}"
                    future: Any = async_save(state, checkpoint_id=target, no_dist=True)
                    theirs.add((time.thread_time() - started_s) / yardstick_s)
                    while not future.done():
                        pretend_step(a, b, small)
                    future.result()
                    shutil.rmtree(target)
        checkpointer.close()
    return {
        "bytes": size_of(state),
        "tensors": len(tensors_of(state)),
        "plait": {"first": ours.first, "warm": ours.warm},
        "dcp": {"first": theirs.first, "warm": theirs.warm},
        "extra": _extra_memory(megabytes, num_slots),
    }


def _extra_memory(megabytes: int, num_slots: int) -> float:
    """Returns what shared memory and saver add, over the size of the state, in a process where DCP has never run."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import ckpt_stall as c;"
        "print(json.dumps(c.memory_alone(int(sys.argv[2]), int(sys.argv[3]))))"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(megabytes), str(num_slots)]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def memory_alone(megabytes: int, num_slots: int) -> float:
    """Returns the memory that one save adds at most, over the size of the state."""
    from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings

    state = gpt_state(megabytes)
    before = memory_bytes([os.getpid()])
    peak = 0
    with work_directory() as directory:
        checkpointer = SnapshotCheckpointer(SnapshotSettings(url=str(directory), keep=1, num_slots=num_slots))
        for step in range(2):
            checkpointer.save(state, step)
            while checkpointer.is_saving:
                peak = max(peak, memory_bytes([os.getpid(), checkpointer.saver_pid or 0]))
                time.sleep(0.02)
            checkpointer.wait()
        checkpointer.close()
    return (peak - before) / size_of(state)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="*", default=None, help="sizes of the state; 500 and 1500")
    parser.add_argument("--saves", type=int, default=None, help="warm saves of each; 20")
    parser.add_argument("--slots", type=int, default=2, help="snapshots side by side")
    parser.add_argument("--part", type=int, default=None, help="(used by the script itself)")
    options = parser.parse_args()
    saves = options.saves or (3 if options.quick else 20)
    if options.part is not None:
        print(json.dumps(measure(options.part, saves, options.slots)))
        return 0
    parts = []
    for megabytes in options.megabytes or (500, 1500):
        command = [sys.executable, __file__, "--part", str(megabytes), "--slots", str(options.slots)]
        done = subprocess.run([*command, "--saves", str(saves)], check=True, stdout=subprocess.PIPE, text=True)
        part = json.loads(done.stdout.splitlines()[-1])
        parts.append(part)
        print(f"{part['bytes'] / 1e6:.0f} MB, {part['tensors']} tensors, {saves} warm saves each")
        print("  CPU of the call / warm memcpy   median    worst    first")
        for name in ("plait", "dcp"):
            warm = part[name]["warm"]
            print(f"  {name:30s} {median(warm):7.2f} {max(warm):8.2f} {part[name]['first']:8.2f}")
        print(f"  extra memory / state ({options.slots} slots)   {part['extra']:.2f}")
    figures = {
        "snapshot_over_memcpy_median": max(median(part["plait"]["warm"]) for part in parts),
        "snapshot_over_memcpy_worst": max(max(part["plait"]["warm"]) for part in parts),
        "snapshot_over_memcpy_first": max(part["plait"]["first"] for part in parts),
        "dcp_over_memcpy_median": min(median(part["dcp"]["warm"]) for part in parts),
        "dcp_over_memcpy_worst": max(max(part["dcp"]["warm"]) for part in parts),
        "dcp_over_memcpy_first": min(part["dcp"]["first"] for part in parts),
        "extra_memory_over_state": max(part["extra"] for part in parts),
    }
    finish("ckpt_stall", options.quick, figures, None, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
