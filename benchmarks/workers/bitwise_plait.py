"""One member of a short run with dropout; writes the hash of its weights after the last step."""

import os
import time

import torch
from torch import Tensor, nn

import plait
from workers.models import Images
from workers.step_log import StepLog, digest

MICRO_BATCHES = 12
GLOBAL_BATCH = 48
STEPS = 50


class Dropping(nn.Module):
    """A conv net with dropout that takes ``pause_s`` for each forward, so that losses and joins fall within the run."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pause_s = pause_s
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * 64, 64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.pause_s)
        out: Tensor = self.net(x)
        return out


def main() -> None:
    torch.set_num_threads(1)
    log = StepLog()
    model = Dropping(float(os.environ["BENCH_PAUSE_S"]))
    parameters = list(model.parameters())
    exact = os.environ["BENCH_BITWISE"] == "1"
    with plait.session(global_batch_size=GLOBAL_BATCH, micro_batches=MICRO_BATCHES, seed=0, bitwise=exact) as run:
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        replica, optimizer, loader = run.prepare(model, optimizer, Images(600), steps=STEPS)
        log.write(event="ready", step=run.step)
        noted = run.step
        for x, y in loader:
            nn.functional.cross_entropy(replica(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step > noted:
                noted = run.step
                log.write(event="step", step=noted, hash=digest(parameters), world=list(run.world))
        log.write(event="end", step=run.step, hash=digest(parameters), world=list(run.world))


if __name__ == "__main__":
    main()
