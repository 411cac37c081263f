"""AMD's compute driver under ``/sys/class/kfd``: memory of its GPUs and the links between them, without a library.

Bandwidths are in MB/s. Of an XGMI link the kernel writes what one link carries as the least and all links together as
the most, so their ratio is the number of links.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plait.hardware.context import Context
from plait.hardware.pci import numa_key
from plait.hardware.sysfs_files import properties_of
from plait.hardware.topology import Component, Link
from plait.hardware.values import Source, Value

NODES = "/sys/class/kfd/kfd/topology/nodes"
_PCIE, _XGMI = 2, 11
_GPU_HEAPS = frozenset({1, 2})
_MOST_LINKS = 16


@dataclass(frozen=True, slots=True)
class _Node:
    """One node of KFD: a GPU with its address, or the number of a CPU's NUMA node."""

    key: str | None
    properties: Mapping[str, int]


def read_kfd(context: Context, functions: Mapping[str, Component]) -> tuple[dict[str, Component], list[Link]]:
    """Returns the PCI functions with what KFD knows of them, and the links between GPUs and to CPUs.

    A GPU that KFD lists though PCI does not show it (partitions) is added as a part of the function at its address.
    """
    found = dict(functions)
    nodes: dict[str, _Node] = {}
    for name in sorted(context.list(NODES), key=lambda n: (len(n), n)):
        if name.isascii() and name.isdigit():
            nodes[name] = _node(context, name, found)
    links = [link for name in nodes for link in _links(context, name, nodes)]
    return found, links


def _node(context: Context, name: str, found: dict[str, Component]) -> _Node:
    properties = properties_of(context, f"{NODES}/{name}/properties")
    if not properties.get("simd_count"):
        return _Node(numa_key(int(name)) if properties.get("cpu_cores_count") else None, properties)
    address = _address(properties)
    memory = 0
    for bank in context.list(f"{NODES}/{name}/mem_banks"):
        told = properties_of(context, f"{NODES}/{name}/mem_banks/{bank}/properties")
        memory += told.get("size_in_bytes", 0) if told.get("heap_type") in _GPU_HEAPS else 0
    known = found.get(address)
    extra = {"kfd_node": name} | {
        word: str(properties[word]) for word in ("gpu_id", "hive_id", "gfx_target_version") if word in properties
    }
    value = Value(memory or None, Source.SYSFS, f"{NODES}/{name}/mem_banks")
    if known is not None and "kfd_node" not in known.extra:
        found[address] = replace(
            known,
            kind="gpu",
            memory_bytes=known.memory_bytes if known.memory_bytes.value is not None else value,
            extra={**known.extra, **extra},
        )
        return _Node(address, properties)
    key = address if known is None else f"{address}/kfd{name}"
    found[key] = Component(
        key=key,
        name=key,
        kind="gpu",
        vendor="amd",
        pci_address=address,
        parent=None if known is None else address,
        memory_bytes=value,
        extra=extra,
    )
    return _Node(key, properties)


def _address(properties: Mapping[str, int]) -> str:
    place = properties.get("location_id", 0)
    return f"{properties.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _links(context: Context, name: str, nodes: Mapping[str, _Node]) -> list[Link]:
    links = []
    for kind in ("io_links", "p2p_links"):
        for number in context.list(f"{NODES}/{name}/{kind}"):
            path = f"{NODES}/{name}/{kind}/{number}/properties"
            told = properties_of(context, path)
            a, b = nodes[name].key, nodes[peer].key if (peer := str(told.get("node_to", ""))) in nodes else None
            # Each direction has its own directory; the pair is told from the lower node.
            if a is None or b is None or told.get("type") not in {_PCIE, _XGMI}:
                continue
            if int(name) > int(peer) and _tells(context, peer, name, kind):
                continue
            links.append(_link(a, b, told, path))
    return links


def _tells(context: Context, peer: str, name: str, kind: str) -> bool:
    return any(
        properties_of(context, f"{NODES}/{peer}/{kind}/{n}/properties").get("node_to") == int(name)
        for n in context.list(f"{NODES}/{peer}/{kind}")
    )


def _link(a: str, b: str, told: Mapping[str, int], path: str) -> Link:
    most, least = told.get("max_bandwidth", 0), told.get("min_bandwidth", 0)
    is_xgmi = told.get("type") == _XGMI
    count = most // least if is_xgmi and least and most % least == 0 else 1
    rate = Value(most * 1e6 if most else None, Source.SYSFS, path)
    return Link(
        a=a,
        b=b,
        kind="xgmi" if is_xgmi else "pcie",
        count=count if 1 <= count <= _MOST_LINKS else 1,
        bytes_per_s=rate,
        reverse_bytes_per_s=rate,
        raw=f"type {told.get('type')} weight {told.get('weight')}",
    )
