"""``nvidia-smi -q -x``: every GPU with its PCI port, memory, power limit and MIG devices, schemas 4 to 13."""

import re
from collections.abc import Iterator

from plait.hardware.importers.figures import mebibytes, small_number
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.safe_xml import Document, Element, read_xml
from plait.hardware.pci import lanes_of, normal_address
from plait.hardware.topology import Component, Fragment, PciPort
from plait.hardware.values import Source, Value

DRIVER_VERSION = "driver_version"
POWER_LIMIT = "power_limit"
"""Keys in :attr:`Component.extra`, values as printed."""

_ROOT = re.compile(rb"<\s*nvidia_smi_log[\s>]")
_POWER_LIMITS = (
    "power_readings/power_limit",
    "gpu_power_readings/current_power_limit",
    "gpu_power_readings/power_limit",
)
_EXTRA = (
    "product_brand",
    "product_architecture",
    "minor_number",
    "gpu_module_id",
    "board_id",
    "persistence_mode",
    "performance_state",
    "compute_mode",
    "vbios_version",
    "mig_mode/current_mig",
    "fabric/state",
    "fabric/status",
    "fabric/cliqueId",
    "fabric/clusterUuid",
)
_IDLE_STATES = frozenset(f"P{number}" for number in range(5, 16))


class NvidiaSmiXml:
    """Reads the XML of ``nvidia-smi -q -x``."""

    name = "nvidia-smi-xml"

    def recognises(self, data: bytes) -> float:
        """Returns 1.0 where the root element of that tool is in the data."""
        return 1.0 if _ROOT.search(data) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns the GPUs and MIG devices; of a document that is cut, what was complete.

        Raises:
            UnreadableDump: it declares entities, is no XML, or holds no GPU.
        """
        document = read_xml(data)
        root = document.root
        if root is None or root.tag != "nvidia_smi_log" or "refused" in document.stopped:
            raise UnreadableDump(f"{origin}: no nvidia-smi log{': ' if document.stopped else ''}{document.stopped}")
        gpus = root.all("gpu")
        components: list[Component] = []
        seen: set[str] = set()
        for position, gpu in enumerate(gpus):
            key = _key(gpu, position, seen)
            seen.add(key)
            components.extend(_gpu(gpu, key, root, position, origin, is_all=_count(root) == len(gpus)))
        if not components:
            raise UnreadableDump(f"{origin}: an nvidia-smi log without any GPU")
        return Fragment(
            origin=origin,
            format=self.name,
            components=tuple(components),
            unread=(f"{origin}: {document.stopped}",) if document.stopped else (),
            warnings=_warnings(root, len(gpus), document),
        )


def text_at(element: Element, path: str) -> str:
    """Returns the text of a descendant (``pci/pcie_gen``), empty where it is missing or was cut before its end."""
    for tag in path.split("/"):
        found = element.all(tag)
        if not found:
            return ""
        element = found[0]
    return element.text.strip() if element.is_closed else ""


def _known(element: Element, path: str) -> str:
    text = text_at(element, path)
    return "" if text in {"N/A", "[N/A]", "None", "[Not Supported]", "Unknown Error", "[Unknown Error]"} else text


def _count(root: Element) -> int | None:
    return small_number(text_at(root, "attached_gpus"))


def _warnings(root: Element, shown: int, document: Document) -> tuple[str, ...]:
    attached = _count(root)
    if attached is None or attached == shown or document.stopped:
        return ()
    return (f"the log says {attached} GPUs are attached and shows {shown}",)


def _address(gpu: Element) -> str | None:
    return normal_address(gpu.attributes.get("id", "")) or normal_address(text_at(gpu, "pci/pci_bus_id"))


def _key(gpu: Element, position: int, taken: set[str]) -> str:
    """Returns a key that is the GPU's own: logs that were made anonymous give several the same address."""
    known = [key for key in (_address(gpu), _known(gpu, "uuid")) if key]
    free = [key for key in known if key not in taken]
    return free[0] if free else f"{known[0] if known else 'GPU'}#{position}"


def _gpu(gpu: Element, key: str, root: Element, position: int, origin: str, *, is_all: bool) -> Iterator[Component]:
    address = _address(gpu)
    uuid = _known(gpu, "uuid") or None
    index = position if is_all else None
    name = f"GPU{position}" if is_all else (_known(gpu, "product_name") or f"GPU at {address}")
    extra = {path.replace("/", "_"): text for path in _EXTRA if (text := text_at(gpu, path))}
    extra |= {tag: text for tag in (DRIVER_VERSION, "cuda_version") if (text := text_at(root, tag))}
    limit = next((text for path in _POWER_LIMITS if (text := text_at(gpu, path))), "")
    if limit:
        extra[POWER_LIMIT] = limit
    yield Component(
        key=key,
        name=name,
        kind="gpu",
        vendor="nvidia",
        model=_known(gpu, "product_name") or None,
        pci_address=address,
        uuid=uuid,
        index=index,
        memory_bytes=mebibytes(text_at(gpu, "fb_memory_usage/total"), f"{origin}:{gpu.line}"),
        pci=_port(gpu),
        extra=extra,
    )
    for mig in [device for group in gpu.all("mig_devices") for device in group.all("mig_device")]:
        part = _mig(mig, key, name, origin)
        if part is not None:
            yield part


def _port(gpu: Element) -> PciPort:
    link = "pci/pci_gpu_link_info/"
    return PciPort(
        generation=small_number(text_at(gpu, f"{link}pcie_gen/current_link_gen")),
        lanes=lanes_of(text_at(gpu, f"{link}link_widths/current_link_width").rstrip("x")),
        max_generation=small_number(text_at(gpu, f"{link}pcie_gen/max_link_gen")),
        max_lanes=lanes_of(text_at(gpu, f"{link}link_widths/max_link_width").rstrip("x")),
        is_idle_reading=text_at(gpu, "performance_state") in _IDLE_STATES,
    )


def _mig(mig: Element, parent: str, name: str, origin: str) -> Component | None:
    """Returns a MIG device, ``None`` where the document ends before its number."""
    index = small_number(text_at(mig, "index"))
    if index is None:
        return None
    uuid = _known(mig, "uuid") or None
    count = small_number(text_at(mig, "device_attributes/shared/multiprocessor_count"))
    extra = {tag: text for tag in ("gpu_instance_id", "compute_instance_id") if (text := text_at(mig, tag))}
    if count is not None:
        extra["multiprocessor_count"] = str(count)
    memory = mebibytes(text_at(mig, "fb_memory_usage/total"), f"{origin}:{mig.line}")
    return Component(
        key=uuid or f"{parent}/mig{index}",
        name=f"{name} MIG {index}",
        kind="gpu",
        vendor="nvidia",
        uuid=uuid,
        parent=parent,
        index=index,
        memory_bytes=memory if memory.value is not None else Value(None, Source.CLI, memory.detail),
        extra=extra,
    )
