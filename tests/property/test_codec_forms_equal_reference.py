"""Every fast form of a codec sends the bits of the NumPy reference, and scales equal to it up to rounding."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.train.compression import reference
from plait.train.compression.int8 import Int8
from plait.train.compression.reference import Floats
from plait.train.compression.sign1 import Sign1
from plait.train.compression.top_k import TopK

SCALE_TOLERANCE = 1e-6
SMALLEST = 1.5e-45
"""Of denormal scales the last bit is all there is."""

counts = st.one_of(st.integers(0, 40), st.integers(1000, 1050), st.integers(2040, 5000), st.just(65_536 + 1024 + 3))
magnitudes = st.sampled_from((0.0, 1e-45, 1e-42, 1e-38, 1e-20, 1.0, 3e5, 1e30, 8e37))
parametrize_numba = pytest.mark.parametrize("use_numba", [True, False], ids=["numba", "without"])


@st.composite
def runs(draw: st.DrawFn, number: int) -> list[Floats]:
    """Runs of one length whose blocks have magnitudes of their own, at any place of their storage."""
    count, offset, seed = draw(counts), draw(st.integers(0, 3)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    pieces = draw(st.lists(magnitudes, min_size=1, max_size=4))
    size = np.resize(np.repeat(np.array(pieces, np.float32), 700), count)
    made = []
    for _ in range(number):
        room = np.zeros(count + 4, np.float32)
        values = room[offset : offset + count]
        values[:] = rng.uniform(-1, 1, count).astype(np.float32) * size
        values[rng.random(count) < 0.1] = draw(st.sampled_from((0.0, -0.0)))
        made.append(values)
    return made


tensor = torch.from_numpy


def check_sign1(message: np.ndarray[Any, Any], c: Floats) -> None:
    expected, _ = reference.sign1_encode(c)
    split = 4 * reference.num_blocks(len(c))
    np.testing.assert_array_equal(message[split:], expected[split:])
    scales, wanted = message[:split].view(np.float32), expected[:split].view(np.float32)
    np.testing.assert_allclose(scales, wanted, rtol=SCALE_TOLERANCE, atol=SMALLEST)


@parametrize_numba
@given(given_runs=runs(2))
def test_sign1_sends_the_bits_of_the_reference(use_numba: bool, given_runs: list[Floats]) -> None:
    values, error = given_runs
    form, c = Sign1(use_numba), values + error
    message = torch.empty(form.wire_bytes(len(c)), dtype=torch.uint8)
    new_error = torch.empty(len(c))
    form.encode(tensor(values), tensor(error), new_error, message)
    check_sign1(message.numpy(), c)
    sent = reference.sign1_decode(message.numpy(), len(c))
    np.testing.assert_array_equal(new_error.numpy(), c - sent)
    out = torch.empty(len(c))
    form.decode(message, out)
    np.testing.assert_array_equal(out.numpy(), sent)


@parametrize_numba
@given(
    given_runs=runs(3), beta=st.sampled_from((0.0, 0.5, 0.9, 0.999)), weight=st.sampled_from((1.0, 0.25, 1 / 3, 0.07))
)
def test_the_worker_step_is_that_of_the_reference(
    use_numba: bool, given_runs: list[Floats], beta: float, weight: float
) -> None:
    gradient, state, error = given_runs
    form, c = Sign1(use_numba), reference.momentum(gradient, state, error, beta, weight)
    kept = [each.copy() for each in given_runs]
    message = torch.empty(form.wire_bytes(len(c)), dtype=torch.uint8)
    new_error = torch.empty(len(c))
    g, m, e = tensor(gradient), tensor(state), tensor(error)
    form.encode_momentum(g, m, e, new_error, message, beta=beta, weight=weight)
    check_sign1(message.numpy(), c)
    np.testing.assert_array_equal(new_error.numpy(), c - reference.sign1_decode(message.numpy(), len(c)))
    for now, before in zip((gradient, state, error), kept, strict=True):
        np.testing.assert_array_equal(now, before)
    form.encode_momentum(g, m, e, e, message, beta=beta, weight=weight)
    np.testing.assert_array_equal(e.numpy(), new_error.numpy())


@parametrize_numba
@given(given_runs=runs(2))
def test_int8_sends_the_bytes_of_the_reference(use_numba: bool, given_runs: list[Floats]) -> None:
    values, error = given_runs
    form, c = Int8(use_numba), values + error
    message = torch.empty(form.wire_bytes(len(c)), dtype=torch.uint8)
    new_error = torch.empty(len(c))
    form.encode(tensor(values), tensor(error), new_error, message)
    expected, lost = reference.int8_encode(c)
    np.testing.assert_array_equal(message.numpy(), expected)
    np.testing.assert_array_equal(new_error.numpy(), lost)
    out = torch.empty(len(c))
    form.decode(message, out)
    np.testing.assert_array_equal(out.numpy(), reference.int8_decode(expected, len(c)))


@given(given_runs=runs(2), ratio=st.sampled_from((0.001, 0.1, 0.5, 1.0)))
def test_top_k_sends_what_the_reference_sends(given_runs: list[Floats], ratio: float) -> None:
    values, error = given_runs
    form, c = TopK(ratio), values + error
    message = torch.empty(form.wire_bytes(len(c)), dtype=torch.uint8)
    new_error = torch.empty(len(c))
    form.encode(tensor(values), tensor(error), new_error, message)
    expected, lost = reference.top_k_encode(c, ratio)
    np.testing.assert_array_equal(message.numpy(), expected)
    np.testing.assert_array_equal(new_error.numpy(), lost)
    out = torch.empty(len(c))
    form.decode(message, out)
    np.testing.assert_array_equal(out.numpy(), reference.top_k_decode(expected, len(c)))


@parametrize_numba
@pytest.mark.parametrize("where", [0, 15, 16, 1023, 1024, 1040])
def test_a_worker_step_with_an_infinity_leaves_everything_as_it_was(use_numba: bool, where: int) -> None:
    form = Sign1(use_numba)
    gradient, state, error = (torch.ones(1041) for _ in range(3))
    gradient[where] = torch.nan
    message = torch.empty(form.wire_bytes(1041), dtype=torch.uint8)
    with pytest.raises(Exception, match="infinity or NaN"):
        form.encode_momentum(gradient, state, error, torch.empty(1041), message, beta=0.9, weight=0.5)
    assert bool((state == 1).all())
    assert bool((error == 1).all())


def test_the_scale_of_int8_never_overflows() -> None:
    largest = np.finfo(np.float32).max
    message, lost = reference.int8_encode(np.array([largest, -largest], np.float32))
    assert np.isfinite(reference.int8_decode(message, 2)).all()
    assert np.isfinite(lost).all()
