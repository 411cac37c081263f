"""What travels and in what order, and that an exchange which broke is begun again without a trace."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plait.train.collectives.exchange import SumExchange
from plait.train.collectives.fixed import FixedExchange
from plait.train.collectives.layout import FIRST_BUCKET_BYTES, FlatLayout, lay_out
from plait.train.collectives.samples import GradientsChanged
from plait.train.ddp import layout_of, wrapped_alone


def named(sizes: Sequence[int]) -> list[tuple[str, nn.Parameter]]:
    return [(f"p{i}", nn.Parameter(torch.zeros(size))) for i, size in enumerate(sizes)]


SIZES = [[5], [1, 1, 1], [400_000, 3, 500_000, 7, 7, 2_000_000, 1], [0, 4, 0]]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("bucket_bytes", [1, 1000, 4 * 2**20])
def test_stretches_cover_each_parameter_once_and_in_order(sizes: list[int], bucket_bytes: int) -> None:
    layout = lay_out(named(sizes), bucket_bytes)
    assert layout.names == tuple(f"p{i}" for i in reversed(range(len(sizes))))
    assert [i for stretch in layout.stretches for i in stretch.parameters] == list(range(len(sizes)))
    assert [stretch.start for stretch in layout.stretches] == [0, *(stretch.end for stretch in layout.stretches[:-1])]
    assert layout.stretches[-1].end == layout.num_elements == sum(sizes)
    for offset, shape, after in zip(
        layout.offsets, layout.shapes, (*layout.offsets[1:], layout.num_elements), strict=True
    ):
        assert after - offset == torch.Size(shape).numel()


@pytest.mark.parametrize("sizes", SIZES)
def test_a_stretch_is_no_longer_than_asked_unless_it_is_one_parameter(sizes: list[int]) -> None:
    bucket_bytes = 3 * 2**20
    for number, stretch in enumerate(lay_out(named(sizes), bucket_bytes).stretches):
        most = FIRST_BUCKET_BYTES if number == 0 else bucket_bytes
        assert len(stretch.parameters) == 1 or (stretch.end - stretch.start) * 4 <= most


def test_the_digest_tells_models_apart() -> None:
    def digest(*parameters: tuple[str, nn.Parameter]) -> str:
        return lay_out(parameters, 1000).digest()

    plain = ("a", nn.Parameter(torch.zeros(2, 3)))
    same = ("a", nn.Parameter(torch.ones(2, 3)))
    others = [
        ("b", nn.Parameter(torch.zeros(2, 3))),
        ("a", nn.Parameter(torch.zeros(3, 2))),
        ("a", nn.Parameter(torch.zeros(2, 3, dtype=torch.float64))),
    ]
    assert digest(plain) == digest(same)
    assert len({digest(plain), *(digest(other) for other in others)}) == 4
    assert digest(plain, others[0]) != digest(others[0], plain)


def test_frozen_parameters_do_not_travel() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].weight.requires_grad_(False)
    layout, parameters = layout_of(model, 1000)
    assert layout.names == ("1.bias", "1.weight", "0.bias")
    assert layout.num_elements == 1 + 3 + 3
    assert [p.numel() for p in parameters] == [1, 3, 3]


@dataclass
class Work:
    """Already over."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        """Nothing is left to wait for."""


@dataclass
class Twin:
    """A group of two whose other member always sends the same as this one; it notes what was sent."""

    size: int = 2
    sent: list[Tensor] = field(default_factory=list)

    def all_reduce(self, tensor: Tensor, op: Any = None) -> Work:
        self.sent.append(tensor.clone())
        if op is None:
            tensor.mul_(2)
        return Work()

    def rest(self) -> None:
        """Nothing moves by itself."""


def three_layers() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1)).double()


class Alone:
    """A model, its exchange, and the gradient that it must come to."""

    def __init__(self, bucket_bytes: int = 200) -> None:
        self.model = three_layers()
        layout, parameters = layout_of(self.model, bucket_bytes)
        self.layout: FlatLayout = layout
        self.exchange = SumExchange(layout, parameters, torch.float64)
        self.wrapped = wrapped_alone(self.model, self.exchange, find_unused=False)
        self.x = torch.randn(6, 4, dtype=torch.float64)

    def run(self, rows: slice, weight: float, group: Any, *, is_last: bool) -> None:
        self.model.zero_grad()
        self.exchange.begin_chunk(weight, is_last=is_last, group=group)
        self.wrapped(self.x[rows]).mean().backward()

    def gradient(self) -> list[Tensor]:
        model = three_layers()
        model(self.x).mean().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    def check(self, times: float) -> None:
        self.exchange.set_gradients(1.0)
        for mine, wanted in zip(self.model.parameters(), self.gradient(), strict=True):
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad, wanted * times, rtol=1e-12, atol=1e-14)


def test_stretches_leave_during_backward_in_the_layout_s_order() -> None:
    alone, group = Alone(), Twin()
    assert len(alone.layout.stretches) > 2
    alone.exchange.begin_step()
    alone.run(slice(None), 1.0, group, is_last=True)
    assert [t.numel() for t in group.sent] == [s.end - s.start for s in alone.layout.stretches]
    alone.exchange.send_all(group)
    assert len(group.sent) == len(alone.layout.stretches)
    alone.check(2.0)


def test_chunks_add_up_by_their_weights() -> None:
    alone, group = Alone(), Twin()
    alone.exchange.begin_step()
    alone.run(slice(0, 1), 1 / 6, group, is_last=False)
    assert not group.sent
    alone.exchange.keep_chunk()
    alone.run(slice(1, 3), 2 / 6, group, is_last=False)
    alone.exchange.keep_chunk()
    alone.run(slice(3, 6), 3 / 6, group, is_last=True)
    alone.exchange.send_all(group)
    alone.check(2.0)


@pytest.mark.parametrize("num_breaks", [1, 2, 5])
@pytest.mark.parametrize("sends_in_backward", [True, False])
def test_an_exchange_that_broke_is_begun_again_with_the_same_sums(num_breaks: int, sends_in_backward: bool) -> None:
    alone = Alone()
    alone.exchange.begin_step()
    alone.run(slice(0, 2), 2 / 6, None, is_last=False)
    alone.exchange.keep_chunk()
    first = Twin() if sends_in_backward else None
    alone.run(slice(2, 6), 4 / 6, first, is_last=True)
    for _ in range(num_breaks):
        broken = Twin(size=3)
        alone.exchange.send_all(broken)  # what came of it is garbage, and its buffer may still be written to
        alone.exchange.abandon()
    group = Twin()
    alone.exchange.send_all(group)
    assert [t.numel() for t in group.sent] == [s.end - s.start for s in alone.layout.stretches]
    alone.check(2.0)


def test_work_that_is_dealt_anew_after_a_break_is_added() -> None:
    alone = Alone()
    alone.exchange.begin_step()
    alone.run(slice(0, 4), 4 / 6, Twin(), is_last=True)
    alone.exchange.abandon()
    alone.exchange.keep_chunk()
    group = Twin()
    alone.run(slice(4, 6), 2 / 6, group, is_last=True)
    alone.exchange.send_all(group)
    alone.check(2.0)


def test_a_member_without_work_sends_zeros() -> None:
    alone, group = Alone(), Twin()
    alone.exchange.begin_step()
    alone.exchange.send_all(group)
    assert sum(t.numel() for t in group.sent) == alone.layout.num_elements
    assert all(not t.any() for t in group.sent)


def test_a_group_of_one_sends_nothing() -> None:
    alone, group = Alone(), Twin(size=1)
    alone.exchange.begin_step()
    alone.run(slice(None), 1.0, group, is_last=True)
    alone.exchange.send_all(group)
    assert not group.sent
    alone.check(1.0)


def test_gradients_that_were_changed_after_backward_are_noticed() -> None:
    alone = Alone()
    alone.exchange.begin_step()
    alone.run(slice(None), 1.0, Twin(), is_last=True)
    alone.exchange.check_untouched()
    nn.utils.clip_grad_norm_(alone.model.parameters(), 1e-3)
    with pytest.raises(GradientsChanged):
        alone.exchange.check_untouched()


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_infinity_in_the_sums_is_seen(bad: float) -> None:
    alone, group = Alone(), Twin()
    alone.exchange.begin_step()
    alone.run(slice(None), 1.0, group, is_last=True)
    alone.exchange.send_all(group)
    assert not alone.exchange.has_bad_values()
    alone.x[0, 0] = bad
    alone.exchange.begin_step()
    alone.run(slice(None), 1.0, group, is_last=True)
    alone.exchange.send_all(group)
    assert alone.exchange.has_bad_values()


def test_kept_results_give_the_same_gradients_later() -> None:
    alone, group = Alone(), Twin()
    alone.exchange.begin_step()
    alone.run(slice(None), 1.0, group, is_last=True)
    alone.exchange.send_all(group)
    kept = alone.exchange.result()
    alone.exchange.begin_step()
    alone.run(slice(0, 1), 7.0, group, is_last=True)
    alone.exchange.send_all(group)
    alone.exchange.take_result(kept)
    alone.check(2.0)


def test_fixed_point_results_are_kept_with_their_scale() -> None:
    """A joiner keeps what others summed while its own scale has never seen a step."""
    donor, joiner = three_layers(), three_layers()
    exchanges = []
    for model in (donor, joiner):
        layout, parameters = layout_of(model, 200)
        del layout
        exchanges.append(FixedExchange(parameters, 3))
    first, second = exchanges
    x = torch.randn(3, 4, dtype=torch.float64) * 50.0
    for _ in range(2):
        first.begin_step()
        second.scale = first.scale
        second.begin_step()
        for k in range(3):
            donor.zero_grad()
            first.begin_chunk(1 / 3, is_last=k == 2, group=None)
            first.at(k)
            donor(x[k : k + 1]).mean().backward()
            first.keep_chunk()
        first.send_all(Twin(size=1))
        second.send_all(Twin(size=1))
        assert first.result()[2].tolist() == second.result()[2].tolist()
        kept = first.result()
        first.verdict()
        first.set_gradients(1.0)
        second.take_result(kept)
        second.set_gradients(1.0)
        assert first.scale == second.scale
        for mine, theirs in zip(donor.parameters(), joiner.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            assert torch.equal(mine.grad, theirs.grad)
