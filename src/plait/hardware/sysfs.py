"""What Linux says of a machine under ``/sys`` and ``/proc``, live or captured, without any vendor's library.

It is the ground that vendor probes stand on: which PCI functions exist, how they hang together, which CPUs and NUMA
nodes they are near. It never says what a device can do; unknown stays unknown (``numa_node`` is -1 in most virtual
machines and on boxes with one node).
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from plait.hardware.context import Context
from plait.hardware.cpusets import cpus_of_list, cpus_of_mask
from plait.hardware.pci import numa_key, package_key
from plait.hardware.sysfs_files import number_of, text_of
from plait.hardware.sysfs_kfd import read_kfd
from plait.hardware.sysfs_nics import lone_nics, named_nics
from plait.hardware.sysfs_pci import read_pci
from plait.hardware.topology import Component, Conflict, Fragment, Link, Locality
from plait.hardware.values import Source, Value

FORMAT = "sysfs"
MACHINE_KEY = "machine"

_NODES = "/sys/devices/system/node"
_CPUS = "/sys/devices/system/cpu"
_NODE = re.compile(r"node([0-9]{1,5})", re.ASCII)
_CPU = re.compile(r"cpu([0-9]{1,5})", re.ASCII)
_MEMORY = re.compile(r"MemTotal:\s*([0-9]{1,15})\s*kB", re.ASCII)
_MODEL = re.compile(r"^(?:model name|cpu model|cpu|Processor)\s*:\s*(.*\S)", re.MULTILINE)


def probe_sysfs(context: Context, origin: str = "/sys") -> Fragment:
    """Returns NUMA nodes with distances, CPU packages, PCI functions as a tree, NICs with rates, AMD's KFD links.

    The keys are those that merge: PCI addresses, ``numa0``, ``package0``; totals are on the component ``machine``. A
    virtual function hangs under its physical one (``virtual_function_of``).
    """
    unread: list[str] = []
    warnings: list[str] = []
    conflicts: list[Conflict] = []
    nodes, distances = _numa(context, origin, unread)
    packages = _packages(context)
    functions = named_nics(context, read_pci(context, warnings, conflicts), warnings)
    functions, links = read_kfd(context, functions)
    components = [*packages, *nodes, *functions.values()]
    taken = {c.key for c in components}
    components += [c for c in lone_nics(context, functions) if c.key not in taken]
    return Fragment(
        origin=origin,
        format=FORMAT,
        components=tuple(components),
        links=tuple(links) + _pcie_links(functions),
        numa_distances=distances,
        conflicts=tuple(conflicts),
        unread=tuple(unread),
        warnings=tuple(warnings),
        hides=("nvlink",),
        source=Source.SYSFS,
    )


def _numa(context: Context, origin: str, unread: list[str]) -> tuple[list[Component], dict[tuple[int, int], int]]:
    ids = sorted(int(m[1]) for name in context.list(_NODES) if (m := _NODE.fullmatch(name)))
    components = []
    distances: dict[tuple[int, int], int] = {}
    for node in ids:
        path = f"{_NODES}/node{node}"
        memory = _MEMORY.search(text_of(context, f"{path}/meminfo") or "")
        components.append(
            Component(
                key=numa_key(node),
                name=f"node{node}",
                kind="numa",
                index=node,
                memory_bytes=Value(int(memory[1]) * 1024 if memory else None, Source.SYSFS, f"{path}/meminfo"),
                locality=Locality(cpus=_cpus(context, f"{path}/cpulist", f"{path}/cpumap"), numa_nodes=(node,)),
            )
        )
        row = (text_of(context, f"{path}/distance") or "").split()
        if len(row) == len(ids) and all(word.isascii() and word.isdigit() and len(word) < 6 for word in row):
            # A row follows the order of the ids that exist, which need not be contiguous.
            distances.update({(node, other): int(word) for other, word in zip(ids, row, strict=True)})
        elif row:
            unread.append(f"{origin}: node{node} has {len(row)} distances for {len(ids)} nodes")
    return components, distances


def _cpus(context: Context, list_path: str, mask_path: str) -> frozenset[int] | None:
    """Returns the CPUs of a node or device; an empty list is known to be empty."""
    listed = text_of(context, list_path)
    if listed:
        return cpus_of_list(listed)
    mask = text_of(context, mask_path)
    if mask:
        return cpus_of_mask(mask)
    return None if listed is None and mask is None else frozenset()


def _packages(context: Context) -> list[Component]:
    """Returns the machine with its totals, and its CPU packages; CPUs without a topology (offline) are left out."""
    ids: dict[int, int] = {}
    cores: dict[int, frozenset[int]] = {}
    together: dict[int, frozenset[int]] = {}
    for cpu in sorted(int(m[1]) for name in context.list(_CPUS) if (m := _CPU.fullmatch(name))):
        path = f"{_CPUS}/cpu{cpu}/topology"
        if not context.list(path) or text_of(context, f"{_CPUS}/cpu{cpu}/online") == "0":
            continue
        package = number_of(context, f"{path}/physical_package_id")
        if package is not None:
            ids[cpu] = package
        together[cpu] = _first(context, path, ("package_cpus", "core_siblings")) or frozenset()
        cores[cpu] = _first(context, path, ("core_cpus", "thread_siblings")) or frozenset({cpu})
    packages = _grouped(ids, together)
    model = _MODEL.search(text_of(context, "/proc/cpuinfo") or "")
    components = [_counted(Component(key=MACHINE_KEY, name=MACHINE_KEY, kind="other"), cores)]
    for number, (index, members) in enumerate(packages):
        key = f"package at cpu{min(members)}" if index is None else package_key(index)
        component = Component(
            key=f"{key} at cpu{min(members)}" if any(c.key == key for c in components) else key,
            name=f"package {number if index is None else index}",
            kind="cpu",
            index=index,
            model=model[1] if model else None,
            locality=Locality(cpus=frozenset(members)),
        )
        components.append(_counted(component, {cpu: cores[cpu] for cpu in members}))
    return components


def _grouped(ids: Mapping[int, int], together: Mapping[int, frozenset[int]]) -> list[tuple[int | None, set[int]]]:
    """Returns the packages: the CPUs that are told to be together, with the number that the firmware gives them.

    Some firmware numbers no package, some gives two the same number. A CPU that neither has a number nor is together
    with one that has is left out where others are numbered.
    """
    packages: dict[tuple[int | None, frozenset[int]], set[int]] = {}
    for cpu, members in together.items():
        group = members if cpu in members else frozenset[int]()
        index = ids.get(cpu, next((ids[m] for m in sorted(group) if m in ids), None))
        if group and (index is not None or not ids):
            packages.setdefault((index, group), set()).add(cpu)
    for cpu, index in ids.items():
        if cpu not in together.get(cpu, ()):
            same = next((members for (i, _), members in packages.items() if i == index), None)
            (packages.setdefault((index, frozenset()), set()) if same is None else same).add(cpu)
    return [(index, members) for (index, _), members in packages.items()]


def _first(context: Context, path: str, names: tuple[str, ...]) -> frozenset[int] | None:
    return next((cpus for n in names if (cpus := _cpus(context, f"{path}/{n}_list", f"{path}/{n}"))), None)


def _counted(component: Component, cores: Mapping[int, frozenset[int]]) -> Component:
    return replace(component, extra={"cores": str(len(set(cores.values()))), "threads": str(len(cores))})


def _pcie_links(functions: Mapping[str, Component]) -> tuple[Link, ...]:
    """Returns the link of every function to the bridge above it; its rate follows from the port's generation."""
    return tuple(
        Link(a=c.key, b=c.parent, kind="pcie", raw=c.extra.get("current_link_speed", ""))
        for c in functions.values()
        if c.parent is not None and c.parent in functions and "virtual_function_of" not in c.extra
    )
