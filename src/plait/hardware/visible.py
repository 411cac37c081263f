"""Which devices a process sees, and under which numbers, by the variables that its environment sets. Pure.

Each vendor numbers its devices in a space of its own; a variable cuts it down and renumbers from 0. The numbers of a
tool (``nvidia-smi``) are not those of a program (``cuda:0``) unless the order says so.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from plait.hardware.topology import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """What a process sees of the devices of one vendor.

    Attributes:
        keys: Component keys in the order in which the process numbers them from 0; ``None`` where the order cannot be
            told, though ``seen`` may.
        seen: The keys that it sees, in no order that means anything; where numbers cannot be told, those it may see.
        reason: Which variable says so and how, or why the order is not known.
    """

    keys: tuple[str, ...] | None
    seen: frozenset[str]
    reason: str


def visible_nvidia(devices: Sequence[Component], env: Mapping[str, str]) -> Visibility:
    """Returns what CUDA shows of NVIDIA devices and their MIG instances.

    ``CUDA_VISIBLE_DEVICES`` takes numbers, UUIDs or beginnings of them (``GPU-8932``), and MIG UUIDs; the list ends at
    the first entry that names nothing. Numbers count in the order of ``CUDA_DEVICE_ORDER``: ``PCI_BUS_ID``, or the
    default ``FASTEST_FIRST``, which is that of PCI only where all devices are of one type. A device in MIG mode shows
    its first instance alone unless an instance is named.
    """
    whole = _whole(devices)
    order = env.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST").upper()
    kinds = {device.accelerator_type or device.model for device in whole} - {None}  # a lost device has neither
    is_known = order == "PCI_BUS_ID" or len(kinds) <= 1
    numbered = sorted(whole, key=_driver_order if all(device.index is not None for device in whole) else _bus_order)
    text = env.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        said = "CUDA_VISIBLE_DEVICES is not set: all devices"
        chosen: list[Component] = list(numbered)
    else:
        said = f"CUDA_VISIBLE_DEVICES={text}"
        chosen, stopped = _until_wrong(text, lambda word: _named_cuda(word, numbered, devices))
        said += f", which ends before {stopped!r}: it names no device, or one twice" if stopped is not None else ""
        is_known = is_known or not any(part.strip().isdigit() for part in text.split(","))
    if not is_known:
        why = "devices differ, and CUDA_DEVICE_ORDER is FASTEST_FIRST: numbers cannot be told from outside the process"
        seen = frozenset(device.key for device in (whole if text else chosen))
        return Visibility(keys=None, seen=seen, reason=f"{said}; {why}")
    shown = [_first_slice(device, devices) for device in chosen]
    return Visibility(
        keys=tuple(device.key for device in shown),
        seen=frozenset(device.key for device in shown),
        reason=f"{said}; order {order if order == 'PCI_BUS_ID' else 'of PCI addresses: all devices are of one type'}",
    )


def visible_amd(devices: Sequence[Component], env: Mapping[str, str]) -> Visibility:
    """Returns what HIP shows of AMD devices.

    ``ROCR_VISIBLE_DEVICES`` (numbers or UUIDs) cuts first; ``HIP_VISIBLE_DEVICES``, else ``CUDA_VISIBLE_DEVICES``,
    counts in what is left.
    """
    left = list(devices)
    said: list[str] = []
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        name = next((one for one in names if one in env), None)
        if name is None:
            continue
        space = list(left)
        left, stopped = _until_wrong(env[name], lambda word, space=space: _numbered_or_uuid(word, space))  # type: ignore[misc]
        said.append(f"{name}={env[name]}" + (f", which ends before {stopped!r}" if stopped is not None else ""))
    return _listed(left, said or ["no variable is set: all devices"])


def visible_ascend(devices: Sequence[Component], env: Mapping[str, str]) -> Visibility:
    """Returns what CANN and torch_npu show of Ascend NPUs: logical ids in ``ASCEND_RT_VISIBLE_DEVICES``, ascending."""
    text = env.get("ASCEND_RT_VISIBLE_DEVICES")
    if text is None:
        return _listed(list(devices), ["ASCEND_RT_VISIBLE_DEVICES is not set: all devices"])
    logical = {device.index: device for device in devices if device.index is not None}
    chosen, stopped = _until_wrong(text, lambda word: logical.get(int(word)) if word.isdigit() else None)
    said = f"ASCEND_RT_VISIBLE_DEVICES={text}" + (f", which ends before {stopped!r}" if stopped is not None else "")
    return _listed(chosen, [said])


def visible_intel(devices: Sequence[Component], env: Mapping[str, str]) -> Visibility:
    """Returns what Level Zero shows of Intel devices: ``ZE_AFFINITY_MASK`` of devices and tiles (``0,1.1``).

    Under ``ZE_FLAT_DEVICE_HIERARCHY=FLAT``, the default, numbers are those of tiles.
    """
    text = env.get("ZE_AFFINITY_MASK")
    whole = _whole(devices)
    tiles = [tile for device in whole for tile in (_parts(device, devices) or [device])]
    is_flat = env.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT").upper() == "FLAT"
    if text is None:
        return _listed(tiles if is_flat else whole, ["ZE_AFFINITY_MASK is not set: all devices"])

    def find(word: str) -> Component | None:
        match = re.fullmatch(r"(\d{1,4})(?:\.(\d{1,4}))?", word)
        space = tiles if is_flat else whole
        if match is None or int(match[1]) >= len(space):
            return None
        device = space[int(match[1])]
        parts = _parts(device, devices)
        if match[2] is None:
            return device
        return parts[int(match[2])] if int(match[2]) < len(parts) else None

    chosen, stopped = _until_wrong(text, find)
    said = f"ZE_AFFINITY_MASK={text}" + (f", which ends before {stopped!r}" if stopped is not None else "")
    return _listed(chosen, [said])


_SPACES: dict[str, Callable[[Sequence[Component], Mapping[str, str]], Visibility]] = {
    "nvidia": visible_nvidia,
    "amd": visible_amd,
    "huawei": visible_ascend,
    "intel": visible_intel,
}


def visible(devices: Sequence[Component], env: Mapping[str, str]) -> dict[str, Visibility]:
    """Returns what a process with these variables sees, by vendor; vendors without a known variable show all."""
    by_vendor: dict[str, list[Component]] = {}
    for device in devices:
        if device.kind in {"gpu", "npu"}:
            by_vendor.setdefault(device.vendor or "", []).append(device)
    everything = ["no variable is known for this vendor: all devices"]
    return {
        vendor: _SPACES[vendor](own, env) if vendor in _SPACES else _listed(own, everything)
        for vendor, own in by_vendor.items()
    }


def _listed(devices: Sequence[Component], said: Sequence[str]) -> Visibility:
    keys = tuple(device.key for device in devices)
    return Visibility(keys=keys, seen=frozenset(keys), reason="; ".join(said))


def _until_wrong(text: str, find: Callable[[str], Component | None]) -> tuple[list[Component], str | None]:
    """Returns the devices up to the first entry that names none, or one that is there already, and that entry."""
    found: list[Component] = []
    for part in text.split(","):
        word = part.strip()
        if not word and not found and text.strip() == "":
            return [], None
        device = find(word)
        if device is None or device in found:
            return found, word
        found.append(device)
    return found, None


def _named_cuda(word: str, numbered: Sequence[Component], devices: Sequence[Component]) -> Component | None:
    if word.isdigit():
        return numbered[int(word)] if int(word) < len(numbered) else None
    old_form = re.fullmatch(r"MIG-(GPU-[0-9a-f-]+)/(\d+)/(\d+)", word, re.IGNORECASE)
    if old_form:
        return next((d for d in devices if _is_instance(d, devices, *old_form.groups())), None)
    if not word.upper().startswith(("GPU-", "MIG-")):
        return None
    begins = [d for d in devices if d.uuid is not None and d.uuid.casefold().startswith(word.casefold())]
    return begins[0] if len(begins) == 1 else None


def _is_instance(device: Component, devices: Sequence[Component], uuid: str, gpu: str, compute: str) -> bool:
    whole = next((d for d in devices if d.key == device.parent), None)
    return (
        whole is not None
        and (whole.uuid or "").casefold() == uuid.casefold()
        and device.extra.get("gpu_instance_id") == gpu
        and device.extra.get("compute_instance_id") == compute
    )


def _numbered_or_uuid(word: str, space: Sequence[Component]) -> Component | None:
    if word.isdigit():
        return space[int(word)] if int(word) < len(space) else None
    return next((device for device in space if device.uuid and device.uuid.casefold() == word.casefold()), None)


def _whole(devices: Sequence[Component]) -> list[Component]:
    """Returns the devices that are no part of another one; their parents are PCI bridges, or unknown."""
    keys = {device.key for device in devices}
    return [device for device in devices if device.parent not in keys]


def _parts(device: Component, devices: Sequence[Component]) -> list[Component]:
    return [part for part in devices if part.parent == device.key]


def _first_slice(device: Component, devices: Sequence[Component]) -> Component:
    parts = _parts(device, devices)
    return parts[0] if parts and device.extra.get("mig") == "on" else device


def _driver_order(device: Component) -> int:
    """The driver numbers by PCI address, and knows the number of a lost device too."""
    return device.index or 0


def _bus_order(device: Component) -> tuple[str, int]:
    return (device.pci_address or "~", device.index if device.index is not None else 1 << 30)
