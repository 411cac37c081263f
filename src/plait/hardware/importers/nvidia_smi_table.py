"""The table of ``nvidia-smi``, with the MIG table below it, and the list of ``nvidia-smi -L``."""

import re
from dataclasses import replace

from plait.hardware.importers.figures import mebibytes
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.nvidia_smi_xml import DRIVER_VERSION, POWER_LIMIT
from plait.hardware.importers.paste import Paste, read_paste
from plait.hardware.pci import normal_address
from plait.hardware.topology import Component, Fragment

_BUS = r"((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"
_ROW = re.compile(
    r"^[ \t]*\|?[ \t]*(\d{1,3})\s{1,4}(\S[^|]{1,60}?)(?:\s+(?:On|Off|WDDM|TCC|MCDM|N/A|Enabled|Disabled))?\s*\|\s*"
    + _BUS
)
_USAGE = re.compile(r"(\d{1,9})MiB\s*/\s*(\d{1,9})MiB")
_POWER = re.compile(r"(?:\d{1,5}W|N/A)\s*/\s*(\d{1,5})W")
_VERSION = re.compile(r"\b(?:Driver|KMD) Version: ?([\w.]+)")
_MIG_ROW = re.compile(r"^[ \t]*\|[ \t]*(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})\s*\|\s*\d+MiB\s*/\s*(\d{1,9})MiB")
_LISTED = re.compile(r"^[ \t]*GPU (\d{1,3}): (\S[^()]{1,80}?)(?: \(UUID: (GPU-[0-9a-fA-F-]{8,40})\))?\s*$")
_LISTED_MIG = re.compile(r"^[ \t]*MIG (\S{1,20})\s+Device\s+(\d{1,3}): \(UUID: (MIG-[0-9A-Za-z/-]{8,80})\)")
_HINT = re.compile(r"NVIDIA-SMI\s+\d|\|\s*GPU\s+Name\b|^[ \t]*GPU \d{1,3}: \S.{1,80}\(UUID: GPU-", re.MULTILINE)


class NvidiaSmiTable:
    """Reads what ``nvidia-smi`` prints without arguments, and ``nvidia-smi -L``."""

    name = "nvidia-smi-table"

    def recognises(self, data: bytes) -> float:
        """Returns 0.8 where the banner or the head of the table is there, below a matrix pasted with it."""
        return 0.8 if _HINT.search(read_paste(data).text) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns the GPUs of the table, their MIG devices as parts.

        Raises:
            UnreadableDump: there is no row with a GPU.
        """
        paste = read_paste(data)
        components = gpus_of(paste, origin)
        if not components:
            raise UnreadableDump(f"{origin}: an nvidia-smi table without a readable row")
        return Fragment(origin=origin, format=self.name, components=components)


def gpus_of(paste: Paste, origin: str) -> tuple[Component, ...]:
    """Returns the GPUs that tables or lists in a paste name, by their first mention."""
    found: dict[str, Component] = {}
    if not _HINT.search(paste.text):
        return ()
    version = _VERSION.search(paste.text)
    extra = {DRIVER_VERSION: version[1]} if version and _ends_before_the_cut(paste, version.end()) else {}
    last: str | None = None
    for number, line in enumerate(paste.lines, 1):
        if match := _ROW.match(line):
            gpu = _of_row(match, extra)
            last = gpu.key if gpu.key not in found else None
            found.setdefault(gpu.key, gpu)
        elif last is not None and (usage := _USAGE.search(line)) and not _MIG_ROW.match(line):
            found[last] = _with_usage(found[last], usage[2], line, f"{origin}:{number}")
            last = None
        elif match := _MIG_ROW.match(line):
            _add_mig(found, match, f"{origin}:{number}")
        elif _is_whole_line(paste, number) and (match := _LISTED.match(line)):
            gpu = _of_list(match)
            found.setdefault(gpu.key, gpu)
        elif match := _LISTED_MIG.match(line):
            _add_listed_mig(found, match)
    return tuple(found.values())


def _is_whole_line(paste: Paste, number: int) -> bool:
    return paste.is_whole or number < len(paste.lines)


def _ends_before_the_cut(paste: Paste, end: int) -> bool:
    return paste.is_whole or end < len(paste.text)


def _of_row(match: re.Match[str], extra: dict[str, str]) -> Component:
    address = normal_address(match[3])
    return Component(
        key=address or f"GPU{match[1]}",
        name=f"GPU{int(match[1])}",
        kind="gpu",
        vendor="nvidia",
        model=" ".join(match[2].split()),
        pci_address=address,
        index=int(match[1]),
        extra=dict(extra),
    )


def _with_usage(gpu: Component, total: str, line: str, where: str) -> Component:
    power = _POWER.search(line)
    extra = {**gpu.extra, POWER_LIMIT: f"{power[1]} W"} if power else gpu.extra
    return replace(gpu, memory_bytes=mebibytes(total, where), extra=extra)


def _of_list(match: re.Match[str]) -> Component:
    return Component(
        key=match[3] or f"GPU{int(match[1])}",
        name=f"GPU{int(match[1])}",
        kind="gpu",
        vendor="nvidia" if match[3] else None,
        model=match[2].strip(),
        uuid=match[3],
        index=int(match[1]),
    )


def _add_mig(found: dict[str, Component], match: re.Match[str], where: str) -> None:
    gpu, gpu_instance, compute_instance, device = (int(match[at]) for at in range(1, 5))
    parent = next((c for c in found.values() if c.index == gpu and c.parent is None), None)
    if parent is None:
        return
    key = f"{parent.key}/mig{device}"
    part = Component(
        key=key,
        name=f"{parent.name} MIG {device}",
        kind="gpu",
        vendor="nvidia",
        parent=parent.key,
        index=device,
        memory_bytes=mebibytes(match[5], where),
        extra={"gpu_instance_id": str(gpu_instance), "compute_instance_id": str(compute_instance)},
    )
    found.setdefault(key, part)


def _add_listed_mig(found: dict[str, Component], match: re.Match[str]) -> None:
    parent = next((c for c in reversed(found.values()) if c.parent is None), None)
    if parent is None:
        return
    part = Component(
        key=match[3],
        name=f"{parent.name} MIG {int(match[2])}",
        kind="gpu",
        vendor="nvidia",
        uuid=match[3],
        parent=parent.key,
        index=int(match[2]),
        extra={"profile": match[1]},
    )
    found.setdefault(part.key, part)
