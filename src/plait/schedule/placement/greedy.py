"""Greedy placement: the fastest types first, each on as few nodes as possible, ranks in the order of nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.hardware.device import Device, Node
from plait.schedule.domain import Allocation, Placement, WorkerPlacement
from plait.schedule.placement.rooms import Rooms
from plait.schedule.placement.ruled import Room, seat_by_rules
from plait.spec.job import PlacementRules


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeNode:
    """A node with the devices that are free there and serve the task.

    ``ports``: the first of two adjacent free ports for each further worker, in the order in which to use them.
    ``local_ranks``: those that a running gang has there already; such nodes are preferred.
    ``rack`` is the rack that the node is in.
    """

    node: Node
    devices: tuple[Device, ...]
    ports: tuple[int, ...]
    local_ranks: frozenset[int] = frozenset()
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """There is no place for the allocation now, and why."""

    reason: str


@dataclass(slots=True)
class _Bench:
    """A node while seats are taken on it."""

    free: FreeNode
    devices: dict[str, list[Device]] = field(default_factory=dict)
    num_taken: int = 0

    def room(self, accelerator_type: str, count: int) -> int:
        return min(len(self.devices.get(accelerator_type, ())) // count, len(self.free.ports) - self.num_taken)


_Seat = tuple[_Bench, str, tuple[Device, ...]]

LOSERS_TOLD = 4
"""Of so many nodes that were not taken it is said why; of more only how many there are."""


def place(
    allocation: Allocation,
    devices_per_worker: Mapping[str, int],
    nodes: Sequence[FreeNode],
    *,
    candidates: int | None = None,
    next_worker: int = 0,
    partial: bool = False,
    rules: PlacementRules | None = None,
) -> Placement | Unplaced:
    """Picks devices, ranks and ports for an allocation.

    Args:
        allocation: How many workers on which type.
        devices_per_worker: By type; all devices of a worker are on one node.
        nodes: Where there is room.
        candidates: How many nodes had room, where ``nodes`` are only the best of them.
        next_worker: Number (and rank) of the first new worker.
        partial: Take as many workers as there is room for, instead of all or none.
        rules: What the task asks for; None: as few nodes as hold the gang.
    """
    benches = [_bench(node) for node in nodes]
    seats: list[_Seat] = []
    reasons: list[str] = []
    counts = sorted(allocation.counts, key=lambda item: (-_speed(nodes, item[0]), item[0]))
    if rules is not None and not rules.is_plain:
        ruled = _by_rules(benches, counts, devices_per_worker, rules)
        if isinstance(ruled, str):
            return Unplaced(reason=ruled)
        seats, counts = ruled, []
        reasons = _tell_rules(seats, rules)
    for name, num_workers in counts:
        before = {bench.free.node.id: bench.room(name, devices_per_worker.get(name, 1)) for bench in benches}
        taken = _seat(benches, name, num_workers, devices_per_worker.get(name, 1))
        if len(taken) < num_workers and not partial:
            return Unplaced(reason=_shortage(nodes, name, num_workers, len(taken), devices_per_worker.get(name, 1)))
        seats.extend((bench, name, devices) for bench, devices in taken)
        reasons.extend(_tell(taken, name, len(nodes) if candidates is None else candidates))
        reasons.extend(_losers(taken, name, before, num_workers))
    if not seats:
        return Unplaced(reason="no node has room for one more worker")
    order = {id(bench): index for index, bench in reversed(list(enumerate(bench for bench, _, _ in seats)))}
    seats.sort(key=lambda seat: order[id(seat[0])])
    return Placement(workers=_number(seats, next_worker), reasons=tuple(reasons))


def _by_rules(
    benches: Sequence[_Bench], counts: Sequence[tuple[str, int]], each: Mapping[str, int], rules: PlacementRules
) -> list[_Seat] | str:
    by_node = {bench.free.node.id: bench for bench in benches}
    rooms = [
        Room(
            node=node,
            rack=bench.free.rack,
            workers={name: bench.room(name, each.get(name, 1)) for name, _ in counts},
            most=len(bench.free.ports),
            present=len(bench.free.local_ranks),
        )
        for node, bench in by_node.items()
    ]
    found = seat_by_rules(counts, rooms, rules)
    if isinstance(found, str):
        return found
    seats: list[_Seat] = []
    for node, name in found:
        devices = by_node[node].devices[name]
        seats.append((by_node[node], name, tuple(devices[: each.get(name, 1)])))
        del devices[: each.get(name, 1)]
    return seats


def _tell_rules(seats: Sequence[_Seat], rules: PlacementRules) -> list[str]:
    on: dict[str, int] = {}
    for bench, _, _ in seats:
        on[bench.free.node.id] = on.get(bench.free.node.id, 0) + 1
    asked = [f"within one {rules.within}"] if rules.within is not None else []
    asked += [f"at most {rules.at_most} in one {rules.per}"] if rules.at_most is not None else []
    asked += [f"spread over the {rules.per}s"] if rules.strategy == "spread" else []
    return [f"{', '.join(f'{number} on {node}' for node, number in on.items())} ({', '.join(asked)}, as the task asks)"]


def _losers(
    taken: Sequence[tuple[_Bench, tuple[Device, ...]]], name: str, rooms: Mapping[str, int], wanted: int
) -> list[str]:
    """Says why nodes with room were not taken."""
    used = {bench.free.node.id for bench, _ in taken}
    others = [node for node, room in rooms.items() if room > 0 and node not in used]
    if not used or not others:
        return []
    told = []
    tightest = min(rooms[node] for node in used)
    for node in sorted(others, key=lambda node: (-rooms[node], node))[:LOSERS_TOLD]:
        room = rooms[node]
        if room < wanted and len(used) == 1:
            why = f"room for only {room} of {wanted} workers"
        elif room > tightest:
            why = f"room for {room}: a tighter node holds them, and leaves this one whole for larger gangs"
        elif room == tightest:
            why = f"room for {room} as well: among equals the first by name, or one with its workers, is taken"
        else:
            why = f"room for {room}: with it the workers would be on more nodes"
        told.append(f"{node} not used for {name}: {why}")
    return told


def _bench(free: FreeNode) -> _Bench:
    bench = _Bench(free)
    for device in sorted(free.devices, key=lambda d: (d.numa_node is None, d.numa_node or 0, d.index)):
        bench.devices.setdefault(device.accelerator_type, []).append(device)
    return bench


def _speed(nodes: Sequence[FreeNode], name: str) -> float:
    return max((d.speed for free in nodes for d in free.devices if d.accelerator_type == name), default=0.0)


def _seat(
    benches: Sequence[_Bench], name: str, num_workers: int, count: int
) -> list[tuple[_Bench, tuple[Device, ...]]]:
    """Takes seats by the rule of ``rooms``; fewer than wanted where there is no room for all."""
    by_node = {bench.free.node.id: bench for bench in benches}
    rooms = Rooms({node: bench.room(name, count) for node, bench in by_node.items()})
    used = [node for node, bench in by_node.items() if bench.num_taken > 0 or bench.free.local_ranks]
    taken: list[tuple[_Bench, tuple[Device, ...]]] = []
    for node, number in rooms.seat(num_workers, preferred=used):
        bench = by_node[node]
        for _ in range(number):
            devices = bench.devices[name]
            taken.append((bench, tuple(devices[:count])))
            del devices[:count]
            bench.num_taken += 1
    return taken


def _number(seats: Sequence[tuple[_Bench, str, tuple[Device, ...]]], next_worker: int) -> tuple[WorkerPlacement, ...]:
    local: dict[str, set[int]] = {}
    ports: dict[str, list[int]] = {}
    workers = []
    for index, (bench, name, devices) in enumerate(seats):
        node = bench.free.node
        used = local.setdefault(node.id, set(bench.free.local_ranks))
        local_rank = next(rank for rank in range(len(used) + 1) if rank not in used)
        used.add(local_rank)
        port = ports.setdefault(node.id, list(bench.free.ports)).pop(0)
        workers.append(
            WorkerPlacement(
                worker_id=f"w{next_worker + index}",
                rank=next_worker + index,
                local_rank=local_rank,
                node=node.id,
                device_ids=tuple(device.id for device in devices),
                accelerator_type=name,
                address=node.address,
                port=port,
            )
        )
    return tuple(workers)


def _tell(taken: Sequence[tuple[_Bench, tuple[Device, ...]]], name: str, num_candidates: int) -> list[str]:
    on: dict[str, int] = {}
    for bench, _ in taken:
        on[bench.free.node.id] = on.get(bench.free.node.id, 0) + 1
    if not on:
        return []
    where = ", ".join(f"{number} on {node}" for node, number in on.items())
    others = num_candidates - len(on)
    choice = (
        f"as few nodes as hold them, the tightest first; {others} other nodes had room" if others > 0 else "no choice"
    )
    return [f"{sum(on.values())} x {name}: {where} ({choice})"]


def _shortage(nodes: Sequence[FreeNode], name: str, wanted: int, found: int, count: int) -> str:
    free = sum(d.accelerator_type == name for node in nodes for d in node.devices)
    if count > 1 and free >= wanted * count:
        return f"{free} {name} are free, but only {found} of {wanted} workers find {count} of them on one node"
    return f"{wanted} workers need {wanted * count} {name}; room for {found} of them is free"
