"""Facts of the kinds that are trees: NCCL and hwloc XML, Slurm's files, captures of ``/sys``.

Every fact comes from the fragment alone, under the names that the samples' facts have.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product

from plait.hardware.cpusets import as_list
from plait.hardware.topology import Component, Fragment
from topology_facts.either import Either

_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_NIC_CLASSES = ("0x0200", "0x0207")
_GPU_NAMES = re.compile(r"cuda|nvml|rsmi|opencl|card|renderD")
_NET_NAMES = re.compile(r"mlx|ib|eth|en")
_MOST_DISPUTED = 5
_MOST_NAMES = 24
"""Names that a list of facts holds at most."""


def nccl_xml(fragment: Fragment) -> dict[str, object]:
    root = fragment.component("system")
    extra = root.extra if root else {}
    by_key = {c.key: c for c in fragment.components}
    functions = [c for c in fragment.components if "busid" in c.extra or "class" in c.extra]
    gpus = [c for c in functions if c.extra.get("class", "").lower().startswith(_GPU_CLASSES)]
    nets = [c for c in fragment.components if "net.tag" in c.extra]
    links = [link for link in fragment.links if link.kind in {"nvlink", "xgmi"}]
    facts: dict[str, object] = {
        "root": extra.get("root"),
        "version": extra.get("version"),
        "n_cpu": sum(c.kind == "numa" for c in fragment.components),
        "n_gpu": len(gpus),
        "gpus": [[c.extra.get("busid"), _numa(c, by_key), _depth(c, by_key)] for c in gpus],
        "n_nic": sum(c.extra.get("class", "").lower().startswith(_NIC_CLASSES) for c in functions),
        "n_net": len(nets),
        "nets": [[c.extra.get("net.name"), _megabits(c), _numa(c, by_key)] for c in nets],
        "nv_total": sum(link.count for link in links if link.kind == "nvlink"),
        "xgmi_total": sum(link.count for link in links if link.kind == "xgmi"),
        "pairs": {f"{_bus(link.a, by_key)}|{link.raw.lower()}": f"{link.kind}{link.count}" for link in links},
        "slow": [
            c.extra.get("busid")
            for c in functions
            if c.extra.get("link_speed") == "" or c.extra.get("link_width") in {"0", ""}
        ],
    }
    if extra.get("root") == "graphs":
        facts["n_graph"] = len(fragment.tables)
        facts["n_channel"] = sum(part == "channel" for table in fragment.tables.values() for part, _ in table)
        return facts
    with_gpu = [c for c in fragment.components if c.extra.get("gpu.tag") == "gpu"]
    facts["n_gpu_tags"] = len(with_gpu)
    facts["tags"] = extra.get("elements", "").split()
    choice = {c.extra["gpu.dev"]: c.extra["gpu.net"] for c in with_gpu if {"gpu.dev", "gpu.net"} <= c.extra.keys()}
    if choice and not functions:
        # Without a PCI level only the choice of a NIC for each GPU is known.
        facts["n_gpu"] = len(with_gpu)
        facts["preferred_net"] = choice
    return facts


def _chain(component: Component, by_key: Mapping[str, Component]) -> list[Component]:
    """Returns the components above this one, nearest first."""
    found: list[Component] = []
    above = by_key.get(component.parent or "")
    while above is not None and above not in found:
        found.append(above)
        above = by_key.get(above.parent or "")
    return found


def _numa(component: Component, by_key: Mapping[str, Component]) -> str | None:
    place = next((c for c in _chain(component, by_key) if c.kind == "numa"), None)
    return None if place is None or place.index is None else str(place.index)


def _depth(component: Component, by_key: Mapping[str, Component]) -> int:
    return sum("busid" in c.extra or "class" in c.extra for c in _chain(component, by_key))


def _bus(key: str, by_key: Mapping[str, Component]) -> str:
    return by_key[key].extra.get("busid", key).lower()


def _megabits(component: Component) -> str | None:
    rate = component.rate_bytes_per_s.value
    return None if rate is None else f"{rate * 8 / 1e6:.0f}"


def hwloc_xml(fragment: Fragment) -> dict[str, object]:
    machine = fragment.component("machine")
    extra = machine.extra if machine else {}
    counts = dict(word.split(":") for word in extra.get("objects", "").split())
    devices = [c for c in fragment.components if c.extra.get("type") == "PCIDev"]
    handles = [
        (key.removeprefix("osdev.").partition("#")[0], value)
        for c in fragment.components
        for key, value in c.extra.items()
        if key.startswith("osdev.")
    ]
    names = [name for name, _ in handles]
    gpus = [c for c in devices if c.extra.get("class", "").startswith(_GPU_CLASSES)]
    return {
        "version": extra.get("version"),
        "n_package": sum(c.kind == "cpu" for c in fragment.components),
        "n_numa": sum(c.kind == "numa" for c in fragment.components),
        "n_core": int(counts.get("Core", 0)),
        "n_pu": int(counts.get("PU", 0)),
        "n_pcidev": len(devices),
        "osdev": dict(Counter(value for _, value in handles)),
        "gpu_osdev": sorted(name for name in names if _GPU_NAMES.match(name))[:_MOST_NAMES],
        "net": sorted(name for name in names if _NET_NAMES.match(name))[:_MOST_NAMES],
        "pci_gpu": len(gpus),
        "pci_net": sum(c.extra.get("class", "").startswith(_NIC_CLASSES) for c in devices),
        "gpu_nodeset": {c.name: c.extra.get("nodeset") or None for c in gpus},
        "distances": [name.partition("#")[0] for name in fragment.tables],
    }


def slurm(fragment: Fragment) -> dict[str, object]:
    switches: dict[str, str] = {}
    blocks = 0
    gres: list[Mapping[str, str]] = []
    if fragment.format == "slurm_topology_conf":
        # Of a topology.yaml the samples' facts count nothing.
        for c in fragment.components:
            if c.kind == "switch":
                switches[c.name] = " ".join(f"{key}={value}" for key, value in c.extra.items())
            blocks += "BlockName" in c.extra
    lines: dict[str, dict[str, str]] = {}
    for (line, key), value in fragment.tables.get("gres.conf", {}).items():
        lines.setdefault(line, {})[key.casefold()] = value.strip('"')
    gres = [words for words in lines.values() if words.get("name", "").casefold().startswith("gpu")]
    return {
        "n_switch": len(switches),
        "switches": switches,
        "n_block": blocks,
        "n_gres": len(gres),
        "autodetect": [words["autodetect"] for words in lines.values() if "autodetect" in words],
    }


def sysfs(fragment: Fragment) -> dict[str, object]:
    nodes = [c for c in fragment.components if c.kind == "numa" and c.index is not None]
    ids = sorted(c.index for c in nodes if c.index is not None)
    # A part of a function that only AMD's driver tells apart shares its address and is no PCI function.
    functions = [
        c for c in fragment.components if c.pci_address == c.key and ("class" in c.extra or "vendor" in c.extra)
    ]
    shown = [c for c in functions if c.extra.get("class", "").startswith(("0x03", "0x1200"))]
    return {
        "numa_nodes": ids,
        "distance": {
            str(node): [fragment.numa_distances[node, other] for other in ids]
            for node in ids
            if all((node, other) in fragment.numa_distances for other in ids)
        },
        "node_cpus": {str(c.index): None if c.locality.cpus is None else as_list(c.locality.cpus) for c in nodes},
        "pci_devices": len(functions),
        "pci_numa": _numa_counts(fragment, functions),
        "display_or_accel": {
            c.key: {
                "cls": c.extra.get("class"),
                "vendor": c.extra.get("vendor"),
                "numa": None if c.locality.numa_nodes is None else str(c.locality.numa_nodes[0]),
                "local_cpulist": None if c.locality.cpus is None else as_list(c.locality.cpus),
            }
            for c in shown
        },
        "infiniband": _words(fragment, "infiniband"),
        "net_on_pci": _words(fragment, "net"),
    }


def _numa_counts(fragment: Fragment, functions: list[Component]) -> object:
    """Counts functions by NUMA node; where a capture contradicts itself, every count that one of its sides gives."""
    said = {conflict.subject: conflict.said for conflict in fragment.conflicts}
    choices = [said.get(f"numa_node of {c.key}", (c.extra.get("numa_node", "None"),)) for c in functions]
    several = [choice for choice in choices if len(choice) > 1]
    sure = Counter(choice[0] for choice in choices if len(choice) == 1)
    if len(several) > _MOST_DISPUTED:
        return dict(sure)
    counts = [dict(sure + Counter(picked)) for picked in product(*several)]
    return counts[0] if len(counts) == 1 else Either(tuple(counts))


def _words(fragment: Fragment, name: str) -> list[str]:
    return sorted({word for c in fragment.components for word in c.extra.get(name, "").split()})


KINDS: dict[str, Callable[[Fragment], dict[str, object]]] = {
    "nccl-xml": nccl_xml,
    "hwloc-xml": hwloc_xml,
    "slurm": slurm,
    "sysfs": sysfs,
}
