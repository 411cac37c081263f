"""Models and data of the benchmarks; the same ones for Plait and for its peers."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler

LEDGER_SCALE = 1e6


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Random 3 x 32 x 32 images in ten classes, a few in memory under many numbers."""

    def __init__(self, count: int, held: int = 512) -> None:
        generator = torch.Generator().manual_seed(7)
        self.count = count
        self.images = torch.randn(held, 3, 32, 32, generator=generator)
        self.labels = torch.randint(0, 10, (held,), generator=generator)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        held = number % len(self.images)
        return self.images[held], self.labels[held]


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Random byte sequences and their successors."""

    def __init__(self, count: int, length: int = 32, held: int = 512) -> None:
        self.count = count
        self.tokens = torch.randint(0, 256, (held, length + 1), generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        row = self.tokens[number % len(self.tokens)]
        return row[:-1], row[1:]


def conv_net(width: int = 32) -> nn.Module:
    """A 57 thousand parameter image classifier."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


class Paced(nn.Module):
    """A model on a device of a known speed: ``samples_per_s`` sets the time of a forward, None means real compute.

    With a speed set, one sample is really computed and the time for the rest is slept, so the ideal is exact and four
    devices fit on two cores.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.samples_per_s: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.samples_per_s is None:
            return torch.as_tensor(self.net(x))
        end_s = time.perf_counter() + len(x) / self.samples_per_s
        out: Tensor = self.net(x[:1])
        time.sleep(max(0.0, end_s - time.perf_counter()))
        return out.expand(len(x), *out.shape[1:])


class SmallTransformer(nn.Module):
    """A byte-level language model of 1.7 million parameters."""

    def __init__(self, width: int = 256, layers: int = 2, length: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(256, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", torch.triu(torch.full((length, length), float("-inf")), diagonal=1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.embed(x) + self.place, mask=self.mask, is_causal=True))
        return out


class Recorded(nn.Module):
    """A 137 thousand parameter classifier that keeps books over the samples that entered its updates.

    ``ledger`` has one entry a sample, of which the loss depends with slope one. With the parameter group that
    :func:`adam_with_ledger` gives it, an entry becomes minus (times used) / (global batch): the books are kept by the
    very gradients that were applied, so no log can flatter them.
    """

    def __init__(self, num_samples: int, sample_s: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
        self.ledger = nn.Parameter(torch.zeros(num_samples))
        self.sample_s = sample_s

    def forward(self, x: Tensor, y: Tensor, number: Tensor) -> Tensor:
        """Returns the loss of each sample; takes ``sample_s`` seconds for each."""
        end_s = time.perf_counter() + len(x) * self.sample_s
        entry = self.ledger[number]
        loss = nn.functional.cross_entropy(self.net(x), y, reduction="none") + (entry - entry.detach())
        time.sleep(max(0.0, end_s - time.perf_counter()))
        return loss

    def books(self, global_batch: int) -> tuple[int, int]:
        """Returns (samples used at least once, uses beyond the first)."""
        times = (-self.ledger.detach().double() * global_batch).round().long()
        # A step that lost samples divides by less, so an entry may lie a little off a whole number; any use counts.
        used = self.ledger.detach() != 0
        return int(used.sum()), int((times - 1).clamp(min=0).sum())


def adam_with_ledger(model: Recorded) -> torch.optim.Adam:
    """Adam for the network; for the ledger its limit of a huge epsilon, which is plain subtraction of the gradient."""
    return torch.optim.Adam(
        [
            {"params": list(model.net.parameters()), "lr": 1e-3},
            {"params": [model.ledger], "lr": LEDGER_SCALE, "eps": LEDGER_SCALE, "betas": (0.0, 0.0)},
        ]
    )


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    """Random vectors in ten classes, each with its own number."""

    def __init__(self, count: int, held: int = 1024) -> None:
        generator = torch.Generator().manual_seed(7)
        self.count = count
        self.vectors = torch.randn(held, 256, generator=generator)
        self.labels = torch.randint(0, 10, (held,), generator=generator)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        held = int(number) % len(self.vectors)
        return self.vectors[held], self.labels[held], int(number)


class EndlessBatches(Sampler[list[int]]):
    """Batches of consecutive numbers without end; ``size`` may change between batches."""

    def __init__(self, count: int, first: int, size: int) -> None:
        super().__init__()
        self.count = count
        self.at = first
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield [(self.at + offset) % self.count for offset in range(self.size)]
            self.at += self.size
