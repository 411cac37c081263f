"""Data plan, keys, fixed-point sums and ghost BatchNorm joined into a small training loop of several members."""

import hashlib
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.train.bitwise import FixedPointScale, FixedSum, Verdict, judge
from plait.train.norm import GhostStatistics, convert
from plait.train.work import DataPlan, redeal, rng_key

K, STEPS = 6, 15
PLAN = DataPlan(num_samples=100, global_batch=24, micro_batches=K, seed=5)
Shares = Sequence[Sequence[int]]


def fresh() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)]
    return convert(nn.Sequential(*layers), "ghost")


def run_alone(model: nn.Module, ghosts: GhostStatistics, step: int, k: int) -> list[Tensor | None]:
    samples = torch.from_numpy(PLAN.indices(step, k).copy())
    torch.manual_seed(rng_key(PLAN.seed, step, k))
    x = functional.one_hot(samples % 6, 6).float() + torch.randn(len(samples), 6)
    ghosts.enter([k], [len(samples)])
    model.zero_grad()
    functional.cross_entropy(model(x), samples % 3, reduction="sum").backward()
    return [p.grad for p in model.parameters()]


def trained(parts_of: dict[int, Shares], lost_at: int | None = None) -> str:
    """Returns the hash of the weights; the split changes at the given steps, and a member is lost inside one."""
    model = fresh()
    ghosts = GhostStatistics(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    parameters = list(model.parameters())
    scale = FixedPointScale.start(len(parameters))
    parts: Shares = []
    for step in range(STEPS):
        parts = parts_of.get(step, parts)
        if step == lost_at:
            held = {str(i): frozenset(ks) for i, ks in enumerate(parts)}
            survivors = [str(i) for i in range(1, len(parts))]
            extra = redeal(held, survivors, num_micro_batches=K)
            parts = [[*held[name], *extra[name]] for name in survivors]
        verdict = Verdict.MISFIT
        while verdict is Verdict.MISFIT:
            exponents = scale.exponents(K)
            sums = [FixedSum(parameters, exponents, K) for _ in parts]
            for part, ks in zip(sums, parts, strict=True):
                for k in ks:
                    if PLAN.count(step, k):
                        part.add(k, run_alone(model, ghosts, step, k))
            step_max = torch.stack([part.maxima for part in sums]).amax(0).tolist()
            verdict = judge(step_max, exponents, K)
            scale = scale.after(step_max)
        total = torch.stack([part.sums for part in sums]).sum(0)
        for parameter, gradient in zip(parameters, sums[0].gradients(total), strict=True):
            parameter.grad = gradient / PLAN.step_size(step)
        ghosts.merge(ghosts.table(K))
        optimizer.step()
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()


@pytest.fixture(scope="module")
def alone() -> str:
    return trained({0: [range(K)]})


@pytest.mark.parametrize(
    "parts", [[[0, 1, 2], [3, 4, 5]], [[5], [4, 0, 1], [2, 3]], [[], range(K)], [[3, 2, 1, 0, 5, 4]]]
)
def test_any_split_ends_in_the_same_weights(alone: str, parts: Shares) -> None:
    assert trained({0: parts}) == alone


def test_members_that_come_and_go_end_in_the_same_weights(alone: str) -> None:
    joining: dict[int, Shares] = {0: [range(K)], 4: [[0, 1], [2, 3, 4, 5]], 9: [[0, 1], [2, 3], [4, 5]]}
    assert trained(joining) == alone
    assert trained(joining, lost_at=6) == alone
    assert trained(joining, lost_at=11) == alone
