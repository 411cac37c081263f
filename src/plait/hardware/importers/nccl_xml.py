"""NCCL's and RCCL's topology files (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``), FlagCX's dialect of them, and graphs.

Every ``pci`` element becomes a component with its attributes in ``extra`` as printed; the ``gpu`` and the only ``net``
inside it are the same component (``gpu.dev``, ``net.speed``), further ones are its children. What NCCL fills in
silently is unknown here: an empty link speed, a width of 0, a network speed of 0 or less.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plait.hardware.cpusets import cpus_of_mask
from plait.hardware.importers.hostlist import is_name
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.nccl_elements import different, number_of, with_gpu, with_net
from plait.hardware.importers.nccl_graph import GPU_TAGS, NAME, ROOT_KEY, read_graphs, whole
from plait.hardware.importers.nccl_links import UNKNOWN_PEER, unsure_links, without_strays
from plait.hardware.importers.safe_xml import Element, first_tag, read_xml
from plait.hardware.pci import (
    class_code,
    generation_of,
    hexadecimal,
    kind_of,
    lanes_of,
    normal_address,
    numa_key,
    vendor_name,
)
from plait.hardware.topology import (
    CapacityGroup,
    Component,
    ComponentKind,
    Conflict,
    Fragment,
    Link,
    LinkKind,
    Locality,
    PciPort,
)
from plait.hardware.values import Source, Value

LINK_TAGS: Mapping[str, LinkKind] = {"nvlink": "nvlink", "xgmi": "xgmi", "c2c": "c2c", "pcilink": "pcie"}
_FRAGMENT_ROOTS = frozenset({"cpu", "pci"})
_NVSWITCH_CLASS = 0x0680
_HIDDEN_SWITCH = "fffffff:ffff:ff"
_FILLER = re.compile(r"f{5,8}:f{2,4}:f{2}(?:\.f)?", re.IGNORECASE)
_IDLE = 2
"""Highest generation that an idle link falls back to; a lower one above faster devices is taken for such a reading."""
_MOST_LINKS = 1024
"""Links a component that are believed."""


class NcclXml:
    """Reads NCCL topology and graph files."""

    name = NAME

    def recognises(self, data: bytes) -> float:
        """Returns how sure it is, by the first element's name."""
        tag = first_tag(data)
        if tag in {"system", "graphs"}:
            return 0.95
        return 0.6 if tag in _FRAGMENT_ROOTS else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns what the file says.

        Raises:
            UnreadableDump: it has no element of a topology or graph file.
        """
        wrap = "system" if first_tag(data) in _FRAGMENT_ROOTS else None
        document = read_xml(data, wrap_in=wrap)
        root = document.root
        if root is None or not any(e.tag in {"cpu", "pci", "gpu", "apu", "net", "graph"} for e in root.walk()):
            raise UnreadableDump(f"{origin}: no element of an NCCL topology in it {document.stopped}".rstrip())
        stopped = (f"{origin}: {document.stopped}; read up to there",) if document.stopped else ()
        if root.tag == "graphs":
            return read_graphs(root, origin, stopped)
        reader = _Reader(origin, unread=list(stopped))
        reader.topology(root)
        return reader.fragment()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the tree an element stands: the parent's key and what it inherits."""

    parent: str | None
    locality: Locality = field(default_factory=Locality)
    host: str = ""


@dataclass(slots=True)
class _Reader:
    origin: str
    components: dict[str, Component] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    groups: list[CapacityGroup] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    tclass: dict[tuple[str, str], str] = field(default_factory=dict)
    _pending: list[tuple[str, str, Element]] = field(default_factory=list)
    _hosts: dict[str, str] = field(default_factory=dict)
    _listed: dict[str, int] = field(default_factory=dict)
    _has_no_tree: bool = False

    def topology(self, root: Element) -> None:
        hashes = dict.fromkeys(h for e in root.walk() if e.tag == "cpu" and (h := e.attributes.get("host_hash")))
        if len(hashes) > 1:
            self._hosts = {h: f"{h}/" for h in hashes}
        extra = {**root.attributes, "root": root.tag, "elements": " ".join(sorted({e.tag for e in root.walk()}))}
        self.components[ROOT_KEY] = Component(key=ROOT_KEY, name=root.tag, kind="other", extra=extra)
        self._has_no_tree = not any(e.tag in {"cpu", "pci"} for e in root.walk())
        self._children(root.children, _Place(None))
        for key, host, element in self._pending:
            self._link(key, host, element)
        self.links, strays = without_strays(self.links)
        self.unread += [f"{self.origin}: {link.kind} of {link.a} to itself beside links to others" for link in strays]
        self._check()

    def fragment(self) -> Fragment:
        return Fragment(
            origin=self.origin,
            format=NAME,
            components=tuple(self.components.values()),
            links=tuple(self.links),
            groups=tuple(self.groups),
            conflicts=(*unsure_links(self.links, self.components), *self._twice()),
            unread=tuple(self.unread),
            warnings=tuple(self.warnings),
            tables={"tclass": self.tclass} if self.tclass else {},
        )

    def _twice(self) -> list[Conflict]:
        return [Conflict(subject=k, said=(f"listed {n} times",)) for k, n in self._listed.items() if n > 1]

    def _children(self, elements: list[Element], place: _Place) -> None:
        for child in elements:
            if child.tag == "cpu":
                self._cpu(child, place)
            elif child.tag == "pci":
                self._pci(child, place)
            elif child.tag in GPU_TAGS and place.parent is None and self._has_no_tree:
                self._lone_gpu(child, place)
            elif child.tag == "net":
                self._lone_net(child, place)
            elif child.tag in {"nic", "system"}:
                self._children(child.children, place)
            else:
                self.unread.append(f"{self.origin}:{child.line}: <{child.tag}> does not belong here")

    def _add(self, component: Component) -> str | None:
        """Adds it under its key and returns that; a bridge that is there already gets a key of its own.

        A second accelerator or NIC of one address beside or inside the first is the same one said twice: then
        ``None``, and nothing is added.
        """
        key, number = component.key, self._listed.get(component.key, 0) + 1
        self._listed[key] = number
        if number > 1:
            if component.kind in {"gpu", "npu", "nic"} and (
                component.parent == self.components[key].parent or self._is_inside(component.parent, key)
            ):
                return None
            key = f"{key}#{number}"
        self.components[key] = replace(component, key=key)
        return key

    def _is_inside(self, place: str | None, key: str) -> bool:
        while place is not None and place != key:
            place = self.components[place].parent
        return place == key

    def _cpu(self, element: Element, place: _Place) -> None:
        attributes = element.attributes
        host = self._hosts.get(attributes.get("host_hash", ""), place.host)
        node = whole(attributes.get("numaid", ""))
        cpus = cpus_of_mask(attributes.get("affinity", "")) or None
        why = "" if node is not None else f"numaid is {attributes.get('numaid')!r}"
        locality = Locality(cpus=cpus, numa_nodes=None if node is None else (node,), why_unknown=why)
        key = self._add(
            Component(
                key=host + ("cpu" if node is None else numa_key(node)),
                name="cpu",
                kind="numa",
                vendor=attributes.get("vendor"),
                index=node,
                locality=locality,
                extra=dict(attributes),
            )
        )
        self._children(element.children, _Place(key, locality, host))

    def _pci(self, element: Element, place: _Place) -> None:
        gpus = self._gpus(element)
        nets = different([n for e in element.children if e.tag == "nic" for n in e.all("net")] + element.all("net"))
        component = self._pci_function(element, place, has_gpu=bool(gpus))
        if component is None:
            self._children([e for e in element.children if e.tag == "pci"], place)
            return
        if len(gpus) == 1:
            component = with_gpu(component, gpus[0])
        if len(nets) == 1:
            component = with_net(component, nets[0])
        key = self._add(component)
        if key is not None:
            self._inside(key, element, gpus, nets, replace(place, parent=key))

    def _gpus(self, element: Element) -> list[Element]:
        """Returns the one ``gpu`` of a ``pci`` element; several, or one in a bridge or NIC, were moved there."""
        gpus = different([e for e in element.children if e.tag in GPU_TAGS])
        code = class_code(element.attributes.get("class", ""))
        if len(gpus) > 1 or (gpus and code is not None and code >> 8 in {0x02, 0x06}):
            self.unread.append(f"{self.origin}:{gpus[0].line}: <{gpus[0].tag}> where none belongs")
            return []
        return gpus

    def _inside(self, key: str, element: Element, gpus: list[Element], nets: list[Element], inner: _Place) -> None:
        """Reads what is inside a ``pci`` element; the only GPU and the only network are the function itself."""
        if len(gpus) == 1:
            self._pending += [(key, inner.host, e) for e in gpus[0].children]
        if len(nets) > 1:
            self._ports(key, nets, inner)
        for child in element.children:
            if child.tag == "pcilink":
                self._pending.append((key, inner.host, child))
            elif child.tag == "nic":
                self._children([e for e in child.children if e.tag != "net"], inner)
            elif child.tag != "net" and child.tag not in GPU_TAGS:
                self._children([child], inner)

    def _pci_function(self, element: Element, place: _Place, *, has_gpu: bool) -> Component | None:
        """Returns the component of a ``pci`` element from its own attributes, ``None`` where it has no address."""
        attributes = element.attributes
        address = normal_address(attributes.get("busid", ""))
        vendor = hexadecimal(attributes.get("vendor", ""))
        kind = kind_of(class_code(attributes.get("class", "")), vendor)
        tags = {e.tag for e in element.children}
        if has_gpu and kind != "npu":
            kind = "gpu"  # whatever its class says
        elif kind == "other" and "pci" in tags:
            kind = "bridge"
        if address is None:
            self.unread.append(f"{self.origin}:{element.line}: pci with the bus id {attributes.get('busid')!r}")
            return None
        return Component(
            key=place.host + address,
            name=attributes.get("busid", "pci"),
            kind=kind,
            vendor=vendor_name(vendor),
            pci_address=address,
            parent=place.parent,
            locality=place.locality,
            pci=PciPort(
                generation=generation_of(attributes.get("link_speed", "")),
                lanes=lanes_of(attributes.get("link_width", "")),
            ),
            extra={**attributes, "nic": ""} if "nic" in tags else dict(attributes),
        )

    def _ports(self, nic: str, nets: list[Element], place: _Place) -> None:
        names = [name for net in nets if (name := self._lone_net(net, place)) is not None]
        rates = [self.components[name].rate_bytes_per_s.value for name in names]
        total = None if any(rate is None for rate in rates) else float(sum(rate for rate in rates if rate is not None))
        detail = f"sum of the {len(names)} ports of {nic}, not measured"
        self.groups.append(CapacityGroup(id=f"nic:{nic}", kind="nic", bytes_per_s=Value(total, Source.CLI, detail)))

    def _lone_gpu(self, element: Element, place: _Place) -> None:
        number = whole(element.attributes.get("dev", ""))
        if number is None or "net" not in element.attributes:
            self.unread.append(f"{self.origin}:{element.line}: <{element.tag}> {element.attributes.get('dev')!r}")
            return
        key = self._add(with_gpu(_bare(f"{place.host}{element.tag}{number}", "gpu", place), element))
        self._pending += [(key, place.host, e) for e in element.children if key is not None]

    def _lone_net(self, element: Element, place: _Place) -> str | None:
        name = element.attributes.get("name", "")
        if not is_name(name):
            self.unread.append(f"{self.origin}:{element.line}: a network named {name[:40]!r}")
            return None
        return self._add(with_net(_bare(place.host + name, "nic", place), element))

    def _link(self, source: str, host: str, element: Element) -> None:
        kind = LINK_TAGS.get(element.tag)
        if kind is None or len(self.links) >= _MOST_LINKS * max(1, len(self.components)):
            self.unread.append(f"{self.origin}:{element.line}: <{element.tag}> is not known here")
            return
        attributes = element.attributes
        # NCCL too refuses a link without a count; only links between switches have none.
        count = whole(attributes.get("count", "1" if kind == "pcie" else ""))
        if not count:
            self.unread.append(f"{self.origin}:{element.line}: {element.tag} with count {attributes.get('count')!r}")
            return
        if kind == "c2c":
            self._chip_link(source, attributes, count)
            return
        printed = attributes.get("target", "")
        # NVML fills in for a far end that it may not show; NCCL takes it for the NVSwitches, as one.
        address = _HIDDEN_SWITCH if _FILLER.fullmatch(printed) else normal_address(printed)
        if address is None:
            self.unread.append(f"{self.origin}:{element.line}: {element.tag} to {printed!r}")
            return
        target = host + address
        if "tclass" in attributes:
            self.tclass[source, printed] = attributes["tclass"]
        if target == source:
            target = UNKNOWN_PEER
        elif target not in self.components and (
            address == _HIDDEN_SWITCH or class_code(attributes.get("tclass", "")) == _NVSWITCH_CLASS
        ):
            # Printed as a target only: what hangs on the other end of NVLink with this class is an NVSwitch.
            known = None if address == _HIDDEN_SWITCH else address
            self.components[target] = Component(
                key=target, name=address, kind="switch", vendor="nvidia", pci_address=known, extra={"seen": "target"}
            )
        self.links.append(Link(a=source, b=target, kind=kind, count=count, raw=printed))

    def _chip_link(self, source: str, attributes: Mapping[str, str], count: int) -> None:
        """NVLink-C2C to the CPU; its ``bw`` is in MB/s a link."""
        place: str | None = source
        while place is not None and self.components[place].kind != "numa":
            place = self.components[place].parent
        rate = number_of(attributes.get("bw", ""))
        known = rate is not None and rate > 0
        value = Value(rate * 1e6 * count if known and rate is not None else None, Source.CLI, self.origin)
        self.links.append(
            Link(
                a=source,
                b=place or UNKNOWN_PEER,
                kind="c2c",
                count=count,
                bytes_per_s=value,
                raw=attributes.get("bw", ""),
            )
        )

    def _check(self) -> None:
        for component in list(self.components.values()):
            parent = self.components.get(component.parent or "")
            own, above = component.pci.generation, parent.pci.generation if parent else None
            if parent is not None and own is not None and above is not None and above <= _IDLE < own:
                idle = replace(parent.pci, is_idle_reading=True)
                self.components[parent.key] = replace(self.components[parent.key], pci=idle)
                self.warnings.append(
                    f"{parent.name} says PCIe generation {above} above {component.name} at {own}: "
                    "probably read while the link was idle"
                )
        unknown = [
            c.name
            for c in self.components.values()
            if c.kind in {"gpu", "npu"} and c.pci_address and (c.pci.generation is None or c.pci.lanes is None)
        ]
        if unknown:
            self.warnings.append(f"PCIe speed is not told for {', '.join(unknown)}; NCCL would take generation 3 x16")
        if any(link.b == UNKNOWN_PEER for link in self.links):
            self.warnings.append("links name the device itself as their target: they exist, their far ends are unknown")


def _bare(key: str, kind: ComponentKind, place: _Place) -> Component:
    name = key.rpartition("/")[2]
    return Component(key=key, name=name, kind=kind, parent=place.parent, locality=place.locality)
