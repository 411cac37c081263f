"""What connects nodes: their NICs' lines, by RDMA where both ends have it, by TCP otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from plait.hardware.cost_model import Estimate, estimate_line
from plait.hardware.topology import Component, Fragment
from plait.hardware.values import Value

Fabric = Literal["infiniband", "roce", "tcp"]


@dataclass(frozen=True, slots=True)
class NodeLink:
    """What two nodes exchange, one direction: all NICs together and by one pair of NICs."""

    fabric: str
    all_nics: Estimate
    one_nic: Estimate


def nics_of(fragment: Fragment) -> tuple[Component, ...]:
    """Returns the NICs of a node in the order of their source; ports of one NIC count together, their rates added."""
    found = [c for c in fragment.components if c.kind == "nic"]
    keys = {nic.key for nic in found}
    ports: dict[str, list[Component]] = {}
    for nic in found:
        if nic.parent in keys and nic.parent is not None:
            ports.setdefault(nic.parent, []).append(nic)
    return tuple(_with_ports(nic, ports.get(nic.key, ())) for nic in found if nic.parent not in keys)


def _with_ports(nic: Component, ports: Sequence[Component]) -> Component:
    rates = [rate for port in ports if is_up(port) and (rate := port.rate_bytes_per_s.value) is not None]
    if nic.rate_bytes_per_s.value is not None or not ports:
        return nic
    extra = {**ports[0].extra, **nic.extra}
    total = Value(sum(rates) if rates else None, ports[0].rate_bytes_per_s.source, f"{len(rates)} ports that are up")
    return replace(nic, rate_bytes_per_s=total, extra=extra)


def fabric_of(nic: Component) -> Fabric:
    """Returns how a NIC moves data, by its link layer; TCP where nothing says RDMA."""
    extra = {key.rpartition(".")[2].casefold(): value.casefold() for key, value in nic.extra.items()}
    layer = extra.get("link_layer", extra.get("layer", ""))
    if "infiniband" in layer:
        return "infiniband"
    names = f"{nic.name} {nic.model or ''} {extra.get('rdma', '')}".casefold()
    is_rdma = bool(layer) or any(word in names for word in ("mlx", "rdma", "irdma", "efa", "bnxt_re", "hns", "roce"))
    return "roce" if is_rdma else "tcp"


def is_up(nic: Component) -> bool:
    """Returns whether a NIC may carry data: not where its source says that its port is down."""
    state = f"{nic.health or ''} {nic.extra.get('state', '')} {nic.extra.get('operstate', '')}".casefold()
    return not any(word in state.split() or f": {word}" in state for word in ("down", "disabled", "polling", "init"))


def node_link(one: Sequence[Component], other: Sequence[Component]) -> NodeLink:
    """Returns what two nodes with these NICs exchange."""
    for fabric in ("infiniband", "roce", "tcp"):
        ends = [_rates(nics, fabric) for nics in (one, other)]
        if not all(ends):
            continue
        is_rdma = fabric != "tcp"
        total = min(sum(rates) for rates in ends)
        alone = estimate_line(min(max(rates) for rates in ends), is_rdma=is_rdma)
        together = estimate_line(total, is_rdma=True) if is_rdma else alone
        return NodeLink(fabric, together, alone)
    unknown = Estimate(None, "no NIC with a known rate that is up on both nodes")
    return NodeLink("", unknown, unknown)


def _rates(nics: Sequence[Component], fabric: str) -> list[float]:
    found = [(nic, nic.rate_bytes_per_s.value) for nic in nics if fabric_of(nic) == fabric and is_up(nic)]
    return [rate for _, rate in found if rate is not None and rate > 0]
