"""Sets of CPUs or NUMA nodes as Linux and hwloc print them: lists (``0-3,8``) and masks (``ff,00000000``)."""

import re

LARGEST_ID = 65535
"""Largest CPU or node number that is believed; kernels are built for at most 8192."""

_LIST = re.compile(r"[0-9]+(?:-[0-9]+(?::[0-9]+(?:/[0-9]+)?)?)?", re.ASCII)
_WORD = re.compile(r"(?:0x)?([0-9a-f]{0,8})", re.ASCII | re.IGNORECASE)
_LONG_WORD = re.compile(r"(?:0x)?([0-9a-f]+)", re.ASCII | re.IGNORECASE)


def cpus_of_list(text: str) -> frozenset[int] | None:
    """Returns the numbers of a list such as ``0-3,8,16-23:2/4``; ``None`` where it is empty or cannot be read.

    ``A-B:U/G`` takes the first U of every G, as the kernel's own lists do.
    """
    members: set[int] = set()
    for part in text.strip().split(","):
        piece = part.strip()
        if not _LIST.fullmatch(piece):
            return None
        span, _, stride = piece.partition(":")
        first, _, last = span.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high > LARGEST_ID:
            return None
        used, _, group = stride.partition("/")
        take = int(used or 1)
        step = int(group or take)
        if take < 1 or step < take:
            return None
        members.update(n for n in range(low, high + 1) if (n - low) % step < take)
    return frozenset(members)


def cpus_of_mask(text: str) -> frozenset[int] | None:
    """Returns the numbers of a mask in 32-bit words, highest first; ``None`` where it is empty or cannot be read.

    Takes the kernel's form (``0000ffff,00000000``; an unbroken longer word is one number), hwloc's
    (``0xf0000000,,,0x00000101``, an empty word is 0) and hwloc's endless ``0xf...f`` only where it is bounded.
    """
    stripped = text.strip()
    words = stripped.split(",")
    if not stripped or len(words) * 32 > LARGEST_ID + 1:
        return None
    if len(words) == 1:
        match = _LONG_WORD.fullmatch(words[0])
        return None if match is None or len(match[1]) * 4 > LARGEST_ID + 1 else _bits(int(match[1], 16))
    mask = 0
    for word in words:
        match = _WORD.fullmatch(word.strip())
        if match is None:
            return None
        mask = (mask << 32) | int(match[1] or "0", 16)
    return _bits(mask)


def cpus_of(text: str) -> frozenset[int] | None:
    """Returns the numbers of a list or of a mask; a lone hexadecimal word of eight digits or more is a mask.

    ``00`` and other all-zero words are an empty mask; a single plain number is a list.
    """
    stripped = text.strip()
    is_mask = (
        "0x" in stripped.lower()
        or re.search("[a-f]", stripped, re.IGNORECASE) is not None
        or re.fullmatch(r"0{2,}|[0-9]{8,}", stripped, re.ASCII) is not None
        or re.fullmatch(r"[0-9]{1,8}(?:,[0-9]{8})+", stripped, re.ASCII) is not None
    )
    return cpus_of_mask(stripped) if is_mask else cpus_of_list(stripped)


def as_list(members: frozenset[int]) -> str:
    """Returns the shortest list of these numbers (``0-3,8``)."""
    spans: list[list[int]] = []
    for number in sorted(members):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in spans)


def as_mask(members: frozenset[int]) -> str:
    """Returns the kernel's mask of these numbers in 32-bit words (``0000ffff,00000000``)."""
    mask = sum(1 << number for number in members)
    words: list[str] = []
    while mask or not words:
        words.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join(reversed(words))


def _bits(mask: int) -> frozenset[int]:
    return frozenset(i for i, bit in enumerate(reversed(f"{mask:b}")) if bit == "1")
