"""``custom_ops`` of a device type take effect in a session of that type, and in no other."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import plait
from plait.spec.job import DevicePrecision, Precision, PrecisionPlan
from plait.train.operators.registry import REFERENCES, register

DATA = TensorDataset(
    torch.randn(16, 4, 6, generator=torch.Generator().manual_seed(0)), torch.zeros(16, dtype=torch.int64)
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a launcher is about."""
    names = ("PLAIT_SEEDS", "PLAIT_JOB", "PLAIT_MEMBER", "PLAIT_SPLIT", "PLAIT_FAULTS", "PLAIT_RUN_DIR", "PLAIT_AGENT")
    for name in (*names, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PLAIT_ACCELERATOR_TYPE"):
        monkeypatch.delenv(name, raising=False)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        x = torch.softmax(x @ x.transpose(-2, -1), dim=-1) @ x
        result: Tensor = self.last(x.mean(dim=1))
        return result


def train(accelerator_type: str, *custom_ops: str, precision: Precision = "fp32") -> tuple[list[float], Net]:
    entry = DevicePrecision(accelerator_type=accelerator_type, precision=precision, custom_ops=custom_ops)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    losses: list[float] = []
    with plait.session(global_batch_size=8, micro_batches=2, precision=PrecisionPlan(device_specific=(entry,))) as run:
        model, wrapped, loader = run.prepare(net, optimizer, DATA, epochs=3)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            wrapped.step()
            wrapped.zero_grad()
            losses.append(float(loss.detach()))
    return losses, net


def test_own_operators_train_to_the_same_losses(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "plait"):
        own, _ = train("CPU", "layer_norm", "softmax")
    assert "softmax runs as online softmax" in caplog.messages
    assert own == pytest.approx(train("CPU")[0], rel=1e-4)
    assert own[-1] < own[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_they_run_within_the_session_and_not_behind_it(monkeypatch: pytest.MonkeyPatch, precision: Precision) -> None:
    seen: list[str] = []

    def watching(name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return REFERENCES[name](*args, **kwargs)

        return run

    monkeypatch.setattr("plait.train.operators.registry._registered", {})
    for name in ("layer_norm", "softmax"):
        register(name, "cpu", "watched", watching(name))
    losses, net = train("CPU", "softmax", precision=precision)
    assert seen == ["softmax"] * len(losses)
    net(torch.zeros(1, 4, 6))
    assert len(seen) == len(losses)


def test_another_types_operators_leave_this_one_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "plait"):
        train("A100", "softmax")
    assert not [text for text in caplog.messages if "softmax" in text]
