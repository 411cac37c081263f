"""A loop under a real limit of memory: ``limited.py ROOM_MB WHERE`` prints what came of it as JSON.

WHERE is ``forward`` or ``backward``, the part of a pass that needs most, or ``none`` for a run without a limit.
"""

import json
import logging
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import plait
from plait.train.retreat import DoesNotFit

WIDE = 2**17


class Wide(torch.autograd.Function):
    """The mean over a row that is wide only while it is worked on, in one direction."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, where: str) -> Tensor:
        ctx.where = where
        return _through(values) if where == "forward" else values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return (_through(gradients[0]) if ctx.where == "backward" else gradients[0].clone()), None


def _through(values: Tensor) -> Tensor:
    wide = values.repeat(1, WIDE // values.shape[1])  # half a MB for each sample
    return wide.view(len(values), -1, values.shape[1])[:, 0].clone()


class Model(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.where = nn.Linear(8, 8), nn.Linear(8, 1), where

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = Wide.apply(self.first(x).tanh(), self.where)  # type: ignore[no-untyped-call]
        result: Tensor = self.second(hidden)
        return result


def main(room_mb: int, where: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(512, 8, generator=generator)
    data = TensorDataset(x, x[:, :1] * 2.0 - x[:, 1:2])
    model = Model(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen: list[int] = []
    losses: list[float | None] = []
    with plait.session(global_batch_size=256, micro_batches=32, seed=3) as run:
        run.on_commit(lambda facts: losses.append(facts.loss))
        wrapped, wrapped_optimizer, loader = run.prepare(model, optimizer, data, epochs=3)
        if where != "none":
            mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + room_mb * 2**20, resource.RLIM_INFINITY))
        for inputs, targets in loader:
            with run.fits():
                seen.append(len(inputs))
                wrapped_optimizer.zero_grad()
                loss = (wrapped(inputs) - targets).square().mean()
                run.record(loss=loss)
                loss.backward()
                wrapped_optimizer.step()
        steps = run.step
    return {
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
        "seen": seen,
        "steps": steps,
        "losses": losses,
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    try:
        told = main(int(sys.argv[1]), sys.argv[2])
    except DoesNotFit as error:
        told = {"error": str(error)}
    sys.stdout.write(json.dumps(told) + "\n")
