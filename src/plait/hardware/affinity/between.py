"""Pairs on different nodes, and the nodes themselves: the slower of each end's path to its NIC and the NICs' line."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.hardware.affinity.contention import Direction, Load
from plait.hardware.affinity.fabric import NodeLink, node_link
from plait.hardware.affinity.measured import PairFigure
from plait.hardware.affinity.sheet import Sheet, or_nan
from plait.hardware.cost_model import Estimate
from plait.hardware.topology import CapacityGroup, Component


@dataclass(frozen=True, slots=True)
class NicTable:
    """What each device gets through each NIC, ``[device, nic]`` bytes/s, NaN unknown; and the NICs' keys."""

    bytes_per_s: NDArray[np.float64]
    nics: tuple[str, ...]

    def best(self, label: str, row: int) -> str | None:
        """Returns the NIC that is best for a device; devices with equal choices spread over them by their number."""
        node = label.split("/", 1)[0] + "/"
        rates = {nic: float(self.bytes_per_s[row, j]) for j, nic in enumerate(self.nics) if nic.startswith(node)}
        known = {nic: rate for nic, rate in rates.items() if not np.isnan(rate)}
        if not known:
            return None
        best = [nic for nic, rate in known.items() if rate == max(known.values())]
        return best[row % len(best)]

    def rate(self, row: int, nic: str) -> float:
        """Returns what a device gets through a NIC, NaN unknown."""
        return float(self.bytes_per_s[row, self.nics.index(nic)])


@dataclass(frozen=True, slots=True)
class NodeSheet:
    """The node-node arrays while they are filled."""

    names: tuple[str, ...]
    bytes_per_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    source: NDArray[np.uint8]
    fabrics: NDArray[np.str_]
    links: Mapping[tuple[int, int], NodeLink]


def node_sheet(names: Sequence[str], nics: Sequence[Sequence[Component]], sheet: Sheet) -> NodeSheet:
    """Returns what nodes with these NICs exchange; the reasons go to the sheet."""
    count = len(names)
    links = {(p, q): node_link(nics[p], nics[q]) for p, q in itertools.permutations(range(count), 2)}
    found = NodeSheet(
        names=tuple(names),
        bytes_per_s=np.full((count, count), np.nan),
        latency_s=np.full((count, count), np.nan),
        source=np.zeros((count, count), dtype=np.uint8),
        fabrics=np.zeros((count, count), dtype="U10"),
        links=links,
    )
    np.fill_diagonal(found.fabrics, "local")
    for (p, q), link in links.items():
        found.bytes_per_s[p, q] = or_nan(link.all_nics.bytes_per_s)
        found.latency_s[p, q] = or_nan(link.one_nic.latency_s)
        found.fabrics[p, q] = link.fabric
        sheet.details[names[p], names[q]] = link.all_nics.reason
    return found


def fill_between(
    sheet: Sheet, nodes: NodeSheet, owners: Sequence[int], table: NicTable, groups: Mapping[str, CapacityGroup]
) -> dict[tuple[str, str], tuple[Load, ...]]:
    """Fills the cells of pairs on different nodes and returns the NIC groups that they load."""
    chosen = {label: table.best(label, i) for i, label in enumerate(sheet.labels)}
    loads: dict[tuple[str, str], tuple[Load, ...]] = {}
    for (i, one), (j, other) in itertools.permutations(enumerate(sheet.labels), 2):
        if owners[i] == owners[j]:
            continue
        link = nodes.links[owners[i], owners[j]]
        sheet.put(i, j, _across(link, table, ((i, chosen[one]), (j, chosen[other]))))
        ends: tuple[tuple[str, Direction], ...] = ((one, "out"), (other, "in"))
        found = [Load(_nic_group(chosen[label]), direction) for label, direction in ends]
        loads[one, other] = tuple(load for load in found if load.group in groups)
    return loads


def state_nodes(sheet: Sheet, nodes: NodeSheet, owners: Sequence[int], figure: PairFigure) -> None:
    """Writes a stated or measured figure of two nodes, and under it those of their devices."""
    said = figure.bytes_per_s
    p, q = nodes.names.index(figure.a), nodes.names.index(figure.b)
    if figure.latency_s.value is not None:
        nodes.latency_s[p, q] = figure.latency_s.value
    if said.value is None:
        return
    nodes.bytes_per_s[p, q], nodes.source[p, q] = said.value, said.source
    sheet.details[figure.a, figure.b] = said.detail
    for i, j in itertools.product(range(len(sheet.labels)), repeat=2):
        if p != q and (owners[i], owners[j]) == (p, q):
            sheet.state(i, j, figure)
            sheet.kinds[i, j] = "net"


def _nic_group(nic: str | None) -> str:
    if nic is None:
        return ""
    node, key = nic.split("/", 1)
    return f"{node}/nic:{key}"


def _across(link: NodeLink, table: NicTable, ends: Sequence[tuple[int, str | None]]) -> Estimate:
    line = link.one_nic
    if line.bytes_per_s is None:
        return Estimate(None, f"between nodes: {line.reason}", kind="net")
    value, reason = line.bytes_per_s, f"between nodes over {link.fabric}: {line.reason}"
    for row, nic in ends:
        # TCP passes through host memory, so the device's path to the NIC hardly counts there.
        if nic is None or link.fabric == "tcp":
            continue
        rate = table.rate(row, nic)
        if rate < value:
            value, reason = rate, f"between nodes over {link.fabric}: the path to {nic} gives {rate / 1e9:.3g} GB/s"
    return Estimate(value, reason, line.relative_error, latency_s=line.latency_s, kind="net")
