"""One rank of the communication benchmark: a transformer of 14.7 million parameters under one way to exchange."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import plait
from workers.lane import Orders

WORDS, WIDTH, LENGTH, BATCH = 2048, 512, 16, 4


class Words(Dataset[tuple[Tensor, Tensor]]):
    """Random sequences and their successors."""

    def __init__(self) -> None:
        self.rows = torch.randint(0, WORDS, (256, LENGTH + 1), generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        row = self.rows[number % len(self.rows)]
        return row[:-1], row[1:]


def build() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(4)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).reshape(-1, WORDS), y.reshape(-1))


def sent_bytes() -> int:
    """Returns what this host has sent so far, as its link counts it."""
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "eth0":
            return int(counts.split()[8])
    raise SystemExit("this host has no eth0")


class Block:
    """The steps of one order."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.steps = int(order["steps"])
        self.start_s, self.cpu_s, self.sent = time.monotonic(), time.process_time(), sent_bytes()
        self.done = 0

    def answer(self, orders: Orders) -> None:
        orders.answer(
            start_s=self.start_s,
            end_s=time.monotonic(),
            cpu_s=time.process_time() - self.cpu_s,
            sent_bytes=sent_bytes() - self.sent,
        )


def bf16(_state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """PyTorch's hook under a name of ours: under its own it is refused on builds without CUDA."""
    return default_hooks.bf16_compress_hook(dist.distributed_c10d._get_default_group(), bucket)  # noqa: SLF001


def run_ddp(orders: Orders, method: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    model = build()
    # PowerSGD hangs over gloo with more than one bucket.
    replica = DistributedDataParallel(model, bucket_cap_mb=1000 if method == "powersgd" else 25)
    if method == "bf16":
        replica.register_comm_hook(None, bf16)
    elif method == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.Adam(replica.parameters(), lr=1e-4)
    data = Words()
    place = dist.get_rank() * 1000
    orders.answer(ready=True)
    while (order := orders.next()) is not None:
        block = Block(order)
        for _ in range(block.steps):
            rows = [data[place + i] for i in range(BATCH)]
            place += BATCH
            loss_of(replica, torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])).backward()
            optimizer.step()
            optimizer.zero_grad()
        block.answer(orders)


def run_plait(orders: Orders, _method: str) -> None:
    model = build()
    optimizer: torch.optim.Optimizer = plait.OneBitAdam(model.parameters(), lr=1e-4, freeze=2)
    world = int(os.environ["WORLD_SIZE"])
    with plait.session(
        global_batch_size=BATCH * world, micro_batches=world, split="even", heartbeat_timeout_s=30.0
    ) as run:
        replica, optimizer, loader = run.prepare(model, optimizer, Words(), steps=1_000_000, draws_random=False)
        orders.answer(ready=True)
        order = orders.next()
        block = Block(order) if order is not None else None
        for x, y in loader:
            loss_of(replica, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert block is not None
            block.done += 1
            if block.done < block.steps:
                continue
            block.answer(orders)
            order = orders.next()
            if order is None:
                break
            block = Block(order)


def main() -> None:
    torch.set_num_threads(1)
    methods: dict[str, Callable[[Orders, str], None]] = {"plait": run_plait}
    method = os.environ["BENCH_METHOD"]
    methods.get(method, run_ddp)(Orders(), method)


if __name__ == "__main__":
    main()
