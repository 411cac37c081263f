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
    fabric, nets = _by_function(context, "infiniband"), _by_function(context, "net")
    for address, component in functions.items():
        own = {"infiniband": fabric.get(address, {}), "net": nets.get(address, {})}
        extra = {kind: " ".join(sorted(names)) for kind, names in own.items() if names}
        if not extra:
            continue
        described = replace(component, extra={**component.extra, **extra})
        if component.kind == "nic":
            described = _described(context, described, own["infiniband"], own["net"], warnings)
        found[address] = described
    return found


def lone_nics(context: Context, functions: Mapping[str, Component]) -> list[Component]:
    """Returns the InfiniBand devices that are on no PCI function (soft RoCE): real names without a place."""
    placed = {name for c in functions.values() for name in c.extra.get("infiniband", "").split()}
    found = []
    for name in context.list(_FABRIC):
        if name not in placed and (context.link(f"{_FABRIC}/{name}") or "").endswith(f"/infiniband/{name}"):
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


def _by_function(context: Context, kind: str) -> dict[str, dict[str, str]]:
    """Returns the paths of the devices of ``/sys/class/KIND`` by PCI address and name.

    From the functions' own directories and from the class, for captures often hold only one of them.
    """
    found: dict[str, dict[str, str]] = {}
    for path in _directories(context, kind):
        address = _nearest(path)
        if address is not None:
            found.setdefault(address, {}).update((name, f"{path}/{name}") for name in context.list(path))
    for name in context.list(f"/sys/class/{kind}"):
        place = context.link(f"/sys/class/{kind}/{name}")
        address = _nearest(place or "")
        if address is not None and place is not None:
            found.setdefault(address, {})[name] = place
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
    context: Context, component: Component, fabric: Mapping[str, str], nets: Mapping[str, str], warnings: list[str]
) -> Component:
    extra = dict(component.extra)
    rate: Value[float] = UNKNOWN
    is_up: bool | None = None
    name = min(fabric or nets)
    if fabric:
        ports = _ports(context, fabric[name])
        rate, is_up, extra = ports.rate_bytes_per_s, ports.is_up, extra | ports.extra
        if is_up is False:
            warnings.append(f"{name}: no port is active")
    for net in sorted(nets) if rate.value is None and is_up is not False else []:
        path = f"{nets[net]}/speed"
        printed = text_of(context, path)
        if printed is not None:
            extra.setdefault("speed", printed)
        if printed is not None and re.fullmatch(r"[0-9]{1,8}", printed, re.ASCII) and int(printed) > 0:
            rate = Value(int(printed) * 1e6 / 8, Source.SYSFS, path)
            break
    return replace(component, name=name, rate_bytes_per_s=rate, health=_health(is_up), extra=extra)


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
