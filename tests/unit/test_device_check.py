"""The test of a device that failed: what passes, and that one wrong byte or sum is found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from plait.train.device_check import check, check_health, check_memory, check_products

CPU = torch.device("cpu")
SMALL = 1 << 16


def test_a_sound_device_passes() -> None:
    found = check(None, 0, "cpu")
    assert found.passed
    assert "64 MiB read back right 5 times, 8 products of 256 x 256 are exact" in found.detail


def test_memory_that_loses_a_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.Tensor.fill_

    def stuck(tensor: torch.Tensor, value: int) -> torch.Tensor:
        right(tensor, value)
        tensor[17] = int(tensor[17]) & 0xFE
        return tensor

    monkeypatch.setattr(torch.Tensor, "fill_", stuck)
    found = check_memory(CPU, SMALL)
    assert not found.passed
    assert found.detail == "1 of 65536 bytes came back wrong (written 0xff)"


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.Tensor.__matmul__

    def wrong(left: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        product = right(left, other)
        if product.dtype == torch.float32:
            product[3, 5] += 1.0
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    found = check_products(CPU, size=16, count=2)
    assert not found.passed
    assert found.detail == "1 of 256 sums of product 0 are wrong"


def test_a_device_that_cannot_be_used_fails() -> None:
    found = check(None, 0, "npu")
    assert not found.passed
    assert "torch_npu" in found.detail


@pytest.mark.parametrize(
    ("health", "passed", "detail"),
    [
        ("ok", True, "health ok"),
        ("'slowed: power brake'", True, "health slowed: power brake"),
        ("2 uncorrectable memory errors", False, "health 2 uncorrectable memory errors"),
        ("'lost: it does not answer'", False, "health lost: it does not answer"),
    ],
)
def test_the_drivers_word_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, health: str, passed: bool, detail: str
) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(f"devices: [{{type: A100, count: 2, health: {health}}}]")
    monkeypatch.setenv("PLAIT_FAKE_DEVICES", str(file))
    found = check_health("fake", 1)
    assert (found.passed, found.detail) == (passed, detail)
    assert check_health("fake", 2).detail == "its driver does not show device 2"


def test_it_prints_one_line() -> None:
    command = [sys.executable, "-m", "plait.train.device_check", "--kind", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["passed"] is True
