"""Places all gangs of a round at once: what runs on stays where it is, then the largest first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from plait.schedule.placement.rooms import Rooms

Rule = Literal["pack", "spread"]
Seats = tuple[tuple[str, int], ...]
"""Nodes with their numbers of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Workers of one accelerator type, with their devices each and where they are now (empty: nowhere)."""

    accelerator_type: str
    num_workers: int
    devices_each: int = 1
    present: Seats = ()

    @property
    def num_devices(self) -> int:
        """Devices over all workers."""
        return self.num_workers * self.devices_each


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """What goes together or not at all: one part a type.

    ``rule``: on as few nodes as hold it, or on as many as it has workers. ``most_nodes``: rather nowhere than on more
    nodes than this for one type.
    """

    parts: tuple[Part, ...]
    rule: Rule = "pack"
    most_nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """Where the parts of a gang are, in their order."""

    seats: tuple[Seats, ...]
    is_kept: bool


class Hall:
    """The nodes of a cluster by accelerator type, all of it idle at first.

    Args:
        devices: By type, how many devices each node has for work.
        domains: The fault domain (rack) of nodes; a gang that needs several nodes gets them in one domain if one has
            room for all of it, the one with least room to spare.
    """

    def __init__(self, devices: Mapping[str, Mapping[str, int]], domains: Mapping[str, str] | None = None) -> None:
        self._rooms = {name: Rooms(on_nodes) for name, on_nodes in devices.items()}
        self._domains = dict(domains or {})
        self._in_domain: dict[str, dict[str, dict[str, int]]] = {}
        for name, on_nodes in devices.items():
            of_type: dict[str, dict[str, int]] = {}
            for node, number in on_nodes.items():
                if node in self._domains:
                    of_type.setdefault(self._domains[node], {})[node] = number
            self._in_domain[name] = of_type

    def free(self, accelerator_type: str) -> int:
        """Returns how many devices of a type are free."""
        rooms = self._rooms.get(accelerator_type)
        return rooms.total if rooms is not None else 0

    def keep(self, gang: Gang) -> Seated | None:
        """Leaves a gang where it is, if it is somewhere as a whole and the nodes still have its devices."""
        if any(sum(number for _, number in part.present) != part.num_workers for part in gang.parts):
            return None
        for part in gang.parts:
            rooms = self._rooms.get(part.accelerator_type)
            if rooms is None or any(rooms.free_on(node) < number * part.devices_each for node, number in part.present):
                return None
        for part in gang.parts:
            self._take(part, part.present)
        return Seated(seats=tuple(part.present for part in gang.parts), is_kept=True)

    def seat(self, gang: Gang) -> Seated | None:
        """Finds room for a gang; None (and nothing taken) where there is none under its rule."""
        found: list[Seats] = []
        for part in gang.parts:
            seats = self._find(part, gang.rule)
            if seats is None or (gang.most_nodes is not None and len(seats) > gang.most_nodes):
                if seats is not None:
                    self._take(part, seats, back=True)
                for earlier, taken in zip(gang.parts, found, strict=False):
                    self._take(earlier, taken, back=True)
                return None
            found.append(seats)
        return Seated(seats=tuple(found), is_kept=False)

    def _find(self, part: Part, rule: Rule) -> Seats | None:
        """Takes and returns seats of one part."""
        rooms = self._rooms.get(part.accelerator_type)
        if rooms is None:
            return None
        if rule == "spread":
            seats = rooms.spread(part.num_workers, part.devices_each)
        else:
            preferred = [node for node, _ in part.present]
            seats = self._within_domain(part) or rooms.seat_whole(part.num_workers, part.devices_each, preferred)
        if seats is None:
            return None
        self._book(part, seats)
        return tuple(seats)

    def _within_domain(self, part: Part) -> list[tuple[str, int]] | None:
        """Takes seats in the tightest domain that holds a part which no single node can hold."""
        domains = self._in_domain[part.accelerator_type]
        rooms = self._rooms[part.accelerator_type]
        if not domains or rooms.could_hold(part.num_devices):
            return None
        slots = {
            name: sum(free // part.devices_each for free in on_nodes.values()) for name, on_nodes in domains.items()
        }
        fitting = [(number, name) for name, number in slots.items() if number >= part.num_workers]
        if not fitting:
            return None
        seats = Rooms(domains[min(fitting)[1]]).seat_whole(part.num_workers, part.devices_each)
        for node, number in seats or ():
            rooms.change(node, number * part.devices_each)
        return seats

    def _take(self, part: Part, seats: Seats, *, back: bool = False) -> None:
        sign = -1 if back else 1
        for node, number in seats:
            self._rooms[part.accelerator_type].change(node, sign * number * part.devices_each)
        self._book(part, seats, sign=sign)

    def _book(self, part: Part, seats: Sequence[tuple[str, int]], *, sign: int = 1) -> None:
        """Keeps the domains' own count in step with the rooms."""
        for node, number in seats:
            domain = self._domains.get(node)
            if domain is not None:
                self._in_domain[part.accelerator_type][domain][node] -= sign * number * part.devices_each


def seat_all(hall: Hall, gangs: Sequence[Gang]) -> list[Seated | None]:
    """Places all gangs; returns for each where it is, or None where it found no room.

    What runs on with the same workers stays; then those with most devices choose first, so that small ones fill what
    large ones leave.
    """
    found: list[Seated | None] = [hall.keep(gang) if gang.parts else None for gang in gangs]
    waiting = [index for index, seated in enumerate(found) if seated is None and gangs[index].parts]
    waiting.sort(key=lambda index: (-sum(part.num_devices for part in gangs[index].parts), index))
    for index in waiting:
        found[index] = hall.seat(gangs[index])
    return found
