import hashlib
from collections.abc import Sequence
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.train.bitwise import (
    FIRST_MAX_ABS,
    GROWTH_BITS,
    FixedPointScale,
    FixedSum,
    Verdict,
    exponent_for,
    from_fixed,
    from_fixed_reference,
    judge,
    limit_of,
    to_fixed,
    to_fixed_reference,
)

SHAPES = [(5, 3), (7,), ()]


def micro_gradients(seed: int, step: int, k: int, spike: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed * 10_007 + step * 101 + k)
    scales = torch.tensor([1.0, 1e-6, 1e4]) * spike
    return [torch.randn(shape, generator=generator) * scale for shape, scale in zip(SHAPES, scales, strict=True)]


def run_step(
    scale: FixedPointScale, parts: Sequence[Sequence[int]], num_terms: int, *, seed: int, step: int, spike: float = 1.0
) -> tuple[FixedPointScale, list[Tensor], int]:
    """Returns the next scale, the gradients and how many times the step was run."""
    runs = 0
    while True:
        runs += 1
        exponents = scale.exponents(num_terms)
        members = [FixedSum([torch.empty(s) for s in SHAPES], exponents, num_terms) for _ in parts]
        for member, ks in zip(members, parts, strict=True):
            for k in ks:
                member.add(k, micro_gradients(seed, step, k, spike))
        sums = torch.stack([member.sums for member in members]).sum(0)
        step_max = torch.stack([member.maxima for member in members]).amax(0).tolist()
        verdict = judge(step_max, exponents, num_terms)
        if verdict is Verdict.GOOD:
            return scale.after(step_max), members[0].gradients(sums), runs
        assert verdict is Verdict.MISFIT
        scale = scale.after(step_max)


def any_parts(data: st.DataObject, num_terms: int) -> list[list[int]]:
    owner = [data.draw(st.integers(0, 3)) for _ in range(num_terms)]
    order = data.draw(st.permutations(range(num_terms)))
    return [[k for k in order if owner[k] == member] for member in range(4)]


@given(st.data(), st.integers(1, 20), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_bits_do_not_depend_on_split_order_or_membership(data: st.DataObject, num_terms: int, seed: int) -> None:
    alone = mixed = FixedPointScale.start(len(SHAPES))
    hashes = (hashlib.sha256(), hashlib.sha256())
    for step in range(4):
        spike = data.draw(st.sampled_from([1.0, 1.0, 1e5, 1e-9]))
        alone, expected, runs = run_step(alone, [range(num_terms)], num_terms, seed=seed, step=step, spike=spike)
        mixed, got, runs_mixed = run_step(
            mixed, any_parts(data, num_terms), num_terms, seed=seed, step=step, spike=spike
        )
        assert alone == mixed
        assert runs == runs_mixed <= 2
        for digest, gradients in zip(hashes, (expected, got), strict=True):
            digest.update(b"".join(g.numpy().tobytes() for g in gradients))
        exact = [sum(micro_gradients(seed, step, k, spike)[i].double() for k in range(num_terms)) for i in range(3)]
        largest = [
            max(float(micro_gradients(seed, step, k, spike)[i].abs().max()) for k in range(num_terms)) for i in range(3)
        ]
        for g, e, m in zip(got, exact, largest, strict=True):
            assert isinstance(e, Tensor)
            assert float((g.double() - e).abs().max()) <= 2.0**-23 * float(e.abs().max()) + num_terms * m * 2.0**-30
    assert hashes[0].hexdigest() == hashes[1].hexdigest()


def test_a_plain_float_sum_does_depend_on_the_split() -> None:
    # Guards the test above: were the gradients trivial, any sum would pass it.
    terms = [micro_gradients(1, 0, k)[0] for k in range(12)]
    one = torch.stack(terms).sum(0)
    two = torch.stack(terms[:5]).sum(0) + torch.stack(terms[5:]).sum(0)
    assert not torch.equal(one, two)


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50),
    st.integers(1, 300),
)
def test_fixed_point_equals_the_reference_bit_for_bit(values: list[float], num_terms: int) -> None:
    plain = np.array(values, dtype=np.float32)
    largest = float(np.abs(plain).max()) or 1.0
    exponent = exponent_for(largest, num_terms)
    fixed = to_fixed(torch.from_numpy(plain), exponent)
    np.testing.assert_array_equal(fixed.numpy(), to_fixed_reference(plain, exponent))
    assert int(fixed.abs().max()) * num_terms <= 2**62
    back = from_fixed(fixed, exponent, torch.float32)
    assert back.numpy().tobytes() == from_fixed_reference(fixed.numpy(), exponent).tobytes()
    kept = np.abs(plain) >= largest * 2.0 ** -(62 - 9 - 25)
    np.testing.assert_array_equal(back.numpy()[kept], plain[kept])


def test_the_largest_sum_fits_and_the_next_exponent_would_not() -> None:
    for num_terms in (1, 2, 3, 256, 257):
        for largest in (1.0, 0.999, 3e38, 1e-40):
            exponent = exponent_for(largest, num_terms)
            assert num_terms * largest * 2.0**exponent <= 2.0**62
            assert limit_of(exponent, num_terms) >= largest
            assert limit_of(exponent + 1, num_terms) <= largest or largest == 1.0


@pytest.mark.parametrize("bad", [inf, nan, 0.0, -1.0])
def test_a_scale_of_no_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite positive maximum"):
        exponent_for(bad, 4)


@pytest.mark.parametrize("bad", [inf, -inf, nan])
def test_a_gradient_that_is_not_finite_is_told_by_the_maximum(bad: float) -> None:
    scale = FixedPointScale.start(2)
    part = FixedSum([torch.empty(3), torch.empty(1)], scale.exponents(4), 4)
    part.add(0, [torch.tensor([1.0, bad, 2.0]), None])
    part.add(1, [torch.tensor([1.0, 5.0, 2.0]), torch.ones(1)])
    assert part.maxima.tolist() == [inf, 1.0]
    assert judge(part.maxima.tolist(), part.exponents, 4) is Verdict.NOT_FINITE


def test_growth_beyond_the_head_room_is_an_overflow_and_the_redo_fits() -> None:
    scale = FixedPointScale((1.0,)).after([1.0])
    edge = 2.0 ** (GROWTH_BITS + 1)
    assert judge([edge], scale.exponents(8), 8) is Verdict.GOOD
    assert judge([edge * 1.01], scale.exponents(8), 8) is Verdict.MISFIT
    assert judge([edge * 1.01], scale.after([edge * 1.01]).exponents(8), 8) is Verdict.GOOD


def test_a_gradient_too_small_for_the_scale_is_a_misfit_and_the_redo_fits() -> None:
    scale = FixedPointScale((1.0,))
    assert judge([2.0**-17], scale.exponents(16), 16) is Verdict.GOOD
    assert judge([2.0**-30], scale.exponents(16), 16) is Verdict.MISFIT
    assert judge([2.0**-30], scale.after([2.0**-30]).exponents(16), 16) is Verdict.GOOD
    assert judge([0.0], scale.exponents(16), 16) is Verdict.GOOD


def test_a_tensor_without_gradient_keeps_its_scale() -> None:
    assert FixedPointScale.start(2).after([0.0, 3.0]).max_abs == (FIRST_MAX_ABS, 3.0)


def test_the_same_micro_batch_twice_is_refused() -> None:
    part = FixedSum([torch.empty(1)], (10,), 2)
    part.add(1, [torch.ones(1)])
    with pytest.raises(ValueError, match="micro-batch 1 is already in the sum"):
        part.add(1, [torch.ones(1)])


def test_low_precision_and_double_gradients_keep_their_type() -> None:
    like = [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float64)]
    part = FixedSum(like, (40, 40), 2)
    part.add(0, [torch.tensor([1.5, -2.0], dtype=torch.bfloat16), torch.tensor([0.25, 3.0], dtype=torch.float64)])
    back = part.gradients(part.sums)
    assert [g.dtype for g in back] == [torch.bfloat16, torch.float64]
    assert [g.tolist() for g in back] == [[1.5, -2.0], [0.25, 3.0]]
