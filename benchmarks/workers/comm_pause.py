"""One rank of the overlap benchmark: 1-bit Adam in DDP's hook, with layers that sleep in backward.

On the cores of one machine ranks compute where the exchange runs, too, so that overlap shows nothing. A layer that
sleeps leaves the processor free, as an accelerator does.
"""

import os
import time
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

import plait
import plait.comm
from workers.comm_rank import BATCH, Block, Words, build, loss_of
from workers.lane import Orders

BUCKET_MB = 8
LEARNING_RATE = 1e-4


class Rest(torch.autograd.Function):
    """The identity, whose backward sleeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pause: list[float]) -> Tensor:
        ctx.pause = pause
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.pause[0])
        return gradient, None


class Resting(nn.Module):
    """A layer behind which backward sleeps for ``pause[0]`` seconds."""

    def __init__(self, layer: nn.Module, pause: list[float]) -> None:
        super().__init__()
        self.layer, self.pause = layer, pause

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Rest.apply(self.layer(x), self.pause)  # type: ignore[no-untyped-call]
        return result


class Hook:
    """Plait's hook, with and without early updates, and in a blocking form: backward waits for each exchange."""

    def __init__(self, engine: plait.comm.CommEngine, optimizer: plait.OneBitAdam) -> None:
        self._exchanges = {
            early: plait.comm.DdpExchange(engine, optimizer=optimizer, updates_early=early) for early in (False, True)
        }
        self.form = ""

    def __call__(self, _state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        future = plait.comm.ddp_hook(self._exchanges[self.form == "early"], bucket)
        if self.form == "blocking":
            future.wait()
        return future


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    pause = [0.0]
    model = nn.Sequential(
        *(Resting(m, pause) if isinstance(m, nn.TransformerEncoderLayer) else m for m in build().children())
    )
    optimizer = plait.OneBitAdam(model.parameters(), lr=LEARNING_RATE, freeze=2)
    replica = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    orders, data, place = Orders(), Words(), dist.get_rank() * 1000
    with plait.comm.CommEngine(island=os.environ["PLAIT_MEMBER"]) as engine:
        hook = Hook(engine, optimizer)

        def called(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
            return hook(state, bucket)

        replica.register_comm_hook(None, called)
        orders.answer(ready=True)
        while (order := orders.next()) is not None:
            pause[0] = float(order["pause_s"])
            hook.form = order["form"]
            block = Block(order)
            for _ in range(block.steps):
                rows = [data[place + i] for i in range(BATCH)]
                place += BATCH
                with replica.no_sync() if order["form"] == "compute" else nullcontext():
                    loss_of(replica, torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])).backward()
                for group in optimizer.param_groups:
                    # A step that exchanges nothing costs an update, too; it must not part the replicas.
                    group["lr"] = 0.0 if order["form"] == "compute" else LEARNING_RATE
                optimizer.step()
                optimizer.zero_grad()
            block.answer(orders)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
