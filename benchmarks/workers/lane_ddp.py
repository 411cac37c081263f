"""One rank of plain DistributedDataParallel: equal or hand-weighted batches, or alone without any exchange."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from workers.lane import Orders, build, loss_of, set_pace
from workers.models import EndlessBatches


def main() -> None:
    torch.set_num_threads(1)
    orders = Orders()
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    model, dataset = build()
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(replica.parameters(), lr=1e-4)
    sampler = EndlessBatches(len(dataset), rank * 10_000, int(os.environ["BENCH_BATCH"]))  # type: ignore[arg-type]
    feed = iter(DataLoader(dataset, batch_sampler=sampler))
    orders.answer(ready=True)
    while (order := orders.next()) is not None:
        set_pace(model, order)
        batch_size = int(order["batch"])
        alone = order["do"] == "alone"
        module = model if alone else replica
        if sampler.size != batch_size:
            sampler.size = batch_size
            feed = iter(DataLoader(dataset, batch_sampler=sampler))
        # The mean over the global batch: DDP averages over ranks, so each rank's sum is scaled by world / global.
        scale = 1.0 if alone else batch_size * world / int(order["global_batch"])
        start_s, cpu_s = time.monotonic(), time.process_time()
        steps = 0
        while steps < order["steps"] if "steps" in order else time.monotonic() < start_s + order["seconds"]:
            x, y = next(feed)
            loss = loss_of(module(x), y) * scale
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        orders.answer(
            start_s=start_s,
            end_s=time.monotonic(),
            cpu_s=time.process_time() - cpu_s,
            steps=steps,
            samples=steps * batch_size,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
