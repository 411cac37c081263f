"""An ordinary torchrun script: it knows nothing of Plait and runs under it all the same.

``torchrun --nproc-per-node 2 examples/torchrun_unchanged/train.py`` or ``plait run
examples/torchrun_unchanged/job.yaml``. Such a script is not elastic: when a device is lost, it starts again.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAMPLES, FEATURES, STEPS, BATCH = 512, 16, 60, 64


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    targets = inputs @ torch.randn(FEATURES, 1, generator=generator)
    targets += 0.1 * torch.randn(SAMPLES, 1, generator=generator)

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        chosen = torch.randint(SAMPLES, (BATCH,), generator=generator)[rank::world_size]
        loss = nn.functional.mse_loss(model(inputs[chosen]), targets[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"{world_size} ranks, loss {loss.item():.6f} after {STEPS} steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
