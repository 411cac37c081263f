"""What the nodes can hold, in devices and in workers of a task: all in all, and free now."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plait.hardware.device import Device, Node
from plait.schedule.domain import WorkerPlacement
from plait.schedule.placement.greedy import FreeNode
from plait.schedule.policy import ClusterView, ProjectTerms
from plait.schedule.state import ClusterState, DeviceTrouble, NodeRecord, TaskRecord
from plait.schedule.windows import prices
from plait.spec.job import PlacementRules, Task

PORTS_PER_WORKER = 2

FEW_NODES = 16
"""Up to so many nodes with room are all shown to placement; of more, those that it would choose."""


PLAIN = PlacementRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one worker of a task needs of one accelerator type."""

    accelerator: str
    count: int
    memory_bytes: int | None
    above_bytes: int | None
    avoid: tuple[str, ...]
    rules: PlacementRules = PLAIN

    @property
    def takes_any(self) -> bool:
        """Whether every device of the type serves."""
        return self.memory_bytes is None and self.above_bytes is None and not self.avoid

    def accepts(self, device: Device) -> bool:
        """Says whether this device may serve; a device of unknown memory passes only where none is asked for."""
        if device.accelerator_type != self.accelerator or device.id in self.avoid:
            return False
        if self.memory_bytes is not None and (device.memory_bytes is None or device.memory_bytes < self.memory_bytes):
            return False
        return self.above_bytes is None or device.memory_bytes is None or device.memory_bytes > self.above_bytes


def wishes_of(state: ClusterState, spec: Task, task: TaskRecord) -> Mapping[str, Wish]:
    """Returns by type what one worker needs. The first request for a type counts; without any, every type serves."""
    if spec.resources.any_of:
        requests = [(r.accelerator, r.count, r.memory_bytes) for r in spec.resources.any_of]
    else:
        types = {device.accelerator_type for record in state.nodes.values() for device in record.node.devices}
        requests = [(name, 1, None) for name in sorted(types)]
    wishes: dict[str, Wish] = {}
    for accelerator, count, memory_bytes in requests:
        wish = Wish(
            accelerator=accelerator,
            count=count,
            memory_bytes=memory_bytes,
            above_bytes=task.memory_above_bytes,
            avoid=task.avoid_devices,
            rules=spec.placement,
        )
        wishes.setdefault(accelerator, wish)
    return wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """The healthy devices of one type on one node, and what is often asked of them together."""

    devices: tuple[Device, ...]
    speed_sum: float
    least_memory_bytes: int | None


_KINDS: dict[int, tuple[Node, Mapping[str, DeviceTrouble], Mapping[str, _Kind]]] = {}
_MOST_KINDS = 200_000


def _kinds(record: NodeRecord) -> Mapping[str, _Kind]:
    """Returns the healthy devices of the node by type; remembered, for nodes change seldom and are looked at often."""
    known = _KINDS.get(id(record.node))
    if known is not None and known[0] is record.node and known[1] is record.troubles:
        return known[2]
    by_type: dict[str, list[Device]] = {}
    for device in record.healthy():
        by_type.setdefault(device.accelerator_type, []).append(device)
    kinds = {
        name: _Kind(
            devices=tuple(devices),
            speed_sum=sum(device.speed for device in devices),
            least_memory_bytes=min((d.memory_bytes for d in devices if d.memory_bytes is not None), default=None),
        )
        for name, devices in by_type.items()
    }
    if len(_KINDS) >= _MOST_KINDS:
        _KINDS.clear()
    _KINDS[id(record.node)] = (record.node, record.troubles, kinds)  # holding the node keeps its id from being reused
    return kinds


_SHAPE: list[tuple[_Kind, ...]] = [()]


def _shape_of(kinds: tuple[_Kind, ...]) -> tuple[_Kind, ...]:
    """Returns the same object as last time where the devices that work may go to are the same."""
    last = _SHAPE[0]
    if len(last) == len(kinds) and all(one is other for one, other in zip(last, kinds, strict=True)):
        return last
    _SHAPE[0] = kinds
    return kinds  # not what is in the list by now: several threads may ask about states of their own


class Capacity:
    """An index over one state, made for one dispatch and kept up to date while that places workers."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._held: set[str] = set()
        self._held_on: Counter[tuple[str, str]] = Counter()
        self._counts_all: dict[str, bool] = {}
        self._going: Counter[str] = Counter()
        self._ports: dict[str, set[int]] = {}
        self._workers_on: Counter[str] = Counter()
        self._by_type: dict[str, list[tuple[NodeRecord, _Kind]]] = {}
        self._slots: dict[tuple[Wish, bool], int] = {}
        self._speeds: dict[Wish, float] = {}
        for record in state.nodes.values():
            if record.takes_work:
                for name, kind in _kinds(record).items():
                    self._by_type.setdefault(name, []).append((record, kind))
        self.shape = _shape_of(tuple(kind for places in self._by_type.values() for _, kind in places))
        """Stands for the devices that work may go to: the same object as long as they are the same."""
        for attempt in state.attempts.values():
            for worker in attempt.workers.values():
                self._hold(worker.placement)
                if worker.is_leaving or attempt.phase == "stopping":
                    self._going[worker.placement.accelerator_type] += self._counted(worker.placement)

    def _hold(self, placement: WorkerPlacement) -> None:
        self._held.update(placement.device_ids)
        self._held_on[placement.node, placement.accelerator_type] += self._counted(placement)
        self._ports.setdefault(placement.address, set()).update((placement.port, placement.port + 1))
        self._workers_on[placement.node] += 1

    def _counted(self, placement: WorkerPlacement) -> int:
        """Returns how many of the worker's devices count as part of the cluster: those that work may go to."""
        counts_all = self._counts_all.get(placement.node)
        if counts_all:
            return len(placement.device_ids)
        record = self._state.nodes.get(placement.node)
        if record is None or not record.takes_work:
            return 0
        kinds = _kinds(record)
        if counts_all is None:
            healthy_devices = sum(len(kind.devices) for kind in kinds.values())
            self._counts_all[placement.node] = not record.troubles and healthy_devices == len(record.node.devices)
            return self._counted(placement)
        kind = kinds.get(placement.accelerator_type)
        healthy = {device.id for device in kind.devices} if kind is not None else set()
        return sum(device in healthy for device in placement.device_ids)

    def take(self, placement: WorkerPlacement) -> None:
        """Books a worker that was just placed."""
        self._hold(placement)
        self._slots = {key: number for key, number in self._slots.items() if not key[1]}  # when idle, as many as before

    def free(self, name: str) -> int:
        """Returns how many healthy devices of the type nobody holds."""
        return sum(len(kind.devices) - self._held_on[rec.node.id, name] for rec, kind in self._by_type.get(name, []))

    def view(self) -> ClusterView:
        """Returns what a policy sees of the cluster."""
        total, free, memory = {}, {}, {}
        on_nodes: dict[str, tuple[int, ...]] = {}
        free_on_nodes: dict[str, tuple[int, ...]] = {}
        for name, places in self._by_type.items():
            on_nodes[name] = tuple(sorted((len(kind.devices) for _, kind in places), reverse=True))
            idle = (len(kind.devices) - self._held_on[record.node.id, name] for record, kind in places)
            free_on_nodes[name] = tuple(sorted((number for number in idle if number), reverse=True))
            total[name] = sum(on_nodes[name])
            free[name] = sum(free_on_nodes[name])
            sizes = [kind.least_memory_bytes for _, kind in places if kind.least_memory_bytes is not None]
            if sizes:
                memory[name] = min(sizes)
        return ClusterView(
            now_s=self._state.now_s,
            total=total,
            free=free,
            releasing={name: self._going[name] for name in self._by_type},
            memory_bytes=memory,
            prices_per_hour=prices(self._state),
            on_nodes=on_nodes,
            free_on_nodes=free_on_nodes,
            projects={
                project.name: ProjectTerms(weight=project.weight, quota=dict(project.quota), limit=dict(project.limit))
                for project in self._state.config.projects
            },
        )

    def slots(self, wish: Wish, *, free: bool) -> int:
        """Returns how many workers with this wish all nodes can hold, when idle or on what is free now."""
        known = self._slots.get((wish, free))
        if known is None:
            rooms = ((record, self._room(record, kind, wish, free=free)) for record, kind in self._places(wish))
            known = self._within_rules(rooms, wish.rules) if not wish.rules.is_plain else sum(n for _, n in rooms)
            self._slots[wish, free] = known
        return known

    def _within_rules(self, rooms: Iterable[tuple[NodeRecord, int]], rules: PlacementRules) -> int:
        """Returns how many workers the nodes hold together as far as a task's rules let them."""
        racks = self._state.config.racks
        by_domain: dict[tuple[str, str], int] = {}
        for record, number in rooms:
            node, rack = record.node.id, racks.get(record.node.id, record.node.id)
            whole = {"node": node, "rack": rack, None: ""}[rules.within]
            part = node if rules.per == "node" else rack
            by_domain[whole, part] = by_domain.get((whole, part), 0) + number
        wholes: dict[str, int] = {}
        for (whole, _), number in by_domain.items():
            wholes[whole] = wholes.get(whole, 0) + min(number, rules.at_most or number)
        return max(wholes.values(), default=0)

    def _places(self, wish: Wish) -> list[tuple[NodeRecord, _Kind]]:
        return self._by_type.get(wish.accelerator, [])

    def _room(self, record: NodeRecord, kind: _Kind, wish: Wish, *, free: bool) -> int:
        if wish.takes_any:
            fit = len(kind.devices) - (self._held_on[record.node.id, wish.accelerator] if free else 0)
        else:
            fit = sum(wish.accepts(device) and not (free and device.id in self._held) for device in kind.devices)
        listening = self._workers_on[record.node.id] if free else 0
        return max(0, min(fit // wish.count, record.node.num_ports // PORTS_PER_WORKER - listening))

    def speed(self, wish: Wish) -> float:
        """Returns the mean predicted speed of one worker on the healthy devices that the wish accepts."""
        known = self._speeds.get(wish)
        if known is None:
            known = wish.count * self._mean_speed(wish)
            self._speeds[wish] = known
        return known

    def _mean_speed(self, wish: Wish) -> float:
        places = self._places(wish)
        if wish.takes_any:
            number = sum(len(kind.devices) for _, kind in places)
            return sum(kind.speed_sum for _, kind in places) / number if number else 0.0
        speeds = [device.speed for _, kind in places for device in kind.devices if wish.accepts(device)]
        return sum(speeds) / len(speeds) if speeds else 0.0

    def free_nodes(
        self, wishes: Mapping[str, Wish], used: Mapping[str, frozenset[int]], workers: Mapping[str, int]
    ) -> tuple[tuple[FreeNode, ...], int]:
        """Returns nodes with free devices that serve, and how many such nodes there are in all.

        Of many nodes only those are made up that placement would choose for so many ``workers`` by type, going by the
        room that each has. ``used`` holds local ranks that a running gang has there.
        """
        rooms = {name: self._rooms(wish) for name, wish in wishes.items()}
        candidates = {record.node.id for some in rooms.values() for _, record, _ in some}
        chosen = candidates
        if len(candidates) > FEW_NODES and all(wish.rules.is_plain for wish in wishes.values()):
            seen = Counter(record.node.id for some in rooms.values() for _, record, _ in some)
            chosen = {node for node, number in seen.items() if number > 1 or node in used}
            for name, some in rooms.items():
                chosen |= _shortlist(some, workers.get(name, 0))
        devices: dict[str, list[Device]] = {}
        for name, some in rooms.items():
            for _, record, kind in some:
                if record.node.id in chosen:
                    free = [d for d in kind.devices if d.id not in self._held and wishes[name].accepts(d)]
                    devices.setdefault(record.node.id, []).extend(free)
        offered: dict[str, set[int]] = {}
        nodes = tuple(self._free_node(name, some, used, offered) for name, some in devices.items())
        return nodes, len(candidates)

    def _rooms(self, wish: Wish) -> list[tuple[int, NodeRecord, _Kind]]:
        """Returns the nodes with a free device that may serve, with the workers that each has room for."""
        found = []
        for record, kind in self._places(wish):
            if len(kind.devices) > self._held_on[record.node.id, wish.accelerator]:
                room = self._room(record, kind, wish, free=True)
                if room > 0 or not wish.takes_any or wish.count > 1:
                    found.append((room, record, kind))
        return found

    def _free_node(
        self, name: str, devices: list[Device], used: Mapping[str, frozenset[int]], offered: dict[str, set[int]]
    ) -> FreeNode:
        record = self._state.nodes[name]
        taken = offered.setdefault(record.node.address, set(self._ports.get(record.node.address, ())))
        ports = tuple(_free_ports(record, taken, len(devices)))
        taken.update(ports, (port + 1 for port in ports))
        rack = self._state.config.racks.get(name, name)
        ranks = used.get(name, frozenset())
        return FreeNode(node=record.node, devices=tuple(devices), ports=ports, local_ranks=ranks, rack=rack)


def _shortlist(rooms: Sequence[tuple[int, NodeRecord, _Kind]], left: int) -> set[str]:
    """Returns the nodes on which that many workers go: the tightest that holds all, else the roomiest, and so on."""
    pool = {record.node.id: room for room, record, _ in rooms}
    chosen: set[str] = set()
    while left > 0 and pool:
        holding = [node for node, room in pool.items() if room >= left]
        if holding:
            chosen.add(min(holding, key=lambda node: (pool[node], node)))
            break
        best = min(pool, key=lambda node: (-pool[node], node))
        left -= pool.pop(best)
        chosen.add(best)
    return chosen


def _free_ports(record: NodeRecord, taken: set[int], most: int) -> Iterator[int]:
    """Goes over free pairs, from where the last search ended, so that a port is not used again at once.

    Nodes may share an address, so what is taken counts by address.
    """
    node = record.node
    pairs = node.num_ports // PORTS_PER_WORKER
    start = max(0, record.next_port - node.first_port) // PORTS_PER_WORKER
    for step in range(pairs):
        if most <= 0:
            return
        port = node.first_port + (start + step) % pairs * PORTS_PER_WORKER
        if port not in taken and port + 1 not in taken:
            most -= 1
            yield port


def room_for(capacity: Capacity, wishes: Mapping[str, Wish], *, mix: bool) -> int:
    """Returns how many workers of a task the nodes can hold when all else is idle."""
    slots = [capacity.slots(wish, free=False) for wish in wishes.values()]
    return (sum(slots) if mix else max(slots)) if slots else 0


def could_hold(state: ClusterState, task: TaskRecord, *, with_absent: bool = False) -> bool:
    """Says whether the nodes that take work can hold the fewest workers of the task when all else is idle.

    ``with_absent`` counts lost and drained nodes and devices in trouble as well, for they may come back.
    """
    spec = state.jobs[task.key.job_id].job.task(task.key.task)
    wishes = wishes_of(state, spec, task)
    if with_absent:
        nodes = {
            name: replace(record, is_alive=True, is_draining=False, troubles={}) for name, record in state.nodes.items()
        }
        state = replace(state, nodes=nodes)
    return room_for(Capacity(state), wishes, mix=spec.resources.mix) >= task.workers.min
