"""Trains a convolutional net with batch norm on scikit-learn's digits, on one device or on many.

``python examples/digits/train.py`` runs alone; ``plait run examples/digits/job.yaml`` runs on a cluster. Batch norm
takes its statistics from each logical micro-batch, so that the result does not depend on which device ran which.
"""

import argparse
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import plait

NUM_TEST = 297


@dataclass(frozen=True, slots=True)
class Digits:
    """1,500 images of 8 x 8 pixels to train on and 297 to test with; pixels from 0 to 1."""

    training: TensorDataset
    test_images: Tensor
    test_labels: Tensor


def read_digits() -> Digits:
    """Returns the digits that scikit-learn ships, in an order that is always the same."""
    pixels, numbers = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(numbers, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, training = order[:NUM_TEST], order[NUM_TEST:]
    return Digits(TensorDataset(images[training], labels[training]), images[test], labels[test])


def conv_net() -> nn.Sequential:
    """Returns two convolutions with batch norm and one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),  # 16 x 4 x 4
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),  # 32 x 2 x 2
        nn.Flatten(),
        nn.Linear(128, 10),
    )


@torch.no_grad()
def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Returns the share of images whose most likely digit is the right one."""
    net.eval()
    device = next(net.parameters()).device
    right: Tensor = (net(images.to(device)).argmax(dim=1) == labels.to(device)).float().mean()
    net.train()
    return right.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    options = parser.parse_args()
    torch.manual_seed(0)
    digits = read_digits()
    net = conv_net()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters(), lr=options.learning_rate)
    with plait.session(global_batch_size=100, micro_batches=10, seed=0) as run:
        model, optimizer, loader = run.prepare(net, optimizer, digits.training, epochs=options.epochs)
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            run.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.is_leader:
            share = accuracy(net, digits.test_images, digits.test_labels)
            print(f"{run.step} steps, {share:.1%} of the test digits right", flush=True)


if __name__ == "__main__":
    main()
