"""Rates of ports and links by model: how fast one NVLink of an A100 is, and one of an RTX 3090.

A link's name is no bandwidth: NV4 is 100 GB/s on an A100 board and 56 GB/s between two RTX 3090. So a rate needs the
model beside the count. The catalogue knows most models; families that it does not hold are named here. All figures are
of one direction, in bytes/s.
"""

import functools
import re
from dataclasses import dataclass

from plait.hardware.catalog import UnknownAccelerator, capability, match_model
from plait.hardware.device import DeviceCapability

GB = 1e9

PCIE_LANE_BYTES_PER_S = {1: 0.25 * GB, 2: 0.5 * GB, 3: 0.985 * GB, 4: 1.969 * GB, 5: 3.938 * GB, 6: 7.563 * GB}
"""Of one lane, by generation, after the line code (PCI Express base specifications)."""

LINK_RANGES_BYTES_PER_S = {
    "nvlink": (14.0625 * GB, 50 * GB),
    "xgmi": (32 * GB, 76.5 * GB),
    "hccs": (28 * GB, 30 * GB),
}
"""Slowest and fastest link of all generations in use, for where the model is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """How one accelerator family is connected; unknown is ``None``.

    Attributes:
        family: What the figures are of.
        pcie_generation: Of its edge connector.
        pcie_lanes: Likewise.
        peer_kind: Kind of its direct links.
        peer_link_bytes_per_s: One direct link, one direction.
        peer_links: How many links it has where all are wired.
        refuses_p2p: Whether the vendor's stock driver refuses peer access over PCI Express.
    """

    family: str
    pcie_generation: int | None = None
    pcie_lanes: int | None = 16
    peer_kind: str | None = None
    peer_link_bytes_per_s: float | None = None
    peer_links: int | None = None
    refuses_p2p: bool = False


def _direct(kind: str, family: str, generation: int, link_gb_per_s: float, links: int) -> Ports:
    rate = link_gb_per_s * GB
    return Ports(
        family=family, pcie_generation=generation, peer_kind=kind, peer_link_bytes_per_s=rate, peer_links=links
    )


# What the catalogue does not hold or leaves open: the first pattern that is found in the name counts. Nobody publishes
# the rate of an MI50's xGMI; RCCL counts 24 GB/s sustained.
_FAMILIES: tuple[tuple[str, Ports], ...] = (
    (r"\bRTX PRO [456]\d{3}|\bRTX PRO .*BLACKWELL", Ports(family="RTX PRO Blackwell", pcie_generation=5)),
    (r"\bRTX 50[5-9]0", Ports(family="RTX 50", pcie_generation=5)),
    (r"\b[456]\d{3} ADA\b", Ports(family="RTX Ada", pcie_generation=4)),
    (r"\bRTX 40[5-9]0|\bL20\b", Ports(family="RTX 40", pcie_generation=4)),
    (r"\bRTX 3090", _direct("nvlink", "RTX 3090", 4, 14.0625, 4)),
    (r"\bRTX 30[5-8]0|\bRTX A[24]000|\bA(2|16)\b", Ports(family="GA10x", pcie_generation=4)),
    (r"\bRTX A[456][05]00\b|\bA40\b", _direct("nvlink", "GA102", 4, 14.0625, 4)),
    (r"\bA100X\b", _direct("nvlink", "A100X", 4, 25, 12)),
    (r"\bA30\b", _direct("nvlink", "A30", 4, 25, 4)),
    (r"\bH800\b", _direct("nvlink", "H800", 5, 25, 8)),
    (r"\bB100\b|\bGB[23]00\b", _direct("nvlink", "B200", 5, 50, 18)),
    (r"\bL40\b|\bL2\b", Ports(family="L40", pcie_generation=4)),
    (r"\bV100S\b|\bK80\b|\bQUADRO RTX [45]000", Ports(family="PCIe 3 card", pcie_generation=3)),
    (r"\bQUADRO RTX [68]000|\bTITAN ?RTX|\bRTX 2080 ?TI", _direct("nvlink", "TU102", 3, 25, 2)),
    (r"\bRTX 20[5-8]0|\bGTX 1[06]\d0|\bTITAN|\bP40\b|\bP4\b|\bM40\b", Ports(family="PCIe 3 card", pcie_generation=3)),
    (r"\bMI200\b", _direct("xgmi", "MI200", 4, 50, 8)),
    (r"\bMI350X?\b", _direct("xgmi", "MI350X", 5, 76.5, 7)),
    (r"\b738C\b", _direct("xgmi", "MI100", 4, 46, 3)),
    (r"\bMI[56]0\b|\bVEGA ?20\b", _direct("xgmi", "MI50", 4, 32, 2)),
)

_P2P_REFUSED = re.compile(r"\b(RTX ?)?(40[5-9]0|50[5-9]0)\b(?! ADA)")
"""GeForce RTX 40 and 50: the stock driver lets peers talk through host memory alone."""

_BY_GFX = {"906": "MI50", "908": "MI100", "90A": "MI250X", "942": "MI300X", "950": "MI355X"}
_BY_SM = {
    60: "Tesla P100-SXM2-16GB",
    61: "GTX 1080",
    70: "Tesla V100-SXM2-16GB",
    75: "T4",
    80: "A100",
    86: "RTX 3090",
    89: "L40S",
    90: "H100",
    100: "B200",
    103: "B300",
    120: "RTX PRO 6000",
}


@functools.lru_cache(maxsize=512)
def ports_of(model: str | None) -> Ports | None:
    """Returns how a model is connected, by its name as any tool prints it; ``None`` where the family is not known."""
    if not model:
        return None
    name = re.sub(r"[-_/ ]+", " ", model.upper())
    name = re.sub(r"\b(RTX|GTX)(?=[A\d])", r"\1 ", name)
    published = _published(model)
    family = next((ports for pattern, ports in _FAMILIES if re.search(pattern, name)), None)
    found = family if published is None else _of_capability(published)
    if found is not None and family is not None:
        found = _completed(found, family)
    if found is not None and _P2P_REFUSED.search(name):
        return Ports(family=found.family, pcie_generation=found.pcie_generation, refuses_p2p=True)
    return found


def ports_of_architecture(gfx: str | None, compute_capability: str | None) -> Ports | None:
    """Returns how devices of an architecture are connected: AMD's gfx number (``90a``), NVIDIA's (``80``, ``8.0``)."""
    if gfx:
        return ports_of(_BY_GFX.get(gfx.upper().removeprefix("GFX")))
    number = (compute_capability or "").replace(".", "")
    return ports_of(_BY_SM.get(int(number))) if number.isdecimal() else None


def pcie_bytes_per_s(generation: int | None, lanes: int | None) -> float | None:
    """Returns the rate of a PCI Express link, one direction; ``None`` where generation or lanes are unknown."""
    if generation is None or not lanes:
        return None
    lane = PCIE_LANE_BYTES_PER_S.get(generation)
    return None if lane is None else lane * lanes


def _published(model: str) -> DeviceCapability | None:
    name = match_model(model).accelerator_type or model
    try:
        return capability(name)
    except UnknownAccelerator:
        return None


def _completed(ports: Ports, family: Ports) -> Ports:
    is_rated = ports.peer_link_bytes_per_s is not None or ports.peer_kind not in {None, family.peer_kind}
    peer = ports if is_rated else family
    return Ports(
        family=ports.family,
        pcie_generation=ports.pcie_generation or family.pcie_generation,
        pcie_lanes=ports.pcie_lanes,
        peer_kind=peer.peer_kind or ports.peer_kind,
        peer_link_bytes_per_s=peer.peer_link_bytes_per_s,
        peer_links=peer.peer_links,
    )


def _of_capability(published: DeviceCapability) -> Ports:
    links = published.peer_links
    rate = None
    if links is not None and links.bytes_per_s is not None and links.links and links.kind == "nvlink":
        rate = links.bytes_per_s / links.links
    elif links is not None and links.kind != "nvlink":
        rate = links.pair_bytes_per_s  # a pair of these has one link, and packages share some of the links
    return Ports(
        family=published.accelerator_type,
        pcie_generation=published.pcie.max_generation,
        pcie_lanes=published.pcie.max_lanes or 16,
        peer_kind=links.kind if links else None,
        peer_link_bytes_per_s=rate,
        peer_links=links.links if links else None,
    )
