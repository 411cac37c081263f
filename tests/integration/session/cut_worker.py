"""A member whose link is cut; its timeline tells the steps, its output the sum of its weights at the end."""

import os
import sys

import torch
from torch import Tensor
from torch.utils.data import Dataset

import plait


class Numbers(Dataset[tuple[Tensor, Tensor]]):
    """Points of a line."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(64, generator=torch.Generator().manual_seed(number))
        return x, x[:1] * 2


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps, timeout_s = int(os.environ["CUT_STEPS"]), float(os.environ["CUT_TIMEOUT_S"])
    with plait.session(global_batch_size=8, micro_batches=4, split="even", heartbeat_timeout_s=timeout_s) as run:
        model, optimizer, loader = run.prepare(model, optimizer, Numbers(), steps=steps, draws_random=False)
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    say(f"weights {float(sum(p.detach().double().sum() for p in model.parameters()))}")


if __name__ == "__main__":
    main()
