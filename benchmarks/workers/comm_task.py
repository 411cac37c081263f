"""One rank of a whole training run of a small task; the first one writes the final loss and what its link has sent."""

import json
import math
import os
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import plait
from workers.comm_rank import sent_bytes

BATCH = 32
WARM_UP_SHARE = 0.15
RISE_STEPS = 20
CONTEXT = 16


@dataclass(frozen=True)
class Task:
    """A model, what it learns from, what it is judged by, and its highest learning rate."""

    model: nn.Module
    train: Dataset[tuple[Tensor, ...]]
    held_out: tuple[Tensor, Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    lr: float


def byte_model() -> Task:
    """The next byte of the source of Python's own library, from the 16 before it."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    text = torch.tensor(list(b"".join(file.read_bytes() for file in files)[:1_500_000])).clamp_(max=127)
    windows = text.unfold(0, CONTEXT + 1, 1)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(9))
    held_out, train = windows[order[:4000]], windows[order[4000:]]
    model = nn.Sequential(
        nn.Embedding(128, 32),
        nn.Flatten(1),
        nn.Linear(32 * CONTEXT, 1024),
        nn.LayerNorm(1024),
        nn.GELU(),
        nn.Linear(1024, 768),
        nn.GELU(),
        nn.Linear(768, 128),
    )
    data = TensorDataset(train[:, :-1], train[:, -1])
    return Task(model, data, (held_out[:, :-1], held_out[:, -1]), nn.functional.cross_entropy, 2e-3)


def digits() -> Task:
    """Handwritten digits of 8 x 8 pixels, each also moved by a pixel in eight directions."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    classes = torch.tensor(labels)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(9))
    held_out, train = order[:400], order[400:]
    moved = torch.cat([pixels[train].roll((y, x), (2, 3)) for y in (-1, 0, 1) for x in (-1, 0, 1)])
    model = nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(1),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return Task(
        model, TensorDataset(moved, classes[train].repeat(9)), (pixels[held_out], classes[held_out]), loss, 1e-3
    )


def perceptron() -> Task:
    """A noisy function of 64 numbers, given by a random network."""
    draw = torch.Generator().manual_seed(9)
    x = torch.randn(40_000, 64, generator=draw)
    hidden = (x @ torch.randn(64, 128, generator=draw) / 8).tanh()
    y = hidden @ torch.randn(128, 8, generator=draw) / 8 + 0.3 * torch.randn(40_000, 8, generator=draw)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8))
    return Task(model, TensorDataset(x[4000:], y[4000:]), (x[:4000], y[:4000]), nn.functional.mse_loss, 1e-3)


TASKS: dict[str, Callable[[], Task]] = {"byte model": byte_model, "digits": digits, "perceptron": perceptron}


def rate_at(step: int, steps: int) -> float:
    """Returns the part of the highest learning rate: a short rise, then half a cosine down to 0."""
    return min(1.0, (step + 1) / RISE_STEPS) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def main() -> None:
    torch.set_num_threads(1)
    steps, world = int(os.environ["BENCH_STEPS"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(int(os.environ["BENCH_SEED"]))
    task = TASKS[os.environ["BENCH_TASK"]]()
    if os.environ["BENCH_METHOD"] == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(task.model.parameters(), lr=task.lr, weight_decay=0.0)
    else:
        optimizer = plait.OneBitAdam(task.model.parameters(), lr=task.lr, freeze=round(WARM_UP_SHARE * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    with plait.session(
        global_batch_size=BATCH * world,
        micro_batches=world,
        split="even",
        heartbeat_timeout_s=60.0,
        seed=int(os.environ["BENCH_SEED"]),
    ) as run:
        replica, optimizer, loader = run.prepare(
            task.model, optimizer, task.train, steps=steps, scheduler=schedule, draws_random=False
        )
        before = sent_bytes()
        for x, y in loader:
            task.loss(replica(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        sent = sent_bytes() - before
    with torch.no_grad():
        loss = float(task.loss(task.model(task.held_out[0]), task.held_out[1]))
    values = sum(p.numel() for p in task.model.parameters())
    told = {"loss": loss, "sent_bytes": sent, "values": values}
    Path(os.environ["BENCH_RESULT"]).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
