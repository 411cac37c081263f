"""Which plan the members of a generation exchange by: along islands where some have several members."""

from typing import Any

import pytest
import torch

from plait.errors import PlaitError
from plait.train.collectives.gloo import GlooGroup
from plait.train.collectives.routes import Routes
from plait.train.collectives.wires import CodedWire
from plait.train.compression import codec
from plait.train.compression.message import message_layout
from plait.train.ddp import layout_of


@pytest.mark.parametrize(
    ("names", "island_of", "has_islands"),
    [
        (["a"], (0,), False),
        (["a", "a", "a"], (0, 1, 2), False),
        (["a", "b", "c"], (0, 1, 2), False),
        (["a", "b", "a"], (0, 1, 0), True),
        (["x", "y", "y", "y", "z"], (0, 1, 1, 1, 2), True),
    ],
)
def test_names_make_islands(names: list[str], island_of: tuple[int, ...], has_islands: bool) -> None:
    routes = Routes(names)
    assert routes.island_of == island_of
    assert routes.has_islands == has_islands
    plan = routes.of(message_layout([(300, 40)]), codec("sign1")).plan
    assert plan.shape == ("islands" if has_islands else "direct")
    assert plan.size == len(names)


def test_only_values_of_the_other_islands_cross_between_them() -> None:
    """Of two islands, each value crosses once each way, whatever the number of members."""
    message = message_layout([(4096, 64)])
    plan = Routes(["a", "a", "a", "b", "b"]).of(message, codec("sign1")).plan
    across = {link: coded for link, (_, coded) in plan.values_by_link().items() if plan.is_across(*link)}
    assert sum(count for (sender, _), count in across.items() if sender < 3) == message.count
    assert sum(count for (sender, _), count in across.items() if sender >= 3) == message.count


def test_a_route_is_made_once_for_each_message_and_code() -> None:
    routes = Routes(["a", "b"])
    message = message_layout([(64, 64)])
    assert routes.of(message, codec("sign1")) is routes.of(message_layout([(64, 64)]), codec("sign1"))
    assert routes.of(message, codec("bf16")) is not routes.of(message, codec("sign1"))


def test_a_group_without_direct_connections_says_that_it_cannot_compress() -> None:
    layout, parameters = layout_of(torch.nn.Linear(64, 64), 2**20)
    wire = CodedWire("int8", layout, torch.device("cpu"))
    nothing: Any = None
    group = GlooGroup(nothing, nothing, None, Routes([f"host {number}" for number in range(65)]))
    values = torch.zeros(layout.num_elements)
    assert len(parameters) == 2
    with pytest.raises(PlaitError, match="a group of 65 members has no direct connections"):
        wire.start(group, values, layout.stretches[0], 1.0)
