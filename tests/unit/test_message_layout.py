"""Messages of several parameters: matrices by the codec, small tensors in bf16, shards that fit together."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from plait.train.collectives.layout import lay_out
from plait.train.compression import CODECS, BadValues, codec
from plait.train.compression.message import MessageLayout, Run, message_layout, shard_bounds, stretch_layout

SHAPES = ((64, 40), (64,), (), (3, 5), (32, 8, 3, 3), (2000,), (0, 4), (40, 30), (50, 60))


def numbers(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def test_small_and_flat_tensors_are_runs_of_their_own() -> None:
    runs = message_layout(SHAPES).runs
    assert runs == (
        Run(0, 2560, is_small=False),
        Run(2560, 2640, is_small=True),
        Run(2640, 4944, is_small=False),
        Run(4944, 6944, is_small=True),
        Run(6944, 11144, is_small=False),
    )
    assert message_layout(()).count == 0
    assert message_layout(((0, 4),)).runs == ()


def test_the_layout_of_a_stretch_covers_its_parameters() -> None:
    model = nn.Sequential(nn.Linear(100, 200), nn.LayerNorm(200), nn.Linear(200, 10))
    layout = lay_out(list(model.named_parameters()), bucket_bytes=90_000)
    assert len(layout.stretches) > 1
    for stretch in layout.stretches:
        assert stretch_layout(layout, stretch).count == stretch.end - stretch.start


@pytest.mark.parametrize("name", CODECS)
def test_each_run_is_encoded_by_its_codec(name: str) -> None:
    form, layout = codec(name), message_layout(SHAPES)
    values, error = numbers(layout.count), 0.1 * numbers(layout.count, seed=1)
    new_error, out = torch.empty(layout.count), torch.empty(layout.count)
    payload = torch.empty(layout.payload_bytes(form), dtype=torch.uint8)
    layout.encode(form, values, error, new_error, payload)
    layout.decode(form, payload, out)
    assert torch.equal(new_error, (values + error) - out)
    small = torch.cat([torch.arange(run.start, run.end) for run in layout.runs if run.is_small])
    sent = (values + error)[small]
    exact = {"fp32": sent, "fp16": sent.half().float()}.get(name, sent.bfloat16().float())
    assert torch.equal(out[small], exact)
    total = values.clone()
    layout.decode(form, payload, total, add=True)
    assert torch.equal(total, values + out)


@pytest.mark.parametrize("name", CODECS)
def test_the_worker_step_sends_the_weighted_momentum(name: str) -> None:
    form, layout = codec(name), message_layout(SHAPES)
    gradient, state, error = (numbers(layout.count, seed) for seed in range(3))
    c = 0.25 * (0.9 * state + 0.1 * gradient) + error
    payload = torch.empty(layout.payload_bytes(form), dtype=torch.uint8)
    before = state.clone()
    layout.encode_momentum(form, gradient, state, error, payload, new_error=error, beta=0.9, weight=0.25)
    out = torch.empty(layout.count)
    layout.decode(form, payload, out)
    assert torch.allclose(out + error, c, rtol=0, atol=2e-6)
    assert torch.equal(state, before)


def test_sign1_with_its_small_tensors_stays_near_a_31st() -> None:
    layout = message_layout([(768, 768), (768,), (768, 3072), (3072,), (768,)])
    assert 4 * layout.count / layout.payload_bytes(codec("sign1")) > 29.9


def test_shards_hold_what_the_whole_holds() -> None:
    layout, form = message_layout(SHAPES), codec("bf16")
    values, out = numbers(layout.count), torch.empty(layout.count)
    bounds = shard_bounds(layout.count, [1.0, 0.0, 2.5, 0.3])
    assert bounds[0] == 0
    assert bounds[-1] == layout.count
    for start, end in itertools.pairwise(bounds):
        shard = layout.cut(start, end)
        assert shard.count == end - start
        payload = torch.empty(shard.payload_bytes(form), dtype=torch.uint8)
        shard.encode(form, values[start:end], None, None, payload)
        shard.decode(form, payload, out[start:end])
    assert torch.equal(out, values.bfloat16().float())
    assert layout.cut(0, layout.count) == layout
    assert layout.cut(5, 5) == MessageLayout(())


@pytest.mark.parametrize("count", [0, 5, 1024, 5000, 100_000])
@pytest.mark.parametrize("weights", [[1.0], [1, 1, 1], [0, 1], [1, 0, 0], [0.1, 5, 0.2]])
def test_bounds_rise_on_whole_blocks(count: int, weights: list[float]) -> None:
    bounds = shard_bounds(count, weights)
    assert len(bounds) == len(weights) + 1
    assert bounds[0] == 0
    assert bounds[-1] == count
    assert list(bounds) == sorted(bounds)
    assert all(bound % 1024 == 0 or bound == count for bound in bounds)
    for start, end, weight in zip(bounds, bounds[1:], weights, strict=False):
        assert abs((end - start) - count * weight / sum(weights)) <= 1024


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0, 1.0]])
def test_weights_that_make_no_sense_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="not negative and not all zero"):
        shard_bounds(10, weights)


@pytest.mark.parametrize("place", [10, 2600, 11143])
def test_an_infinity_in_any_run_is_refused(place: int) -> None:
    layout, form = message_layout(SHAPES), codec("sign1")
    values, error = numbers(layout.count), torch.zeros(layout.count)
    values[place] = torch.inf
    payload = torch.empty(layout.payload_bytes(form), dtype=torch.uint8)
    with pytest.raises(BadValues):
        layout.encode(form, values, error, torch.empty(layout.count), payload)
    assert not bool(error.any())
