"""Figures as vendors' tools print them, converted once: mebibytes, gigabits, versions of a width."""

import re

from plait.hardware.values import Source, Value

MIB = 2**20
_MIB = re.compile(r"([0-9]{1,9})\s*(?:MiB|MB)?", re.ASCII)
_GBPS = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)(?:\s*(?:Gb/sec|Gb/s|Gbps|G)?)(?:\s|$|\()", re.ASCII | re.IGNORECASE)


def mebibytes(text: str, detail: str) -> Value[int]:
    """Returns the bytes of ``81920 MiB``; unknown for ``N/A``, nothing and 0, which no device has."""
    match = _MIB.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        return Value(None, Source.CLI, f"printed as {text!r}" if text else "not printed")
    return Value(int(match[1]) * MIB, Source.CLI, detail)


def gigabits_per_s(text: str, detail: str) -> Value[float]:
    """Returns the bytes a second of ``200 Gb/sec (4X HDR)`` or ``100``; unknown where there is no positive figure."""
    match = _GBPS.match(text.strip())
    rate = float(match[1]) if match else 0.0
    if rate <= 0:
        return Value(None, Source.CLI, f"printed as {text!r}" if text else "not printed")
    return Value(rate * 1e9 / 8, Source.CLI, detail)


def small_number(text: str | None) -> int | None:
    """Returns a count of up to four digits, ``None`` where the text is none."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,4}", text.strip(), re.ASCII) else None
