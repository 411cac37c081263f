"""How ``plait devices`` shows a machine: tables for people, one document for programs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.cli.output import human_bytes, print_reasons, print_table, say
from plait.hardware.catalog import UnknownAccelerator, capability, predicted_speed
from plait.hardware.device import DeviceCapability
from plait.hardware.discovery import MATCH, PACKAGE, SHARE, SLICE_OF, devices_of
from plait.hardware.nics import fabric_of
from plait.hardware.topology import Component, Fragment, PciPort
from plait.hardware.visible import visible

_PREFERRED = ("bf16", "fp16", "fp32")
_MOST_WARNINGS = 12
_LAYERS = {"infiniband": "InfiniBand", "roce": "RoCE", "rdma": "RDMA", "tcp": "TCP"}
_COLUMNS = (
    "DEVICE", "TYPE", ">MEMORY", ">NUMA", "PCI", "PCIE", "HEALTH", ">POWER", "PRECISIONS", ">MEMORY GB/S", ">SPEED",
    "PACKAGE",
)  # fmt: skip


def document(found: Fragment, env: Mapping[str, str]) -> dict[str, object]:
    """Returns the machine as one JSON document; figures in the units that their keys name, unknown is null."""
    shown = devices_of(found)
    return {
        "devices": [_device(device) for device in shown],
        "nics": [_nic(nic) for nic in _nics(found)],
        "visible": {
            vendor: {"devices": list(seen.keys) if seen.keys is not None else None, "reason": seen.reason}
            for vendor, seen in visible(shown, env).items()
        },
        "warnings": list(found.warnings),
        "conflicts": [{"subject": conflict.subject, "said": list(conflict.said)} for conflict in found.conflicts],
        "not_seen": list(found.hides),
        "unread": list(found.unread),
    }


def show(found: Fragment, env: Mapping[str, str]) -> None:
    """Prints the machine as tables."""
    shown = devices_of(found)
    if shown:
        _print_known(_COLUMNS, [_row(device, is_part=_is_part(device, shown)) for device in shown])
        say("")
        say("types:")
        print_reasons(_reasons(shown))
    nics = list(_nics(found))
    if nics:
        say("")
        cells = [
            (nic.name, _giga(nic.rate_bytes_per_s.value), _numa(nic), nic.pci_address, nic.health, _layer(nic))
            for nic in nics
        ]
        _print_known(("NIC", ">GB/S", ">NUMA", "PCI", "STATE", "LAYER"), cells)
    notes = list(_notes(found, shown, env))
    if notes:
        say("")
        say("notes:")
        print_reasons(notes)


def _print_known(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints the columns of which anything is known."""
    kept = [number for number in range(len(columns)) if number == 0 or any(row[number] is not None for row in rows)]
    print_table([columns[number] for number in kept], [[row[number] for number in kept] for row in rows])


def _is_part(device: Component, shown: Iterable[Component]) -> bool:
    return device.parent is not None and any(other.key == device.parent for other in shown)


def _row(device: Component, *, is_part: bool) -> tuple[object, ...]:
    figures = _figures(device)
    speed = _speed(device)
    power = device.extra.get("power_w")
    limit = device.extra.get("power_limit_w")
    rate = _memory_rate(device, figures)
    return (
        f"  {device.name}" if is_part else device.name,
        device.accelerator_type or "unknown",
        human_bytes(device.memory_bytes.value),
        _numa(device),
        device.pci_address,
        _port(device.pci),
        device.health,
        f"{float(power):.0f}{f' of {float(limit):.0f}' if limit else ''} W" if power else None,
        " ".join(word for word in ("fp32", "tf32", "bf16", "fp16", "fp8") if figures and word in figures.precisions)
        or None,
        _giga(rate),
        None if speed is None else f"{speed[1]:.3g} TFLOPS {speed[0]}",
        device.extra.get(PACKAGE),
    )


def _device(device: Component) -> dict[str, object]:
    figures = _figures(device)
    speed = _speed(device)
    rate = _memory_rate(device, figures)

    def figure(key: str) -> float | None:
        return float(device.extra[key]) if key in device.extra else None

    return {
        "key": device.key,
        "name": device.name,
        "parent": device.parent,
        "kind": device.kind,
        "vendor": device.vendor,
        "model": device.model,
        "accelerator_type": device.accelerator_type,
        "family": figures.family if figures is not None else None,
        "match": device.extra.get(MATCH),
        "index": device.index,
        "uuid": device.uuid,
        "memory_bytes": device.memory_bytes.value,
        "memory_used_bytes": figure("memory_used_bytes"),
        "memory_bytes_per_s": rate,
        "numa_nodes": list(device.locality.numa_nodes) if device.locality.numa_nodes is not None else None,
        "cpus": sorted(device.locality.cpus) if device.locality.cpus is not None else None,
        "pci_address": device.pci_address,
        "pcie": {
            "generation": device.pci.generation,
            "lanes": device.pci.lanes,
            "max_generation": device.pci.max_generation,
            "max_lanes": device.pci.max_lanes,
            "is_idle_reading": device.pci.is_idle_reading,
        },
        "health": device.health,
        "power_w": figure("power_w"),
        "power_limit_w": figure("power_limit_w"),
        "precisions": sorted(figures.precisions) if figures is not None else None,
        "package": device.extra.get(PACKAGE),
        "share": figure(SHARE),
        "speed": None if speed is None else {"precision": speed[0], "tflops": speed[1], "reason": speed[2]},
        "needs": [need.kind for need in figures.needs] if figures is not None else None,
    }


def _nic(nic: Component) -> dict[str, object]:
    return {
        "name": nic.name,
        "key": nic.key,
        "rate_bytes_per_s": nic.rate_bytes_per_s.value,
        "numa_nodes": list(nic.locality.numa_nodes) if nic.locality.numa_nodes is not None else None,
        "pci_address": nic.pci_address,
        "state": nic.health,
        "layer": _layer(nic),
    }


def _figures(device: Component) -> DeviceCapability | None:
    try:
        return capability(device.accelerator_type) if device.accelerator_type else None
    except UnknownAccelerator:
        return None


def _speed(device: Component) -> tuple[str, float, str] | None:
    """Returns precision, TFLOPS that last, and why; a slice has its share, and no speed where that is not known."""
    figures = _figures(device)
    if figures is None or device.accelerator_type == "CPU" or (SLICE_OF in device.extra and SHARE not in device.extra):
        return None
    precision = next((word for word in _PREFERRED if getattr(figures, f"{word}_tflops") is not None), None)
    if precision is None:
        return None
    tflops, reason = predicted_speed(figures.accelerator_type, precision)
    share = device.extra.get(SHARE)
    if share is None:
        return precision, tflops, reason
    return precision, tflops * float(share), f"{reason}; {float(share):.0%} of it"


def _memory_rate(device: Component, figures: DeviceCapability | None) -> float | None:
    """Returns what the source says, else the catalogue; a slice's part of its device's rate is not known."""
    if device.memory_bytes_per_s.value is not None:
        return device.memory_bytes_per_s.value
    return None if figures is None or SLICE_OF in device.extra else figures.memory_bytes_per_s


def _numa(device: Component) -> str | None:
    nodes = device.locality.numa_nodes
    return ",".join(map(str, nodes)) if nodes else None


def _port(port: PciPort) -> str | None:
    if port.max_generation is None and port.generation is None:
        return None
    generation = port.max_generation or port.generation
    return f"gen{generation} x{port.lanes or port.max_lanes or '?'}"


def _giga(rate: float | None) -> str | None:
    return None if rate is None else f"{rate / 1e9:.4g}"


def _nics(found: Fragment) -> Iterator[Component]:
    keys = {component.key for component in found.components}
    for component in found.components:
        if component.kind == "nic" and component.extra.get("virtual_function_of") not in keys:
            yield component


def _layer(nic: Component) -> str | None:
    fabric = fabric_of(nic)
    return None if fabric is None else _LAYERS[fabric]


def _reasons(shown: Iterable[Component]) -> Iterator[str]:
    """Yields one line a reason, with the names of the devices that it holds for."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for device in shown:
        key = (device.accelerator_type or "unknown", device.extra.get(MATCH, "the source says so"))
        by_reason.setdefault(key, []).append(device.name)
    for (kind, reason), names in by_reason.items():
        few = ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}"
        yield f"{few}: {kind}; {reason}"


def _notes(found: Fragment, shown: Iterable[Component], env: Mapping[str, str]) -> Iterator[str]:
    accelerators = [device for device in shown if device.kind in {"gpu", "npu"}]
    if not accelerators:
        yield "no accelerator: no PCI function, driver, library or tool of any known vendor shows one"
    for vendor, seen in visible(accelerators, env).items():
        if seen.keys is None or len(seen.keys) < sum(
            d.vendor == vendor and SLICE_OF not in d.extra for d in accelerators
        ):
            listed = "unknown" if seen.keys is None else ", ".join(seen.keys) or "none"
            yield f"programs see of {vendor}: {listed} ({seen.reason})"
    yield from found.warnings[:_MOST_WARNINGS]
    if len(found.warnings) > _MOST_WARNINGS:
        yield f"{len(found.warnings) - _MOST_WARNINGS} more warnings; --json has all"
    for conflict in found.conflicts:
        yield f"{conflict.subject}: {' against '.join(conflict.said)}"
    if accelerators:
        for hidden in found.hides:
            yield f"not seen: {hidden}"
    if found.unread:
        yield f"{len(found.unread)} lines were not understood; --json has them"
