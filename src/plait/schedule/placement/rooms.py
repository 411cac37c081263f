"""Which nodes hold a gang: the one rule of placement, fast enough for a whole cluster and used for a single task alike.

A gang goes on the tightest node that holds all of it; if none does, the roomiest node takes what it can, and so on with
the rest. Nodes that the gang is on already come first among equals. Ties go by name.
"""

import heapq
from collections.abc import Collection, Hashable, Mapping
from typing import Any, Generic, Protocol, TypeVar


class _Ordered(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


NodeT = TypeVar("NodeT", bound=_Ordered)


class Rooms(Generic[NodeT]):
    """How many devices of one type are free on each node, with the nodes in buckets by that number.

    Taking and giving back costs O(log nodes).
    """

    def __init__(self, free: Mapping[NodeT, int]) -> None:
        self._free = {node: number for node, number in free.items() if number > 0}
        self._buckets: list[list[NodeT]] = [[] for _ in range(max(self._free.values(), default=0) + 1)]
        for node, number in self._free.items():
            self._buckets[number].append(node)
        for bucket in self._buckets:
            heapq.heapify(bucket)
        self.total = sum(self._free.values())

    def free_on(self, node: NodeT) -> int:
        """Returns how many devices are free on a node."""
        return self._free.get(node, 0)

    def could_hold(self, devices: int) -> bool:
        """Says whether one node holds so many now."""
        return self._tightest(devices, ()) is not None

    def change(self, node: NodeT, number: int) -> None:
        """Takes devices of a node, or gives them back where ``number`` is negative."""
        left = self._free.get(node, 0) - number
        assert left >= 0, f"{number} devices taken of {left + number}"
        self._free[node] = left
        self.total -= number
        while left >= len(self._buckets):
            self._buckets.append([])
        heapq.heappush(self._buckets[left], node)  # the old entry is skipped when it comes up

    def seat(
        self, num_workers: int, devices_each: int = 1, preferred: Collection[NodeT] = ()
    ) -> list[tuple[NodeT, int]]:
        """Takes devices for a gang; returns workers by node, fewer in all where there is no room."""
        seats: list[tuple[NodeT, int]] = []
        left = num_workers
        while left > 0:
            node = self._tightest(left * devices_each, preferred)
            if node is None:
                node = self._roomiest(preferred)
            if node is None:
                break
            number = min(left, self._free[node] // devices_each)
            if number == 0:
                break
            self.change(node, number * devices_each)
            seats.append((node, number))
            left -= number
        return seats

    def seat_whole(
        self, num_workers: int, devices_each: int = 1, preferred: Collection[NodeT] = ()
    ) -> list[tuple[NodeT, int]] | None:
        """As ``seat``, but all or none."""
        if num_workers * devices_each > self.total:
            return None
        seats = self.seat(num_workers, devices_each, preferred)
        if sum(number for _, number in seats) == num_workers:
            return seats
        for node, number in seats:
            self.change(node, -number * devices_each)
        return None

    def spread(self, num_workers: int, devices_each: int = 1) -> list[tuple[NodeT, int]] | None:
        """Takes devices on as many nodes as there are workers, the roomiest first, then round again; all or none."""
        if num_workers * devices_each > self.total:
            return None
        on: dict[NodeT, int] = {}
        while sum(on.values()) < num_workers:
            fresh = [node for node, free in self._free.items() if free >= devices_each]
            fresh.sort(key=lambda node: (on.get(node, 0), -self._free[node], node))
            for node in fresh[: num_workers - sum(on.values())]:
                self.change(node, devices_each)
                on[node] = on.get(node, 0) + 1
            if not fresh:
                for node, number in on.items():
                    self.change(node, -number * devices_each)
                return None
        return list(on.items())

    def _tightest(self, devices: int, preferred: Collection[NodeT]) -> NodeT | None:
        held = [node for node in preferred if self._free.get(node, 0) >= devices]
        if held:
            return min(held, key=lambda node: (self._free[node], node))
        for number in range(devices, len(self._buckets)):
            node = self._first(number)
            if node is not None:
                return node
        return None

    def _roomiest(self, preferred: Collection[NodeT]) -> NodeT | None:
        for number in range(len(self._buckets) - 1, 0, -1):
            node = self._first(number)
            if node is not None:
                return min((other for other in preferred if self._free.get(other, 0) == number), default=node)
        return None

    def _first(self, number: int) -> NodeT | None:
        bucket = self._buckets[number]
        while bucket and self._free[bucket[0]] != number:
            heapq.heappop(bucket)
        return bucket[0] if bucket else None
