"""Which kernels are used where Numba, Triton or a place for compiled code is missing; Triton's in its interpreter."""

import importlib.util
import os
import subprocess
import sys

import pytest

from plait.errors import PlaitError
from plait.train.compression import forms

HAS_TRITON = importlib.util.find_spec("triton") is not None

PROGRAM = """
import numpy as np
import torch
from plait.train.compression import gpu, reference
from plait.train.compression.sign1 import parts

rng = np.random.default_rng(0)
for count in (0, 1, 7, 8, 17, 1023, 1024, 1025, 3000):
    for size in (0.0, 1e-40, 1.0, 1e38):
        gradient, state, error = (
            torch.from_numpy((rng.uniform(-2, 2, count) * size).astype(np.float32)) for _ in range(3)
        )
        split = 4 * reference.num_blocks(count)
        message = torch.full((reference.sign1_bytes(count),), 77, dtype=torch.uint8)
        lost, out = torch.empty(count), torch.empty(count)
        factors = tuple(float(each) for each in reference.momentum_factors(0.9, 0.3))
        c = reference.momentum(gradient.numpy(), state.numpy(), error.numpy(), 0.9, 0.3)
        wanted, _ = reference.sign1_encode(c)
        for run in ("momentum", "plain"):
            if run == "momentum":
                assert gpu.sign1_momentum(gradient, state, error, lost, factors, *parts(message, count))
            else:
                assert gpu.sign1_encode(torch.from_numpy(c), None, lost, *parts(message, count))
            assert np.array_equal(message[split:].numpy(), wanted[split:])
            scales = message[:split].numpy().view(np.float32)
            assert np.allclose(scales, wanted[:split].view(np.float32), rtol=1e-6, atol=1.5e-45)
            gpu.sign1_decode(*parts(message, count), out, False)
            assert np.array_equal(out.numpy(), reference.sign1_decode(message.numpy(), count))
            assert np.array_equal(lost.numpy(), c - out.numpy())
        if size < 1e38:
            message = torch.full((reference.int8_bytes(count),), 77, dtype=torch.uint8)
            scales, levels = message[:split].view(torch.float32), message[split:]
            assert gpu.int8_encode(gradient, error, lost, scales, levels)
            wanted, expected = reference.int8_encode((gradient + error).numpy())
            assert np.array_equal(message.numpy(), wanted)
            assert np.array_equal(lost.numpy(), expected)
            total = state.clone()
            gpu.int8_decode(scales, levels, total, True)
            assert np.array_equal(total.numpy(), state.numpy() + reference.int8_decode(wanted, count))
for bad in (np.inf, np.nan):
    values = torch.ones(2000)
    values[1500] = bad
    message = torch.empty(reference.sign1_bytes(2000), dtype=torch.uint8)
    assert not gpu.sign1_encode(values, None, None, *parts(message, 2000))
    message = torch.empty(reference.int8_bytes(2000), dtype=torch.uint8)
    assert not gpu.int8_encode(values, None, None, message[:8].view(torch.float32), message[8:])
print("equal")
"""


@pytest.mark.skipif(HAS_TRITON, reason="Triton is installed")
def test_without_triton_a_sentence_says_what_to_install() -> None:
    with pytest.raises(PlaitError, match="pip install triton"):
        forms.graphics_kernels()


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_interpreted_kernels_equal_the_reference() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "equal", done.stderr


def test_numba_kernels_that_are_not_wanted_are_not_loaded() -> None:
    assert forms.numba_kernels(wanted=False) is None


def test_without_numba_the_other_form_is_used_unless_it_is_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_is_installed", lambda _: False)
    assert forms.numba_kernels(wanted=None) is None
    with pytest.raises(PlaitError, match=r"plait\[fast\]"):
        forms.numba_kernels(wanted=True)


def test_kernels_work_where_compiled_code_cannot_be_kept() -> None:
    program = """
import numpy as np
from numba.core import caching
(getattr(caching, "CacheImpl", None) or caching._CacheImpl)._locator_classes = []
from plait.train.compression import cpu
out = np.zeros(3, np.float32)
cpu.sign1_decode(np.full(1, 2, np.float32), np.array([5], np.uint8), out, False)
print(out.tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[2.0, -2.0, 2.0]", done.stderr
