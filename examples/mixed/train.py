"""Trains a small byte-level language model on Python's own source: plain PyTorch, shared out by Plait.

The text is the standard library, which is on every machine that has Python. The loop at the end is the one that would
train the model on one device; under ``plait run`` each worker gets its share of every step.
"""

import argparse
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import plait

BYTES = 256
LEFT_OUT = frozenset({"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"})
HELD_OUT_EVERY = 20  # one file of twenty is never trained on


@dataclass(frozen=True, slots=True)
class Corpus:
    """Bytes to train on and bytes of other files to judge by."""

    training: Tensor
    held_out: Tensor
    num_files: int


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of ``context`` bytes, one after the other, each with the bytes that follow by one."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text = text
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.context
        window = self.text[start : start + self.context + 1].long()
        return window[:-1], window[1:]


def read_corpus(root: Path | None = None) -> Corpus:
    """Reads the standard library's ``.py`` files in the order of their paths, without tests and tables."""
    root = root or Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in root.rglob("*.py") if not LEFT_OUT & set(path.relative_to(root).parts))
    training, held_out = bytearray(), bytearray()
    for index, path in enumerate(files):
        (held_out if index % HELD_OUT_EVERY == 0 else training).extend(path.read_bytes())
    return Corpus(
        training=torch.frombuffer(training, dtype=torch.uint8),
        held_out=torch.frombuffer(held_out, dtype=torch.uint8),
        num_files=len(files),
    )


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a layer norm and a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # x: (batch, time, width)
        batch, time, width = x.shape
        qkv = self.to_qkv(self.norm_attention(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each: (batch, heads, time, width / heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.to_out(mixed.transpose(1, 2).reshape(batch, time, width))
        fed: Tensor = self.feed(self.norm_feed(x))
        return x + fed


class ByteTransformer(nn.Module):
    """Predicts the next byte at each position of a window of at most ``context`` bytes."""

    def __init__(self, context: int, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.of_byte = nn.Embedding(BYTES, width)
        self.of_position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.to_logits = nn.Linear(width, BYTES, bias=False)
        self.apply(_start_small)

    def forward(self, window: Tensor) -> Tensor:  # window: (batch, time) -> logits: (batch, time, 256)
        positions = torch.arange(window.shape[1], device=window.device)
        x = self.of_byte(window) + self.of_position(positions)
        logits: Tensor = self.to_logits(self.norm(self.blocks(x)))
        return logits


def _start_small(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear | nn.Embedding):
        nn.init.normal_(layer.weight, std=0.05)


@torch.no_grad()
def judge(model: ByteTransformer, text: Windows, num_windows: int = 64) -> float:
    """Returns the mean loss in nats a byte over windows spread evenly through text that is never trained on."""
    device = next(model.parameters()).device
    spread = range(0, len(text), max(1, len(text) // num_windows))
    pairs = [text[index] for index in spread][:num_windows]
    windows, following = (torch.stack(part).to(device) for part in zip(*pairs, strict=True))
    loss: Tensor = functional.cross_entropy(model(windows).flatten(0, 1), following.flatten())
    return float(loss)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="global steps")
    parser.add_argument("--context", type=int, default=64, help="bytes in a window")
    parser.add_argument("--width", type=int, default=128, help="width of the transformer")
    parser.add_argument("--layers", type=int, default=2, help="layers of the transformer")
    parser.add_argument("--learning-rate", type=float, default=4e-3, help="highest learning rate")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.manual_seed(0)
    corpus = read_corpus()
    dataset = Windows(corpus.training, options.context)
    held_out = Windows(corpus.held_out, options.context)
    language_model = ByteTransformer(options.context, options.width, options.layers)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        language_model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95)
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.learning_rate, total_steps=options.steps, pct_start=0.1
    )
    with plait.session(global_batch_size=96, micro_batches=24, seed=0) as run:  # the job file's batching wins
        model, optimizer, loader = run.prepare(
            language_model, optimizer, dataset, steps=options.steps, scheduler=schedule
        )
        if run.is_leader and run.step == 0:
            print(f"{corpus.num_files} files, {len(corpus.training) / 1e6:.1f} MB to train on", flush=True)
            print(f"held-out loss before training: {judge(language_model, held_out):.3f} nats a byte", flush=True)
        for window, following in loader:
            loss = functional.cross_entropy(model(window).flatten(0, 1), following.flatten())
            run.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.is_leader:
            after = judge(language_model, held_out)
            print(f"held-out loss after {run.step} steps: {after:.3f} nats a byte", flush=True)


if __name__ == "__main__":
    main()
