"""Which groups a pair's traffic loads on its way through one node: ports, switch uplinks, the sockets' link.

Switches are taken from the PCI tree where the fragment has one, and else from the classes of the links: devices that
are PIX of one another sit on one switch, those within PXB on one tree of switches.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from plait.hardware.affinity.contention import Load
from plait.hardware.cost_model import (
    CROWDED_RATIO,
    PCIE_PEER_RATIO,
    SCATTER_RATIO,
    SCATTERING_ARCHITECTURES,
    Estimate,
    pcie_generation_of,
    peer_port_bytes_per_s,
    ports_of_device,
    socket_rate,
)
from plait.hardware.link_rates import GB, pcie_bytes_per_s
from plait.hardware.topology import CapacityGroup, Component, Fragment, Link
from plait.hardware.values import Source, Value

Pair = tuple[str, str]
_PCIE_KINDS = frozenset({"pix", "pxb", "phb", "node", "pcie", "sys", "staged", "nvb"})
_NEAR_NUMA_DISTANCE = 16
"""Below this two NUMA nodes belong to one socket (12 between the quarters of an EPYC, 20 and more across)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Groups of a node, what each ordered pair loads, and where each device's traffic enters the processors."""

    groups: tuple[CapacityGroup, ...] = ()
    loads: Mapping[Pair, tuple[Load, ...]] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)
    sockets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _SwitchSet:
    id: str
    members: frozenset[str]
    bytes_per_s: float | None
    detail: str


def node_routes(
    fragment: Fragment,
    devices: Sequence[Component],
    links: Mapping[Pair, Link],
    estimates: Mapping[Pair, Estimate],
    cpu: str | None,
) -> Routes:
    """Returns the groups of one node.

    Args:
        fragment: What is known of the node, merged.
        devices: Its accelerators.
        links: The link that each ordered pair of their keys uses.
        estimates: What each pair sustains alone, with the kind that carries it.
        cpu: Generation of the processors, ``None`` if unknown.
    """
    by_key = {device.key: device for device in devices}
    switches = switch_sets(fragment, devices, links)
    roots = _roots(devices, switches)
    sockets = socket_of(fragment, devices, links)
    groups: dict[str, CapacityGroup] = {group.id: group for group in fragment.groups}
    loads: dict[Pair, list[Load]] = {}
    top = {s.members for s in switches if not any(s.members < other.members for other in switches)}
    for switch in switches:
        groups[switch.id] = _uplink(switch, cpu if switch.members in top else None)
    for (a, b), estimate in estimates.items():
        if a == b or estimate.kind not in _PCIE_KINDS:
            continue
        loads[a, b] = [Load(f"port:{a}", "out"), Load(f"port:{b}", "in")]
        for end, other, direction in ((a, b, "out"), (b, a, "in")):
            crossed = (s for s in switches if end in s.members and other not in s.members)
            loads[a, b] += [Load(s.id, "out" if direction == "out" else "in") for s in crossed]
        for device in (a, b):
            groups.setdefault(f"port:{device}", _port(by_key[device]))
        between = _socket_link(by_key[a], by_key[b], sockets, cpu)
        if between is not None:
            group, load = between
            groups.setdefault(group.id, group)
            loads[a, b].append(load)
    _add_direct_ports(by_key, links, estimates, groups, loads)
    for pair, link in links.items():
        loads.setdefault(pair, []).extend(Load(name, "out") for name in link.shared_by if name in groups)
    return Routes(
        groups=tuple(groups.values()),
        loads={pair: tuple(found) for pair, found in loads.items()},
        roots=roots,
        sockets=sockets,
    )


def narrowed(estimate: Estimate, routes: Routes, pair: Pair) -> Estimate:
    """Returns the estimate of a pair, lowered to the slowest uplink that it passes."""
    capacities = {group.id: group.bytes_per_s for group in routes.groups if group.kind == "uplink"}
    passed = [capacities[load.group] for load in routes.loads.get(pair, ()) if load.group in capacities]
    known = [capacity for capacity in passed if capacity.value is not None]
    slowest = min(known, key=lambda capacity: capacity.value or 0.0, default=None)
    if slowest is None or slowest.value is None or estimate.bytes_per_s is None:
        return estimate
    if estimate.source >= Source.USER or slowest.value >= estimate.bytes_per_s:
        return estimate
    reason = f"{slowest.value / GB:.4g} GB/s through the uplink between ({slowest.detail})"
    return replace(estimate, bytes_per_s=slowest.value, reason=reason)


def switch_sets(fragment: Fragment, devices: Sequence[Component], links: Mapping[Pair, Link]) -> tuple[_SwitchSet, ...]:
    """Returns the sets of devices behind shared uplinks, with what each uplink carries; sets may nest."""
    from_tree = _sets_of_tree(fragment, devices)
    return from_tree or _sets_of_classes(fragment, devices, links)


def ancestors(fragment: Fragment, key: str) -> tuple[str, ...]:
    """Returns the keys above a component, the nearest first; a circle among parents ends the list."""
    parents = {component.key: component.parent for component in fragment.components}
    found: list[str] = []
    parent = parents.get(key)
    while parent is not None and parent not in found and parent != key:
        found.append(parent)
        parent = parents.get(parent)
    return tuple(found)


def socket_of(fragment: Fragment, devices: Sequence[Component], links: Mapping[Pair, Link]) -> dict[str, int]:
    """Returns the number of the socket of each device, as far as NUMA nodes or link classes tell; others are absent."""
    numa = {device.key: device.locality.numa_nodes for device in devices}
    homes = {key: nodes[0] for key, nodes in numa.items() if nodes}
    near = [(a, b) for (a, b), link in links.items() if link.kind in {"pix", "pxb", "phb", "node"} and a != b]
    near += [
        (a, b)
        for a, b in itertools.combinations(homes, 2)
        if homes[a] == homes[b]
        or fragment.numa_distances.get((homes[a], homes[b]), _NEAR_NUMA_DISTANCE) < _NEAR_NUMA_DISTANCE
    ]
    sets = _joined([device.key for device in devices], near)
    if len(sets) == len(devices) > 2 and not homes:
        return {}  # all SYS and no NUMA node known: any grouping would be a guess
    return {key: number for number, members in enumerate(sets) for key in members}


def _sets_of_tree(fragment: Fragment, devices: Sequence[Component]) -> tuple[_SwitchSet, ...]:
    by_key = {component.key: component for component in fragment.components}
    below: dict[str, set[str]] = {}
    for device in devices:
        for above in ancestors(fragment, device.key):
            if above in by_key and by_key[above].kind in {"switch", "bridge"}:
                below.setdefault(above, set()).add(device.key)
    carriers: dict[frozenset[str], list[Component]] = {}
    for key, members in below.items():
        if len(members) > 1:
            carriers.setdefault(frozenset(members), []).append(by_key[key])
    found: list[_SwitchSet] = []
    for together, bridges in carriers.items():
        rates = [(rate, bridge.key) for bridge in bridges if (rate := _bridge_rate(bridge)) is not None]
        name = f"uplink:{min(bridge.key for bridge in bridges)}"
        if rates:
            slowest, bridge = min(rates)
            found.append(_SwitchSet(name, together, slowest, f"link of bridge {bridge}"))
        else:
            found.append(_SwitchSet(name, together, *_like_its_devices([by_key[key] for key in together])))
    return tuple(found)


def _bridge_rate(bridge: Component) -> float | None:
    port = bridge.pci
    is_sure = port.generation is not None and not port.is_idle_reading
    return pcie_bytes_per_s(
        port.generation if is_sure else port.max_generation or port.generation, port.lanes or port.max_lanes
    )


def _sets_of_classes(
    fragment: Fragment, devices: Sequence[Component], links: Mapping[Pair, Link]
) -> tuple[_SwitchSet, ...]:
    by_key = {device.key: device for device in devices}
    nics = [component.key for component in fragment.components if component.kind == "nic"]
    paths = [(*pair, link.kind) for pair, link in links.items() if pair[0] != pair[1]]
    # Where NVLink stands in the cell of two devices, a NIC on the switch of both still tells that it is one switch.
    paths += [(link.a, link.b, link.kind) for link in fragment.links if {link.a, link.b} & set(nics)]
    found: list[_SwitchSet] = []
    for kinds in ({"pix"}, {"pix", "pxb"}):
        joined = _joined((*by_key, *nics), [(a, b) for a, b, kind in paths if kind in kinds])
        for members in (frozenset(keys & by_key.keys()) for keys in joined):
            if len(members) < 2 or any(members == s.members for s in found):
                continue
            rate, how = _like_its_devices([by_key[key] for key in members])
            found.append(_SwitchSet(f"uplink:{min(members)}", members, rate, how))
            if sum(s.id == found[-1].id for s in found) > 1:
                found[-1] = _SwitchSet(f"uplink:{min(members)}+{len(members)}", members, rate, how)
    return tuple(found)


def _like_its_devices(devices: Iterable[Component]) -> tuple[float | None, str]:
    rates = [rate for rate in map(_port_rate, devices) if rate is not None]
    return (max(rates), "taken to be as wide as its devices' ports") if rates else (None, "its width is not known")


def _joined(keys: Iterable[str], pairs: Iterable[Pair]) -> list[frozenset[str]]:
    leader = {key: key for key in keys}

    def find(key: str) -> str:
        while leader[key] != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    for a, b in pairs:
        if a in leader and b in leader:
            leader[find(a)] = find(b)
    sets: dict[str, set[str]] = {}
    for key in leader:
        sets.setdefault(find(key), set()).add(key)
    return [frozenset(members) for members in sets.values()]


def _roots(devices: Sequence[Component], switches: Sequence[_SwitchSet]) -> dict[str, str]:
    roots = {}
    for device in devices:
        around = [s for s in switches if device.key in s.members]
        roots[device.key] = max(around, key=lambda s: len(s.members)).id if around else f"port:{device.key}"
    return roots


def _uplink(switch: _SwitchSet, cpu: str | None) -> CapacityGroup:
    rate = switch.bytes_per_s
    scattered: Value[float] = Value(None)
    if rate is not None and cpu in SCATTERING_ARCHITECTURES:
        scattered = Value(rate * SCATTER_RATIO, Source.DEFAULT, f"posted writes on {cpu} processors")
    value = None if rate is None else rate * PCIE_PEER_RATIO
    return CapacityGroup(
        id=switch.id,
        kind="uplink",
        bytes_per_s=Value(value, Source.DEFAULT, switch.detail),
        scatter_bytes_per_s=scattered,
    )


def _port_rate(device: Component) -> float | None:
    ports = ports_of_device(device)
    lanes = device.pci.lanes or device.pci.max_lanes or (ports.pcie_lanes if ports else None)
    return pcie_bytes_per_s(pcie_generation_of(device), lanes)


def _port(device: Component) -> CapacityGroup:
    rate = _port_rate(device)
    value = None if rate is None else rate * PCIE_PEER_RATIO
    return CapacityGroup(
        id=f"port:{device.key}",
        kind="port",
        bytes_per_s=Value(value, Source.DEFAULT, "PCI Express port of the device"),
        crowded_ratio=CROWDED_RATIO,
    )


def _socket_link(
    a: Component, b: Component, sockets: Mapping[str, int], cpu: str | None
) -> tuple[CapacityGroup, Load] | None:
    if a.key not in sockets or b.key not in sockets or sockets[a.key] == sockets[b.key]:
        return None
    low, high = sorted((sockets[a.key], sockets[b.key]))
    generations = [g for g in (pcie_generation_of(a), pcie_generation_of(b)) if g]
    rate = socket_rate(cpu, min(generations, default=None))
    group = CapacityGroup(
        id=f"sockets:{low}-{high}",
        kind="socket_link",
        bytes_per_s=Value(rate.bytes_per_s, rate.source, rate.reason, rate.relative_error),
    )
    return group, Load(group.id, "out" if sockets[a.key] == low else "in")


def _add_direct_ports(
    by_key: Mapping[str, Component],
    links: Mapping[Pair, Link],
    estimates: Mapping[Pair, Estimate],
    groups: dict[str, CapacityGroup],
    loads: dict[Pair, list[Load]],
) -> None:
    """Adds one group for all direct links of a device where they end at switches, so that its peers share them."""
    for key, device in by_key.items():
        counts = [link.count for (a, b), link in links.items() if a == key != b and link.kind == "nvlink"]
        ports = ports_of_device(device)
        total = ports.peer_links if ports else None
        # More links towards all peers together than the device has: each count is the same set of links to a switch.
        if len(counts) < 2 or total is None or sum(counts) <= total:
            continue
        rate = peer_port_bytes_per_s(device, "nvlink", max(counts))
        groups[f"nvlink:{key}"] = CapacityGroup(
            id=f"nvlink:{key}",
            kind="port",
            bytes_per_s=Value(rate, Source.DEFAULT, f"{max(counts)} NVLink links to switches"),
        )
    for (a, b), estimate in estimates.items():
        if a != b and estimate.kind == "nvlink":
            found = [Load(f"nvlink:{a}", "out"), Load(f"nvlink:{b}", "in")]
            loads.setdefault((a, b), []).extend(load for load in found if load.group in groups)
