"""Islands: devices that one vendor's collective library joins over fast links.

Inside an island collectives run at the speed of the vendor's own library; between islands traffic goes over the slower
bridge. :mod:`plait.hardware.units` puts islands together into units that train together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.hardware.grouping import best_ring, told_speed

FAST_BYTES_PER_S = 10e9
"""A link between nodes is fast from here on. A 100 Gb/s RDMA port gives 12.5 GB/s, 25 Gb/s Ethernet 3.1."""

LIBRARIES: Mapping[str, str] = {
    "nvidia": "nccl",
    "amd": "rccl",
    "huawei": "hccl",
    "intel": "oneccl",
    "cambricon": "cncl",
    "hygon": "duccl",
    "kunlunxin": "xccl",
    "metax": "mccl",
    "moore threads": "musaccl",
}
"""The collective library of each vendor (lower case); the others and CPUs meet over gloo."""

BRIDGE = "gloo"
"""What joins devices of different vendors, by copies through host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A device as grouping sees it.

    Attributes:
        name: For the reasons.
        node: The host it is in.
        vendor: As the catalogue writes it, ``None`` unknown.
        fabric: A name that devices share which a fast fabric joins across nodes (an NVLink clique), ``None`` without.
        speed: Relative to the others.
    """

    name: str
    node: str
    vendor: str | None
    fabric: str | None = None
    speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """Devices that one library joins; ``members`` are indices into the devices that were given, ascending.

    Attributes:
        library: Its collective library (``nccl``).
        nodes: The hosts that it spans, sorted.
        ring_bytes_per_s: The slowest link of the best ring over all of it; ``None`` for one device or where unknown.
        speed: Of its members together.
        reason: Why these and no more.
    """

    members: tuple[int, ...]
    library: str
    nodes: tuple[str, ...]
    ring_bytes_per_s: float | None
    speed: float
    reason: str


def library_of(vendor: str | None) -> str:
    """Returns the collective library of a vendor's devices."""
    return LIBRARIES.get((vendor or "").casefold(), BRIDGE)


def islands(
    devices: Sequence[Member], bytes_per_s: NDArray[np.float64], *, fast_bytes_per_s: float = FAST_BYTES_PER_S
) -> tuple[Island, ...]:
    """Returns the islands of these devices, ordered by their first device.

    Two devices of one library are joined in one node, in one named fabric, or where the slower direction between them
    has ``fast_bytes_per_s``; devices of no library of their own (CPUs, unknown vendors) are joined in one node only.

    Args:
        devices: The devices, in the order of the matrix.
        bytes_per_s: Shape (n, n), one direction, NaN unknown (which joins nothing).
        fast_bytes_per_s: What makes a link between nodes fast.
    """
    matrix = np.asarray(bytes_per_s, dtype=np.float64)
    if matrix.shape != (len(devices), len(devices)):
        raise ValueError(f"{len(devices)} devices need a matrix of that size; this one has the shape {matrix.shape}")
    libraries = [library_of(device.vendor) for device in devices]
    with np.errstate(invalid="ignore"):
        fast = np.minimum(matrix, matrix.T) >= fast_bytes_per_s
    found = []
    unseen = set(range(len(devices)))
    while unseen:
        queue, members = [min(unseen)], []
        unseen.discard(queue[0])
        while queue:
            a = queue.pop()
            members.append(a)
            near = sorted(b for b in unseen if _joined(devices, libraries, a, b, is_fast=bool(fast[a, b])))
            unseen.difference_update(near)
            queue.extend(near)
        found.append(_island(devices, libraries[members[0]], sorted(members), matrix, fast_bytes_per_s))
    return tuple(found)


def _joined(devices: Sequence[Member], libraries: Sequence[str], a: int, b: int, *, is_fast: bool) -> bool:
    one, other = devices[a], devices[b]
    if libraries[a] != libraries[b] or (one.vendor or "").casefold() != (other.vendor or "").casefold():
        return False
    if one.node == other.node:
        return True
    same_fabric = one.fabric is not None and one.fabric == other.fabric
    return libraries[a] != BRIDGE and (same_fabric or is_fast)


def _island(
    devices: Sequence[Member],
    library: str,
    members: Sequence[int],
    matrix: NDArray[np.float64],
    fast_bytes_per_s: float,
) -> Island:
    nodes = tuple(sorted({devices[m].node for m in members}))
    speed = best_ring(matrix, members)[1]
    if len(nodes) == 1:
        where = f"in node {nodes[0]}"
    elif all(devices[m].fabric is not None and devices[m].fabric == devices[members[0]].fabric for m in members):
        where = f"in the fabric {devices[members[0]].fabric}"
    else:
        where = f"on {len(nodes)} nodes, over links of at least {told_speed(fast_bytes_per_s)}"
    ring = "" if len(members) < 2 else f"; the slowest link of its ring has {told_speed(speed)}"
    return Island(
        members=tuple(members),
        library=library,
        nodes=nodes,
        ring_bytes_per_s=speed,
        speed=sum(devices[m].speed for m in members),
        reason=f"{library} joins {', '.join(devices[m].name for m in members)} {where}{ring}",
    )
