"""Greedy placement: the fastest types first, each on as few nodes as possible, ranks in the order of nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.hardware.device import Device, Node
from plait.schedule.domain import Allocation, Placement, WorkerPlacement
from plait.schedule.placement.rooms import Rooms


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeNode:
    """A node with the devices that are free there and serve the task.

    ``ports``: the first of two adjacent free ports for each further worker, in the order in which to use them.
    ``local_ranks``: those that a running gang has there already; such nodes are preferred.
    """

    node: Node
    devices: tuple[Device, ...]
    ports: tuple[int, ...]
    local_ranks: frozenset[int] = frozenset()


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


def place(
    allocation: Allocation,
    devices_per_worker: Mapping[str, int],
    nodes: Sequence[FreeNode],
    *,
    candidates: int | None = None,
    next_worker: int = 0,
    partial: bool = False,
) -> Placement | Unplaced:
    """Picks devices, ranks and ports for an allocation.

    Args:
        allocation: How many workers on which type.
        devices_per_worker: By type; all devices of a worker are on one node.
        nodes: Where there is room.
        candidates: How many nodes had room, where ``nodes`` are only the best of them.
        next_worker: Number (and rank) of the first new worker.
        partial: Take as many workers as there is room for, instead of all or none.
    """
    benches = [_bench(node) for node in nodes]
    seats: list[tuple[_Bench, str, tuple[Device, ...]]] = []
    reasons: list[str] = []
    for name, num_workers in sorted(allocation.counts, key=lambda item: (-_speed(nodes, item[0]), item[0])):
        taken = _seat(benches, name, num_workers, devices_per_worker.get(name, 1))
        if len(taken) < num_workers and not partial:
            return Unplaced(reason=_shortage(nodes, name, num_workers, len(taken), devices_per_worker.get(name, 1)))
        seats.extend((bench, name, devices) for bench, devices in taken)
        reasons.extend(_tell(taken, name, len(nodes) if candidates is None else candidates))
    if not seats:
        return Unplaced(reason="no node has room for one more worker")
    order = {id(bench): index for index, bench in reversed(list(enumerate(bench for bench, _, _ in seats)))}
    seats.sort(key=lambda seat: order[id(seat[0])])
    return Placement(workers=_number(seats, next_worker), reasons=tuple(reasons))


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
