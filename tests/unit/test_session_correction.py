"""While a session runs, what its steps take corrects the ways that were measured, on all members alike."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
import torch

from plait.train.collectives.mesh import Mesh, MeshWork
from plait.train.collectives.planned import PlannedSum
from plait.train.collectives.routes import WINDOW_STEPS, Routes
from plait.train.collectives.travel import TimedBackEnd, Travel, travel_of
from plait.train.comm.known import KnownNetwork
from plait.train.comm.planner import WINDOWS, Network, Table, candidates
from plait.train.compression import codec
from plait.train.compression.message import message_layout

MEMBERS = ("a", "a", "b", "b")
COUNT = 2**18
Meshes = Callable[[int], AbstractContextManager[list[Mesh]]]
Finish = Callable[[Sequence[MeshWork]], None]


def known() -> KnownNetwork:
    """Of two islands whose ways were all tried, and take about the same."""
    net = Network(
        island_of=(0, 0, 1, 1),
        latency_s=((1e-5, 1e-4), (1e-4, 1e-5)),
        bytes_per_s=((5e9, 1e8), (1e8, 5e9)),
        uplink_bytes_per_s=(1e8, 1e8),
        codec_s_per_byte={},
    )
    table = Table(net, candidates(net, []), {"fp32": 1.0})
    seconds = {"islands": 0.010, "leaders": 0.011, "ring": 0.012}
    table.measured_s = {way: [(4 * COUNT, seconds.get(way.shape, 0.03))] for way in table.candidates}
    return KnownNetwork.of(MEMBERS, table)


def test_all_members_go_another_way_after_the_same_step_and_their_sums_stay_right(
    meshes: Meshes, finish: Finish
) -> None:
    message, fp32 = message_layout([(COUNT, 1)]), codec("fp32")
    routes = [Routes(MEMBERS, known()) for _ in MEMBERS]
    shapes = []
    with meshes(4) as group:
        for _ in range(WINDOW_STEPS * (WINDOWS + 1)):
            values = [torch.full((COUNT,), float(mesh.rank + 1)) for mesh in group]
            works = []
            for mesh, own, mine in zip(group, routes, values, strict=True):
                route = own.of(message, fp32)

                def make(key: Any, ranks: Any, mesh: Any = mesh, mine: Any = mine, route: Any = route) -> PlannedSum:
                    return PlannedSum(mesh, key, ranks, mine, route)

                works.append(mesh.start(make))
            finish(works)
            assert all(bool((mine == 10.0).all()) for mine in values)
            travels = [travel_of([work]) for work in works]
            assert all(each is not None and each.seconds > 0.0 for each in travels)
            assert {(each.codec, each.sizes_bytes) for each in travels if each} == {("fp32", (4 * COUNT,))}
            shape = routes[0].of(message, fp32).plan.shape
            seconds = 0.05 if shape == "islands" else 0.011
            told = [own.observe(each, seconds) for own, each in zip(routes, travels, strict=True) if each]
            assert told[0] == told[1] == told[2] == told[3]
            shapes.append((shape, bool(told[0])))
    assert shapes[0] == ("islands", False)
    at = WINDOW_STEPS * WINDOWS - 1
    assert [number for number, (_, switched) in enumerate(shapes) if switched] == [at]
    assert {shape for shape, _ in shapes[: at + 1]} == {"islands"}
    assert {shape for shape, _ in shapes[at + 1 :]} == {"leaders"}
    assert routes[2].switches == [f"{4 * COUNT} bytes: leaders fp32 in place of islands fp32"]


def test_a_step_that_takes_what_was_predicted_changes_nothing() -> None:
    routes = Routes(MEMBERS, known())
    for _ in range(WINDOW_STEPS * 2 * WINDOWS):
        assert not routes.observe(Travel(codec="fp32", sizes_bytes=(4 * COUNT, 4 * COUNT), seconds=1.0), 0.0205)
    assert not Routes(MEMBERS).observe(Travel(codec="fp32", sizes_bytes=(8,), seconds=1.0), 1.0), "nothing is known"
    assert not routes.observe(Travel(codec="bf16", sizes_bytes=(8,), seconds=1.0), 1.0), "it has no table"


def test_steps_that_are_held_up_now_and_then_change_nothing() -> None:
    routes = Routes(MEMBERS, known())
    for number in range(WINDOW_STEPS * 4 * WINDOWS):
        seconds = 5.0 if number % 3 == 0 else 0.0105
        assert not routes.observe(Travel(codec="fp32", sizes_bytes=(4 * COUNT,), seconds=seconds), seconds)


def test_the_only_way_of_a_codec_stays_however_long_it_takes() -> None:
    """Hosts of equal links know one way for coded values: each to each."""
    net = Network(
        island_of=(0, 1, 2),
        latency_s=((1e-4,) * 3,) * 3,
        bytes_per_s=((1e8,) * 3,) * 3,
        uplink_bytes_per_s=(1e8,) * 3,
        codec_s_per_byte={"sign1": 1e-10},
    )
    members = ("a", "b", "c")
    ratios = {"fp32": 1.0, "sign1": 1 / 31}
    routes = Routes(members, KnownNetwork.of(members, Table(net, candidates(net, ["sign1"]), ratios)))
    assert routes.tables is not None
    assert len(routes.tables["sign1"].candidates) == 1
    for _ in range(WINDOW_STEPS * 2 * WINDOWS):
        assert not routes.observe(Travel(codec="sign1", sizes_bytes=(4 * COUNT,), seconds=9.0), 9.0)


def test_several_sums_share_one_time_by_what_each_was_predicted_to_take() -> None:
    tables = known().tables(MEMBERS)
    assert tables is not None
    table = tables["fp32"]
    sizes = [4 * COUNT, 4 * COUNT, 16 * COUNT]
    table.observe_together(sizes, 3.0 * sum(table.choice(size).predicted_s for size in sizes))
    assert list(table.factors.values()) == pytest.approx([3.0, 3.0])


class Work:
    """A work as a step leaves it."""

    def __init__(self, begun_s: float, over_s: float | None, name: str = "sign1", size_bytes: int = 8) -> None:
        self.begun_s, self.over_s, self.codec, self.size_bytes = begun_s, over_s, name, size_bytes

    def is_completed(self) -> bool:
        return self.over_s is not None

    def wait(self, timeout: timedelta | None = None) -> None:
        if self.over_s is None:
            raise RuntimeError(f"not within {timeout}")


def test_time_counts_once_where_works_overlap_and_not_between_them() -> None:
    works = [Work(1.0, 3.0), Work(2.0, 2.5), Work(2.9, 4.0, size_bytes=4), Work(7.0, 7.5)]
    assert travel_of(works) == Travel(codec="sign1", sizes_bytes=(8, 8, 4, 8), seconds=3.5)


@pytest.mark.parametrize("works", [[], [object()], [Work(1.0, None)], [Work(1.0, 2.0), Work(1.0, 2.0, name="bf16")]])
def test_what_was_not_timed_or_is_of_two_kinds_tells_nothing(works: list[Any]) -> None:
    assert travel_of(works) is None


def test_sums_by_the_back_end_are_timed_by_whoever_waits() -> None:
    waited = TimedBackEnd(Work(0.0, 1.0), 80)
    waited.wait(timedelta(seconds=1.0))
    asked = TimedBackEnd(Work(0.0, 1.0), 80)
    assert asked.is_completed()
    pending = TimedBackEnd(Work(0.0, None), 80)
    with pytest.raises(RuntimeError, match="not within"):
        pending.wait(timedelta(seconds=1.0))
    assert not pending.is_completed()
    assert pending.over_s is None
    found = travel_of([waited, asked])
    assert found is not None
    assert (found.codec, found.sizes_bytes) == ("fp32", (80, 80))


def test_small_sums_beside_do_not_disturb(meshes: Meshes, finish: Finish) -> None:
    with meshes(2) as group:
        small = [mesh.all_reduce(torch.ones(4)) for mesh in group]
        assert travel_of([small[0], Work(1.0, 2.0)]) == Travel(codec="sign1", sizes_bytes=(8,), seconds=1.0)
        finish(small)
