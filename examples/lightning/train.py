"""A Lightning trainer under Plait: it finds torchrun's environment and uses it.

``plait run examples/lightning/job.yaml``; needs ``pip install 'plait[frameworks]'``. Like every script that brings its
own process group it is not elastic.
"""

import os

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES = 16


class LinearFit(lightning.LightningModule):
    """Fits a linear layer to a linear function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1)
        self.last_loss = float("nan")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002 - Lightning's name
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layer(inputs), targets)
        self.last_loss = loss.item()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, FEATURES, generator=generator)
    targets = inputs @ torch.randn(FEATURES, 1, generator=generator) + 0.1 * torch.randn(512, 1, generator=generator)
    dataset = TensorDataset(inputs, targets)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp" if world_size > 1 else "auto",
        devices=local_world_size,
        num_nodes=world_size // local_world_size,
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = LinearFit()
    trainer.fit(model, DataLoader(dataset, batch_size=32, shuffle=True, num_workers=0))
    if trainer.is_global_zero:
        print(f"{trainer.world_size} ranks, loss {model.last_loss:.6f} after {trainer.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
