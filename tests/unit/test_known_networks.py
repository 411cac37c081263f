"""What was measured is kept by the names of islands, serves whoever is left, and decides what members exchange by."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from plait.train.collectives.routes import Routes
from plait.train.comm.known import KnownNetwork, way_for
from plait.train.comm.planner import PLAIN, Candidate, Network, Table, candidates
from plait.train.compression import codec
from plait.train.compression.message import message_layout
from plait.train.measuring import MOST_FAILURES, QUIET_S, QUIET_STEPS, Measuring
from plait.train.membership.link import Warned

MEMBERS = ("a", "a", "b", "b", "c")
RATIOS = {"fp32": 1.0, "sign1": 1 / 31}


def network(uplinks: Sequence[float], inside: float = 5e9) -> Network:
    number = len(uplinks)
    return Network(
        island_of=(0, 0, 1, 1, 2),
        latency_s=tuple(tuple(1e-5 if i == j else 1e-4 * (i + j) for j in range(number)) for i in range(number)),
        bytes_per_s=tuple(
            tuple(inside if i == j else min(uplinks[i], uplinks[j]) for j in range(number)) for i in range(number)
        ),
        uplink_bytes_per_s=tuple(uplinks),
        codec_s_per_byte={"sign1": 1e-10},
    )


def known(uplinks: Sequence[float] = (1e7, 2e7, 3e7)) -> KnownNetwork:
    net = network(uplinks)
    table = Table(net, candidates(net, ["sign1"]), RATIOS)
    table.measured_s = {
        Candidate(PLAIN): [(2**14, 0.5), (2**20, 0.9)],
        Candidate("islands", "sign1"): [(2**14, 0.001), (2**20, 0.002)],
    }
    return KnownNetwork.of(MEMBERS, table)


def test_it_is_the_same_after_a_way_through_json() -> None:
    before = known()
    after = KnownNetwork.from_json(json.loads(json.dumps(before.as_json())))
    assert after.members == before.members
    assert after.network == before.network
    for names in (MEMBERS, ("b", "c", "b")):
        one, other = before.tables(names), after.tables(names)
        assert one is not None
        assert other is not None
        assert list(one) == list(other)
        assert all(one[name].in_use == other[name].in_use for name in one)
        assert all(one[name].measured_s == other[name].measured_s for name in one)


def test_whoever_is_left_goes_by_the_links_that_were_measured() -> None:
    tables = known().tables(("c", "b", "b"))
    assert tables is not None
    left = tables["fp32"].network
    assert left.island_of == (0, 1, 1)
    assert left.uplink_bytes_per_s == (3e7, 2e7)
    assert [value for row in left.latency_s for value in row] == pytest.approx([1e-5, 3e-4, 3e-4, 1e-5])
    assert left.rate(0, 1) == 2e7
    assert not tables["sign1"].measured_s, "trials were of other members"
    assert {way.codec for way in tables["sign1"].candidates} == {"sign1"}
    same = known().tables(MEMBERS)
    assert same is not None
    assert same["sign1"].measured_s == {Candidate("islands", "sign1"): [(2**14, 0.001), (2**20, 0.002)]}


@pytest.mark.parametrize("names", [("a", "a"), ("a", "d"), ("c",)])
def test_nothing_is_known_of_strangers_and_nothing_is_to_be_chosen_on_one_island(names: tuple[str, ...]) -> None:
    assert known().tables(names) is None
    assert Routes(names, known()).tables is None


def test_routes_go_by_what_is_known() -> None:
    routes = Routes(MEMBERS, known())
    message = message_layout([(1000, 1000)])
    assert routes.of(message, codec("sign1")).plan.shape == "islands"
    assert not routes.is_plain(2**22), "a ring of all carries more over the slowest uplink"
    assert routes.of(message, codec("bf16")).plan.shape == "islands", "bf16 has no table of its own"
    assert way_for(routes.tables or {}, "bf16", 2**22) == Candidate("islands", "bf16")
    unequal = Routes(("b", "c", "a"), known((1e6, 3e7, 3e7)))
    assert unequal.of(message, codec("sign1")).plan.shape in {"weighted", "direct"}


def test_on_a_fast_network_of_equal_links_nothing_is_done() -> None:
    net = network((5e9, 5e9, 5e9))
    table = Table(net, candidates(net, []), {"fp32": 1.0})
    table.measured_s = {way: [(2**20, 0.002 if way.shape == PLAIN else 0.003)] for way in table.candidates}
    routes = Routes(MEMBERS, KnownNetwork.of(MEMBERS, table))
    assert routes.is_plain(2**22)
    assert Routes(("a", "b", "c")).is_plain(2**22), "as long as nothing is known"
    assert not Routes(MEMBERS).is_plain(2**22)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_network_is_measured_when_the_group_is_quiet_and_the_run_is_long() -> None:
    clock = Clock()
    measuring, routes = Measuring("auto", clock), Routes(MEMBERS)
    assert not measuring.is_due(routes, 0, 10_000)
    clock.now_s += QUIET_S / 2
    assert not measuring.is_due(routes, 10, 10_000), "too soon"
    clock.now_s += QUIET_S
    assert measuring.is_due(routes, 30, 10_000)
    assert not measuring.is_due(routes, 30, 40), "the run is over before it pays"
    again = Routes(MEMBERS[1:])
    assert not measuring.is_due(again, 31, 10_000), "another group"
    assert not measuring.is_due(Routes(MEMBERS, known()), 31, 10_000), "it is known"
    assert not measuring.is_due(Routes(("a", "a")), 31, 10_000), "nothing to choose"


def test_it_is_measured_at_once_or_never_where_that_is_asked() -> None:
    clock = Clock()
    for mode, expected in (("now", True), ("never", False)):
        measuring, routes = Measuring(mode, clock), Routes(MEMBERS)
        measuring.is_due(routes, 3, 20)
        assert measuring.is_due(routes, 3 + QUIET_STEPS, 20) is expected


def test_a_generation_takes_the_knowledge_of_the_first_who_has_any() -> None:
    measuring = Measuring("auto")
    assert measuring.told() is None
    measuring.adopt([None, json.loads(json.dumps(known().as_json())), None])
    assert measuring.known is not None
    assert measuring.known.members == MEMBERS
    measuring.adopt([None, None])
    assert measuring.known is None


def test_a_network_that_cannot_be_measured_is_left_alone_after_some_tries() -> None:
    failed = SimpleNamespace(is_over=lambda: True, known=None, error=OSError("no route"), give_up=lambda: None)
    group: Any = SimpleNamespace(measuring=lambda _codecs: failed, routes=Routes(MEMBERS))
    measuring = Measuring("now", Clock())
    for number in range(MOST_FAILURES):
        measuring.is_due(group.routes, 0, 100)
        assert measuring.is_due(group.routes, 10, 100), number
        with pytest.raises(RuntimeError, match="could not be measured: no route"):
            measuring.measure(group, "sign1", lambda: False)
    assert not measuring.is_due(group.routes, 10, 100)


def test_measuring_is_given_up_when_the_group_changes_and_else_taken_up() -> None:
    given_up: list[bool] = []
    running = SimpleNamespace(is_over=lambda: False, known=None, error=None, give_up=lambda: given_up.append(True))
    asked: list[list[str]] = []
    group: Any = SimpleNamespace(routes=Routes(MEMBERS))

    def begin(codecs: list[str]) -> Any:
        asked.append(codecs)
        return running

    group.measuring = begin
    measuring = Measuring("now")
    with pytest.raises(Warned):
        measuring.measure(group, "fp32", lambda: True)
    assert given_up == [True]
    running.is_over, running.known = (lambda: True), known()
    measuring.measure(group, "sign1", lambda: False)
    assert asked == [[], ["sign1"]]
    assert group.routes.tables is not None
    assert measuring.known is running.known
