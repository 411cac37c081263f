"""Network devices under ``/sys``: InfiniBand and RoCE ports, network interfaces, and which PCI function they are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from plait.hardware.context import Context
from plait.hardware.pci import normal_address
from plait.hardware.sysfs_files import text_of
from plait.hardware.topology import Component
from plait.hardware.values import UNKNOWN, Source, Value

_FABRIC = "/sys/class/infiniband"
_NET = "/sys/class/net"
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*Gb/sec", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Ports:
    """The ports of one device: what they carry together, whether one is up, their files as printed."""

    rate_bytes_per_s: Value[float]
    is_up: bool | None
    extra: dict[str, str]


def named_nics(context: Context, functions: Mapping[str, Component], warnings: list[str]) -> dict[str, Component]:
    """Returns the functions with their network names (``infiniband``, ``net`` in ``extra``), rates and states.

    A NIC takes the name of its InfiniBand or RoCE device, which other tools print, else that of its interface. A port
    that is down prints a rate all the same; it is not believed.
    """
    found = dict(functions)
    for kind, names in (("infiniband", _by_function(context, "infiniband")), ("net", _by_function(context, "net"))):
        for address, devices in names.items():
            if address in found:
                extra = {**found[address].extra, kind: " ".join(sorted(devices))}
                found[address] = replace(found[address], extra=extra)
    for address, component in found.items():
        fabric = component.extra.get("infiniband", "").split()
        nets = component.extra.get("net", "").split()
        if component.kind == "nic" and (fabric or nets):
            found[address] = _described(context, component, fabric, nets, warnings)
    return found


def lone_nics(context: Context, functions: Mapping[str, Component]) -> list[Component]:
    """Returns the InfiniBand devices that are on no PCI function (soft RoCE): real names without a place."""
    placed = {name for c in functions.values() for name in c.extra.get("infiniband", "").split()}
    found = []
    for name in context.list(_FABRIC):
        if name not in placed and context.link(f"{_FABRIC}/{name}") is not None:
            ports = _ports(context, f"{_FABRIC}/{name}")
            found.append(
                Component(
                    key=name,
                    name=name,
                    kind="nic",
                    rate_bytes_per_s=ports.rate_bytes_per_s,
                    health=_health(ports.is_up),
                    extra={"infiniband": name, **ports.extra},
                )
            )
    return found


def _by_function(context: Context, kind: str) -> dict[str, set[str]]:
    """Returns the devices of ``/sys/class/KIND`` by PCI address, from the class and from the functions' directories."""
    found: dict[str, set[str]] = {}
    for name in context.list(f"/sys/class/{kind}"):
        place = context.link(f"/sys/class/{kind}/{name}") or ""
        address = _nearest(place)
        if address is not None:
            found.setdefault(address, set()).add(name)
    for path in _directories(context, kind):
        address = _nearest(path)
        if address is not None:
            found.setdefault(address, set()).update(context.list(path))
    return found


def _directories(context: Context, kind: str) -> list[str]:
    paths = []
    for name in context.list("/sys/bus/pci/devices"):
        path = context.link(f"/sys/bus/pci/devices/{name}")
        if path is None:
            continue
        names = context.list(path)
        paths += [f"{path}/{kind}"] if kind in names else []
        paths += [f"{path}/{n}/{kind}" for n in names if n.startswith("virtio") and kind in context.list(f"{path}/{n}")]
    return paths


def _nearest(path: str) -> str | None:
    """Returns the PCI address nearest to the end of a path."""
    parts = [normal_address(part) for part in path.split("/") if part.count(":") > 1]
    return next((part for part in reversed(parts) if part is not None), None)


def _described(
    context: Context, component: Component, fabric: list[str], nets: list[str], warnings: list[str]
) -> Component:
    extra = dict(component.extra)
    rate: Value[float] = UNKNOWN
    is_up: bool | None = None
    if fabric:
        ports = _ports(context, _device(context, component.key, "infiniband", fabric[0]))
        rate, is_up, extra = ports.rate_bytes_per_s, ports.is_up, extra | ports.extra
        if is_up is False:
            warnings.append(f"{fabric[0]}: no port is active")
    for net in nets if rate.value is None and is_up is not False else []:
        path = f"{_device(context, component.key, 'net', net)}/speed"
        printed = text_of(context, path)
        if printed is not None:
            extra.setdefault("speed", printed)
        if printed is not None and re.fullmatch(r"[0-9]{1,8}", printed, re.ASCII) and int(printed) > 0:
            rate = Value(int(printed) * 1e6 / 8, Source.SYSFS, path)
            break
    name = (fabric or nets)[0]
    return replace(component, name=name, rate_bytes_per_s=rate, health=_health(is_up), extra=extra)


def _device(context: Context, address: str, kind: str, name: str) -> str:
    path = f"/sys/class/{kind}/{name}"
    return path if context.link(path) is not None else f"/sys/bus/pci/devices/{address}/{kind}/{name}"


def _ports(context: Context, path: str) -> _Ports:
    total = 0.0
    up: list[bool] = []
    extra: dict[str, str] = {}
    is_known = True
    for port in context.list(f"{path}/ports"):
        for name in ("rate", "state", "phys_state", "link_layer"):
            text = text_of(context, f"{path}/ports/{port}/{name}")
            if text is not None:
                extra[f"port.{port}.{name}"] = text
        state = extra.get(f"port.{port}.state", "")
        rate = _RATE.search(extra.get(f"port.{port}.rate", ""))
        if state:
            up.append("ACTIVE" in state.upper())
        if state and not up[-1]:
            continue
        is_known &= rate is not None
        total += float(rate[1]) * 1e9 / 8 if rate else 0.0
    known = total if is_known and total > 0 else None
    return _Ports(Value(known, Source.SYSFS, f"{path}/ports"), any(up) if up else None, extra)


def _health(is_up: bool | None) -> str | None:
    return None if is_up is None else "active" if is_up else "down"
