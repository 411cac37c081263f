"""What PCI says in every source alike: addresses, classes, vendors, link speeds; and the keys that merge by them."""

import re

from plait.hardware.topology import ComponentKind

_ADDRESS = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4}|[1-9a-f][0-9a-f]{4,5}|[0-9a-f]{8}):)?"
    r"(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})\.(?P<function>[0-7])",
    re.ASCII | re.IGNORECASE,
)

VENDORS = {
    0x10DE: "nvidia",
    0x1002: "amd",
    0x19E5: "huawei",
    0x8086: "intel",
    0x1D94: "hygon",
    0xCABC: "cambricon",
    0x1ED5: "moorethreads",
    0x9999: "metax",
    0x1D22: "kunlunxin",
    0x1E3E: "iluvatar",
    0x1DA3: "habana",
    0x15B3: "mellanox",
    0x14E4: "broadcom",
    0x1000: "broadcom",
    0x10B5: "plx",
    0x11F8: "microchip",
    0x1D0F: "amazon",
    0x1022: "amd",
    0x1A03: "aspeed",
    0x102B: "matrox",
    0x1AE0: "google",
    0x1AF4: "virtio",
    0x1077: "qlogic",
    0x17CB: "qualcomm",
    0x1DD8: "pensando",
    0x1E52: "tenstorrent",
    0x434E: "cornelis",
}
"""PCI vendor ids to the words used here; NICs and bridges among them."""

GRAPHICS_OF_BOARD = frozenset({0x1A03, 0x102B, 0x1234, 0x15AD, 0x1013, 0x1B36, 0x80EE, 0x5333, 0x1414})
"""Vendors whose display controllers belong to a management chip or a virtual screen: no accelerators."""

_GENERATIONS = ((2.5, 1), (5.0, 2), (8.0, 3), (16.0, 4), (32.0, 5), (64.0, 6), (128.0, 7))
_SPEED = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*GT/s", re.ASCII | re.IGNORECASE)


def normal_address(text: str) -> str | None:
    """Returns a PCI address as ``dddd:bb:dd.f`` in lower case, ``None`` where the text is none.

    A missing domain is 0000; domains of eight digits lose leading zeros down to four (NVML prints
    ``00000000:07:00.0``); longer ones, as Intel's VMD makes them, stay. A digit too few is no other address.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain = int(match["domain"] or "0", 16)
    device = int(match["device"], 16)
    return f"{domain:04x}:{int(match['bus'], 16):02x}:{device:02x}.{match['function']}"


def hexadecimal(text: str) -> int | None:
    """Returns the number of ``0x10de`` or ``10de``, ``None`` where the text is none."""
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{1,8})", text.strip(), re.ASCII | re.IGNORECASE)
    return None if match is None else int(match[1], 16)


def class_code(text: str) -> int | None:
    """Returns base and sub class of ``0x030200`` or ``0302`` as one number (0x0302), ``None`` for other text."""
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{4})([0-9a-f]{2})?", text.strip(), re.ASCII | re.IGNORECASE)
    return None if match is None else int(match[1], 16)


def kind_of(class_: int | None, vendor: int | None = None) -> ComponentKind:
    """Returns what a PCI function is by its class; management graphics are ``other``, unknown classes too."""
    if class_ is None:
        return "other"
    if class_ in {0x0300, 0x0302, 0x0380}:
        return "other" if vendor in GRAPHICS_OF_BOARD else "gpu"
    if class_ >> 8 == 0x12:
        return "npu" if vendor in {0x19E5, 0xCABC, 0x1D22, 0x1DA3} else "gpu"
    if class_ >> 8 == 0x02 or class_ == 0x0C06:
        return "nic"
    if class_ >> 8 == 0x06:
        return "switch" if class_ == 0x0680 and vendor == 0x10DE else "bridge"
    return "other"


def vendor_name(vendor: int | None) -> str | None:
    """Returns the vendor's word, its id in hexadecimal where it has none here, ``None`` for unknown."""
    return None if vendor is None else VENDORS.get(vendor, f"0x{vendor:04x}")


def generation_of(speed: str) -> int | None:
    """Returns the PCI Express generation of ``16.0 GT/s PCIe``, ``8 GT/s``; ``None`` where the text names no known one.

    The number alone counts: ``16.0 GT/s`` without ``PCIe`` is generation 4 as well.
    """
    match = _SPEED.match(speed)
    if match is None:
        return None
    rate = float(match[1])
    return next((generation for gts, generation in _GENERATIONS if gts == rate), None)


def lanes_of(width: str) -> int | None:
    """Returns the lanes of ``16`` or ``x16``, ``None`` for 0 (not connected or unknown) and for what is no width."""
    match = re.fullmatch(r"x?([0-9]{1,3})", width.strip(), re.ASCII | re.IGNORECASE)
    lanes = int(match[1]) if match else 0
    return lanes if lanes in {1, 2, 4, 8, 12, 16, 32} else None


def numa_key(node: int) -> str:
    """Returns the key of a NUMA node's component."""
    return f"numa{node}"


def package_key(package: int) -> str:
    """Returns the key of a CPU package's component."""
    return f"package{package}"
