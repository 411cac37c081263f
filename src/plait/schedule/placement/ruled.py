"""Placement by rules of the task: within a node or rack, at most so many in a fault domain, packed or spread.

The rooms are those of one task on the nodes that are free; the plain rule (as few nodes as hold the gang) is elsewhere.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.spec.job import Domain, PlacementRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many workers a node has room for, by accelerator type, and how many it has of the gang already."""

    node: str
    rack: str
    workers: Mapping[str, int]
    most: int
    present: int = 0

    def domain(self, kind: Domain | None) -> str:
        """Returns the node, the rack, or one name for the whole cluster."""
        return {"node": self.node, "rack": self.rack, None: "the cluster"}[kind]


Seats = list[tuple[str, str]]
"""(node, accelerator type) of each worker."""


def seat_by_rules(counts: Sequence[tuple[str, int]], rooms: Sequence[Room], rules: PlacementRules) -> Seats | str:
    """Returns a seat for each worker, or why there is none.

    Args:
        counts: Workers by type, in the order in which to seat them.
        rooms: The nodes.
        rules: What the task asks for.
    """
    wanted = sum(number for _, number in counts)
    wholes: dict[str, list[Room]] = {}
    for room in rooms:
        wholes.setdefault(room.domain(rules.within), []).append(room)
    held = {room.domain(rules.within) for room in rooms if room.present}
    # Where the gang is already it stays; of the others the tightest that holds all.
    order = sorted(wholes, key=lambda name: (name not in held, sum(r.most for r in wholes[name]), name))
    most = 0
    for whole in order:
        if rules.within is not None and held and whole not in held:
            continue
        seats = _seat(counts, wholes[whole], rules)
        if len(seats) == wanted:
            return seats
        most = max(most, len(seats))
    where = f"within one {rules.within}" if rules.within is not None else "on all nodes"
    bound = f", at most {rules.at_most} in one {rules.per}" if rules.at_most is not None else ""
    return f"{where}{bound} there is room for {most} of {wanted} workers now"


@dataclass(slots=True)
class _Filling:
    """Rooms while a gang is seated in them."""

    rules: PlacementRules
    left: dict[str, dict[str, int]]
    places: dict[str, int]
    in_domain: Counter[str]
    on_node: Counter[str]

    def is_open(self, room: Room, name: str) -> bool:
        bound = self.rules.at_most
        has_room = self.left[room.node].get(name, 0) > 0 and self.places[room.node] > 0
        return has_room and (bound is None or self.in_domain[room.domain(self.rules.per)] < bound)

    def rank(self, room: Room, name: str) -> tuple[int, int, int, str]:
        free, here = self.left[room.node][name], self.on_node[room.node]
        if self.rules.strategy == "spread":
            return (self.in_domain[room.domain(self.rules.per)], here, -free, room.node)
        return (int(here == 0), -free, 0, room.node)

    def take(self, room: Room, name: str) -> None:
        self.left[room.node][name] -= 1
        self.places[room.node] -= 1
        self.in_domain[room.domain(self.rules.per)] += 1
        self.on_node[room.node] += 1


def _seat(counts: Sequence[tuple[str, int]], rooms: Sequence[Room], rules: PlacementRules) -> Seats:
    filling = _Filling(
        rules=rules,
        left={room.node: dict(room.workers) for room in rooms},
        places={room.node: room.most for room in rooms},
        in_domain=Counter(),
        on_node=Counter({room.node: room.present for room in rooms}),
    )
    for room in rooms:
        filling.in_domain[room.domain(rules.per)] += room.present
    seats: Seats = []
    for name, number in counts:
        for _ in range(number):
            open_rooms = [room for room in rooms if filling.is_open(room, name)]
            if not open_rooms:
                break
            best = min(open_rooms, key=lambda room: filling.rank(room, name))
            filling.take(best, name)
            seats.append((best.node, name))
    return seats
