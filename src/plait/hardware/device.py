"""Devices and nodes as frozen values."""

from dataclasses import dataclass, field
from typing import Literal

DeviceState = Literal["healthy", "quarantined", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapability:
    """Published figures of one accelerator type; unknown is ``None``, never 0. TFLOPS are dense.

    ``memory_bytes`` is the smallest size sold and ``memory_options_bytes`` all of them, ascending. ``sustained_ratio``
    is the largest measured matrix product over the published peak.
    """

    accelerator_type: str
    vendor: str
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    precisions: frozenset[str] = frozenset()
    source: str = ""
    memory_options_bytes: tuple[int, ...] = ()
    sustained_ratio: float | None = None
    devices_per_package: int = 1


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
