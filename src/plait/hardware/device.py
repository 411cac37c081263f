"""Devices and nodes as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from plait.hardware.topology import LinkKind, PciPort

DeviceState = Literal["healthy", "quarantined", "probation", "lost"]

Need = Literal["tensor_cores", "format_conversion", "custom_op"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """What an accelerator asks of a job before its published figures hold there.

    ``tensor_cores``: the 16-bit figure is that of matrix products alone. ``format_conversion``: matrices are stored in
    a layout of the vendor's own, and what is not must be converted. ``custom_op``: operators outside the vendor's set
    need an implementation.
    """

    kind: Need
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLinks:
    """The fabric between accelerators of one type, one direction, bytes a second; unknown is ``None``.

    Attributes:
        kind: As in a topology; ``None`` for fabrics that no topology here tells of.
        name: As the vendor calls it (``NVLink3``).
        links: How many links a device has.
        bytes_per_s: All links of a device together.
        pair_bytes_per_s: What one pair can use at most; ``None`` where the board decides.
    """

    kind: LinkKind | None
    name: str
    links: int | None = None
    bytes_per_s: float | None = None
    pair_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class FigureSource:
    """Where a figure comes from.

    Grade A: a vendor's page, or two sources that cite one. B: one good secondary source. C: community pages only, good
    for an order of magnitude.
    """

    grade: Literal["A", "B", "C"]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapability:
    """Published figures of one accelerator type or of one of its variants; unknown is ``None``, never 0.

    TFLOPS are dense, of matrix units where the part has them. All figures are of one device as programs see it.

    Attributes:
        accelerator_type: The name in the catalogue (``A100``, or the variant ``A100-PCIE-80GB``).
        family: The type that jobs and clusters name; the same as ``accelerator_type`` unless this is a variant.
        memory_bytes: The smallest size sold; ``memory_options_bytes`` holds all of them, ascending.
        sustained_ratio: The largest measured bf16 matrix product over the published peak.
        sustained_ratios: The same for each precision that was measured.
        pcie: Generation and lanes of the part, not of the slot, as ``max_generation`` and ``max_lanes``.
        needs: What a job has to bring before the figures hold.
        source: Grade and source of the figures; ``sources`` holds those that differ, by the figure's name here.
        note: What a reader of the figures should know.
    """

    accelerator_type: str
    vendor: str
    family: str = ""
    form: str = ""
    architecture: str = ""
    year: int | None = None
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    memory_type: str = ""
    shares_host_memory: bool = False
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    precisions: frozenset[str] = frozenset()
    source: str = ""
    sources: Mapping[str, FigureSource] = field(default_factory=dict, hash=False)
    note: str = ""
    memory_options_bytes: tuple[int, ...] = ()
    sustained_ratio: float | None = None
    sustained_ratios: Mapping[str, float] = field(default_factory=dict, hash=False)
    devices_per_package: int = 1
    pcie: PciPort = field(default_factory=PciPort)
    peer_links: PeerLinks | None = None
    tdp_w: float | None = None
    needs: tuple[Requirement, ...] = ()

    def source_of(self, figure: str) -> str:
        """Returns ``grade B: where it comes from`` of one figure, named as here (``tdp_w``, ``peer_links``)."""
        own = self.sources.get(figure)
        return self.source if own is None else f"grade {own.grade}: {own.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a node; ``index`` counts from 0 on its node. ``id`` is ``node/index``."""

    id: str
    node: str
    index: int
    accelerator_type: str
    memory_bytes: int | None = None
    numa_node: int | None = None
    state: DeviceState = "healthy"
    speed: float = 1.0
    """Predicted relative speed (samples per second up to a common factor)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host with one agent. Workers on it listen on ``address`` within ``first_port .. first_port + num_ports``."""

    id: str
    address: str
    devices: tuple[Device, ...]
    first_port: int = 21000
    num_ports: int = 1000
    labels: tuple[tuple[str, str], ...] = field(default=())
