"""Slurm's lists of names: ``tux[0-2,5],login``, ``switch.1.[1-12]``, ``rack[0-1]n[00-15]``."""

import re

MOST_NAMES = 65536
"""Names that one expression may stand for; Slurm's own clusters are smaller."""

_NAME = re.compile(r"[A-Za-z0-9_./:@+-]+", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def expand(text: str) -> tuple[str, ...] | None:
    """Returns the names in order, ``None`` where the text is no such list or stands for more than 65536 names.

    Leading zeros of a range's start set the width of its numbers, as Slurm has it.
    """
    parts = _split(text.strip())
    if parts is None:
        return None
    names: list[str] = []
    for part in parts:
        expanded = _expand_one(part, MOST_NAMES - len(names))
        if expanded is None:
            return None
        names += expanded
    return tuple(names)


def is_name(text: str) -> bool:
    """Returns whether this can be the name of a node, switch or block."""
    return _NAME.fullmatch(text) is not None


def compress(names: tuple[str, ...]) -> str:
    """Returns a list that stands for these names in this order, neighbours with consecutive numbers in brackets."""
    runs: list[tuple[str, list[str]]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)([0-9]{1,9})", name, re.ASCII)
        prefix, number = (match[1], match[2]) if match else (name, "")
        if runs and number and runs[-1][0] == prefix and _follows(runs[-1][1][-1], number):
            runs[-1][1].append(number)
        else:
            runs.append((prefix, [number]))
    return ",".join(
        prefix + (numbers[0] if len(numbers) == 1 else f"[{numbers[0]}-{numbers[-1]}]") for prefix, numbers in runs
    )


def _follows(one: str, other: str) -> bool:
    # Of different widths only where neither is padded: node9, node10.
    same_width = len(one) == len(other) or not (one.startswith("0") or other.startswith("0"))
    return bool(one) and int(other) == int(one) + 1 and same_width


def _split(text: str) -> list[str] | None:
    """Splits at the commas outside of brackets; ``None`` where brackets do not match or a part is empty."""
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if depth not in {0, 1}:
            return None
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return None if depth or not all(parts) else parts


def _expand_one(part: str, room: int) -> list[str] | None:
    names = [""]
    for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part):
        ends = _numbers(piece[1:-1], room) if piece.startswith("[") else [piece] if _NAME.fullmatch(piece) else None
        if ends is None or len(names) * len(ends) > room:
            return None
        names = [name + end for name in names for end in ends]
    return names


def _numbers(text: str, room: int) -> list[str] | None:
    numbers: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            return None
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or len(numbers) + high - low >= room:
            return None
        numbers += [f"{n:0{len(match[1])}d}" for n in range(low, high + 1)]
    return numbers
