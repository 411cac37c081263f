"""Rooms against the rule in plain words; seating of whole clusters keeps every device to one gang."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plait.schedule.placement.rooms import Rooms
from plait.schedule.placement.seating import Gang, Hall, Part, Seated, seat_all


def by_the_rule(free: dict[str, int], workers: int, each: int, preferred: list[str]) -> list[tuple[str, int]]:
    """The tightest node that holds all that is left, else the roomiest; preferred ones first among equals."""
    seats: list[tuple[str, int]] = []
    while workers > 0:
        whole = [node for node, number in free.items() if number >= workers * each]
        if whole:
            node = min(whole, key=lambda n: (n not in preferred, free[n], n))
        elif any(number > 0 for number in free.values()):
            node = min(free, key=lambda n: (-free[n], n not in preferred, n))
        else:
            break
        number = min(workers, free[node] // each)
        if number == 0:
            break
        free[node] -= number * each
        seats.append((node, number))
        workers -= number
    return seats


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 9), min_size=1),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3), st.lists(st.sampled_from("abcdefgh"))), max_size=8),
)
def test_rooms_follow_the_rule(free: dict[str, int], asks: list[tuple[int, int, list[str]]]) -> None:
    rooms = Rooms(free)
    plain = dict(free)
    for workers, each, preferred in asks:
        assert rooms.seat(workers, each, preferred) == by_the_rule(plain, workers, each, preferred)
        assert rooms.total == sum(plain.values())


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5)), st.integers(1, 12), st.integers(1, 3), st.booleans()
)
def test_all_or_none_gives_everything_back(free: dict[str, int], workers: int, each: int, spread: bool) -> None:
    rooms = Rooms(free)
    seats = rooms.spread(workers, each) if spread else rooms.seat_whole(workers, each)
    could = sum(number // each for number in free.values()) >= workers
    if seats is None:
        assert rooms.total == sum(free.values())
        assert spread is False or not could
    else:
        assert sum(number for _, number in seats) == workers
        assert all(rooms.free_on(node) == free[node] - dict(seats).get(node, 0) * each for node in free)
    if each == 1:
        assert (seats is not None) == could


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), min_size=1), st.integers(1, 8))
def test_spread_uses_as_many_nodes_as_it_can(free: dict[str, int], workers: int) -> None:
    seats = Rooms(free).spread(workers)
    if seats is not None:
        assert len(seats) == min(workers, len(free))


@st.composite
def halls(draw: st.DrawFn) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    names = [f"n{index}" for index in range(draw(st.integers(1, 8)))]
    devices = {
        kind: {node: draw(st.integers(1, 8)) for node in names if draw(st.booleans())} for kind in ("A100", "T4")
    }
    return devices, {node: draw(st.sampled_from(["r0", "r1", "r2"])) for node in names}


@given(halls(), st.integers(0, 2**32 - 1))
def test_no_device_twice_and_gangs_whole(hall: tuple[dict[str, dict[str, int]], dict[str, str]], seed: int) -> None:
    devices, domains = hall
    rng = np.random.default_rng(seed)

    def part(kind: str, present: tuple[tuple[str, int], ...] = ()) -> Part:
        workers = sum(number for _, number in present) or int(rng.integers(1, 9))
        return Part(accelerator_type=kind, num_workers=workers, devices_each=int(rng.integers(1, 3)), present=present)

    gangs = []
    for _ in range(12):
        kinds = ["A100", "T4"] if rng.random() < 0.2 else [str(rng.choice(["A100", "T4"]))]
        there = {kind: [(n, int(rng.integers(1, 4))) for n in sorted(devices[kind])[:1]] for kind in kinds}
        parts = tuple(part(kind, tuple(there[kind]) if rng.random() < 0.5 else ()) for kind in kinds)
        gangs.append(
            Gang(
                parts=parts,
                rule="spread" if rng.random() < 0.2 else "pack",
                most_nodes=1 if rng.random() < 0.2 else None,
            )
        )
    found = seat_all(Hall(devices, domains), gangs)
    taken = {kind: dict.fromkeys(nodes, 0) for kind, nodes in devices.items()}
    for gang, seated in zip(gangs, found, strict=True):
        for part_, seats in zip(gang.parts, seated.seats if seated else [()] * len(gang.parts), strict=True):
            if seated is not None:
                assert sum(number for _, number in seats) == part_.num_workers
                assert seated.is_kept or gang.most_nodes is None or len(seats) <= gang.most_nodes
            for node, number in seats:
                taken[part_.accelerator_type][node] += number * part_.devices_each
    for kind, nodes in devices.items():
        assert all(taken[kind][node] <= number for node, number in nodes.items())


def placed(
    *gangs: Gang, devices: dict[str, dict[str, int]], domains: dict[str, str] | None = None
) -> list[Seated | None]:
    return seat_all(Hall(devices, domains), list(gangs))


def gang(workers: int, present: tuple[tuple[str, int], ...] = ()) -> Gang:
    return Gang(parts=(Part(accelerator_type="T4", num_workers=workers, present=present),))


def test_running_ones_stay_and_large_ones_choose_first() -> None:
    found = placed(gang(1), gang(4), gang(2, (("b", 2),)), devices={"T4": {"a": 4, "b": 4}})
    assert [seated.seats[0] if seated else None for seated in found] == [(("b", 1),), (("a", 4),), (("b", 2),)]


def test_gang_of_several_nodes_stays_in_one_rack() -> None:
    devices = {"T4": {"a": 4, "b": 4, "c": 4, "d": 4, "e": 4}}
    racks = {"a": "r0", "c": "r1", "b": "r1", "d": "r2", "e": "r0"}
    (seated,) = placed(gang(8), devices=devices, domains=racks)
    assert seated is not None
    assert {racks[node] for node, _ in seated.seats[0]} == {"r0"}


def test_heterogeneous_unit_gets_both_parts_or_none() -> None:
    unit = Gang(
        parts=(Part(accelerator_type="T4", num_workers=2), Part(accelerator_type="A100", num_workers=2)),
    )
    found = placed(unit, gang(4), devices={"T4": {"a": 4}, "A100": {"b": 1}})
    assert found[0] is None
    assert found[1] is not None
