"""Writes a fragment as NCCL's topology file, so that NCCL in a container or a VM can be told what is there.

What the fragment does not know is left out: NCCL then asks the running machine, and Plait's own reader says unknown.
"""

from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

from plait.hardware.cpusets import as_mask
from plait.hardware.importers.nccl_graph import NAME, ROOT_KEY
from plait.hardware.importers.nccl_links import UNKNOWN_PEER
from plait.hardware.importers.nccl_xml import LINK_TAGS
from plait.hardware.topology import Component, Fragment, Link

_GIGATRANSFERS = {1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
_TAG_OF_LINK = {kind: tag for tag, kind in LINK_TAGS.items()}
_OWN_MARKS = frozenset({"root", "elements", "nic", "seen"})
_CLASSES = {"gpu": "0x030200", "npu": "0x120000", "nic": "0x020000", "bridge": "0x060400", "switch": "0x068000"}


def write_nccl_xml(fragment: Fragment) -> bytes:
    """Returns the fragment as an NCCL topology or graph file in UTF-8.

    A file that :class:`~plait.hardware.importers.nccl_xml.NcclXml` read comes back with the same elements, attributes
    and order. A fragment of another source (sysfs, hwloc) gives the tree of its NUMA nodes, bridges, accelerators and
    NICs with what is known of them.
    """
    return ("\n".join(_Writer(fragment).document()) + "\n").encode()


class _Writer:
    def __init__(self, fragment: Fragment) -> None:
        self._fragment = fragment
        self._is_own = fragment.format == NAME
        self._children: dict[str | None, list[Component]] = {}
        keys = {c.key for c in fragment.components}
        for component in fragment.components:
            if component.key != ROOT_KEY and component.extra.get("seen") != "target" and self._is_written(component):
                parent = component.parent if component.parent in keys else self._near(component)
                self._children.setdefault(parent, []).append(component)
        self._links: dict[str, list[Link]] = {}
        for link in fragment.links:
            if link.kind in _TAG_OF_LINK:
                self._links.setdefault(link.a, []).append(link)

    def _is_written(self, component: Component) -> bool:
        return self._is_own or component.kind in {"gpu", "npu", "nic", "numa", "bridge", "switch"}

    def _near(self, component: Component) -> str | None:
        """Returns the NUMA node of a component whose source has no tree."""
        nodes = component.locality.numa_nodes
        if self._is_own or component.kind == "numa" or not nodes or len(nodes) != 1:
            return None
        return next((c.key for c in self._fragment.components if c.kind == "numa" and c.index == nodes[0]), None)

    def document(self) -> list[str]:
        root = self._fragment.component(ROOT_KEY)
        tag = root.extra.get("root", "system") if root else "system"
        attributes = {k: v for k, v in root.extra.items() if k not in _OWN_MARKS} if root else {"version": "1"}
        inner = self._graphs() if tag == "graphs" else self._inside(None, 1)
        return _element(tag, attributes, inner, 0)

    def _graphs(self) -> list[str]:
        lines = []
        for table in self._fragment.tables.values():
            attributes = {name: value for (part, name), value in table.items() if part == "graph"}
            inner = []
            for (part, _), steps in table.items():
                if part == "channel":
                    named = [step.partition(":") for step in steps.split()]
                    members = [line for tag, _, dev in named for line in _element(tag, {"dev": dev}, [], 3)]
                    inner += _element("channel", {}, members, 2)
            lines += _element("graph", attributes, inner, 1)
        return lines

    def _inside(self, parent: str | None, depth: int) -> list[str]:
        lines: list[str] = []
        nets: list[str] = []
        for component in self._children.get(parent, ()):
            if _is_lone_net(component):
                nets += _element("net", _attributes(component, "net."), [], depth + 1)
                continue
            if nets:
                lines += self._nic(nets, depth)
                nets = []
            lines += self._component(component, depth)
        return lines + (self._nic(nets, depth) if nets else [])

    def _nic(self, nets: list[str], depth: int) -> list[str]:
        root = self._fragment.component(ROOT_KEY)
        if root is not None and "nic" not in root.extra.get("elements", "nic").split():
            return [line[2:] for line in nets]
        return _element("nic", {}, nets, depth)

    def _component(self, component: Component, depth: int) -> list[str]:
        if component.kind == "numa":
            return _element("cpu", _cpu_attributes(component), self._inside(component.key, depth + 1), depth)
        if component.pci_address is None and "gpu.tag" in component.extra:
            return self._gpu(component, depth)
        inner: list[str] = []
        links = self._links.get(component.key, ())
        if "gpu.tag" in component.extra or (component.kind in {"gpu", "npu"} and not self._is_own):
            inner += self._gpu(component, depth + 1)
            links = [link for link in links if link.kind == "pcie"]
        inner += [line for link in links for line in self._link(link, depth + 1)]
        if "net.tag" in component.extra:
            nets = _element("net", _attributes(component, "net."), [], depth + 2)
            inner += self._nic(nets, depth + 1) if "nic" in component.extra else [line[2:] for line in nets]
        elif component.kind == "nic" and not self._is_own:
            inner += _element("nic", {}, _element("net", _net_attributes(component), [], depth + 2), depth + 1)
        elif "nic" in component.extra and not any(_is_lone_net(c) for c in self._children.get(component.key, ())):
            inner += _element("nic", {}, [], depth + 1)
        inner += self._inside(component.key, depth + 1)
        return _element("pci", self._pci_attributes(component), inner, depth)

    def _gpu(self, component: Component, depth: int) -> list[str]:
        attributes = _attributes(component, "gpu.")
        if not attributes and component.index is not None:
            attributes = {"dev": str(component.index)}
        links = [link for link in self._links.get(component.key, ()) if link.kind != "pcie"]
        inner = [line for link in links for line in self._link(link, depth + 1)]
        return _element(component.extra.get("gpu.tag", "gpu"), attributes, inner, depth)

    def _link(self, link: Link, depth: int) -> list[str]:
        tag = _TAG_OF_LINK[link.kind]
        if link.kind == "c2c":
            return _element(tag, {"bw": link.raw, "count": str(link.count)}, [], depth)
        address = link.raw if self._is_own else (self._address(link.b) or "")
        attributes = {"target": address or (link.a if link.b == UNKNOWN_PEER else link.b)}
        if link.kind != "pcie":
            attributes["count"] = str(link.count)
        known = self._fragment.tables.get("tclass", {}).get((link.a, link.raw))
        peer = self._fragment.component(link.b)
        if known is None and peer is not None and not self._is_own:
            known = peer.extra.get("class") or _CLASSES.get(peer.kind)
        if known is not None:
            attributes["tclass"] = known
        return _element(tag, attributes, [], depth)

    def _address(self, key: str) -> str | None:
        component = self._fragment.component(key)
        return None if component is None else component.pci_address

    def _pci_attributes(self, component: Component) -> Mapping[str, str]:
        if self._is_own:
            return {k: v for k, v in component.extra.items() if "." not in k and k not in _OWN_MARKS}
        attributes = {"busid": component.pci_address or component.key}
        attributes["class"] = component.extra.get("class") or _CLASSES.get(component.kind, "0x060400")
        for name in ("vendor", "device", "subsystem_vendor", "subsystem_device"):
            if name in component.extra:
                attributes[name] = component.extra[name]
        attributes["link_speed"] = _GIGATRANSFERS.get(component.pci.generation or 0, "")
        attributes["link_width"] = str(component.pci.lanes or 0)
        return attributes


def _is_lone_net(component: Component) -> bool:
    return component.pci_address is None and "net.tag" in component.extra and "busid" not in component.extra


def _attributes(component: Component, prefix: str) -> dict[str, str]:
    found = {k.removeprefix(prefix): v for k, v in component.extra.items() if k.startswith(prefix)}
    found.pop("tag", None)
    return found


def _cpu_attributes(component: Component) -> Mapping[str, str]:
    if "numaid" in component.extra or "affinity" in component.extra or "arch" in component.extra:
        return component.extra
    attributes = {"numaid": str(-1 if component.index is None else component.index)}
    if component.locality.cpus:
        attributes["affinity"] = as_mask(component.locality.cpus)
    return attributes


def _net_attributes(component: Component) -> Mapping[str, str]:
    attributes = {"name": component.name}
    if component.index is not None:
        attributes["dev"] = str(component.index)
    if component.rate_bytes_per_s.value is not None:
        attributes["speed"] = str(round(component.rate_bytes_per_s.value * 8 / 1e6))
    return attributes


def _element(tag: str, attributes: Mapping[str, str], inner: list[str], depth: int) -> list[str]:
    words = " ".join([tag, *(f"{name}={quoteattr(value)}" for name, value in attributes.items())])
    space = "  " * depth
    if not inner:
        return [f"{space}<{words}/>"]
    return [f"{space}<{words}>", *inner, f"{space}</{tag}>"]
