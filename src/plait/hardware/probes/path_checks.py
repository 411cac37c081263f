"""What slows peer copies down and can be read from the kernel: ACS redirection on bridges, an IOMMU that translates."""

import struct
from collections.abc import Iterator

from plait.hardware.context import Context
from plait.hardware.topology import Fragment

_ACS_CAPABILITY = 0x000D
_FIRST_EXTENDED = 0x100
_REDIRECT_BITS = 0x0004 | 0x0008  # request and completion redirect


def path_warnings(context: Context, fragment: Fragment) -> tuple[str, ...]:
    """Returns warnings about the bridges above accelerators; silent where it cannot see (ACS needs root)."""
    warnings = []
    redirecting = [address for address in _bridges_above(fragment) if redirects(context, address)]
    if redirecting:
        shown = ", ".join(redirecting[:4]) + (f" and {len(redirecting) - 4} more" if redirecting[4:] else "")
        warnings.append(
            f"ACS redirects peer traffic at {shown}: copies inside a switch go up to the processor and back"
        )
    if _is_translating(context):
        warnings.append(
            "an IOMMU translates device addresses: peer copies may be slow or hang; iommu=pt or off avoids it"
        )
    return tuple(warnings)


def redirects(context: Context, address: str) -> bool:
    """Returns whether a bridge's ACS control sends peer requests upstream, ``False`` where it cannot be read."""
    config = context.read(f"/sys/bus/pci/devices/{address}/config")
    if config is None or len(config) < _FIRST_EXTENDED + 4:
        return False
    offset, seen = _FIRST_EXTENDED, set()
    while offset >= _FIRST_EXTENDED and offset + 8 <= len(config) and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return bool(control & _REDIRECT_BITS)
        offset = header >> 20
    return False


def _bridges_above(fragment: Fragment) -> Iterator[str]:
    by_key = {component.key: component for component in fragment.components}
    told: set[str] = set()
    for device in fragment.components:
        if device.kind not in {"gpu", "npu"}:
            continue
        parent = device.parent
        while parent is not None and parent in by_key and parent not in told:
            told.add(parent)
            address = by_key[parent].pci_address
            if address is not None and by_key[parent].kind in {"bridge", "switch"}:
                yield address
            parent = by_key[parent].parent


def _is_translating(context: Context) -> bool:
    for group in context.list("/sys/kernel/iommu_groups"):
        mode = (context.read(f"/sys/kernel/iommu_groups/{group}/type") or b"").decode(errors="replace").strip()
        if mode.startswith("DMA"):
            return True
    return False
