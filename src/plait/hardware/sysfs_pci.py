"""PCI functions under ``/sys``: identity, parent, NUMA node, local CPUs, the link as it is and as it could be."""

import posixpath
import re
from dataclasses import replace

from plait.hardware.context import Context
from plait.hardware.cpusets import cpus_of_list, cpus_of_mask
from plait.hardware.pci import (
    class_code,
    generation_of,
    hexadecimal,
    kind_of,
    lanes_of,
    normal_address,
    vendor_name,
)
from plait.hardware.sysfs_files import number_of, text_of
from plait.hardware.topology import Component, Conflict, Locality, PciPort
from plait.hardware.values import Source, Value

BUS = "/sys/bus/pci/devices"
_TREE = "/sys/devices"
_ROOT = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})", re.ASCII)
_DEEPEST = 24
_PRINTED = (
    "class",
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "numa_node",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "sriov_numvfs",
)
_GPU_FILES = "/proc/driver/nvidia/gpus"


def read_pci(context: Context, warnings: list[str], conflicts: list[Conflict]) -> dict[str, Component]:
    """Returns every PCI function by its address, those above before those below; their files as printed in ``extra``.

    Looks at ``/sys/bus/pci/devices`` and walks ``/sys/devices/pci*`` too, because captures often hold only one of them.
    An address with several directories is read where the bus points to; what the others say else is a conflict.
    """
    places, doubles = _places(context)
    buses = {normal_address(name) for name in context.list(BUS) if context.link(f"{BUS}/{name}") is not None}
    found: dict[str, Component] = {}
    for address in sorted(places):
        component = _function(context, address, places[address])
        if component is not None:
            found[address] = component
    for address, component in found.items():
        above = _above(places[address])
        physical = normal_address(posixpath.basename(context.link(f"{places[address]}/physfn") or ""))
        if physical in found and physical is not None:
            found[address] = replace(
                component, parent=physical, extra={**component.extra, "virtual_function_of": physical}
            )
        elif above in found and (address in buses or address not in doubles):
            found[address] = replace(component, parent=above)
        warnings += _complaints(component)
        said = {n for path in doubles.get(address, ()) if (n := text_of(context, f"{path}/numa_node")) is not None}
        printed = component.extra.get("numa_node", "")
        if said - {printed}:
            conflicts.append(Conflict(subject=f"numa_node of {address}", said=(printed, *sorted(said - {printed}))))
    return found


def _places(context: Context) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Returns the directory of every function, and all of those that have several.

    The one in the tree where the bus has one too, for it names the parents.
    """
    places: dict[str, str] = {}
    doubles: dict[str, list[str]] = {}
    for name in context.list(BUS):
        address = normal_address(name)
        if address is not None:
            places[address] = context.link(f"{BUS}/{name}") or f"{BUS}/{name}"
    open_ = [(f"{_TREE}/{name}", 0) for name in context.list(_TREE) if _ROOT.fullmatch(name)]
    while open_:
        path, depth = open_.pop()
        for name in context.list(path):
            address = normal_address(name)
            inside = f"{path}/{name}"
            if address is not None and name.count(":") > 1:
                known = places.get(address, BUS)
                if known.startswith(BUS):
                    places[address] = inside
                elif known != inside:
                    doubles.setdefault(address, [known]).append(inside)
            elif not _ROOT.fullmatch(name):
                continue
            if depth < _DEEPEST:
                open_.append((inside, depth + 1))
    return places, doubles


def _above(path: str) -> str | None:
    """Returns the address of the function right above this directory, ``None`` for one on a root bus."""
    parent = posixpath.basename(posixpath.dirname(path))
    while _ROOT.fullmatch(parent) and "/pci" in posixpath.dirname(posixpath.dirname(path)):
        # A controller that opens a domain of its own (VMD) stands above that domain's root.
        path = posixpath.dirname(path)
        parent = posixpath.basename(posixpath.dirname(path))
    return normal_address(parent) if parent.count(":") > 1 else None


def _function(context: Context, address: str, path: str) -> Component | None:
    """Returns a function, ``None`` where nothing tells that it is one."""
    shown = f"{BUS}/{address}"

    def read(name: str) -> str | None:
        text = text_of(context, f"{path}/{name}")
        return text if text is not None or path == shown else text_of(context, f"{shown}/{name}")

    extra = {name: text for name in _PRINTED if (text := read(name)) is not None}
    if "class" not in extra and "vendor" not in extra:
        return None
    root = next((m[1] for part in path.split("/") if (m := _ROOT.fullmatch(part))), None)
    if root is not None:
        extra["root"] = root
    vendor = hexadecimal(extra.get("vendor", ""))
    kind = kind_of(class_code(extra.get("class", "")), vendor)
    node = extra.get("numa_node", "")
    listed, mask = read("local_cpulist"), read("local_cpus")
    known = node.isascii() and node.isdigit() and len(node) < 6
    port = PciPort(
        generation=generation_of(extra.get("current_link_speed", "")),
        lanes=lanes_of(extra.get("current_link_width", "")),
        max_generation=generation_of(extra.get("max_link_speed", "")),
        max_lanes=lanes_of(extra.get("max_link_width", "")),
    )
    is_slower = port.generation is not None and port.max_generation is not None
    component = Component(
        key=address,
        name=address,
        kind=kind,
        vendor=vendor_name(vendor),
        pci_address=address,
        # An idle accelerator lowers its link; a lower reading of one is no property of the slot.
        pci=replace(
            port,
            is_idle_reading=kind in {"gpu", "npu"}
            and is_slower
            and (port.generation or 0) < (port.max_generation or 0),
        ),
        locality=Locality(
            cpus=(cpus_of_list(listed) if listed else cpus_of_mask(mask) if mask else None) or None,
            numa_nodes=(int(node),) if known else None,
            gpu_numa_node=_memory_node(context, address) if kind == "gpu" else None,
            why_unknown="" if known else f"numa_node is {node}" if node else "no numa_node file",
        ),
        extra=extra,
    )
    return _described(context, component, path)


def _memory_node(context: Context, address: str) -> int | None:
    """Returns the NUMA node that an NVIDIA GPU's own memory is, where the driver made one (POWER9, Grace)."""
    status = text_of(context, f"{_GPU_FILES}/{address}/numa_status") or ""
    match = re.search(r"^Node:\s*([0-9]{1,5})\s*$", status, re.MULTILINE | re.ASCII)
    return int(match[1]) if match else None


def _described(context: Context, component: Component, path: str) -> Component:
    """Adds what the drivers of NVIDIA and AMD tell in plain files: model, UUID, memory."""
    if component.kind not in {"gpu", "npu"}:
        return component
    memory = number_of(context, f"{path}/mem_info_vram_total")
    told = text_of(context, f"{_GPU_FILES}/{component.key}/information") or ""
    lines = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    uuid = lines.get("GPU UUID", "").strip()
    return replace(
        component,
        model=lines.get("Model", "").strip() or text_of(context, f"{path}/product_name") or None,
        uuid=uuid if uuid and "?" not in uuid else text_of(context, f"{path}/unique_id"),
        memory_bytes=Value(memory or None, Source.SYSFS, f"{path}/mem_info_vram_total")
        if memory
        else component.memory_bytes,
    )


def _complaints(component: Component) -> list[str]:
    port = component.pci
    if component.kind not in {"gpu", "npu", "nic"} or port.lanes is None or port.max_lanes is None:
        return []
    if port.lanes < port.max_lanes:
        return [f"{component.name}: {port.lanes} PCIe lanes of the {port.max_lanes} that it can use"]
    return []
