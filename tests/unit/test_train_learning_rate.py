import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from plait.train.learning_rate import AdaScale, batch_factor, group_squares, scaled_learning_rates


def test_factors_of_the_batch() -> None:
    assert batch_factor("none", 4.0) == 1.0
    assert batch_factor("linear", 4.0) == 4.0
    assert batch_factor("sqrt", 4.0) == 2.0
    assert batch_factor("linear", 0.5) == 0.5
    assert batch_factor("adascale", 4.0) == 1.0
    with pytest.raises(ValueError, match="got 0"):
        batch_factor("linear", 0)


def observed(
    state: AdaScale, mean: torch.Tensor, sigma: float, counts: list[int], *, ratio: float, seed: int
) -> AdaScale:
    """One step of parts with the given counts; each sample's gradient is mean + sigma * noise."""
    generator = torch.Generator().manual_seed(seed)
    parts = [mean + sigma * torch.randn(n, len(mean), generator=generator, dtype=torch.float64).mean(0) for n in counts]
    total = sum(counts)
    whole = torch.stack([g * n / total for g, n in zip(parts, counts, strict=True)]).sum(0)
    part_square = sum(n / total * float(g.square().sum()) for g, n in zip(parts, counts, strict=True))
    return state.observe([part_square], [float(whole.square().sum())], len(counts), ratio)


@pytest.mark.parametrize("counts", [[16] * 8, [60, 30, 20, 10, 8], [100, 28]])
def test_gain_is_that_of_the_true_moments_for_any_split(counts: list[int]) -> None:
    mean, sigma, ratio = torch.full((50,), 0.1, dtype=torch.float64), 1.0, 4.0
    batch = sum(counts)
    state = AdaScale.start(1)
    for step in range(1500):
        state = observed(state, mean, sigma, counts, ratio=ratio, seed=step)
    variance = 50 * sigma**2 / (batch / ratio)
    square = 50 * 0.1**2
    expected = (variance + square) / (variance / ratio + square)
    assert state.gains(ratio)[0] == pytest.approx(expected, rel=0.06)
    assert state.weight == pytest.approx(1.0, abs=0.01)


def test_gain_is_one_without_noise_and_s_without_signal() -> None:
    quiet = AdaScale.start(1).observe([4.0], [4.0], 8, 4.0)
    assert quiet.gains(4.0) == (1.0,)
    noise = AdaScale.start(1).observe([8.0], [1.0], 8, 4.0)
    assert noise.gains(4.0) == (4.0,)
    assert AdaScale.start(2).gains(4.0) == (1.0, 1.0)
    assert AdaScale.start(1).observe([8.0], [1.0], 1, 4.0) == AdaScale.start(1)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=4), st.floats(1.0, 64.0))
@settings(max_examples=100)
def test_gain_lies_between_one_and_s(pairs: list[tuple[float, float]], ratio: float) -> None:
    state = AdaScale.start(len(pairs)).observe([a for a, _ in pairs], [b for _, b in pairs], 6, ratio)
    assert all(1.0 - 1e-9 <= gain <= ratio * (1 + 1e-9) for gain in state.gains(ratio))
    moved = state.advanced(ratio)
    assert moved.progress == pytest.approx(sum(state.gains(ratio)) / len(pairs))
    assert AdaScale.from_json(json.loads(json.dumps(moved.as_json()))) == moved


def two_groups() -> torch.optim.Optimizer:
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    one.grad, two.grad = torch.full((2,), 2.0), torch.full((3,), 1.0)
    groups: list[dict[str, object]] = [{"params": [one]}, {"params": [two, nn.Parameter(torch.ones(1))], "lr": 0.01}]
    return torch.optim.SGD(groups, lr=0.1)


def test_each_group_gets_its_own_factor_and_its_rate_back() -> None:
    optimizer = two_groups()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with scaled_learning_rates(optimizer, [3.0, 2.0]):
        optimizer.step()
    schedule.step()
    groups = optimizer.param_groups
    torch.testing.assert_close(groups[0]["params"][0].detach(), torch.full((2,), 1 - 0.1 * 3 * 2.0))
    torch.testing.assert_close(groups[1]["params"][0].detach(), torch.full((3,), 1 - 0.01 * 2 * 1.0))
    assert [group["lr"] for group in groups] == [0.05, 0.005]
    with (
        pytest.raises(ValueError, match="2 parameter groups, but there are 1 factors"),
        scaled_learning_rates(optimizer, [1.0]),
    ):
        pass


def test_rates_come_back_after_an_error() -> None:
    optimizer = two_groups()
    with pytest.raises(RuntimeError, match="boom"), scaled_learning_rates(optimizer, [3.0, 2.0]):
        raise RuntimeError("boom")
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]


def test_rates_held_in_tensors_are_not_changed_in_place() -> None:
    parameter = nn.Parameter(torch.ones(1))
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([parameter], lr=rate)
    with scaled_learning_rates(optimizer, [2.0]):
        assert float(optimizer.param_groups[0]["lr"]) == 1.0
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.5


def test_squares_a_group() -> None:
    assert group_squares(two_groups().param_groups).tolist() == [8.0, 3.0]
    assert group_squares([]).tolist() == []
