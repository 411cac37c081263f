"""What a person should know about a node's wiring: one sentence each, pure, from the fragment and its matrix."""

import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from plait.hardware.affinity.links import ACCELERATORS, endpoints_of, links_between
from plait.hardware.affinity.matrix import AffinityMatrix
from plait.hardware.affinity.routes import switch_sets
from plait.hardware.cost_model import ports_of_device
from plait.hardware.nics import is_up, nics_of
from plait.hardware.topology import Component, Fragment
from plait.hardware.values import Source

_NORMAL_RATIO = 0.6
"""A measured pair below this part of what is expected is worth a word."""

_ASYMMETRY_RATIO = 0.75

_SLOW_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "NCCL_P2P_DISABLE": ("1",),
    "NCCL_P2P_LEVEL": ("LOC", "0"),
    "NCCL_SHM_DISABLE": ("1",),
    "NCCL_IB_DISABLE": ("1",),
    "NCCL_NET_GDR_LEVEL": ("LOC", "0"),
    "NCCL_NVLS_ENABLE": ("0",),
    "RCCL_P2P_DISABLE": ("1",),
}


def findings(nodes: Mapping[str, Fragment], matrix: AffinityMatrix, env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the warnings of all nodes, those of the sources first; none is told twice.

    Args:
        nodes: One merged fragment a node.
        matrix: Theirs.
        env: Environment of the jobs, for settings that force a slow path; empty where unknown.
    """
    told: list[str] = []
    for name, fragment in nodes.items():
        where = f"{name}: " if len(nodes) > 1 else ""
        told += [where + sentence for sentence in _of_node(fragment)]
    told += _of_matrix(matrix)
    told += _of_environment(env)
    return tuple(dict.fromkeys(told))


def _of_node(fragment: Fragment) -> Iterator[str]:
    yield from fragment.warnings
    devices = tuple(d for d in endpoints_of(fragment) if d.kind in ACCELERATORS)
    yield from _numa_unknown(devices)
    yield from _reduced_ports(devices)
    yield from _refused(fragment, devices)
    yield from _missing_nvlink(fragment, devices)
    yield from _shared_uplinks(fragment, devices)
    yield from _nics(fragment, devices)
    models = sorted({d.accelerator_type or d.model or "" for d in devices} - {""})
    if len(models) > 1:
        yield f"different models in one node ({', '.join(models)}): a ring over them runs at the slowest one's links"
    if fragment.hides and len(devices) > 1:
        yield f"{fragment.origin} does not show {', '.join(fragment.hides)}, which may exist"
    if fragment.error:
        yield f"a probe gave up: {fragment.error}"


def _numa_unknown(devices: Iterable[Component]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for device in devices:
        if device.locality.numa_nodes is None:
            reasons.setdefault(device.locality.why_unknown or "no source tells", []).append(device.name)
    for reason, names in reasons.items():
        yield f"NUMA node of {_named(names)} unknown ({reason}): workers there are not bound to CPUs"


def _reduced_ports(devices: Iterable[Component]) -> Iterator[str]:
    slow: dict[str, list[str]] = {}
    for device in devices:
        port = device.pci
        idle = " (read when idle, which lowers it)" if port.is_idle_reading else ""
        if port.generation and port.max_generation and port.generation < port.max_generation:
            text = f"works at PCIe {port.generation} of {port.max_generation}{idle}"
            slow.setdefault(text, []).append(device.name)
        if port.lanes and port.max_lanes and port.lanes < port.max_lanes:
            slow.setdefault(f"has {port.lanes} of {port.max_lanes} PCIe lanes", []).append(device.name)
    for text, names in slow.items():
        yield f"{_named(names)} {text}"


def _refused(fragment: Fragment, devices: Iterable[Component]) -> Iterator[str]:
    keys = {d.key for d in devices}
    pairs = [link for link in fragment.links if link.p2p == "refused" and {link.a, link.b} <= keys]
    if pairs:
        yield f"the driver refuses peer access on {len(pairs)} pairs: their copies pass through host memory"
    by_rule = [d.name for d in devices if (ports := ports_of_device(d)) is not None and ports.refuses_p2p]
    if len(by_rule) > 1 and not pairs:
        yield f"the stock driver refuses peer access between {_named(by_rule)}: copies pass through host memory"


def _missing_nvlink(fragment: Fragment, devices: tuple[Component, ...]) -> Iterator[str]:
    keys = {d.key for d in devices}
    linked = {key for link in fragment.links if link.kind == "nvlink" and link.a != link.b for key in (link.a, link.b)}
    if "nvlink" in fragment.hides:
        return
    lacking = [
        d.name
        for d in devices
        if d.key not in linked and (ports := ports_of_device(d)) and ports.peer_kind == "nvlink" and _is_on_a_board(d)
    ]
    if len(lacking) > 1 and any({link.a, link.b} <= keys for link in fragment.links):
        yield f"{_named(lacking)} show no NVLink, which their boards have: it is hidden, or the fabric manager is down"


def _is_on_a_board(device: Component) -> bool:
    name = f"{device.model or ''} {device.accelerator_type or ''}".upper()
    return any(word in name for word in ("SXM", "HBM3", "B200", "GB200", "H200", "H20"))


def _shared_uplinks(fragment: Fragment, devices: tuple[Component, ...]) -> Iterator[str]:
    names = {d.key: d.name for d in devices}
    links = links_between(fragment, devices, devices)
    for switch in switch_sets(fragment, devices, links):
        is_all = len(switch.members) == len(devices)
        others = [key for key in names if key not in switch.members]
        is_used = any(
            links.get((a, b)) and links[a, b].kind in {"pxb", "phb", "node", "sys"}
            for a in switch.members
            for b in others
        )
        if not is_all and is_used:
            members = sorted((names[key] for key in switch.members), key=_natural)
            yield f"{_named(members)} share one uplink: together they leave it no faster than one of them alone"


def _nics(fragment: Fragment, devices: tuple[Component, ...]) -> Iterator[str]:
    nics = nics_of(fragment)
    told = " ".join(fragment.warnings)
    down = [nic.name for nic in nics if not is_up(nic) and nic.name not in told]
    if down:
        yield f"port down: {_named(down)}; a rate that is printed of it does not count"
    links = links_between(fragment, devices, nics)
    for nic in nics:
        kinds = {links[d.key, nic.key].kind for d in devices if (d.key, nic.key) in links}
        if kinds == {"sys"} and len(devices) > 1:
            yield f"{nic.name} is on another socket than every accelerator: expect about half its rate"


def _of_matrix(matrix: AffinityMatrix) -> Iterator[str]:
    measured = matrix.source == Source.MEASURED
    rates, expected = matrix.bytes_per_s, matrix.expected_bytes_per_s
    with np.errstate(invalid="ignore"):
        low = measured & (rates < _NORMAL_RATIO * expected)
    np.fill_diagonal(low, val=False)
    if low.any():
        i, j = (int(x[0]) for x in np.nonzero(low))
        yield (
            f"{int(low.sum())} measured pairs are below {_NORMAL_RATIO:.0%} of what their links should give: "
            f"{matrix.names[i]} to {matrix.names[j]} has {rates[i, j] / 1e9:.3g} of {expected[i, j] / 1e9:.3g} GB/s"
        )
    uneven = [
        (i, j)
        for i, j in itertools.combinations(range(len(matrix.devices)), 2)
        if not np.isnan(rates[i, j] + rates[j, i])
        and min(rates[i, j], rates[j, i]) < _ASYMMETRY_RATIO * max(rates[i, j], rates[j, i])
    ]
    if uneven:
        i, j = uneven[0]
        yield (
            f"{len(uneven)} pairs are faster one way than the other: {matrix.names[i]} to {matrix.names[j]} "
            f"{rates[i, j] / 1e9:.3g} GB/s, back {rates[j, i] / 1e9:.3g}"
        )


def _of_environment(env: Mapping[str, str]) -> Iterator[str]:
    for name, slow in _SLOW_SETTINGS.items():
        if env.get(name, "").upper() in slow:
            yield f"{name}={env[name]} is set and forces a slow path"


def _named(names: Iterable[str]) -> str:
    listed = sorted(names, key=_natural)
    return ", ".join(listed) if len(listed) <= 4 else f"{listed[0]}, {listed[1]} and {len(listed) - 2} more"


def _natural(name: str) -> tuple[str, int]:
    digits = "".join(letter for letter in name if letter.isdigit())
    return name.rstrip("0123456789"), int(digits or 0)
