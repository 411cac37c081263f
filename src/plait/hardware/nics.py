"""What a NIC is by all that its sources print: its fabric, its state, its names; what nobody told is ``None``."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from plait.hardware.topology import Component, Fragment
from plait.hardware.values import Value

Fabric = Literal["infiniband", "roce", "rdma", "tcp"]
"""``rdma`` is a NIC that can do RDMA where nothing says over which layer; ``tcp`` an interface without RDMA."""

_RDMA_NAME = re.compile(r"(mlx[45]|irdma|qedr|cxgb4|hfi1|usnic|efa|rdma|iwp)[_a-z0-9]*", re.ASCII)
_ROCE_NAME = re.compile(r"(bnxt_re|hns_|roce)[_a-z0-9]*", re.ASCII)
_INFINIBAND_NAME = re.compile(r"ib(p[0-9]|s[0-9]|[0-9])[a-z0-9]*", re.ASCII)
_INTERFACE_NAME = re.compile(r"(eth[0-9]|en[ospx][0-9a-f]|veth|bond[0-9]|br[0-9]|wl)[a-z0-9.]*", re.ASCII)
_RDMA_WORDS = ("connectx", "bluefield", "mlx4", "mlx5", "elastic fabric", "omni-path", "rdma")
_INFINIBAND_CLASS, _ETHERNET_CLASS, _OTHER_FABRIC_CLASS = ("0x0207", "infiniband"), ("0x0200", "ethernet"), "0x0208"
_EFA_IDS = frozenset({"0xefa0", "0xefa1", "0xefa2", "0xefa3"})

_UP = frozenset({"up", "active", "linkup", "lowerlayerup"})
_DOWN = frozenset({"down", "disabled", "polling", "init", "initializing", "linkdown"})
_STATES = ("state", "operstate", "physical_state", "phys_state")


def nics_of(fragment: Fragment) -> tuple[Component, ...]:
    """Returns the NICs of a node in the order of their source; ports of one NIC count together, their rates added."""
    found = [c for c in fragment.components if c.kind == "nic"]
    keys = {nic.key for nic in found}
    ports: dict[str, list[Component]] = {}
    for nic in found:
        if nic.parent in keys and nic.parent is not None:
            ports.setdefault(nic.parent, []).append(nic)
    return tuple(_with_ports(nic, ports.get(nic.key, ())) for nic in found if nic.parent not in keys)


def _with_ports(nic: Component, ports: Sequence[Component]) -> Component:
    rates = [rate for port in ports if is_up(port) and (rate := port.rate_bytes_per_s.value) is not None]
    if nic.rate_bytes_per_s.value is not None or not ports:
        return nic
    extra = {**ports[0].extra, **nic.extra}
    total = Value(sum(rates) if rates else None, ports[0].rate_bytes_per_s.source, f"{len(rates)} ports that are up")
    return replace(nic, rate_bytes_per_s=total, extra=extra)


def fabric_of(nic: Component) -> Fabric | None:
    """Returns how a NIC moves data by its link layer, PCI class and names; ``None`` where none of them tells."""
    extra = {key.rpartition(".")[2].casefold(): value.casefold() for key, value in nic.extra.items()}
    layer, pci_class = extra.get("link_layer", extra.get("layer", "")), extra.get("class", "")
    if "infiniband" in layer or pci_class.startswith(_INFINIBAND_CLASS):
        return "infiniband"
    if layer:
        return "roce" if "ethernet" in layer else "rdma"  # only RDMA devices print one; that of EFA is unspecified
    found = _fabric_by_name(_names(nic), is_ethernet=pci_class.startswith(_ETHERNET_CLASS))
    model = f"{nic.name} {nic.model or ''}".casefold()
    is_fabric = pci_class.startswith(_OTHER_FABRIC_CLASS) or extra.get("device", "") in _EFA_IDS
    if found in {None, "tcp"} and (is_fabric or extra.get("gdr") == "1" or any(word in model for word in _RDMA_WORDS)):
        return "rdma"
    return "tcp" if found is None and "net" in nic.extra else found


def _fabric_by_name(names: Sequence[str], *, is_ethernet: bool) -> Fabric | None:
    if any(_INFINIBAND_NAME.fullmatch(name) for name in names):
        return "infiniband"
    if any(_ROCE_NAME.fullmatch(name) for name in names):
        return "roce"
    if any(_RDMA_NAME.fullmatch(name) for name in names):
        return "roce" if is_ethernet and any(name.startswith("mlx") for name in names) else "rdma"
    return "tcp" if any(_INTERFACE_NAME.fullmatch(name) for name in names) else None


def other_names(nic: Component) -> tuple[str, ...]:
    """Returns what a NIC's source calls its RDMA devices and its interfaces, besides the NIC's own name."""
    told = [text for key, text in nic.extra.items() if key in {"rdma_device", "infiniband", "net"}]
    told += [text for key, text in nic.extra.items() if key.endswith("net.name")]
    told += [key.removeprefix("osdev.") for key in nic.extra if key.startswith("osdev.")]
    return tuple(dict.fromkeys(name for text in told for name in text.split() if name != nic.name))


def _names(nic: Component) -> list[str]:
    return [name.casefold() for text in (nic.name, *other_names(nic)) for name in text.split()]


def link_state(nic: Component) -> bool | None:
    """Returns whether a NIC's port is up, ``None`` where its source does not tell."""
    words = set(_words(nic.health, *(nic.extra.get(key) for key in _STATES)))
    if words & _DOWN:
        return False
    return True if words & _UP else None


def is_up(nic: Component) -> bool:
    """Returns whether a NIC may carry data: not where its source says that its port is down."""
    return link_state(nic) is not False


def _words(*texts: str | None) -> list[str]:
    return [word for text in texts if text for word in re.findall(r"[a-z]+", text.casefold())]
