"""A Hugging Face Accelerate loop under Plait: it finds torchrun's environment and uses it.

``plait run examples/accelerate/job.yaml``; needs ``pip install 'plait[frameworks]'``. Like every script that brings its
own process group it is not elastic.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, EPOCHS = 16, 4


def main() -> None:
    accelerator = Accelerator(cpu=True)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, FEATURES, generator=generator)
    targets = inputs @ torch.randn(FEATURES, 1, generator=generator) + 0.1 * torch.randn(512, 1, generator=generator)
    dataset = TensorDataset(inputs, targets)
    layer = nn.Linear(FEATURES, 1)
    model, optimizer, loader = accelerator.prepare(
        layer, torch.optim.SGD(layer.parameters(), lr=0.1), DataLoader(dataset, batch_size=32, shuffle=True)
    )
    steps, loss = 0, torch.tensor(float("nan"))
    for _ in range(EPOCHS):
        for features, targets in loader:
            loss = nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    if accelerator.is_main_process:
        print(f"{accelerator.num_processes} ranks, loss {loss.item():.6f} after {steps} steps", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
