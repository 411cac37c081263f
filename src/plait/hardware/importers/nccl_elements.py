"""What the elements inside a PCI function of a topology file add to it: a GPU, a network."""

from collections.abc import Mapping
from dataclasses import replace

from plait.hardware.importers.hostlist import is_name
from plait.hardware.importers.nccl_graph import whole
from plait.hardware.importers.safe_xml import Element
from plait.hardware.topology import Component, ComponentKind
from plait.hardware.values import Source, Value


def different(elements: list[Element]) -> list[Element]:
    """Returns the elements without those that repeat an earlier one: a line pasted twice is no second device."""
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    found = []
    for element in elements:
        said = (element.tag, tuple(element.attributes.items()))
        if said not in seen:
            found.append(element)
        seen.add(said)
    return found


def with_gpu(component: Component, element: Element) -> Component:
    """Returns the component with a ``gpu`` element's attributes as ``gpu.NAME``."""
    attributes = element.attributes
    extra = {**component.extra, "gpu.tag": element.tag, **_prefixed("gpu", attributes)}
    # Only RCCL writes the instruction set of AMD's GPUs.
    vendor = component.vendor or ("amd" if "gcn" in attributes else None)
    return replace(component, vendor=vendor, index=whole(attributes.get("dev", "")), extra=extra)


def with_net(component: Component, element: Element) -> Component:
    """Returns the component with a ``net`` element's attributes as ``net.NAME``; its speed is in Mb/s."""
    attributes = element.attributes
    speed = number_of(attributes.get("speed", ""))
    rate = speed * 1e6 / 8 if speed is not None and speed > 0 else None
    detail = "net speed in Mb/s" if rate is not None else f"net speed is {attributes.get('speed')!r}"
    kind: ComponentKind = component.kind if component.kind in {"gpu", "npu"} else "nic"
    name = attributes.get("name", "")
    return replace(
        component,
        kind=kind,
        name=name if is_name(name) else component.name,
        index=component.index if kind != "nic" else whole(attributes.get("dev", "")),
        rate_bytes_per_s=Value(rate, Source.CLI, detail),
        extra={**component.extra, "net.tag": element.tag, **_prefixed("net", attributes)},
    )


def _prefixed(prefix: str, attributes: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{name}": value for name, value in attributes.items()}


def number_of(text: str) -> float | None:
    """Returns a number of at most twelve digits, ``None`` for other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e12 else None
