"""Bandwidth, latency and distance between all devices of some nodes, each cell with its source and error bar."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plait.errors import PlaitError
from plait.hardware.affinity.contention import Achievable, Flow, Load, group_times
from plait.hardware.topology import CapacityGroup, Conflict
from plait.hardware.values import Source
from plait.words import did_you_mean

Unknown = Literal["raise", "pessimistic", "optimistic"]
"""What stands in for an unknown pair: an error, the least that it could be, or the most (never silently)."""

_Floats = NDArray[np.float64]


class UnknownBandwidth(PlaitError):
    """Nothing says how fast a pair is, and the caller allowed no stand-in."""


class UnknownDevice(PlaitError):
    """The matrix has no device of this key."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of the matrix; ``value`` is ``None`` for unknown, and ``detail`` says why or whence."""

    value: float | None
    unit: str
    source: Source
    relative_error: float | None
    detail: str
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityMatrix:
    """How near devices are to one another, to memory, to NICs, and nodes to nodes.

    All rates are bytes/s of one direction, row to column; unknown cells hold NaN, and ``known`` is their mask. ``AXES``
    names the axes of every array. Arrays are read-only.

    Attributes:
        devices: Keys ``node/component``; the order of every device axis.
        names: What people call them (``GPU0``), unique on a node.
        nodes: Names of the nodes.
        numa_nodes: ``node/id`` of every NUMA node.
        nics: Keys ``node/component`` of the NICs.
        node_of: Of each device, the index of its node.
        models: Of each device, as printed, ``None`` unknown.
        bytes_per_s: ``[device, device]``; the diagonal is the bandwidth of the local memory.
        expected_bytes_per_s: What the cost model alone says; beside a measured cell it tells whether that is normal.
        low_bytes_per_s: Least that a cell could be, NaN where nothing bounds it.
        high_bytes_per_s: Most that a cell could be.
        latency_s: ``[device, device]``.
        relative_error: Half-width of the error bar over the value.
        source: :class:`~plait.hardware.values.Source` of each known cell.
        kinds: What carries the traffic (``nvlink``, ``pix``, ``staged``, ``net``), empty for unknown.
        links: ``[device, device]``, the link as topology tools print it (``NV12``, ``SYS``), empty where none is told.
        numa_distance: ``[device, numa]`` in the firmware's units (10 = local), NaN unknown.
        host_bytes_per_s: ``[device]``, copies from and to pinned host memory.
        nic_bytes_per_s: ``[device, nic]``.
        nic_kinds: ``[device, nic]``.
        node_bytes_per_s: ``[node, node]``, all NICs together.
        node_latency_s: ``[node, node]``.
        fabrics: ``[node, node]``: ``infiniband``, ``roce``, ``tcp``, ``local``, empty for unknown.
        details: Why a cell is what it is, by device keys (or node names).
        groups: What pairs share.
        routes: The groups that each ordered pair of devices loads.
        roots: Of each device, where its traffic enters the processors.
        conflicts: Where sources differ; the believed figure is in the cell.
    """

    devices: tuple[str, ...]
    names: tuple[str, ...]
    nodes: tuple[str, ...]
    numa_nodes: tuple[str, ...]
    nics: tuple[str, ...]
    node_of: tuple[int, ...]
    models: tuple[str | None, ...]
    bytes_per_s: _Floats
    expected_bytes_per_s: _Floats
    low_bytes_per_s: _Floats
    high_bytes_per_s: _Floats
    latency_s: _Floats
    relative_error: _Floats
    source: NDArray[np.uint8]
    kinds: NDArray[np.str_]
    links: NDArray[np.str_]
    numa_distance: _Floats
    host_bytes_per_s: _Floats
    nic_bytes_per_s: _Floats
    nic_kinds: NDArray[np.str_]
    node_bytes_per_s: _Floats
    node_latency_s: _Floats
    node_source: NDArray[np.uint8]
    fabrics: NDArray[np.str_]
    details: Mapping[tuple[str, str], str] = field(default_factory=dict)
    groups: Mapping[str, CapacityGroup] = field(default_factory=dict)
    routes: Mapping[tuple[str, str], tuple[Load, ...]] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)
    conflicts: tuple[Conflict, ...] = ()

    AXES = {  # noqa: RUF012 - a constant of the class, not a field
        "bytes_per_s": ("device", "device"),
        "expected_bytes_per_s": ("device", "device"),
        "low_bytes_per_s": ("device", "device"),
        "high_bytes_per_s": ("device", "device"),
        "latency_s": ("device", "device"),
        "relative_error": ("device", "device"),
        "source": ("device", "device"),
        "kinds": ("device", "device"),
        "links": ("device", "device"),
        "known": ("device", "device"),
        "numa_distance": ("device", "numa"),
        "host_bytes_per_s": ("device",),
        "nic_bytes_per_s": ("device", "nic"),
        "nic_kinds": ("device", "nic"),
        "node_bytes_per_s": ("node", "node"),
        "node_latency_s": ("node", "node"),
        "node_source": ("node", "node"),
        "fabrics": ("node", "node"),
    }

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which pairs have a figure, ``[device, device]``."""
        return ~np.isnan(self.bytes_per_s)

    def axis(self, name: str) -> tuple[str, ...]:
        """Returns the labels of an axis: ``device``, ``numa``, ``nic`` or ``node``."""
        return {"device": self.devices, "numa": self.numa_nodes, "nic": self.nics, "node": self.nodes}[name]

    def index(self, device: str) -> int:
        """Returns a device's place on the device axis, by its key or, where that is enough, its name.

        Raises:
            UnknownDevice: no device, or several, are called so.
        """
        if device in self.devices:
            return self.devices.index(device)
        places = [i for i, name in enumerate(self.names) if name == device]
        if len(places) == 1:
            return places[0]
        if places:
            among = ", ".join(self.devices[i] for i in places[:4])
            raise UnknownDevice(f"{device!r} is the name of several devices: {among}")
        hint = did_you_mean(device, (*self.devices, *self.names))
        raise UnknownDevice(f"there is no device {device!r}{hint}")

    def cell(self, source: str, target: str) -> Cell:
        """Returns the bandwidth from one device to another (or of its own memory) with where it comes from."""
        i, j = self.index(source), self.index(target)
        return self._cell(self.bytes_per_s, i, j, "bytes/s")

    def latency(self, source: str, target: str) -> Cell:
        """Returns the latency from one device to another with where it comes from."""
        return self._cell(self.latency_s, self.index(source), self.index(target), "s")

    def node_cell(self, source: str, target: str) -> Cell:
        """Returns what two nodes exchange over all their NICs, one direction."""
        i, j = self.nodes.index(source), self.nodes.index(target)
        value = self.node_bytes_per_s[i, j]
        detail = self.details.get((source, target), "")
        return Cell(_number(value), "bytes/s", Source(self.node_source[i, j]), None, detail, str(self.fabrics[i, j]))

    def bandwidth(self, source: str, target: str, *, unknown: Unknown) -> float:
        """Returns bytes/s from one device to another.

        Args:
            source: The sending device.
            target: The receiving device.
            unknown: What to do about a pair that nothing is known of.

        Raises:
            UnknownBandwidth: the pair is unknown, and ``unknown`` is ``raise`` or nothing bounds it.
        """
        i, j = self.index(source), self.index(target)
        value = self.bytes_per_s[i, j]
        return self._stand_in(i, j, unknown) if np.isnan(value) else float(value)

    def filled(self, *, unknown: Unknown) -> _Floats:
        """Returns the bandwidth matrix without gaps, ``[device, device]``; see :meth:`bandwidth`."""
        full = self.bytes_per_s.copy()
        for i, j in zip(*np.nonzero(np.isnan(full)), strict=True):
            if i == j:
                full[i, j] = np.inf
                continue
            full[i, j] = self._stand_in(int(i), int(j), unknown)
        return full

    def choose(self, devices: Iterable[str]) -> "AffinityMatrix":
        """Returns the matrix of these devices alone, in this order; NICs, NUMA and nodes stay."""
        places = [self.index(device) for device in devices]
        square = np.ix_(places, places)
        kept = {self.devices[i] for i in places}
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, axes in self.AXES.items():
            if axes[0] == "device" and name != "known":
                fields[name] = _frozen(getattr(self, name)[square if axes == ("device", "device") else places])
        for name in ("devices", "names", "node_of", "models"):
            fields[name] = tuple(getattr(self, name)[i] for i in places)
        fields["routes"] = {pair: loads for pair, loads in self.routes.items() if kept.issuperset(pair)}
        return AffinityMatrix(**fields)

    def concurrent_time_s(self, flows: Sequence[Flow], *, unknown: Unknown) -> float:
        """Returns how long these flows take together; see :meth:`achievable`."""
        return self.achievable(flows, unknown=unknown).time_s

    def achievable(self, flows: Sequence[Flow], *, unknown: Unknown) -> Achievable:
        """Returns what flows reach that run at once: no pair is faster than alone, and no group than its capacity.

        Args:
            flows: Source and target by key or name, with their bytes.
            unknown: What to do about a pair that nothing is known of.

        Raises:
            UnknownBandwidth: a pair is unknown, and ``unknown`` is ``raise`` or nothing bounds it.
        """
        if not flows:
            return Achievable(0.0, 0.0, "", "no flows")
        named = [
            Flow(self.devices[self.index(f.source)], self.devices[self.index(f.target)], f.size_bytes, f.is_read)
            for f in flows
        ]
        volume: dict[tuple[str, str], float] = {}
        for flow in named:
            pair = (flow.source, flow.target)
            volume[pair] = volume.get(pair, 0.0) + flow.size_bytes
        times = [
            (size / self.bandwidth(a, b, unknown=unknown), f"{a} to {b}", f"the path from {a} to {b}", False)
            for (a, b), size in volume.items()
        ]
        times += group_times(named, self.routes, self.groups, self.roots)
        time_s, limited_by, reason, is_scattered = max(times, key=lambda entry: entry[0])
        total = sum(flow.size_bytes for flow in named)
        return Achievable(total / time_s, time_s, limited_by, reason, is_scattered)

    def all_pairs(self) -> tuple[Flow, ...]:
        """Returns one flow for every ordered pair of devices: everybody writes to everybody."""
        return tuple(Flow(a, b) for a in self.devices for b in self.devices if a != b)

    def _cell(self, array: _Floats, i: int, j: int, unit: str) -> Cell:
        value = _number(array[i, j])
        detail = self.details.get((self.devices[i], self.devices[j]), "")
        error = _number(self.relative_error[i, j]) if value is not None and unit == "bytes/s" else None
        return Cell(value, unit, Source(self.source[i, j]), error, detail, str(self.kinds[i, j]))

    def _stand_in(self, i: int, j: int, unknown: Unknown) -> float:
        pair = f"{self.devices[i]} to {self.devices[j]}"
        if unknown == "raise":
            why = self.details.get((self.devices[i], self.devices[j]), "") or "no source tells"
            raise UnknownBandwidth(f"the bandwidth from {pair} is unknown: {why}")
        bound = _number((self.low_bytes_per_s if unknown == "pessimistic" else self.high_bytes_per_s)[i, j])
        if bound is not None:
            return bound
        others = self.bytes_per_s[~np.eye(len(self.devices), dtype=bool)]
        others = others[~np.isnan(others)]
        if others.size == 0:
            raise UnknownBandwidth(f"the bandwidth from {pair} is unknown, and so is every other that could stand in")
        return float(others.min() if unknown == "pessimistic" else others.max())


def _number(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)


def _frozen(array: NDArray[np.generic]) -> NDArray[np.generic]:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
