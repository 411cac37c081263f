"""Finds the devices of a machine: every vendor's probe, joined into one picture, each device with its type and why.

>>> from plait.hardware.contexts import LiveContext
>>> found = discover(LiveContext())
>>> [device.accelerator_type for device in devices_of(found)][-1]
'CPU'
"""

import dataclasses
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from plait.hardware.catalog import capability, match_model
from plait.hardware.context import Context
from plait.hardware.contexts import LiveContext
from plait.hardware.merge import merge
from plait.hardware.pci import hexadecimal
from plait.hardware.topology import Component, Fragment, Link
from plait.hardware.values import Source
from plait.hardware.vendors import VENDORS, Vendor
from plait.hardware.vendors.cpu import processors
from plait.hardware.vendors.isolation import DEFAULT_LIMIT_S, probe_apart, probe_here

MATCH = "match"
"""Key in a component's ``extra``: why the device is of its type, or of none."""
SLICE_OF = "slice_of"
"""Key in a component's ``extra``: key of the device that this is a slice or partition of."""
SHARE = "share"
"""Key in a component's ``extra``: the part of a device's arithmetic that a slice of it has, from 0 to 1."""

PACKAGE = "package"
"""Key in a component's ``extra``: the same for dies of one package, each of which is a device."""

_ACCELERATORS = frozenset({"gpu", "npu"})
_LINKS_IN_PACKAGE = 4
_SLICE = re.compile(r"\bMIG\s+(?:(\d+)c\.)?(\d+)g\.", re.IGNORECASE)


def discover(ctx: Context, *, limit_s: float = DEFAULT_LIMIT_S, vendors: Sequence[Vendor] = VENDORS) -> Fragment:
    """Returns all that is known of one machine.

    On the host of this process each vendor with any trace of itself is probed in a child process of its own, all at the
    same time, so a driver that hangs or crashes costs its own devices' details and at most ``limit_s`` seconds (twice
    that where a tool is asked after the library failed). What failed is in ``warnings``, by vendor; the processors are
    always there.
    """
    present = [vendor for vendor in vendors if _trace(vendor, ctx) is not None]
    if isinstance(ctx, LiveContext):
        with ThreadPoolExecutor(max_workers=max(1, len(present))) as pool:
            fragments = list(pool.map(lambda vendor: probe_apart(vendor, ctx, limit_s), present))
    else:
        fragments = [probe_here(vendor, ctx) for vendor in present]
    told = [_told(vendor, fragment) for vendor, fragment in zip(present, fragments, strict=True)]
    if not any(component.kind == "cpu" for fragment in told for component in fragment.components):
        told.append(Fragment(origin="/proc", format="cpu", components=(processors(ctx),), source=Source.SYSFS))
    return identify(merge(told))


def identify(fragment: Fragment) -> Fragment:
    """Returns the fragment with each accelerator's type by name, memory and PCI id, and the reason in ``extra``."""
    components = [_identified(component) for component in fragment.components]
    known = {component.key: component for component in components}
    components = [_of_its_device(component, known) for component in components]
    return dataclasses.replace(fragment, components=_in_packages(components, fragment.links))


def devices_of(fragment: Fragment) -> tuple[Component, ...]:
    """Returns what can compute, in the order of the sources: accelerators with their parts, and the processors last.

    A virtual function is left out where its physical one is there. A machine whose processors were not described as
    one device has none here.
    """
    keys = {component.key for component in fragment.components}
    accelerators = [
        component
        for component in fragment.components
        if component.kind in _ACCELERATORS and component.extra.get("virtual_function_of") not in keys
    ]
    processor = [component for component in fragment.components if component.accelerator_type == "CPU"]
    return (*accelerators, *processor)


def leaves_of(fragment: Fragment) -> tuple[Component, ...]:
    """Returns the accelerators that programs see: of a device that is cut into slices, the slices."""
    devices = [device for device in devices_of(fragment) if device.kind in _ACCELERATORS]
    cut = {device.parent for device in devices}
    return tuple(device for device in devices if device.key not in cut)


def _trace(vendor: Vendor, ctx: Context) -> str | None:
    try:
        return vendor.trace(ctx)
    except Exception:  # noqa: BLE001 - a fault of one vendor's code must not hide the others' devices
        return None


def _told(vendor: Vendor, fragment: Fragment) -> Fragment:
    """Turns a failure into a warning: what the other sources say of the machine stands."""
    if fragment.error is None:
        return fragment
    warning = f"{vendor.name}: {fragment.error}"
    return dataclasses.replace(fragment, error=None, warnings=(*fragment.warnings, warning))


def _identified(component: Component) -> Component:
    if component.kind not in _ACCELERATORS or component.accelerator_type is not None:
        return component  # whoever set the type knew it
    memory = component.memory_bytes.value
    units = component.extra.get("compute_units", "")
    match = match_model(
        component.model,
        memory_mib=None if memory is None else memory / 2**20,
        pci_id=_pci_id(component),
        vendor=component.vendor,
        compute_units=int(units) if units.isdigit() else None,
    )
    extra = {**component.extra, MATCH: match.reason}
    return dataclasses.replace(component, accelerator_type=match.accelerator_type, extra=extra)


def _pci_id(component: Component) -> str | None:
    vendor = hexadecimal(component.extra.get("vendor", ""))
    device = hexadecimal(component.extra.get("device", ""))
    return None if vendor is None or device is None else f"{vendor:04x}:{device:04x}"


def _of_its_device(component: Component, known: dict[str, Component]) -> Component:
    """Gives a slice the type of the device that it is a slice of, with its share."""
    whole = known.get(component.parent or "")
    if whole is None or whole.kind not in _ACCELERATORS or component.kind not in _ACCELERATORS:
        return component
    share = _share(component, whole)
    extra = {**component.extra, MATCH: f"a slice of {whole.name}", SLICE_OF: whole.key}
    if share is not None:
        extra[SHARE] = f"{share:.4g}"
    return dataclasses.replace(component, accelerator_type=whole.accelerator_type, extra=extra)


def _in_packages(components: Sequence[Component], links: Sequence[Link]) -> tuple[Component, ...]:
    """Marks two dies of one package: of a type sold in pairs, joined by the link that joins dies and nothing else.

    On an MI250 four xGMI links join the dies of a package and fewer join packages; Ascend's dies meet over SIO.
    """
    pairs = {component.key for component in components if _is_of_pair(component)}
    mates: dict[str, set[str]] = {}
    for link in links:
        joins_dies = link.kind == "sio" or (link.kind == "xgmi" and link.count == _LINKS_IN_PACKAGE)
        if joins_dies and {link.a, link.b} <= pairs:
            mates.setdefault(link.a, set()).add(link.b)
            mates.setdefault(link.b, set()).add(link.a)
    marked = []
    for component in components:
        own = mates.get(component.key, set())
        mate = next(iter(own)) if len(own) == 1 else None
        if mate is None or mates[mate] != {component.key}:
            marked.append(component)
        else:
            extra = {PACKAGE: f"package of {min(component.key, mate)}", **component.extra}
            marked.append(dataclasses.replace(component, extra=extra))
    return tuple(marked)


def _is_of_pair(component: Component) -> bool:
    kind = component.accelerator_type
    return kind is not None and component.kind in _ACCELERATORS and capability(kind).devices_per_package == 2


def _share(part: Component, whole: Component) -> float | None:
    """Returns the part of the arithmetic: the slices of a MIG profile (A30: of four, others: of seven)."""
    profile = _SLICE.search(part.model or "")
    text = part.extra.get("compute_slices", "")
    slices = int(profile[1] or profile[2]) if profile else int(text) if text.isdigit() else None
    if slices is None:
        return None
    return slices / (4 if whole.accelerator_type == "A30" else 7)
