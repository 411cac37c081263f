"""1-bit Adam by itself: AdamW before the freeze, momenta in place of gradients after it."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.train.optimizers import OneBitAdam
from plait.train.optimizers.one_bit_adam import ROOT_FLOOR_RATIO


def parameters(seed: int = 0) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((3, 4), (5,))]


def give(params: Sequence[nn.Parameter], step: int) -> None:
    draw = torch.Generator().manual_seed(100 + step)
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=draw)


def values(params: Sequence[nn.Parameter]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in params]


def test_the_warm_up_is_adamw_group_by_group() -> None:
    mine, theirs = parameters(), parameters()
    settings: dict[str, Any] = {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.1}
    one_bit = OneBitAdam([{"params": mine[:1]}, {"params": mine[1:], "lr": 1e-2, "weight_decay": 0.0}], **settings)
    groups: list[dict[str, Any]] = [{"params": theirs[:1]}, {"params": theirs[1:], "lr": 1e-2, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, **settings)
    for step in range(20):
        give(mine, step)
        give(theirs, step)
        one_bit.step()
        adam.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_after_the_freeze_a_gradient_is_the_momentum_and_the_variance_stays() -> None:
    params = parameters()
    optimizer = OneBitAdam(params, lr=0.01, betas=(0.9, 0.99), freeze=4)
    for step in range(4):
        assert not optimizer.wants_freeze
        give(params, step)
        optimizer.step()
    assert optimizer.wants_freeze
    optimizer.freeze()
    assert optimizer.is_frozen
    assert not optimizer.wants_freeze
    before, root = values(params), [optimizer.state[p]["exp_avg_sq"].sqrt() for p in params]
    give(params, 9)
    sent = [p.grad.clone() for p in params if p.grad is not None]
    optimizer.step()
    for p, old, m, r in zip(params, before, sent, root, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.01 / (1 - 0.9**5) * m / (r + 1e-8))
        assert torch.equal(optimizer.momentum_of(p), m)
        assert torch.equal(optimizer.state[p]["exp_avg_sq"].sqrt(), r)


def test_the_frozen_variance_is_bias_corrected() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = OneBitAdam([parameter], freeze=2)
    for _ in range(2):
        parameter.grad = torch.tensor([1.0, 2.0, 3.0, 4.0])
        optimizer.step()
    optimizer.freeze()
    torch.testing.assert_close(optimizer.state[parameter]["exp_avg_sq"], torch.tensor([1.0, 4.0, 9.0, 16.0]))


def test_a_value_without_any_gradient_takes_no_leap() -> None:
    """One bit a value gives every value the size of its block; over the root of nothing that would be infinite."""
    parameter, unused = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(2))
    optimizer = OneBitAdam([parameter, unused], lr=0.1, freeze=1)
    parameter.grad, unused.grad = torch.tensor([0.0, 1.0, 1.0, 1.0]), torch.zeros(2)
    optimizer.step()
    optimizer.freeze()
    before = values([parameter, unused])
    parameter.grad, unused.grad = torch.full((4,), 0.01), torch.full((2,), 0.01)
    optimizer.step()
    most = 0.1 / (1 - 0.9**2) * 0.01 / (ROOT_FLOOR_RATIO * (3 / 6) ** 0.5) * 1.01
    for now, then in zip([parameter, unused], before, strict=True):
        assert (now.detach() - then).abs().max() < most


def test_the_warm_up_ends_by_itself_once_the_variance_has_settled() -> None:
    parameter = nn.Parameter(torch.zeros(8))
    optimizer = OneBitAdam([parameter], betas=(0.9, 0.9))
    steps = 0
    while not optimizer.wants_freeze:
        parameter.grad = torch.ones(8) * (1.0 if steps > 40 else 1.2**steps)
        optimizer.step()
        steps += 1
        assert steps < 200
    assert steps > 40
    assert steps % 10 == 0


def test_state_survives_a_round_trip_before_and_after_the_freeze() -> None:
    params = parameters()
    optimizer = OneBitAdam(params, freeze=3)
    for step in range(7):
        if optimizer.wants_freeze:
            optimizer.freeze()
        copies = [nn.Parameter(p.detach().clone()) for p in params]
        other = OneBitAdam(copies, freeze=3)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert other.is_frozen == optimizer.is_frozen == (step >= 3)
        give(params, step)
        give(copies, step)
        optimizer.step()
        other.step()
        assert all(torch.equal(a, b) for a, b in zip(params, copies, strict=True))


def test_a_closure_is_called_and_its_loss_returned() -> None:
    params = parameters()
    optimizer = OneBitAdam(params)

    def closure() -> float:
        give(params, 0)
        return 4.0

    assert optimizer.step(closure) == 4.0


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(PlaitError, match=r"betas are \(1\.0, 0\.9\)"):
        OneBitAdam(parameters(), betas=(1.0, 0.9))
    with pytest.raises(PlaitError, match="freeze is 0"):
        OneBitAdam(parameters(), freeze=0)
    first, second = parameters()
    with pytest.raises(PlaitError, match="same betas"):
        OneBitAdam([{"params": [first]}, {"params": [second], "betas": (0.5, 0.9)}])


def test_a_copy_goes_on_as_the_original() -> None:
    weights = [nn.Parameter(torch.linspace(-1.0, 1.0, 7)), nn.Parameter(torch.ones(3, 2))]
    optimizer = OneBitAdam(weights, lr=0.1, freeze=1)
    for step in range(3):
        for weight in weights:
            weight.grad = torch.full_like(weight, step + 1.0)
        optimizer.step()
        if step == 0:
            optimizer.freeze()
    copied, copies = copy.deepcopy((optimizer, weights))
    for each, parameters in ((optimizer, weights), (copied, copies)):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.5)
        each.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, copies, strict=True))


def test_an_early_update_is_that_of_the_step_and_is_not_made_twice() -> None:
    plain, early = parameters(), parameters()
    optimizers = [OneBitAdam(params, lr=0.1, freeze=1) for params in (plain, early)]
    for step in range(4):
        for params, optimizer in zip((plain, early), optimizers, strict=True):
            give(params, step)
            if params is early and step:
                before = values(params)
                optimizer.update_early(params[:1], [g for p in params[:1] if (g := p.grad) is not None])
                assert not torch.equal(params[0], before[0])
                assert torch.equal(params[1], before[1])
            optimizer.step()
            if step == 0:
                optimizer.freeze()
        assert all(torch.equal(a, b) for a, b in zip(plain, early, strict=True))


def test_momenta_move_into_one_run_and_stay_the_state() -> None:
    params = parameters()
    optimizer = OneBitAdam(params, freeze=1)
    give(params, 0)
    optimizer.step()
    optimizer.freeze()
    expected = torch.cat([optimizer.momentum_of(p).reshape(-1) for p in params])
    run = optimizer.momentum_run(params)
    assert torch.equal(run, expected)
    assert optimizer.momentum_run(params) is run
    give(params, 1)
    sent = torch.cat([p.grad.reshape(-1) for p in params if p.grad is not None])
    optimizer.step()
    assert torch.equal(run, sent)
    assert torch.equal(torch.cat([optimizer.state[p]["exp_avg"].reshape(-1) for p in params]), sent)


def test_a_loaded_state_moves_into_a_run_of_its_own() -> None:
    params = parameters()
    optimizer = OneBitAdam(params, freeze=1)
    give(params, 0)
    optimizer.step()
    optimizer.freeze()
    saved = copy.deepcopy(optimizer.state_dict())
    old = optimizer.momentum_run(params)
    give(params, 1)
    optimizer.step()
    optimizer.load_state_dict(saved)
    run = optimizer.momentum_run(params)
    assert run is not old
    assert torch.equal(run, torch.cat([saved["state"][i]["exp_avg"].reshape(-1) for i in range(len(params))]))


def test_parameters_that_are_dealt_anew_move_on_to_the_other_run() -> None:
    params = parameters()
    optimizer = OneBitAdam(params, freeze=1)
    give(params, 0)
    optimizer.step()
    whole = optimizer.momentum_run(params).clone()
    backwards = optimizer.momentum_run(params[::-1])
    assert torch.equal(backwards, torch.cat([whole[12:], whole[:12]]))
    alone = optimizer.momentum_run(params[1:])
    alone.zero_()
    assert not bool(optimizer.momentum_of(params[1]).any())
    assert torch.equal(optimizer.momentum_run(params)[:12], whole[:12])


def test_a_run_in_the_order_of_memory_is_that_of_ddps_buckets() -> None:
    weight = nn.Parameter(torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))
    optimizer = OneBitAdam([weight], freeze=1)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    momentum = optimizer.momentum_of(weight).clone()
    assert torch.equal(optimizer.momentum_run([weight]), momentum.reshape(-1))
    run = optimizer.momentum_run([weight], in_memory_order=True)
    assert torch.equal(run, momentum.permute(0, 2, 3, 1).reshape(-1))
    assert torch.equal(optimizer.momentum_of(weight), momentum)


def test_momenta_of_another_type_are_copied() -> None:
    weight = nn.Parameter(torch.randn(3, 4, dtype=torch.bfloat16))
    optimizer = OneBitAdam([weight], freeze=1)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    run = optimizer.momentum_run([weight])
    assert run.dtype == torch.float32
    assert torch.equal(run, optimizer.momentum_of(weight).float().reshape(-1))
    assert optimizer.momentum_of(weight).dtype == torch.bfloat16
