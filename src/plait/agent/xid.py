"""What the kernel's log says of accelerators: NVIDIA's Xids, a device that fell off the bus, fatal errors of PCIe."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from plait.hardware.pci import normal_address

Meaning = Literal["lasting", "transient", "workload", "nothing"]

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)")
_CAUSED_BY = re.compile(r"caused by previous Xid (\d+)")
_OFF_THE_BUS = re.compile(r"fallen off the bus")
_ADDRESS = re.compile(r"\b([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)")
_PCIE = re.compile(r"PCIe Bus Error: severity=Uncorrected \(Fatal\)")

_LASTING = {48, 62, 64, 74, 79, 95, 119, 120, 123, 140, 143}
"""Double-bit errors, row remapping that failed, NVLink, off the bus, uncontained errors, a GSP that does not answer."""
_TRANSIENT = {63, 92, 94}
"""Errors that were contained or repaired: start again, reset the device later."""
_WORKLOAD = {13, 31, 43, 68, 69}
"""Bad addresses and illegal instructions: nearly always the program's."""
_LINKS = range(144, 151)
_STAND_FOR_ANOTHER = 45


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWord:
    """One thing that the kernel said of a device.

    Attributes:
        pci_address: Of the device, ``None`` where the log does not say.
        meaning: For the device.
        words: As a person reads them.
    """

    pci_address: str | None
    meaning: Meaning
    words: str


def device_words(lines: Iterable[str]) -> tuple[DeviceWord, ...]:
    """Returns what the lines of a kernel log say of devices, in their order."""
    return tuple(_found(list(lines)))


def _found(lines: list[str]) -> Iterator[DeviceWord]:
    for number, line in enumerate(lines):
        match = _XID.search(line)
        if match is not None:
            yield _of_xid(_address(match[1]), int(match[2]), match[3].strip())
        elif _OFF_THE_BUS.search(line):
            # Newer drivers print no Xid, and the address some lines before.
            near = " ".join(lines[max(0, number - 2) : number + 1])
            found = _ADDRESS.search(near)
            words = "it has fallen off the bus and does not respond"
            yield DeviceWord(pci_address=_address(found[1]) if found else None, meaning="lasting", words=words)
        elif _PCIE.search(line):
            found = _ADDRESS.search(line)
            words = "fatal error of its PCIe link"
            yield DeviceWord(pci_address=_address(found[1]) if found else None, meaning="lasting", words=words)


def _of_xid(address: str | None, number: int, text: str) -> DeviceWord:
    cause = _CAUSED_BY.search(text)
    if number == _STAND_FOR_ANOTHER and cause is not None:
        before = int(cause[1])
        meaning: Meaning = "lasting" if before in _LINKS else _meaning(before, text)
        return DeviceWord(pci_address=address, meaning=meaning, words=f"Xid {number} after Xid {before}")
    return DeviceWord(pci_address=address, meaning=_meaning(number, text), words=f"Xid {number} ({_short(text)})")


def _meaning(number: int, text: str) -> Meaning:
    if number in _LINKS:
        return "nothing" if "Nonfatal" in text else "lasting"
    if number in _LASTING:
        return "lasting"
    if number in _TRANSIENT:
        return "transient"
    return "workload" if number in _WORKLOAD else "nothing"


def _address(text: str) -> str | None:
    return normal_address(text) or normal_address(f"{text}.0")


def _short(text: str) -> str:
    text = re.sub(r"\b(pid|name)=\S+,\s*", "", text)
    return f"{text[:77]}..." if len(text) > 80 else text
