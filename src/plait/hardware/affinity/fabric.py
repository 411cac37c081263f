"""What connects nodes: their NICs' lines, by RDMA where both ends have it, by TCP otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass

from plait.hardware.cost_model import Estimate, estimate_line
from plait.hardware.nics import Fabric, fabric_of, is_up
from plait.hardware.topology import Component

_Kinds = frozenset[Fabric | None]
_ANY_RDMA: _Kinds = frozenset({"rdma", "infiniband", "roce"})
_ETHERNET: _Kinds = frozenset({"tcp", "roce", None})
_JOINS: tuple[tuple[Fabric, _Kinds, _Kinds], ...] = (
    ("infiniband", frozenset({"infiniband"}), frozenset({"infiniband"})),
    ("roce", frozenset({"roce"}), frozenset({"roce"})),
    ("rdma", frozenset({"rdma"}), _ANY_RDMA),
    ("rdma", _ANY_RDMA, frozenset({"rdma"})),
    ("tcp", _ETHERNET, _ETHERNET),
)
"""Which NICs can talk to one another, the surest and fastest way first; every Ethernet NIC carries TCP."""


@dataclass(frozen=True, slots=True)
class NodeLink:
    """What two nodes exchange, one direction: all NICs together and by one pair of NICs."""

    fabric: str
    all_nics: Estimate
    one_nic: Estimate


def node_link(one: Sequence[Component], other: Sequence[Component]) -> NodeLink:
    """Returns what two nodes with these NICs exchange."""
    for fabric, here, there in _JOINS:
        ends = [_rates(one, here), _rates(other, there)]
        if not all(ends):
            continue
        is_rdma = fabric != "tcp"
        total = min(sum(rates) for rates in ends)
        alone = estimate_line(min(max(rates) for rates in ends), is_rdma=is_rdma)
        together = estimate_line(total, is_rdma=True) if is_rdma else alone
        return NodeLink(fabric, together, alone)
    unknown = Estimate(None, "no NIC with a known rate that is up on both nodes")
    return NodeLink("", unknown, unknown)


def _rates(nics: Sequence[Component], kinds: _Kinds) -> list[float]:
    found = [(nic, nic.rate_bytes_per_s.value) for nic in nics if fabric_of(nic) in kinds and is_up(nic)]
    return [rate for _, rate in found if rate is not None and rate > 0]
