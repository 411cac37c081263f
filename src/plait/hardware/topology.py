"""What exists on a machine and how it is wired, as one source tells it: components, links, capacity groups.

An importer or a vendor probe returns a :class:`Fragment`; :mod:`plait.hardware.merge` joins fragments of one node by
PCI address, UUID and name, and keeps what disagrees as :class:`Conflict`. Nothing here does I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from plait.hardware.values import UNKNOWN, Source, Value

ComponentKind = Literal["gpu", "npu", "nic", "cpu", "numa", "switch", "bridge", "node", "other"]
LinkKind = Literal[
    "nvlink", "nvb", "c2c", "xgmi", "hccs", "sio", "ub", "mx", "xelink", "mdf", "mtlink", "mlulink",
    "pix", "pxb", "phb", "node", "sys", "pcie", "net", "self", "unknown",
]  # fmt: skip
"""``unknown`` is a pair that is only measured, or only known to be allowed peer access."""
P2P = Literal["ok", "refused", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """Which CPUs and NUMA nodes a component is near; ``None`` is unknown, and ``why_unknown`` says why.

    ``numa_nodes`` holds more than one id only where the source lists several real ones (memory-only nodes included).
    """

    cpus: frozenset[int] | None = None
    numa_nodes: tuple[int, ...] | None = None
    gpu_numa_node: int | None = None
    why_unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciPort:
    """The PCI Express port of a component: generations count from 1, lanes are a count; unknown is ``None``."""

    generation: int | None = None
    lanes: int | None = None
    max_generation: int | None = None
    max_lanes: int | None = None
    is_idle_reading: bool = False
    """Whether the current generation was read on an idle device, which lowers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One thing of a node: an accelerator, a part of one, a NIC, a CPU package, a NUMA node, a switch.

    Attributes:
        key: Unique in its fragment: the normalised PCI address ``dddd:bb:dd.f`` (lower case; longer domains kept) where
            it is known, else the UUID, else the printed name.
        name: As its source prints it (``GPU0``, ``mlx5_0``).
        parent: Key of the physical component that this one is a part of (MIG slice, GCD, die) or hangs under.
        index: Its number in its source's own numbering, ``None`` where there is none.
        model: As the vendor's tool prints it.
        accelerator_type: The catalogue's row, ``None`` where the model matches none.
        rate_bytes_per_s: Of a NIC: its line rate, one direction.
        extra: What the source says besides, by its own key (``fb_memory_total``, ``tclass``); strings as printed.
    """

    key: str
    name: str
    kind: ComponentKind
    vendor: str | None = None
    model: str | None = None
    accelerator_type: str | None = None
    pci_address: str | None = None
    uuid: str | None = None
    parent: str | None = None
    index: int | None = None
    memory_bytes: Value[int] = field(default_factory=lambda: Value(None))
    memory_bytes_per_s: Value[float] = UNKNOWN
    rate_bytes_per_s: Value[float] = UNKNOWN
    pci: PciPort = PciPort()
    locality: Locality = Locality()
    health: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection of two components as its source states it; ``a`` and ``b`` are component keys.

    Attributes:
        count: How many parallel links of this kind (NV12: 12), 1 for a path.
        bytes_per_s: One direction, a to b; where only the kind is known this is unknown and the cost model fills in.
        shared_by: Ids of the capacity groups that traffic over this link loads.
        raw: The cell or attribute as printed.
    """

    a: str
    b: str
    kind: LinkKind
    count: int = 1
    bytes_per_s: Value[float] = UNKNOWN
    reverse_bytes_per_s: Value[float] = UNKNOWN
    latency_s: Value[float] = UNKNOWN
    p2p: P2P = "unknown"
    shared_by: tuple[str, ...] = ()
    raw: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityGroup:
    """What several links share: a PCIe uplink, a root port, a socket link, a switch, a NIC.

    ``bytes_per_s`` is one direction; ``duplex_factor`` is both directions at once over one (2 = full duplex).
    ``scatter_bytes_per_s`` is what is left where several devices behind it write at once to places behind different
    root ports, which some processors handle badly; unknown means no loss. ``crowded_ratio`` is the part of the capacity
    that lasts where several flows each way share it.
    """

    id: str
    kind: Literal["uplink", "root_port", "socket_link", "switch", "nic", "port"]
    bytes_per_s: Value[float]
    duplex_factor: float = 2.0
    scatter_bytes_per_s: Value[float] = UNKNOWN
    crowded_ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A table that a measuring tool printed; ``None`` stands for a cell without a figure. Figures in ``unit``."""

    title: str
    unit: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[float | None, ...]], ...] = ()
    figures: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two sources, or two halves of a matrix, that say different things of one subject."""

    subject: str
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """What one source tells of one machine.

    Attributes:
        origin: The file, command or probe.
        format: Name of the importer or probe.
        numa_distances: ``{(from, to): distance}`` in the firmware's units (10 = local).
        conflicts: Contradictions inside this source.
        unread: Lines or elements that were not understood, as ``origin:line: text``; never guessed at.
        hides: What this source does not show though it may exist (``nvlink`` for ``topo -mp``).
        warnings: What a person should know (a port that is down, eight Hopper GPUs all SYS), one sentence each.
        error: Why a probe gave up, ``None`` when it went well.
        tables: Further tables of the source under their printed titles, ``{title: {(a, b): cell}}``.
        source: How far this source is believed where another says something else.
    """

    origin: str
    format: str
    components: tuple[Component, ...] = ()
    links: tuple[Link, ...] = ()
    groups: tuple[CapacityGroup, ...] = ()
    numa_distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    unread: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    tables: Mapping[str, Mapping[tuple[str, str], str]] = field(default_factory=dict)
    source: Source = Source.CLI

    def component(self, key: str) -> Component | None:
        """Returns the component with this key, ``None`` where there is none."""
        return next((c for c in self.components if c.key == key), None)
