"""One member of a Plait session that trains in blocks of global steps, on order."""

import os
import time
from typing import Any

import torch

import plait
from workers.lane import Orders, build, loss_of, set_pace


class Block:
    """One ordered block: its end in global steps, and the samples this member took in each step."""

    def __init__(self, order: dict[str, Any], first_step: int) -> None:
        self.end_step = first_step + int(order["steps"])
        self.start_s = time.monotonic()
        self.cpu_s = time.process_time()
        self.samples: dict[int, int] = {}


def main() -> None:
    torch.set_num_threads(1)
    orders = Orders()
    model, dataset = build()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    global_batch, micro_batches = int(os.environ["BENCH_BATCH"]), int(os.environ["BENCH_MICRO"])
    with plait.session(global_batch_size=global_batch, micro_batches=micro_batches, seed=0) as run:
        replica, optimizer, loader = run.prepare(model, optimizer, dataset, steps=1_000_000, draws_random=False)
        orders.answer(ready=True)
        order = orders.next()
        if order is None:
            return
        set_pace(model, order)
        block = Block(order, run.step)
        for x, y in loader:
            block.samples[run.step] = block.samples.get(run.step, 0) + len(x)
            loss = loss_of(replica(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step < block.end_step:
                continue
            orders.answer(
                start_s=block.start_s,
                end_s=time.monotonic(),
                cpu_s=time.process_time() - block.cpu_s,
                samples=block.samples,
            )
            order = orders.next()
            if order is None:
                break
            set_pace(model, order)
            block = Block(order, run.step)


if __name__ == "__main__":
    main()
