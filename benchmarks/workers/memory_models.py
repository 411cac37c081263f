"""Training steps whose allocations the memory benchmark records: eleven kinds of model, three sizes each.

Size 0 (``small``, about 200 MiB alive at its peak) and size 1 (``job``, about 1 GiB) are run for real on the CPU. Size
2 (``large``) has the shapes of a job on an accelerator and is recorded under FakeTensorMode, which runs the same
operators on tensors without data. Every choice comes from the seed.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[], None]


@dataclass(frozen=True)
class Workload:
    """A model and its loop. ``build(size, seed)`` makes an endless iterator of steps."""

    name: str
    changes: str
    build: Callable[[int, int], Iterator[Step]]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        # Written out, so that the scores take memory as they do where no fused kernel exists.
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        if self.causal:
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        result: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return result


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, feed_forward: nn.Module | None = None) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.feed_forward = feed_forward or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        result: Tensor = x + self.feed_forward(self.norms[1](x))
        return result


class ByteModel(nn.Module):
    def __init__(
        self, width: int, layers: int, heads: int, feed_forward: Callable[[], nn.Module] | None = None
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layers = nn.Sequential(
            *(Layer(width, heads, True, feed_forward() if feed_forward else None) for _ in range(layers))
        )
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        result: Tensor = self.head(self.layers(self.embedding(text)))
        return result


class Experts(nn.Module):
    """Tokens are dealt to experts in numbers that change with every call, as a router's choice does."""

    def __init__(self, width: int, experts: int, rng: random.Random) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )
        self.rng = rng

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        cuts = sorted(self.rng.randrange(1, len(tokens)) for _ in range(len(self.experts) - 1))
        sizes = [after - before for before, after in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
        parts = tokens[torch.randperm(len(tokens))].split(sizes)
        return torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)]).view_as(x)


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(inputs, outputs, stride), conv(outputs, outputs))
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class UNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(conv(before, after) for before, after in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(conv(low + high, high) for high, low in pairwise(widths))
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = kept.pop()
        for level in reversed(self.up):
            x = functional.interpolate(x, scale_factor=2)
            x = level(torch.cat([x, kept.pop()], 1))
        result: Tensor = self.out(x)
        return result


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(256, width), nn.Linear(width, 256)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)

    def forward(self, text: Tensor) -> Tensor:
        result: Tensor = self.head(self.lstm(self.embedding(text))[0])
        return result


class Recommender(nn.Module):
    def __init__(self, rows: int, width: int, tables: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        pairs = (tables + 1) ** 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 8 * width), nn.ReLU(), nn.Linear(8 * width, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        looked_up = [table(categories[:, number]) for number, table in enumerate(self.tables)]
        stacked = torch.stack([bottom, *looked_up], 1)
        crossed = (stacked @ stacked.transpose(1, 2)).flatten(1)
        result: Tensor = self.top(torch.cat([bottom, crossed], 1))
        return result


def text_steps(model: nn.Module, shapes: Iterator[tuple[int, int]], clear_first: bool = True) -> Iterator[Step]:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        text = torch.randint(0, 256, next(shapes))
        if clear_first:
            optimizer.zero_grad()
        logits = model(text[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        if not clear_first:
            optimizer.zero_grad()

    while True:
        yield step


def image_steps(
    model: nn.Module, shapes: Iterator[tuple[int, int]], loss_of: Callable[[Tensor], Tensor]
) -> Iterator[Step]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)

    def step() -> None:
        batch, pixels = next(shapes)
        loss = loss_of(model(torch.randn(batch, 3, pixels, pixels)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    while True:
        yield step


def always(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    while True:
        yield shape


def byte_fixed(size: int, seed: int) -> Iterator[Step]:
    del seed
    width, layers, batch, length = [(192, 4, 10, 256), (384, 4, 8, 512), (768, 4, 8, 1024)][size]
    return text_steps(ByteModel(width, layers, width // 64), always((batch, length + 1)))


def byte_buckets(size: int, seed: int) -> Iterator[Step]:
    """Lengths in eight buckets, the batch such that the tokens stay about the same."""
    rng = random.Random(seed)
    width, layers, longest, tokens = [(192, 4, 512, 2048), (384, 4, 768, 4608), (768, 4, 2048, 8192)][size]

    def shapes() -> Iterator[tuple[int, int]]:
        while True:
            length = longest // 8 * rng.randint(1, 8)
            yield tokens // length, length + 1

    return text_steps(ByteModel(width, layers, width // 64), shapes())


def byte_free(size: int, seed: int) -> Iterator[Step]:
    """Batch and length are new in nearly every step."""
    rng = random.Random(seed)
    width, layers, batch, length = [(192, 4, 10, 384), (384, 4, 10, 640), (768, 4, 10, 1536)][size]

    def shapes() -> Iterator[tuple[int, int]]:
        while True:
            yield rng.randint(2, batch), rng.randint(32, length) + 1

    return text_steps(ByteModel(width, layers, width // 64), shapes(), clear_first=False)


def resnet(size: int, seed: int) -> Iterator[Step]:
    """Each eighth batch is the smaller last one of an epoch."""
    del seed
    width, batch, pixels, blocks = [(32, 56, 64, 2), (64, 144, 64, 2), (64, 96, 224, 3)][size]
    layers: list[nn.Module] = [conv(3, width, 2)]
    inputs = width
    for stage in range(4):
        for block in range(blocks):
            layers.append(Residual(inputs, width * 2**stage, 2 if block == 0 and stage else 1))
            inputs = width * 2**stage
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 100))

    def shapes() -> Iterator[tuple[int, int]]:
        while True:
            yield from [(batch, pixels)] * 7
            yield batch * 5 // 12, pixels

    return image_steps(model, shapes(), lambda out: functional.cross_entropy(out, torch.zeros(len(out)).long()))


def mlp(size: int, seed: int) -> Iterator[Step]:
    del seed
    width, depth, batch = [(1536, 6, 1024), (3072, 6, 2560), (8192, 8, 8192)][size]
    model = nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(batch, width)).square().mean().backward()
        optimizer.step()

    while True:
        yield step


def lstm(size: int, seed: int) -> Iterator[Step]:
    """Sentences of many lengths, each batch padded to a multiple of 16."""
    rng = random.Random(seed)
    width, batch, longest = [(128, 96, 96), (256, 256, 96), (1024, 256, 160)][size]

    def shapes() -> Iterator[tuple[int, int]]:
        while True:
            yield batch, 16 * rng.randint(2, longest // 16) + 1

    return text_steps(Recurrent(width), shapes())


def vision_transformer(size: int, seed: int) -> Iterator[Step]:
    """Resolution changes from step to step among three."""
    rng = random.Random(seed)
    width, layers, batch, pixels = [
        (192, 4, 20, (128, 160, 192)),
        (384, 4, 32, (160, 192, 224)),
        (768, 6, 48, (192, 224, 288)),
    ][size]
    model = nn.Sequential(
        nn.Conv2d(3, width, 16, 16),
        nn.Flatten(2),
        Transposed(),
        *(Layer(width, width // 64, causal=False) for _ in range(layers)),
        nn.LayerNorm(width),
        nn.Linear(width, 100),
    )

    def shapes() -> Iterator[tuple[int, int]]:
        while True:
            yield batch, rng.choice(pixels)

    return image_steps(model, shapes(), lambda out: out.mean(1).logsumexp(-1).mean())


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def unet(size: int, seed: int) -> Iterator[Step]:
    del seed
    width, depth, batch, pixels = [(16, 4, 10, 128), (32, 4, 24, 128), (64, 5, 16, 256)][size]
    return image_steps(UNet(width, depth), always((batch, pixels)), lambda out: out.square().mean())


def recommender(size: int, seed: int) -> Iterator[Step]:
    del seed
    rows, width, tables, batch = [(60_000, 32, 8, 12288), (160_000, 64, 8, 24576), (500_000, 128, 26, 32768)][size]
    model = Recommender(rows, width, tables)
    optimizer = torch.optim.Adagrad(model.parameters(), foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        out = model(torch.randn(batch, 13), torch.randint(0, rows, (batch, tables, 4)))
        functional.binary_cross_entropy_with_logits(out, torch.zeros_like(out)).backward()
        optimizer.step()

    while True:
        yield step


def mixture(size: int, seed: int) -> Iterator[Step]:
    """Each layer deals its tokens to eight experts anew in each step."""
    rng = random.Random(seed)
    width, layers, batch, length = [(192, 3, 14, 256), (384, 3, 12, 512), (768, 2, 8, 1024)][size]
    model = ByteModel(width, layers, width // 64, lambda: Experts(width, 8, rng))
    return text_steps(model, always((batch, length + 1)))


def adversarial(size: int, seed: int) -> Iterator[Step]:
    """Two models in turn: a step of the critic, then one of the generator."""
    del seed
    width, batch = [(32, 128), (64, 320), (128, 256)][size]
    generator = nn.Sequential(
        nn.Linear(128, 4 * width * 64),
        nn.Unflatten(1, (4 * width, 8, 8)),
        *(
            part
            for inputs, outputs in ((4 * width, 2 * width), (2 * width, width))
            for part in (nn.Upsample(scale_factor=2), conv(inputs, outputs))
        ),
        nn.Conv2d(width, 3, 3, padding=1),
    )
    critic = nn.Sequential(
        conv(3, width),
        conv(width, 2 * width, 2),
        conv(2 * width, 4 * width, 2),
        nn.Flatten(),
        nn.Linear(256 * width, 1),
    )
    of_generator = torch.optim.Adam(generator.parameters(), foreach=False)
    of_critic = torch.optim.Adam(critic.parameters(), foreach=False)

    def step_critic() -> None:
        of_critic.zero_grad()
        with torch.no_grad():
            made = generator(torch.randn(batch, 128))
        (critic(made).relu().mean() - critic(torch.randn(batch, 3, 32, 32)).mean()).backward()
        of_critic.step()

    def step_generator() -> None:
        of_generator.zero_grad()
        critic(generator(torch.randn(batch, 128))).neg().mean().backward()
        of_generator.step()

    while True:
        yield step_critic
        yield step_generator


WORKLOADS = (
    Workload("byte transformer", "no", byte_fixed),
    Workload("byte transformer, buckets", "batch, length", byte_buckets),
    Workload("byte transformer, free", "all the time", byte_free),
    Workload("ResNet", "last batch", resnet),
    Workload("MLP", "no", mlp),
    Workload("LSTM", "length", lstm),
    Workload("ViT", "resolution", vision_transformer),
    Workload("U-Net", "no", unet),
    Workload("DLRM", "no", recommender),
    Workload("mixture of experts", "routing", mixture),
    Workload("GAN", "two models", adversarial),
)
