"""One rank of plain DDP under torchrun: restarts with its agent, resumes from a checkpoint of every tenth step."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workers.models import Numbered, Recorded
from workers.nursery import die_with_parent
from workers.step_log import StepLog, digest

CHECKPOINT_EVERY = 10


def main() -> None:
    die_with_parent()
    torch.set_num_threads(1)
    log = StepLog()
    log.write(event="process", pid=os.getpid())
    batch, steps = int(os.environ["BENCH_BATCH"]), int(os.environ["BENCH_STEPS_TOTAL"])
    saved = Path(os.environ["BENCH_CHECKPOINT"])
    dist.init_process_group("gloo")
    model = Recorded(batch * steps, float(os.environ["BENCH_SAMPLE_S"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    replica = DistributedDataParallel(model)
    dataset = Numbered(batch * steps)
    rows = [dataset[place] for place in range(batch)]
    x = torch.stack([row[0] for row in rows])
    y = torch.stack([row[1] for row in rows])
    number = torch.tensor([row[2] for row in rows])
    log.write(event="ready", step=step)
    while step < steps:
        optimizer.zero_grad()
        replica(x, y, number).mean().backward()
        optimizer.step()
        step += 1
        log.write(event="step", step=step, hash=digest(model.parameters()), participants=dist.get_world_size())
        if step % CHECKPOINT_EVERY == 0 and dist.get_rank() == 0:
            draft = saved.with_suffix(".draft")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
            draft.replace(saved)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
