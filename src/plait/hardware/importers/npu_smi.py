"""``npu-smi info``: cards with their chips, two rows each; the second carries the PCI address and the memory."""

import re
from dataclasses import dataclass

from plait.hardware.importers.figures import mebibytes
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.paste import read_paste
from plait.hardware.pci import normal_address
from plait.hardware.topology import Component, Fragment

_HINT = re.compile(r"npu-smi\s+\S+\s+Version:|\|\s*NPU\s+Name\s+\|\s*Health", re.IGNORECASE)
_CARD = re.compile(r"^[ \t]*\|[ \t]*(\d{1,3})\s+([A-Za-z0-9][\w.-]{1,30})\s*\|\s*([A-Za-z][A-Za-z /]{0,15}?)\s*\|(.*)$")
_CHIP = re.compile(r"^[ \t]*\|[ \t]*(\d{1,3})(?:\s+(\d{1,3}))?\s*\|\s*([0-9A-Fa-f:.]{7,16}|NA)\s*\|(.*)$")
_USAGE = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")


@dataclass(frozen=True, slots=True)
class _Card:
    number: int
    model: str
    health: str


class NpuSmiInfo:
    """Reads the table of ``npu-smi info``."""

    name = "npu-smi-info"

    def recognises(self, data: bytes) -> float:
        """Returns 0.95 where the banner or the head of the table is there."""
        return 0.95 if _HINT.search(read_paste(data).text) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns one NPU a chip; several chips of a card name it in ``extra``.

        Raises:
            UnreadableDump: there is no row with an NPU.
        """
        rows = _rows(read_paste(data).lines)
        if not rows:
            raise UnreadableDump(f"{origin}: an npu-smi table without a readable row")
        chips = [card.number for card, _, _ in rows]
        are_dies = len(set(chips)) < len(chips)
        found: dict[str, Component] = {}
        for position, (card, chip, line) in enumerate(rows):
            npu = _npu(card, chip, position if are_dies else None, f"{origin}:{line}")
            found.setdefault(npu.key, npu)
        return Fragment(origin=origin, format=self.name, components=tuple(found.values()))


def _rows(lines: tuple[str, ...]) -> list[tuple[_Card, re.Match[str] | None, int]]:
    """Returns each card's row with the chip's row behind it, ``None`` where the text ends between them."""
    rows: list[tuple[_Card, re.Match[str] | None, int]] = []
    for number, line in enumerate(lines, 1):
        if match := _CARD.match(line):
            if match[2] != "Name":
                rows.append((_Card(int(match[1]), match[2], match[3].strip()), None, number))
        elif rows and rows[-1][1] is None and (chip := _CHIP.match(line)):
            rows[-1] = (rows[-1][0], chip, number)
    return rows


def _npu(card: _Card, chip: re.Match[str] | None, position: int | None, where: str) -> Component:
    address = normal_address(chip[3]) if chip else None
    index = card.number if position is None else None
    if chip and chip[2] is not None:
        index = int(chip[2])
    usage = _USAGE.findall(chip[4]) if chip else []
    totals = [total for _, total in reversed(usage) if int(total) > 0]
    extra = {"card": str(card.number)}
    if chip:
        extra["chip"] = chip[1]
    name = f"NPU{index}" if index is not None else f"NPU card {card.number} position {position}"
    return Component(
        key=address or name,
        name=name,
        kind="npu",
        vendor="huawei",
        model=card.model,
        pci_address=address,
        index=index,
        memory_bytes=mebibytes(totals[0] if totals else "", where),
        health=card.health,
        extra=extra,
    )
