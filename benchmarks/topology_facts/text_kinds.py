"""Facts of the kinds that are text: what people paste. Every fact comes from the fragment alone."""

from collections.abc import Callable, Mapping

from plait.hardware.importers.ibnetdiscover import AGGREGATION
from plait.hardware.importers.ibstat import LAYER, RATE, STATE, TYPE
from plait.hardware.importers.lspci import ROOT_BUS
from plait.hardware.importers.measured_sweeps import ALGBW, BUSBW, MAX_SIZE_BYTES, SIZE_BYTES
from plait.hardware.importers.nvidia_smi_xml import DRIVER_VERSION, POWER_LIMIT
from plait.hardware.importers.rocm_smi import NUMA_AFFINITY, NUMA_NODE
from plait.hardware.importers.topo_matrix import LINK_TABLE, P2P_TABLE, RDMA_DEVICE, ROW_LINE
from plait.hardware.topology import Component, Fragment, Measurement

_COLUMN_TITLES = ("Node Affinity", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_ROCM_TABLES = ("Weight", "Hops", "Link Type")
_MIB = 2**20


def topology_matrix(fragment: Fragment) -> dict[str, object]:
    """Facts of ``nvidia-smi topo``, ``mx-smi topo`` and ``npu-smi info -t topo``."""
    accelerators = [c for c in fragment.components if c.kind != "nic"]
    facts: dict[str, object] = {
        "devices": [c.name for c in fragment.components],
        "links": _cells(fragment),
        "cpu": {c.name: c.locality.cpus for c in accelerators if c.locality.cpus is not None},
        "numa": {c.name: c.locality.numa_nodes for c in accelerators if c.locality.numa_nodes is not None},
        "gpu_numa_id": {
            c.name: (c.locality.gpu_numa_node,) for c in accelerators if c.locality.gpu_numa_node is not None
        },
        "columns": list(dict.fromkeys(key for c in accelerators for key in c.extra if key in _COLUMN_TITLES)),
        "rows": [c.name for c in fragment.components if ROW_LINE in c.extra],
        "nic_names": {c.name: c.extra[RDMA_DEVICE] for c in fragment.components if RDMA_DEVICE in c.extra},
        "p2p": _pairs(fragment.tables.get(P2P_TABLE, {})),
    }
    if "nvlink" in fragment.hides:
        facts["nvlink_reported"] = False
    return facts


def _cells(fragment: Fragment) -> dict[str, str]:
    """Both directions of every link; where no link could be made of a cell, the cell as printed."""
    names = {c.key: c.name for c in fragment.components}
    said: dict[str, str] = {}
    for link in fragment.links:
        if link.raw:
            said[f"{names[link.a]}|{names[link.b]}"] = link.raw
            said.setdefault(f"{names[link.b]}|{names[link.a]}", link.raw)
    for pair, cell in _pairs(fragment.tables.get(LINK_TABLE, {})).items():
        said.setdefault(pair, cell)
        said.setdefault("|".join(reversed(pair.split("|"))), cell)
    return said


def _pairs(table: Mapping[tuple[str, str], str]) -> dict[str, str]:
    return {f"{a}|{b}": cell for (a, b), cell in table.items()}


def rocm(fragment: Fragment) -> dict[str, object]:
    """Facts of ``rocm-smi --showtopo``."""
    printed = {c.name: c.extra for c in fragment.components}
    return {
        "n": len(fragment.components),
        "tables": {title: _pairs(fragment.tables[title]) for title in _ROCM_TABLES if title in fragment.tables},
        "numa_node": {name: int(extra[NUMA_NODE]) for name, extra in printed.items() if NUMA_NODE in extra},
        "numa_aff": {name: int(extra[NUMA_AFFINITY]) for name, extra in printed.items() if NUMA_AFFINITY in extra},
    }


def npu(fragment: Fragment) -> dict[str, object]:
    """Facts of ``npu-smi info`` and ``npu-smi info -t topo``."""
    if fragment.format != "npu-smi-info":
        return topology_matrix(fragment)
    memory = [c.memory_bytes.value for c in fragment.components]
    return {
        "n_accel": len(fragment.components),
        "models": [c.model for c in fragment.components],
        "bus": [c.pci_address for c in fragment.components if c.pci_address is not None],
        "hbm_mb": [bytes_ // _MIB for bytes_ in memory if bytes_ is not None],
    }


def nvidia_smi(fragment: Fragment) -> dict[str, object]:
    """Facts of the XML and of the tables of ``nvidia-smi``."""
    gpus = [c for c in fragment.components if c.parent is None and c.kind == "gpu"]
    parts = [c for c in fragment.components if c.parent is not None]
    memory = [c.memory_bytes.value for c in gpus]
    return {
        "n_accel": len(gpus),
        "n_mig": len(parts),
        "names": [c.model or "" for c in gpus],
        "bus": [c.pci_address for c in gpus],
        "mem": memory,
        "mem_mib": [bytes_ // _MIB for bytes_ in memory if bytes_ is not None],
        "driver": next((c.extra[DRIVER_VERSION] for c in gpus if DRIVER_VERSION in c.extra), None),
        "power_limit": [c.extra.get(POWER_LIMIT, "") for c in gpus],
        "pcie": [[c.pci.max_generation, c.pci.max_lanes] for c in gpus],
    }


def lspci(fragment: Fragment) -> dict[str, object]:
    """Facts of PCI trees; ``same_root`` and ``different_root`` are answered by the root of every function."""
    gpus = [c for c in fragment.components if c.kind in {"gpu", "npu"}]
    nics = [c for c in fragment.components if c.kind == "nic"]
    roots = {c.key: c.extra[ROOT_BUS] for c in fragment.components if ROOT_BUS in c.extra}
    links = {f"{link.a}|{link.b}": link.kind.upper() for link in fragment.links}
    return {
        "n_accel": len(gpus),
        "gpu_bdf": [c.pci_address for c in gpus],
        "nic_bdf": [c.pci_address for c in nics],
        "gpu_bdf_suffix": [_suffix(c) for c in gpus],
        "nic_bdf_suffix": [_suffix(c) for c in nics],
        "link": links,
        "parent": {c.key: c.parent for c in fragment.components},
        "same_root": roots,
        "different_root": roots,
    }


def _suffix(component: Component) -> str:
    return component.key[-7:]


def ibstat(fragment: Fragment) -> dict[str, object]:
    """Facts of ``ibstat`` and ``ibstatus``; of an adapter with several ports, its best one."""
    adapters = [c for c in fragment.components if c.parent is None]
    return {"n_nic": len(adapters), "nics": {c.name: _adapter(c, fragment) for c in adapters}}


def _adapter(adapter: Component, fragment: Fragment) -> dict[str, object]:
    ports = [c for c in fragment.components if c.parent == adapter.key] or [adapter]
    best = max(ports, key=lambda port: (port.extra.get(STATE) == "Active", float(port.extra.get(RATE, "0"))))
    facts: dict[str, object] = {}
    if RATE in best.extra:
        facts["rate_gbps"] = float(best.extra[RATE])
    for name, key in (("layer", LAYER), ("state", STATE)):
        if key in best.extra:
            facts[name] = best.extra[key]
    if TYPE in adapter.extra:
        facts["type"] = adapter.extra[TYPE]
    return facts


def ibnet(fragment: Fragment) -> dict[str, object]:
    """Facts of ``ibnetdiscover``."""
    return {
        "switches": sum(c.kind == "switch" for c in fragment.components),
        "hosts": sum(c.kind == "nic" for c in fragment.components),
        "aggregation_nodes": sum(AGGREGATION in c.extra for c in fragment.components),
    }


def measured(fragment: Fragment) -> dict[str, object]:
    """Facts of measuring tools."""
    if not fragment.measurements:
        return {}
    first = fragment.measurements[0]
    if fragment.format == "measured-matrices":
        tables = [m for m in fragment.measurements if m.unit == "GB/s"]
        others = {m.unit for m in fragment.measurements if m.unit not in {"GB/s", ""}} | {"us"}
        unit = f"GB/s (latency blocks: {', '.join(sorted(others))})"
        return {"matrices": [_matrix(m) for m in tables], "unit": unit}
    facts: dict[str, object] = {"rows": len(first.rows)}
    figures = first.figures
    if BUSBW in first.columns:
        return facts | {
            "max_size_bytes": figures[MAX_SIZE_BYTES],
            "algbw_at_max_gbs": figures[f"{ALGBW}_at_max"],
            "busbw_at_max_gbs": figures[f"{BUSBW}_at_max"],
            "best_busbw_gbs": figures["best_busbw"],
            "avg_busbw_gbs": figures.get("avg_busbw"),
        }
    if "best_median" in figures:
        return facts | {
            "last": [figures["last_size"], figures["last_median"]],
            "best_median_gbs": figures["best_median"],
        }
    if SIZE_BYTES in figures:
        unit = first.unit.replace("/sec", "/s")
        return facts | {"size_bytes": figures[SIZE_BYTES], "bw_avg_mbs": figures["average"], "unit": unit}
    return facts | {
        "at_max_size_gbs": figures["at_max"],
        "max_size_bytes": figures[MAX_SIZE_BYTES],
        "best_gbs": figures["best"],
    }


def _matrix(measurement: Measurement) -> dict[str, object]:
    return {
        "title": measurement.title or None,
        "cols": [int(column) for column in measurement.columns],
        "rows": {row: list(figures) for row, figures in measurement.rows},
    }


KINDS: dict[str, Callable[[Fragment], dict[str, object]]] = {
    "nvidia-topo": topology_matrix,
    "metax-topo": topology_matrix,
    "rocm-topo": rocm,
    "npu": npu,
    "nvidia-smi": nvidia_smi,
    "lspci": lspci,
    "ibstat": ibstat,
    "ibnet": ibnet,
    "measured": measured,
}
"""By the directory that the samples of a kind are in."""
