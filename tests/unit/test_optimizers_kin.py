"""0/1 Adam and 1-bit LAMB by themselves, against what their papers' algorithms say, step by step."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from plait.errors import PlaitError
from plait.train.optimizers import OneBitAdam, OneBitLamb, ZeroOneAdam
from plait.train.optimizers.one_bit_lamb import FACTOR_STEP
from plait.train.optimizers.zero_one_adam import renews_variance

Floats = NDArray[np.float64]
LR, BETA1, BETA2, EPS, DECAY = 0.02, 0.9, 0.99, 1e-6, 0.05


def gradient(step: int) -> Floats:
    return np.random.default_rng(step).normal(1.0, 1.0, (4, 6)) * np.linspace(0.5, 2.0, 6)


def start() -> Floats:
    return np.random.default_rng(77).normal(size=(4, 6))


def played(optimizer: OneBitAdam, parameter: nn.Parameter, steps: int) -> Floats:
    """Returns the values after so many steps; where the momentum travels, it does so without loss."""
    for step in range(steps):
        if optimizer.wants_freeze:
            optimizer.freeze()
        fresh = torch.tensor(gradient(step))
        if optimizer.sends_momentum:
            fresh = BETA1 * optimizer.momentum_of(parameter) + (1 - BETA1) * fresh
        parameter.grad = fresh
        optimizer.step()
    return parameter.detach().numpy().copy()


def test_zero_one_adam_renews_its_variance_at_ever_longer_intervals() -> None:
    renewed = [step for step in range(300) if renews_variance(step, 16)]
    assert renewed[:16] == list(range(16))
    assert renewed[16:32] == list(range(16, 48, 2))
    assert renewed[32:48] == list(range(48, 112, 4))
    assert renewed[48:64] == list(range(112, 240, 8))


def test_zero_one_adam_is_adam_with_a_variance_of_some_steps() -> None:
    parameter = nn.Parameter(torch.tensor(start()))
    optimizer = ZeroOneAdam([parameter], LR, (BETA1, BETA2), EPS, DECAY, kappa=3)
    found = played(optimizer, parameter, 40)
    x, m, v, renewals = start(), np.zeros((4, 6)), np.zeros((4, 6)), 0
    for step in range(40):
        g = gradient(step)
        m = BETA1 * m + (1 - BETA1) * g
        if renews_variance(step, 3):
            v, renewals = BETA2 * v + (1 - BETA2) * g * g, renewals + 1
        root = np.sqrt(v / (1 - BETA2**renewals))
        x = x * (1 - LR * DECAY) - LR * m / (1 - BETA1 ** (step + 1)) / (root + EPS)
    assert renewals < 20
    np.testing.assert_allclose(found, x, rtol=1e-9)


def test_one_bit_lamb_warms_up_as_lamb_does() -> None:
    parameter = nn.Parameter(torch.tensor(start()))
    found = played(OneBitLamb([parameter], LR, (BETA1, BETA2), EPS, DECAY, freeze=99), parameter, 12)
    x, m, v = start(), np.zeros((4, 6)), np.zeros((4, 6))
    for step in range(12):
        g = gradient(step)
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        root = np.sqrt(v / (1 - BETA2 ** (step + 1))) + EPS
        update = m / (1 - BETA1 ** (step + 1)) / root + DECAY * x
        x = x - LR * np.clip(np.linalg.norm(x) / np.linalg.norm(update), 0.01, 10.0) * update
    np.testing.assert_allclose(found, x, rtol=1e-9)


def test_the_trust_ratio_of_one_bit_lamb_follows_the_implied_gradient_in_small_steps() -> None:
    parameter = nn.Parameter(torch.tensor(start()))
    optimizer = OneBitLamb([parameter], LR, (BETA1, BETA2), EPS, freeze=10)
    played(optimizer, parameter, 10)
    optimizer.freeze()
    state = optimizer.state[parameter]
    kept, before = state["ratio"], 1.0
    for _ in range(60):  # gradients a tenth as large: the variance would fall, so the ratio may grow
        m = optimizer.momentum_of(parameter)
        parameter.grad = BETA1 * m + (1 - BETA1) * 0.1 * torch.tensor(gradient(3))
        optimizer.step()
        assert before * (1 - FACTOR_STEP) <= state["factor"] <= before * (1 + FACTOR_STEP) + 1e-12
        before = state["factor"]
    assert 1.2 < state["factor"] <= 4.0
    assert state["ratio"] == kept


@pytest.mark.parametrize(
    "make",
    [lambda params: ZeroOneAdam(params, kappa=2), lambda params: OneBitLamb(params, freeze=3)],
    ids=["0/1 Adam", "1-bit LAMB"],
)
def test_their_state_survives_a_round_trip(make: Callable[[list[nn.Parameter]], OneBitAdam]) -> None:
    parameter = nn.Parameter(torch.tensor(start()))
    optimizer = make([parameter])
    played(optimizer, parameter, 8)
    twin = nn.Parameter(parameter.detach().clone())
    other = make([twin])
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.sends_momentum == optimizer.sends_momentum
    np.testing.assert_array_equal(played(other, twin, 5), played(optimizer, parameter, 5))


def test_kappa_below_one_is_refused() -> None:
    with pytest.raises(PlaitError, match="kappa is 0"):
        ZeroOneAdam([nn.Parameter(torch.zeros(2))], kappa=0)
