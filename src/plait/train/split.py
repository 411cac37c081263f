"""The split of K micro-batches over unequal devices that ends soonest, in plain Python floats.

Every member computes it from the same replicated numbers, so it uses nothing whose result could depend on the
machine: IEEE double arithmetic in a fixed order over members in sorted order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import floor, inf

from plait.train.work import CapacityExceeded


@dataclass(frozen=True, slots=True)
class Cost:
    """What micro-batches cost a device: ``n`` of them take ``per_micro_s * (fixed_ratio + n)`` seconds, none takes 0.

    ``fixed_ratio`` is the cost of a step that does not grow with ``n``, counted in micro-batches.
    """

    per_micro_s: float
    fixed_ratio: float = 0.0

    def time_s(self, num_micro_batches: int) -> float:
        """Returns the predicted seconds for this many micro-batches in one step."""
        return self.per_micro_s * (self.fixed_ratio + num_micro_batches) if num_micro_batches else 0.0


@dataclass(frozen=True, slots=True)
class Split:
    """How many micro-batches each member runs; members in sorted order, those left out with 0."""

    shares: tuple[tuple[str, int], ...]

    def of(self, member: str) -> int:
        """Returns the micro-batches of a member, 0 for one that is not in the split."""
        return next((n for name, n in self.shares if name == member), 0)

    @property
    def members(self) -> tuple[str, ...]:
        """All members, those left out included."""
        return tuple(name for name, _ in self.shares)

    @property
    def active(self) -> tuple[str, ...]:
        """The members that have work."""
        return tuple(name for name, n in self.shares if n)

    @property
    def total(self) -> int:
        """K, the micro-batches of a step."""
        return sum(n for _, n in self.shares)

    def as_dict(self) -> dict[str, int]:
        """Returns the shares as a new dictionary."""
        return dict(self.shares)

    def __str__(self) -> str:
        return ", ".join(f"{name} {n}" for name, n in self.shares)


def even_split(num_micro_batches: int, members: "tuple[str, ...]", caps: Mapping[str, int | None]) -> Split:
    """Returns the split that is as even as the caps allow; the first members in sorted order take one more."""
    return soonest_split(num_micro_batches, dict.fromkeys(members, Cost(1.0)), caps)


def soonest_split(num_micro_batches: int, costs: Mapping[str, Cost], caps: Mapping[str, int | None]) -> Split:
    """Returns the split whose slowest member ends soonest.

    Each member ends its n-th micro-batch at a time that rises with n, so the K earliest of all these times are an
    optimal split, and a member whose first one is not among them gets none. The continuous optimum gives nearly all
    of them at once; the rest is dealt one by one.

    Raises:
        CapacityExceeded: The caps together are below ``num_micro_batches``.
    """
    members = sorted(costs)
    room = {name: _room(caps.get(name), num_micro_batches) for name in members}
    if sum(room.values()) < num_micro_batches:
        raise CapacityExceeded(
            f"a step has {num_micro_batches} micro-batches, but {', '.join(members) or 'nobody'} may hold only "
            f"{sum(room.values())}"
        )
    shares = _whole_part(num_micro_batches, costs, room)
    heap = [(_next_s(costs[name], shares[name], room[name]), name) for name in members]
    heapify(heap)
    for _ in range(num_micro_batches - sum(shares.values())):
        name = heap[0][1]
        shares[name] += 1
        heapreplace(heap, (_next_s(costs[name], shares[name], room[name]), name))
    return Split(tuple(shares.items()))


def _room(cap: int | None, num_micro_batches: int) -> int:
    return num_micro_batches if cap is None else max(0, min(cap, num_micro_batches))


def _next_s(cost: Cost, num_micro_batches: int, room: int) -> float:
    return cost.time_s(num_micro_batches + 1) if num_micro_batches < room else inf


def _whole_part(num_micro_batches: int, costs: Mapping[str, Cost], room: Mapping[str, int]) -> dict[str, int]:
    """Returns shares that every soonest split contains: all micro-batches that end before a bound no split can beat."""
    members = sorted(costs)
    fixed = sum(costs[name].fixed_ratio for name in members)
    rate = sum(1.0 / costs[name].per_micro_s for name in members)
    bound_s = (num_micro_batches + fixed) / rate * (1.0 - 1e-9)
    shares = {
        name: max(0, min(room[name], floor(bound_s / costs[name].per_micro_s - costs[name].fixed_ratio)))
        for name in members
    }
    return shares if sum(shares.values()) <= num_micro_batches else dict.fromkeys(members, 0)


def step_s(split: Split, costs: Mapping[str, Cost], exchange_s: Mapping[str, float]) -> float:
    """Returns the predicted seconds of a step: the slowest member, then the exchange of each member that takes part."""
    compute_s = max(costs[name].time_s(n) for name, n in split.shares)
    return compute_s + sum(exchange_s.get(name, 0.0) for name in split.active)


def best_split(
    num_micro_batches: int,
    costs: Mapping[str, Cost],
    caps: Mapping[str, int | None],
    exchange_s: Mapping[str, float],
) -> Split:
    """Returns the split with the shortest step, leaving out members whose exchange costs more than they compute.

    Args:
        num_micro_batches: K.
        costs: Cost of each member.
        caps: The most micro-batches of a member; ``None`` or absent is no limit.
        exchange_s: Seconds by which the exchange grows when a member takes part in it.
    """
    best = soonest_split(num_micro_batches, costs, caps)
    if not any(exchange_s.get(name, 0.0) > 0.0 for name in costs):
        return best
    while True:
        shorter = _without_one(best, num_micro_batches, costs, caps, exchange_s)
        if shorter is None:
            return best
        best = shorter


def _without_one(
    split: Split,
    num_micro_batches: int,
    costs: Mapping[str, Cost],
    caps: Mapping[str, int | None],
    exchange_s: Mapping[str, float],
) -> Split | None:
    """Returns the shortest split with one active member fewer, or ``None`` where none is shorter than ``split``."""
    found, found_s = None, step_s(split, costs, exchange_s)
    for name in split.active:
        fewer: dict[str, int | None] = {
            member: caps.get(member) if n and member != name else 0 for member, n in split.shares
        }
        if sum(_room(cap, num_micro_batches) for cap in fewer.values()) < num_micro_batches:
            continue
        candidate = soonest_split(num_micro_batches, costs, fewer)
        candidate_s = step_s(candidate, costs, exchange_s)
        if candidate_s < found_s:
            found, found_s = candidate, candidate_s
    return found
