"""hwloc's XML (``lstopo --of xml``), versions 1, 2 and 3: NUMA nodes, packages, the PCI tree, what drives a device.

An operating system device (``cuda0``, ``mlx5_0``) is noted on its PCI device as ``osdev.NAME``; one without a PCI
device is a component of its own. hwloc tells a PCI link in GB/s, not its generation and lanes, so it becomes a link to
the bridge above. NVLink and XGMI come as distance matrices.
"""

import re
from dataclasses import dataclass, field, replace

from plait.hardware.cpusets import as_list, cpus_of_mask
from plait.hardware.importers.hwloc_distances import Distances, read_distances
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.safe_xml import Element, first_tag, read_xml
from plait.hardware.pci import hexadecimal, kind_of, normal_address, numa_key, package_key, vendor_name
from plait.hardware.topology import Component, ComponentKind, Fragment, Link, Locality
from plait.hardware.values import Source, Value

NAME = "hwloc_xml"
MACHINE_KEY = "machine"

_PCI_TYPE = re.compile(
    r"([0-9a-f]{4})(?:\s+\[([0-9a-f]{4}):([0-9a-f]{4})\](?:\s+\[([0-9a-f]{4}):([0-9a-f]{4})\])?)?",
    re.IGNORECASE | re.ASCII,
)
_BUSES = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-([0-9a-f]{2})\]", re.IGNORECASE | re.ASCII)
_GPU_HANDLE = re.compile(r"(?:nvml|rsmi|cuda|ze|opencl0d)([0-9]+)", re.ASCII)
_MEMORY_INFO = ("CUDAGlobalMemorySize", "RSMIVRAMSize", "LevelZeroHBMSize")
_UUID_INFO = ("NVIDIAUUID", "AMDUUID", "LevelZeroUUID")
_FABRIC_ACTIVE = "4"

_OLD_TYPES = {"0": "block", "1": "gpu", "2": "network", "3": "fabric", "4": "dma", "5": "coprocessor", "6": "memory"}
_BITS = ((1, "block"), (2, "memory"), (4, "gpu"), (8, "coprocessor"), (16, "network"), (32, "fabric"), (64, "dma"))


class HwlocXml:
    """Reads hwloc's XML."""

    name = NAME

    def recognises(self, data: bytes) -> float:
        """Returns how sure it is, by the first element's name."""
        return 0.95 if first_tag(data) == "topology" else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns what the file says.

        Raises:
            UnreadableDump: there is no object of hwloc's in it.
        """
        document = read_xml(data)
        if document.root is None or not any(e.tag == "object" for e in document.root.walk()):
            raise UnreadableDump(f"{origin}: no object of an hwloc topology in it {document.stopped}".rstrip())
        reader = _Reader(origin, version=document.root.attributes.get("version", "1.x"))
        if document.stopped:
            reader.unread.append(f"{origin}: {document.stopped}; read up to there")
        return reader.fragment(document.root)


@dataclass(frozen=True, slots=True)
class _Place:
    """What an object inherits from those around it."""

    parent: str | None = None
    cpuset: str = ""
    nodeset: str = ""
    pci: str | None = None
    buses: str | None = None
    """Buses below the bridge around, as printed; ``None`` outside of any."""


@dataclass(slots=True)
class _Reader:
    origin: str
    version: str
    components: dict[str, Component] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    by_gp_index: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    all_nodes: frozenset[int] = frozenset()

    def fragment(self, root: Element) -> Fragment:
        objects = [e for e in root.walk() if e.tag == "object"]
        for element in objects:
            kind = element.attributes.get("type", "")
            self.counts[kind] = self.counts.get(kind, 0) + 1
        self.all_nodes = frozenset(
            int(index)
            for e in objects
            if e.attributes.get("type") == "NUMANode" and (index := e.attributes.get("os_index", "")).isdigit()
        )
        cores = {"cores": str(self.counts.get("Core", 0)), "threads": str(self.counts.get("PU", 0))}
        extra = {"version": self.version, **cores, "objects": " ".join(f"{k}:{n}" for k, n in self.counts.items())}
        self.components[MACHINE_KEY] = Component(key=MACHINE_KEY, name=MACHINE_KEY, kind="other", extra=extra)
        for child in root.all("object"):
            self._object(child, _Place())
        found = read_distances(root, self.by_gp_index, self.origin)
        self.unread += found.unread
        return self._finished(found)

    def _finished(self, found: Distances) -> Fragment:
        known = {(link.a, link.b) for link in found.links}
        return Fragment(
            origin=self.origin,
            format=NAME,
            components=tuple(self.components.values()),
            links=(*(link for link in self.links if (link.a, link.b) not in known), *found.links),
            numa_distances=found.numa,
            conflicts=tuple(found.conflicts),
            unread=tuple(self.unread),
            hides=() if any(t.startswith(("NVLink", "XGMI")) for t in found.tables) else ("nvlink", "xgmi"),
            warnings=tuple(self.warnings),
            tables=found.tables,
            source=Source.SYSFS,
        )

    def _object(self, element: Element, place: _Place) -> None:
        attributes = element.attributes
        inner = replace(
            place,
            cpuset=attributes.get("cpuset") or place.cpuset,
            nodeset=attributes.get("nodeset") or place.nodeset,
        )
        type_ = attributes.get("type", "")
        if type_ == "NUMANode":
            self._numa(element, inner)
        elif type_ in {"Package", "Socket"}:
            self._package(element, inner)
        elif type_ == "Bridge":
            key = self._bridge(element, inner)
            if key is None:
                return
            inner = replace(inner, parent=key, buses=attributes.get("bridge_pci", ""))
        elif type_ == "PCIDev":
            key = self._pci_device(element, inner)
            if key is None:
                return
            inner = replace(inner, parent=key, pci=key, buses="")
        elif type_ == "OSDev":
            self._os_device(element, inner)
        for child in element.all("object"):
            self._object(child, inner)

    def _add(self, component: Component, element: Element) -> str:
        index = element.attributes.get("gp_index")
        if index in self.by_gp_index:
            return self.by_gp_index[index]  # the index is each object's own: a line pasted twice, wherever it stands
        key, number = component.key, 1
        known = self.components.get(key)
        is_same = known is not None and known.parent == component.parent and known.locality == component.locality
        if is_same or self._is_inside(component.parent, key):
            return key  # a line pasted twice is no second device
        while key in self.components:
            number += 1
            key = f"{component.key}#{number}"
        self.components[key] = replace(component, key=key)
        if index is not None:
            self.by_gp_index[index] = key
        return key

    def _is_inside(self, place: str | None, key: str) -> bool:
        while place is not None and place != key:
            place = self.components[place].parent
        return place == key

    def _locality(self, place: _Place) -> Locality:
        nodes = cpus_of_mask(place.nodeset) or None
        cpus = cpus_of_mask(place.cpuset) or None
        if nodes is not None and len(nodes) > 1 and nodes >= self.all_nodes:
            return Locality(cpus=cpus, why_unknown=f"attached to the whole machine (nodes {as_list(nodes)})")
        return Locality(cpus=cpus, numa_nodes=None if nodes is None else tuple(sorted(nodes)))

    def _numa(self, element: Element, place: _Place) -> None:
        index = _whole(element.attributes.get("os_index", ""))
        if index is None:
            self.unread.append(f"{self.origin}:{element.line}: a NUMA node without a number")
            return
        memory = _whole(element.attributes.get("local_memory", ""))
        cpus = cpus_of_mask(element.attributes.get("cpuset") or place.cpuset)
        self._add(
            Component(
                key=numa_key(index),
                name="NUMANode",
                kind="numa",
                index=index,
                memory_bytes=Value(memory or None, Source.SYSFS, "hwloc local_memory"),
                locality=Locality(cpus=cpus, numa_nodes=(index,)),
            ),
            element,
        )

    def _package(self, element: Element, place: _Place) -> None:
        index = _whole(element.attributes.get("os_index", ""))
        inside = list(element.walk())
        self._add(
            Component(
                key="package" if index is None else package_key(index),
                name="Package",
                kind="cpu",
                index=index,
                model=_infos(element).get("CPUModel", "").strip() or None,
                vendor=_infos(element).get("CPUVendor"),
                locality=self._locality(place),
                extra={
                    "cores": str(sum(e.attributes.get("type") == "Core" for e in inside if e.tag == "object")),
                    "threads": str(sum(e.attributes.get("type") == "PU" for e in inside if e.tag == "object")),
                },
            ),
            element,
        )

    def _bridge(self, element: Element, place: _Place) -> str | None:
        span = element.attributes.get("bridge_pci", "")
        if element.attributes.get("pci_busid"):
            return self._pci_device(element, place)
        if not _BUSES.fullmatch(span) or element.attributes.get("bridge_type", "0-1") != "0-1":
            self.unread.append(f"{self.origin}:{element.line}: host bridge with the buses {span!r}")
            return None
        root = Component(
            key=f"host bridge {span}",
            name="HostBridge",
            kind="bridge",
            parent=place.parent,
            locality=self._locality(place),
            extra={"bridge_pci": span},
        )
        return self._add(root, element)

    def _pci_device(self, element: Element, place: _Place) -> str | None:
        attributes = element.attributes
        address = normal_address(attributes.get("pci_busid", ""))
        printed = _PCI_TYPE.match(attributes.get("pci_type", "").strip())
        code = int(printed[1], 16) if printed else None
        vendor = hexadecimal(printed[2]) if printed and printed[2] else None
        extra = {"type": attributes.get("type", "PCIDev"), "nodeset": place.nodeset}
        if printed:
            extra["class"] = f"0x{printed[1].lower()}00"
            names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
            extra |= {name: f"0x{printed[n].lower()}" for n, name in enumerate(names, 2) if printed[n]}
        if "bridge_pci" in attributes:
            extra["bridge_pci"] = attributes["bridge_pci"]
        kind: ComponentKind = "bridge" if attributes.get("type") == "Bridge" else kind_of(code, vendor)
        if attributes.get("subtype") == "NVSwitch":
            kind = "switch"
        if address is None:
            self.unread.append(f"{self.origin}:{element.line}: PCI device with the id {attributes.get('pci_busid')!r}")
            return None
        locality = self._locality(place)
        depth = _depth_below(address, place.buses)
        if depth is None:
            # It is there, but not where it is written: a line was moved or lost.
            self.unread.append(f"{self.origin}:{element.line}: {address} is not on the buses {place.buses!r} above it")
            place = replace(place, parent=None)
            locality = Locality(why_unknown="written under a bridge that it cannot be below")
        key = self._add(
            Component(
                key=address,
                name=attributes.get("pci_busid", "pci"),
                kind=kind,
                vendor=vendor_name(vendor),
                model=_infos(element).get("PCIDevice") if kind in {"gpu", "npu", "nic"} else None,
                pci_address=address,
                parent=place.parent,
                locality=locality,
                extra=extra,
            ),
            element,
        )
        speed = _number(attributes.get("pci_link_speed", ""))
        # On a later bus it may be a virtual function, or a bridge between may be missing: no link to this one is sure.
        if speed and place.parent is not None and depth == 0:
            rate = Value(speed * 1e9, Source.SYSFS, "hwloc pci_link_speed, the link as it was then")
            self.links.append(
                Link(
                    a=key,
                    b=place.parent,
                    kind="pcie",
                    bytes_per_s=rate,
                    reverse_bytes_per_s=rate,
                    raw=attributes["pci_link_speed"],
                )
            )
        return key

    def _os_device(self, element: Element, place: _Place) -> None:
        attributes = element.attributes
        name, raw = attributes.get("name", ""), attributes.get("osdev_type", "")
        sorts = self._sorts(raw)
        infos = _infos(element)
        key = place.pci or self._without_pci(element, place, sorts)
        if "gp_index" in attributes and key != MACHINE_KEY:
            self.by_gp_index[attributes["gp_index"]] = key
        self.components[key] = self._described(self.components[key], name, raw, sorts, infos)

    def _without_pci(self, element: Element, place: _Place, sorts: frozenset[str]) -> str:
        """Returns the component that a software device without a PCI device stands for.

        A GPU or NIC of its own where the file has no PCI level at all; else the machine, for then it is a memory or a
        disk, or its PCI device was lost.
        """
        name = element.attributes.get("name", "")
        is_gpu = bool(sorts & {"gpu", "coprocessor"}) and re.match(r"nvml|rsmi|cuda|ze", name) is not None
        if self.counts.get("PCIDev") or not (is_gpu or sorts & {"network", "fabric"}):
            return MACHINE_KEY
        kind: ComponentKind = "gpu" if is_gpu else "nic"
        return self._add(
            Component(key=name, name=name, kind=kind, parent=place.parent, locality=self._locality(place)), element
        )

    def _described(
        self, component: Component, name: str, raw: str, sorts: frozenset[str], infos: dict[str, str]
    ) -> Component:
        """Returns the component with what its operating system device adds."""
        slot, number = f"osdev.{name}", 1
        while slot in component.extra:
            number += 1
            slot = f"osdev.{name}#{number}"
        component = replace(component, extra={**component.extra, slot: raw})
        if component.kind in {"gpu", "npu"}:
            handle = _GPU_HANDLE.fullmatch(name)
            memory = next((m for i in _MEMORY_INFO if (m := _whole(infos.get(i, "")))), None)
            known = component.memory_bytes.value is None and memory is not None
            return replace(
                component,
                model=infos.get("GPUModel") or component.model,
                uuid=next((infos[i] for i in _UUID_INFO if i in infos), component.uuid),
                index=component.index if handle is None or component.index is not None else int(handle[1]),
                memory_bytes=Value((memory or 0) * 1024, Source.LIBRARY, f"hwloc, {name}")
                if known
                else component.memory_bytes,
            )
        if component.kind == "nic" and sorts & {"network", "fabric"}:
            # InfiniBand's name is the one that other tools print; a network interface's name is the next best.
            if "fabric" in sorts or ":" in component.name:
                component = replace(component, name=name)
            state = infos.get("Port1State")
            if state is not None:
                component = replace(component, health="active" if state == _FABRIC_ACTIVE else "down")
                if state != _FABRIC_ACTIVE:
                    self.warnings.append(f"{name}: port 1 is not active")
        return component

    def _sorts(self, raw: str) -> frozenset[str]:
        """Returns what an operating system device is; version 3 writes bits where earlier ones wrote a number."""
        number = _whole(raw)
        if self.version.startswith(("0", "1", "2")):
            return frozenset({_OLD_TYPES.get(raw, "other")})
        return frozenset(word for bit, word in _BITS if number is not None and number & bit)


def _depth_below(address: str, buses: str | None) -> int | None:
    """Returns how many buses a device is past the first one of the bridge that it is written under.

    ``None`` where it cannot be below that bridge at all: then a line was moved or lost.
    """
    if buses is None:
        return 0
    span = _BUSES.fullmatch(buses)
    domain, bus, _ = address.split(":")
    if span is None or int(domain, 16) != int(span[1], 16) or not int(span[2], 16) <= int(bus, 16) <= int(span[3], 16):
        return None
    return int(bus, 16) - int(span[2], 16)


def _infos(element: Element) -> dict[str, str]:
    return {e.attributes.get("name", ""): e.attributes.get("value", "") for e in element.all("info")}


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]+)?", text, re.ASCII) else None
