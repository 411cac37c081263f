"""From what is known of some nodes to their matrix: pure, every cell with source, error bar and reason."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.hardware.affinity.between import NicTable, fill_between, node_sheet, state_nodes
from plait.hardware.affinity.contention import Load
from plait.hardware.affinity.links import endpoints_of, link_word, links_between, names_of, processor_of
from plait.hardware.affinity.matrix import AffinityMatrix, UnknownDevice
from plait.hardware.affinity.measured import PairFigure, best_of, measured_pairs
from plait.hardware.affinity.routes import Pair, Routes, narrowed, node_routes
from plait.hardware.affinity.sheet import Sheet, blank, or_nan, shut
from plait.hardware.catalog import UnknownAccelerator, capability
from plait.hardware.cost_model import RDMA_RATIO, Estimate, estimate_host, estimate_nic, estimate_pair
from plait.hardware.nics import is_up, nics_of
from plait.hardware.topology import CapacityGroup, Component, Fragment, Link
from plait.hardware.values import Source, Value
from plait.words import did_you_mean

HOST = "host"
"""The other end of a figure that tells of copies between a device and host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    name: str
    fragment: Fragment
    devices: tuple[Component, ...]
    nics: tuple[Component, ...]
    numa: tuple[int, ...]
    links: Mapping[Pair, Link]
    nic_links: Mapping[Pair, Link]
    estimates: Mapping[Pair, Estimate]
    routes: Routes

    def label(self, key: str) -> str:
        return f"{self.name}/{key}"


def build(
    nodes: Mapping[str, Fragment],
    *,
    overrides: Iterable[PairFigure] = (),
    measurements: Iterable[PairFigure] = (),
) -> AffinityMatrix:
    """Returns the matrix of some nodes.

    Figures are believed in the order measured, user, vendor library, vendor tool, sysfs, catalogue, default; measured
    tables inside a fragment count as measured. What differs much goes to ``conflicts``.

    Args:
        nodes: One merged fragment a node (:func:`plait.hardware.merge.merge`).
        overrides: What the user states, by device key or name, by two node names, or of a device and ``HOST``.
        measurements: Of own probes, likewise.

    Raises:
        UnknownDevice: a figure is stated of a device that is not there, or whose name several have.
    """
    parts = tuple(_node(name, fragment) for name, fragment in nodes.items())
    labels = tuple(part.label(d.key) for part in parts for d in part.devices)
    owners = tuple(k for k, part in enumerate(parts) for _ in part.devices)
    components = tuple(d for part in parts for d in part.devices)
    sheet = blank(labels)
    for part in parts:
        _fill_node(sheet, part)
    table, nic_kinds = _nic_table(parts, labels)
    across = node_sheet([part.name for part in parts], [part.nics for part in parts], sheet)
    groups, loads, roots = _all_routes(parts)
    loads |= fill_between(sheet, across, owners, table, groups)
    host = np.array([or_nan(estimate_host(d).bytes_per_s) for d in components], dtype=float)
    for figure in _stated(parts, components, labels, (*overrides, *measurements)):
        if figure.b == HOST:
            host[labels.index(figure.a)] = or_nan(figure.bytes_per_s.value)
        elif figure.a in across.names:
            state_nodes(sheet, across, owners, figure)
        else:
            sheet.state(labels.index(figure.a), labels.index(figure.b), figure)
    return AffinityMatrix(
        devices=labels,
        names=tuple(name for part in parts for name in names_of(part.devices)),
        nodes=tuple(part.name for part in parts),
        numa_nodes=tuple(f"{part.name}/{number}" for part in parts for number in part.numa),
        nics=table.nics,
        node_of=owners,
        models=tuple(d.accelerator_type or d.model for d in components),
        bytes_per_s=shut(sheet.bytes_per_s),
        expected_bytes_per_s=shut(sheet.expected),
        low_bytes_per_s=shut(sheet.low),
        high_bytes_per_s=shut(sheet.high),
        latency_s=shut(sheet.latency_s),
        relative_error=shut(sheet.error),
        source=shut(sheet.source),
        kinds=shut(sheet.kinds),
        links=shut(_link_words(parts, labels)),
        numa_distance=shut(_numa_distances(parts)),
        host_bytes_per_s=shut(host),
        nic_bytes_per_s=shut(table.bytes_per_s),
        nic_kinds=shut(nic_kinds),
        node_bytes_per_s=shut(across.bytes_per_s),
        node_latency_s=shut(across.latency_s),
        node_source=shut(across.source),
        fabrics=shut(across.fabrics),
        details=sheet.details,
        groups=groups,
        routes=loads,
        roots=roots,
        conflicts=(*(c for part in parts for c in part.fragment.conflicts), *sheet.conflicts),
    )


def _node(name: str, fragment: Fragment) -> _Node:
    devices, nics, cpu = endpoints_of(fragment), nics_of(fragment), processor_of(fragment)
    links = links_between(fragment, devices, devices)
    estimates = {
        (a.key, b.key): estimate_pair(links.get((a.key, b.key)), a, b, cpu) for a in devices for b in devices if a != b
    }
    numbers = {n for pair in fragment.numa_distances for n in pair}
    numbers |= {n for c in fragment.components for n in c.locality.numa_nodes or ()}
    routes = node_routes(fragment, devices, links, estimates, cpu)
    return _Node(
        name=name,
        fragment=fragment,
        devices=devices,
        nics=nics,
        numa=tuple(sorted(numbers)),
        links=links,
        nic_links=links_between(fragment, devices, nics),
        estimates={pair: narrowed(estimate, routes, pair) for pair, estimate in estimates.items()},
        routes=routes,
    )


def _fill_node(sheet: Sheet, part: _Node) -> None:
    place = {label: i for i, label in enumerate(sheet.labels)}
    for (a, b), estimate in part.estimates.items():
        sheet.put(place[part.label(a)], place[part.label(b)], estimate)
    for device in part.devices:
        i = place[part.label(device.key)]
        sheet.put(i, i, _local_memory(device))


def _local_memory(device: Component) -> Estimate:
    said = device.memory_bytes_per_s
    if said.value is not None:
        return Estimate(said.value, said.detail or "local memory", said.relative_error, source=said.source, kind="self")
    if device.accelerator_type is not None:
        try:
            published = capability(device.accelerator_type).memory_bytes_per_s
        except UnknownAccelerator:
            published = None
        if published is not None:
            reason = f"published memory bandwidth of {device.accelerator_type}"
            return Estimate(published, reason, 0.15, source=Source.CATALOGUE, kind="self")
    return Estimate(None, "memory bandwidth not known", kind="self")


def _nic_table(parts: Sequence[_Node], labels: Sequence[str]) -> tuple[NicTable, NDArray[np.str_]]:
    nics = tuple(part.label(nic.key) for part in parts for nic in part.nics)
    rates = np.full((len(labels), len(nics)), np.nan)
    kinds = np.zeros((len(labels), len(nics)), dtype="U10")
    rows, columns = ({name: i for i, name in enumerate(names)} for names in (labels, nics))
    for part in parts:
        for device, nic in itertools.product(part.devices, part.nics):
            link = part.nic_links.get((device.key, nic.key))
            i, j = rows[part.label(device.key)], columns[part.label(nic.key)]
            kinds[i, j] = link.kind if link else ""
            if is_up(nic):
                rates[i, j] = or_nan(estimate_nic(device, nic, link).bytes_per_s)
    return NicTable(rates, nics), kinds


def _link_words(parts: Sequence[_Node], labels: Sequence[str]) -> NDArray[np.str_]:
    words = np.zeros((len(labels), len(labels)), dtype="U12")
    place = {label: i for i, label in enumerate(labels)}
    for part in parts:
        for (a, b), link in part.links.items():
            words[place[part.label(a)], place[part.label(b)]] = link_word(link)
    return words


def _all_routes(
    parts: Sequence[_Node],
) -> tuple[dict[str, CapacityGroup], dict[tuple[str, str], tuple[Load, ...]], dict[str, str]]:
    groups: dict[str, CapacityGroup] = {}
    loads: dict[tuple[str, str], tuple[Load, ...]] = {}
    roots: dict[str, str] = {}
    for part in parts:
        for group in part.routes.groups:
            groups[part.label(group.id)] = _renamed(group, part.label(group.id))
        for (a, b), found in part.routes.loads.items():
            loads[part.label(a), part.label(b)] = tuple(Load(part.label(x.group), x.direction) for x in found)
        roots |= {part.label(key): part.label(root) for key, root in part.routes.roots.items()}
        for nic in part.nics:
            rate = nic.rate_bytes_per_s.value
            name = part.label(f"nic:{nic.key}")
            value = Value(None if rate is None else rate * RDMA_RATIO, Source.DEFAULT, "line rate of the NIC")
            groups[name] = CapacityGroup(id=name, kind="nic", bytes_per_s=value)
    return groups, loads, roots


def _stated(
    parts: Sequence[_Node], components: Sequence[Component], labels: Sequence[str], figures: Iterable[PairFigure]
) -> list[PairFigure]:
    """Returns the figures, and those of the fragments' tables, under device labels and node names, one a pair."""
    called: dict[str, list[str]] = {}
    names = dict(zip(labels, (name for part in parts for name in names_of(part.devices)), strict=True))
    for component, label in zip(components, labels, strict=True):
        for name in {label, component.name, component.key, names[label]}:
            called.setdefault(name, []).append(label)
    ends = {name: among[0] for name, among in called.items() if len(among) == 1}
    ends |= {part.name: part.name for part in parts} | {HOST: HOST}
    found = [
        PairFigure(a=part.label(f.a), b=part.label(f.b), bytes_per_s=f.bytes_per_s, latency_s=f.latency_s)
        for part in parts
        for f in measured_pairs(part.fragment, [d.key for d in part.devices])
    ]
    for f in figures:
        for name in (f.a, f.b):
            if name not in ends:
                raise UnknownDevice(
                    f"a figure is stated of {name!r}, which is no device here{did_you_mean(name, ends)}"
                )
        found.append(PairFigure(a=ends[f.a], b=ends[f.b], bytes_per_s=f.bytes_per_s, latency_s=f.latency_s))
    return list(best_of(found).values())


def _numa_distances(parts: Sequence[_Node]) -> NDArray[np.float64]:
    columns = [(k, number) for k, part in enumerate(parts) for number in part.numa]
    rows = [(k, device) for k, part in enumerate(parts) for device in part.devices]
    distances = np.full((len(rows), len(columns)), np.nan)
    for i, (k, device) in enumerate(rows):
        homes = device.locality.numa_nodes
        table = parts[k].fragment.numa_distances
        for j, (other, number) in enumerate(columns):
            if other != k or not homes:
                continue
            found = [10 if home == number else table.get((home, number)) for home in homes]
            known = [distance for distance in found if distance is not None]
            if known:
                distances[i, j] = min(known)
    return distances


def _renamed(group: CapacityGroup, name: str) -> CapacityGroup:
    fields = {key: getattr(group, key) for key in group.__dataclass_fields__}
    return CapacityGroup(**{**fields, "id": name})
