"""What every codec has to keep, whatever it sends. A new codec is one more line in ``CODECS``."""

import numpy as np
import pytest
import torch
from torch import Tensor

from plait.errors import PlaitError
from plait.train.compression import CODECS, BadValues, Codec, codec, warm_up
from plait.train.compression.int8 import Int8
from plait.train.compression.sign1 import Sign1
from plait.train.compression.top_k import TopK

FORMS: dict[str, Codec] = {
    **{name: make() for name, make in CODECS.items()},
    "sign1 without Numba": Sign1(use_numba=False),
    "int8 without Numba": Int8(use_numba=False),
    "top_k of a half": TopK(ratio=0.5),
}
SIZES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 1023, 1024, 1025, 2047, 3000, 65_536 + 2 * 1024 + 13)
KINDS = ("normal", "zero", "tiny", "huge", "mixed", "minus_zero")

parametrize_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def values_of(kind: str, count: int, seed: int = 0, limit: float = 1.0) -> Tensor:
    """Values that begin 4 bytes behind the start of their storage, so that no kernel may count on more."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(count).astype(np.float32)
    data = {
        "normal": normal,
        "zero": np.zeros(count, np.float32),
        "tiny": rng.integers(-900, 900, count).astype(np.float32) * np.float32(1.4e-45),
        "huge": np.clip(normal, -2, 2) * np.float32(1e38) * np.float32(limit),
        "mixed": normal * rng.choice([0, 1e-30, 1, 1e20], count).astype(np.float32) * np.float32(limit),
        "minus_zero": np.full(count, -0.0, np.float32),
    }[kind]
    whole = torch.full((count + 2,), 7.0)
    whole[1 : count + 1] = torch.from_numpy(data)
    return whole[1 : count + 1]


def encoded(form: Codec, values: Tensor, error: Tensor | None = None, new_error: Tensor | None = None) -> Tensor:
    """The message, with bytes around it that have to stay as they are."""
    size = form.wire_bytes(len(values))
    room = torch.full((size + 8,), 170, dtype=torch.uint8)
    form.encode(values, error, new_error, room[4 : size + 4])
    assert bool((room[:4] == 170).all())
    assert bool((room[size + 4 :] == 170).all())
    return room[4 : size + 4]


def decoded(form: Codec, message: Tensor, count: int) -> Tensor:
    out = torch.full((count,), torch.nan)
    form.decode(message, out)
    return out


def limit_of(form: Codec) -> float:
    return 1e-36 if form.name == "fp16" else 1.0


def test_numbers_on_the_wire_are_unique_and_names_are_their_own() -> None:
    codecs = [make() for make in CODECS.values()]
    assert len({each.code for each in codecs}) == len(codecs)
    assert [each.name for each in codecs] == list(CODECS)
    assert all(0 < each.code < 256 for each in codecs)


def test_a_wrong_name_is_told_with_the_nearest_right_one() -> None:
    with pytest.raises(PlaitError, match=r"'sing1'.*sign1"):
        codec("sing1")


@parametrize_form
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_and_what_is_lost_add_up_to_what_was_given(form: Codec, kind: str) -> None:
    for count in SIZES:
        values = values_of(kind, count, limit=limit_of(form))
        error = values_of(kind, count, seed=1, limit=limit_of(form) / 4)
        kept = error.clone()
        new_error = torch.full((count,), torch.nan)
        message = encoded(form, values, error, new_error)
        assert torch.equal(error, kept)
        # Each form computes the loss as c - sent, rounded once.
        assert torch.equal(new_error, (values + error) - decoded(form, message, count))


@parametrize_form
@pytest.mark.parametrize("count", [0, 9, 17, 1025, 3000])
def test_what_is_sent_does_not_depend_on_where_losses_go(form: Codec, count: int) -> None:
    values, error = values_of("normal", count), values_of("normal", count, seed=1)
    new_error = torch.empty(count)
    sent = decoded(form, encoded(form, values, error, new_error), count)
    in_place, over_values = error.clone(), values.clone()
    messages = (
        encoded(form, values, error),
        encoded(form, values, in_place, in_place),
        encoded(form, over_values, error, over_values),
    )
    for message in messages:  # a scale may be summed in another order
        assert torch.allclose(decoded(form, message, count), sent, rtol=1e-6, atol=0)
    for lost in (in_place, over_values):
        assert torch.allclose(lost, new_error, rtol=0, atol=1e-6)
    without = decoded(form, encoded(form, values), count)
    assert torch.allclose(without, decoded(form, encoded(form, values, torch.zeros(count)), count), rtol=1e-6, atol=0)


@parametrize_form
@pytest.mark.parametrize("count", [0, 9, 17, 1025, 3000])
def test_adding_is_decoding_and_then_adding(form: Codec, count: int) -> None:
    message = encoded(form, values_of("normal", count))
    out = values_of("normal", count, seed=2)
    expected = out + decoded(form, message, count)
    form.decode(message, out, add=True)
    assert torch.equal(out, expected)


@parametrize_form
@pytest.mark.parametrize("kind", ["zero", "minus_zero"])
def test_zeros_stay_zeros(form: Codec, kind: str) -> None:
    values = torch.cat([values_of(kind, 1024), values_of("normal", 1024), values_of(kind, 100)])
    new_error = torch.full((len(values),), torch.nan)
    out = decoded(form, encoded(form, values, None, new_error), len(values))
    assert not bool(out[:1024].any())
    assert not bool(out[2048:].any())
    assert not bool(new_error[:1024].any())


@parametrize_form
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_no_infinity_is_sent_and_none_gets_into_the_error(form: Codec, bad: float) -> None:
    for in_error, where in ((False, 0), (False, 1030), (True, 1030), (True, 2999)):
        values, error = values_of("normal", 3000), values_of("normal", 3000, seed=1)
        (error if in_error else values)[where] = bad
        kept_values, kept_error = values.clone(), error.clone()
        with pytest.raises(BadValues, match="infinity or NaN"):
            encoded(form, values, error, torch.empty(3000))
        assert torch.equal(values.nan_to_num(), kept_values.nan_to_num())
        assert torch.equal(error.nan_to_num(), kept_error.nan_to_num())


@parametrize_form
def test_nothing_is_lost_over_many_steps(form: Codec) -> None:
    count, steps = 2500, 60
    error, spare = torch.zeros(count), torch.empty(count)
    given, arrived = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    for step in range(steps):
        values = values_of("normal", count, seed=step)
        arrived += decoded(form, encoded(form, values, error, spare), count)
        error, spare = spare, error
        given += values
    # Each step rounds c and the loss once, to values of the size of the largest.
    assert torch.allclose(arrived + error, given, rtol=0, atol=steps * 2e-6)
    if form.feeds_back:
        assert float((arrived - given).norm()) < 0.9 * float(given.norm())


@parametrize_form
def test_warming_up_works_and_leaves_no_trace(form: Codec) -> None:
    message = encoded(form, values_of("normal", 100))
    warm_up(form)
    assert torch.equal(encoded(form, values_of("normal", 100)), message)
