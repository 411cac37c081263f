"""One replica under torchft that writes down every committed step; its settings come from the environment."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from workers.models import Numbered, Recorded
from workers.step_log import StepLog, digest


def main() -> None:
    torch.set_num_threads(1)
    log = StepLog()
    batch, steps = int(os.environ["BENCH_BATCH"]), int(os.environ["BENCH_STEPS_TOTAL"])
    timeout = timedelta(seconds=float(os.environ["BENCH_GROUP_TIMEOUT_S"]))
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    model = Recorded(batch * steps, float(os.environ["BENCH_SAMPLE_S"]))
    inner = torch.optim.Adam(model.parameters(), lr=1e-3)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=os.environ["BENCH_NAME"],
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=os.environ["BENCH_LIGHTHOUSE"],
        timeout=timeout,
        quorum_timeout=timedelta(seconds=30),
    )
    replica = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    dataset = Numbered(batch * steps)
    rows = [dataset[place] for place in range(batch)]
    x = torch.stack([row[0] for row in rows])
    y = torch.stack([row[1] for row in rows])
    number = torch.tensor([row[2] for row in rows])
    log.write(event="ready", step=0)
    while (step := manager.current_step()) < steps:
        optimizer.zero_grad()
        replica(x, y, number).mean().backward()
        optimizer.step()
        if manager.current_step() > step:
            world = manager.num_participants()
            log.write(event="step", step=manager.current_step(), hash=digest(model.parameters()), participants=world)
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    main()
