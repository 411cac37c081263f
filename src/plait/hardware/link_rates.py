"""Published rates of ports and links by model: how fast one NVLink of an A100 is, and one of an RTX 3090.

A link's name is no bandwidth: NV4 is 100 GB/s on an A100 board and 56 GB/s between two RTX 3090. So a rate needs the
model beside the count. All figures are of one direction, in bytes/s.
"""

import re
from dataclasses import dataclass
from typing import Literal

GB = 1e9

PCIE_LANE_BYTES_PER_S = {1: 0.25 * GB, 2: 0.5 * GB, 3: 0.985 * GB, 4: 1.969 * GB, 5: 3.938 * GB, 6: 7.563 * GB}
"""Of one lane, by generation, after the line code (PCI Express base specifications)."""

NVLINK_RANGE_BYTES_PER_S = (14.0625 * GB, 50 * GB)
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
        is_switched: Whether all its links end at switches on the boards it is sold on (HGX), so that any two reach
            all of them.
        refuses_p2p: Whether the vendor's stock driver refuses peer access over PCI Express.
    """

    family: str
    pcie_generation: int | None = None
    pcie_lanes: int | None = 16
    peer_kind: Literal["nvlink", "xgmi", "hccs"] | None = None
    peer_link_bytes_per_s: float | None = None
    peer_links: int | None = None
    is_switched: bool = False
    refuses_p2p: bool = False


def _nvidia(
    family: str,
    generation: int,
    link_gb_per_s: float | None = None,
    links: int | None = None,
    *,
    is_switched: bool = False,
    refuses_p2p: bool = False,
    lanes: int | None = 16,
) -> Ports:
    return Ports(
        family=family,
        pcie_generation=generation,
        pcie_lanes=lanes,
        peer_kind=None if link_gb_per_s is None else "nvlink",
        peer_link_bytes_per_s=None if link_gb_per_s is None else link_gb_per_s * GB,
        peer_links=links,
        is_switched=is_switched,
        refuses_p2p=refuses_p2p,
    )


def _amd(family: str, generation: int | None, link_gb_per_s: float | None, links: int | None) -> Ports:
    rate = None if link_gb_per_s is None else link_gb_per_s * GB
    return Ports(
        family=family, pcie_generation=generation, peer_kind="xgmi", peer_link_bytes_per_s=rate, peer_links=links
    )


# The first pattern that is found in the model's name counts. NVLink a link and direction: 20 (NVLink 1), 25 (2, 3, 4),
# 50 (5), and 14.0625 on the bridges of GA10x. HGX H800 and A800 have 8 of the links.
_FAMILIES: tuple[tuple[str, Ports], ...] = (
    (r"\bGB[23]00|\bB[123]00\b", _nvidia("B200", 5, 50, 18, is_switched=True)),
    (r"\bGH200", _nvidia("GH200", 5, 25, 18, is_switched=True)),
    (r"\bH800\b.*PCIE", _nvidia("H800 PCIe", 5, 25)),
    (r"\bH800\b", _nvidia("H800", 5, 25, 8, is_switched=True)),
    (r"\bH100[ -]?NVL|\bH200[ -]?NVL", _nvidia("H100 NVL", 5, 25, 12)),
    (r"\bH[12]00\b.*PCIE", _nvidia("H100 PCIe", 5, 25, 12)),
    (r"\bH(100|200|20)\b", _nvidia("H100", 5, 25, 18, is_switched=True)),
    (r"\bA800\b.*PCIE", _nvidia("A800 PCIe", 4, 25, 8)),
    (r"\bA800\b", _nvidia("A800", 4, 25, 8, is_switched=True)),
    (r"\bA100X?\b.*PCIE", _nvidia("A100 PCIe", 4, 25, 12)),
    (r"\bA100X?\b|\bPG50[69]\b", _nvidia("A100", 4, 25, 12, is_switched=True)),
    (r"\bA30\b", _nvidia("A30", 4, 25, 4)),
    (r"\bV100\b.*PCIE", _nvidia("V100 PCIe", 3)),
    (r"\bV100\b|\bGV100\b", _nvidia("V100", 3, 25, 6)),
    (r"\bP100\b.*PCIE", _nvidia("P100 PCIe", 3)),
    (r"\bP100\b", _nvidia("P100", 3, 20, 4)),
    (r"\bRTX PRO [456]\d{3}|\bRTX PRO .*BLACKWELL", _nvidia("RTX PRO Blackwell", 5)),
    (r"\bRTX 50[5-9]0|\bRTX50[5-9]0", _nvidia("RTX 50", 5, refuses_p2p=True)),
    (r"\b[456]\d{3} ADA\b|\b5880 ADA|\bRTX6000ADA", _nvidia("RTX Ada", 4)),
    (r"\bRTX ?40[5-9]0", _nvidia("RTX 40", 4, refuses_p2p=True)),
    (r"\bRTX ?3090", _nvidia("RTX 3090", 4, 14.0625, 4)),
    (r"\bRTX ?30[5-8]0", _nvidia("RTX 30", 4)),
    (r"\bRTX ?A[456][05]00\b|\bA40\b|\bA6000\b|\bA5500\b", _nvidia("GA102 with bridge", 4, 14.0625, 4)),
    (r"\bA(2|10|10G|16)\b|\bRTX ?A[24]000", _nvidia("GA10x", 4)),
    (r"\bL4\b|\bL40S?\b|\bL20\b", _nvidia("L40", 4)),
    (r"\bQUADRO RTX [68]000|\bTITAN RTX|\bRTX ?2080 ?TI", _nvidia("TU102 with bridge", 3, 25, 2)),
    (r"\bRTX ?20[5-8]0|\bT4\b|\bGTX 1[06]\d0|\bTITAN|\bP40\b|\bP4\b|\bM40\b|\bK80\b", _nvidia("PCIe 3 card", 3)),
    (r"\bMI35[05]X?", _amd("MI355X", 5, 76.5, 7)),
    (r"\bMI3(00|25)X", _amd("MI300X", 5, 64, 7)),
    (r"\bMI300A", _amd("MI300A", 5, None, None)),
    (r"\bMI2(00|10|50X?)\b", _amd("MI200", 4, 50, 8)),
    (r"\bMI100\b|\b738C\b", _amd("MI100", 4, 46, 3)),
    (r"\bMI[56]0\b|\bVEGA ?20\b", _amd("MI50", 4, None, 2)),
    (
        r"910B\d?\b",
        Ports(
            family="Ascend 910B",
            pcie_generation=4,
            peer_kind="hccs",
            peer_link_bytes_per_s=28 * GB,
            peer_links=7,
        ),
    ),
    (
        r"\bASCEND ?910A?\b|\b910(A|PRO ?[AB])\b",
        Ports(
            family="Ascend 910",
            pcie_generation=4,
            peer_kind="hccs",
            peer_link_bytes_per_s=30 * GB,
            peer_links=3,
        ),
    ),
)


def ports_of(model: str | None) -> Ports | None:
    """Returns how a model is connected, by its name as any tool prints it; ``None`` where the family is not known."""
    if not model:
        return None
    name = re.sub(r"[-_/]", " ", model.upper())
    name = re.sub(r"(?<=\d)(SXM|PCIE|NVL)", r" \1", name)
    name = re.sub(r"\s+", " ", name)
    return next((ports for pattern, ports in _FAMILIES if re.search(pattern, name)), None)


_BY_GFX = {"906": "MI50", "908": "MI100", "90A": "MI250X", "942": "MI300X", "950": "MI355X"}
_BY_SM = {
    60: _nvidia("P100", 3, 20, 4),
    61: _nvidia("GP10x", 3),
    70: _nvidia("V100", 3, 25, 6),
    75: _nvidia("TU10x", 3),
    80: _nvidia("A100", 4, 25, 12),
    86: _nvidia("GA10x", 4, 14.0625, 4),
    89: _nvidia("AD10x", 4),
    90: _nvidia("H100", 5, 25, 18),
    100: _nvidia("B200", 5, 50, 18),
    103: _nvidia("B300", 5, 50, 18),
    120: _nvidia("GB20x", 5),
}


def ports_of_architecture(gfx: str | None, compute_capability: str | None) -> Ports | None:
    """Returns how devices of an architecture are connected: AMD's gfx number (``90a``), NVIDIA's (``80``, ``8.0``)."""
    if gfx:
        return ports_of(_BY_GFX.get(gfx.upper().removeprefix("GFX")))
    number = (compute_capability or "").replace(".", "")
    return _BY_SM.get(int(number)) if number.isdecimal() else None


def pcie_bytes_per_s(generation: int | None, lanes: int | None) -> float | None:
    """Returns the rate of a PCI Express link, one direction; ``None`` where generation or lanes are unknown."""
    if generation is None or not lanes:
        return None
    lane = PCIE_LANE_BYTES_PER_S.get(generation)
    return None if lane is None else lane * lanes
