"""``npu-smi info``: cards with their chips, two rows each; the second carries the PCI address and the memory."""

import re
from collections import Counter
from dataclasses import dataclass

from plait.hardware.importers.figures import mebibytes
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.paste import Paste, read_paste
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
        """Returns 0.85 where the banner or the head of the table is there, below a matrix pasted with it."""
        return 0.85 if _HINT.search(read_paste(data).text) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns one NPU a chip; several chips of a card name it in ``extra``.

        Raises:
            UnreadableDump: there is no row with an NPU.
        """
        found = npus_of(read_paste(data), origin)
        if not found:
            raise UnreadableDump(f"{origin}: an npu-smi table without a readable row")
        return Fragment(origin=origin, format=self.name, components=found)


def npus_of(paste: Paste, origin: str) -> tuple[Component, ...]:
    """Returns the NPUs that the tables in a paste name, one a chip."""
    rows = _rows(paste.lines) if "|" in paste.text else []
    complete = {card.number for card, chip, _ in rows if chip is not None}
    cards = Counter(number for number, address in {(c.number, chip[3]) for c, chip, _ in rows if chip is not None})
    found: dict[str, Component] = {}
    for card, chip, line in rows:
        if chip is None and card.number in complete:
            continue  # its second row is lost, and which chip of the card it was
        npu = _npu(card, chip, f"{origin}:{line}", has_dies=cards[card.number] > 1)
        found.setdefault(npu.key, npu)
    return tuple(found.values())


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


def _npu(card: _Card, chip: re.Match[str] | None, where: str, *, has_dies: bool) -> Component:
    address = normal_address(chip[3]) if chip else None
    index = None if has_dies else card.number
    if chip and chip[2] is not None:
        index = int(chip[2])
    usage = _USAGE.findall(chip[4]) if chip and chip[4].rstrip().endswith("|") else []  # else its last figure is cut
    totals = [total for _, total in reversed(usage) if int(total) > 0]
    extra = {"card": str(card.number)}
    if chip:
        extra["chip"] = chip[1]
    name = f"NPU{index}" if index is not None or chip is None else f"NPU card {card.number} chip {chip[1]}"
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
