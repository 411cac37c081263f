"""What an agent registers of the machine that it runs on: the devices found, as the cluster counts them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.hardware.catalog import capability, family_of, predicted_speed
from plait.hardware.device import Device
from plait.hardware.discovery import MATCH, SLICE_OF, devices_of
from plait.hardware.topology import Component, Fragment
from plait.hardware.visible import visible

CPU = "CPU"
_VARIABLES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES", "huawei": "ASCEND_RT_VISIBLE_DEVICES"}
_UNFIT = ("lost", "down")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDevices:
    """The devices of a node and how its workers are given them.

    Attributes:
        variable: Limits which devices a process sees; ``None`` where no variable does.
        ids: What the variable calls each device, in their order.
        notes: What was left out and why, and why each device is of its type; one sentence each.
    """

    devices: tuple[Device, ...]
    variable: str | None
    ids: tuple[str, ...]
    notes: tuple[str, ...]


def own_devices(node: str, found: Fragment, env: Mapping[str, str]) -> OwnDevices:
    """Returns what a node offers: its accelerators of one vendor that this process sees, else its processors as one.

    A process of PyTorch works with one vendor's devices, so where there are several the vendor with more devices
    counts. Slices of devices, lost devices and those hidden by the environment are left out, with a note.
    """
    everything = devices_of(found)
    accelerators = [device for device in everything if device.kind in {"gpu", "npu"}]
    vendor, seen, notes = _one_vendor(accelerators, env)
    kept: list[Component] = []
    for device in seen:
        if SLICE_OF in device.extra:
            notes.append(f"{device.name} is left out: workers are given whole devices")
        elif device.health is not None and device.health.startswith(_UNFIT):
            notes.append(f"{device.name} is left out: {device.health}")
        elif device.index is None and "kfd_node" not in device.extra:
            notes.append(f"{device.name} is left out: PCI shows it, but no driver or tool of its vendor does")
        else:
            kept.append(device)
    if not kept:
        kept = [device for device in everything if device.accelerator_type == CPU]
        vendor = None
    notes += _reasons(kept)
    return OwnDevices(
        devices=tuple(_device(node, index, device) for index, device in enumerate(kept)),
        variable=_VARIABLES.get(vendor or ""),
        ids=tuple(str(place if device.index is None else device.index) for place, device in enumerate(kept)),
        notes=tuple(notes),
    )


def _reasons(kept: Sequence[Component]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for device in kept:
        reason = f"{_type(device)}; {device.extra.get(MATCH, 'as its driver calls it')}"
        by_reason.setdefault(reason, []).append(device.name)
    return [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _one_vendor(
    accelerators: Sequence[Component], env: Mapping[str, str]
) -> tuple[str | None, list[Component], list[str]]:
    by_key = {device.key: device for device in accelerators}
    views = {
        vendor: [by_key[key] for key in (view.keys if view.keys is not None else sorted(view.seen))]
        for vendor, view in visible(accelerators, env).items()
    }
    counts = {vendor: len(devices) for vendor, devices in views.items() if devices}
    if not counts:
        return None, [], []
    vendor = max(counts, key=lambda name: (counts[name], name in _VARIABLES))
    others = [f"{counts[name]} of {name}" for name in counts if name != vendor]
    notes = [f"a node offers one vendor's devices, {vendor}'s here; left out are {', '.join(others)}"] if others else []
    hidden = [d for d in accelerators if d.vendor == vendor and SLICE_OF not in d.extra and d not in views[vendor]]
    parents = {device.parent for device in views[vendor]}
    notes += [f"{d.name} is left out: the environment hides it" for d in hidden if d.key not in parents]
    return vendor, views[vendor], notes


def _type(device: Component) -> str:
    """Returns the word that jobs use; a type that the catalogue lacks goes by its driver's name."""
    if device.accelerator_type is not None:
        return family_of(device.accelerator_type)
    words = (device.model or f"{device.vendor}-{device.kind}").removeprefix("NVIDIA ").removeprefix("AMD ")
    return words.replace(" ", "-")


def _device(node: str, index: int, device: Component) -> Device:
    known = device.accelerator_type
    memory = device.memory_bytes.value
    if known is not None and known != CPU:
        # Jobs ask for the size on the label; what a driver reports is a little less.
        sizes = capability(known).memory_options_bytes
        memory = min((size for size in sizes if memory is None or size * 1.01 >= memory), default=memory)
    numa = device.locality.numa_nodes
    return Device(
        id=f"{node}/{index}",
        node=node,
        index=index,
        accelerator_type=_type(device),
        memory_bytes=memory,
        numa_node=numa[0] if numa is not None and len(numa) == 1 else None,
        speed=predicted_speed(known, "fp32")[0] if known is not None else 1.0,
    )
