"""YAML text as a tree that knows the line and column of every key and value.

Only what a specification needs is read: mappings with text keys, lists, scalars, anchors, merge keys. Scalars follow
YAML 1.2; where YAML 1.1 would read a plain scalar otherwise (``no``, ``22:00``, ``010``), the value is a `Trap`, which
no field accepts: one file must mean the same to every reader.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from plait.spec.units import shown

T = TypeVar("T")


class Place(NamedTuple):
    """Line and column of a file, both from 1."""

    line: int
    column: int


class Trap(str):
    """Plain text that YAML 1.1 reads as something else than text or a decimal number."""

    __slots__ = ()


Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value; ``plain`` means that it is written without quotes."""

    place: Place
    text: str
    plain: bool

    @property
    def is_empty(self) -> bool:
        """Whether nothing is written at all, as behind ``key:``."""
        return self.plain and not self.text

    def value(self) -> Value:
        """Returns the Python value by the rules above."""
        return plain_value(self.text) if self.plain else self.text


@dataclass(slots=True)
class Sequence:
    """A list."""

    place: Place
    items: "list[Node]" = field(default_factory=list)

    def value(self) -> Value:
        """Returns a list of Python values."""
        return [item.value() for item in self.items]


@dataclass(slots=True)
class Entry:
    """One ``key: value`` of a mapping; ``is_merged`` marks what came in by ``<<``."""

    key: str
    key_place: Place
    node: "Node"
    is_merged: bool = False


@dataclass(slots=True)
class Mapping:
    """Keys with values, in the order of the file; keys differ."""

    place: Place
    entries: list[Entry] = field(default_factory=list)

    def entry(self, key: str) -> Entry | None:
        """Returns the entry of this key, if there is one."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def value(self) -> Value:
        """Returns a dict of Python values."""
        return {entry.key: entry.node.value() for entry in self.entries}


Node = Scalar | Sequence | Mapping

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,40}|(0|[1-9][0-9]{0,40})(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,4})?")
_NON_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_YES = re.compile(r"yes|Yes|YES|on|On|ON")
_NO = re.compile(r"no|No|NO|off|Off|OFF")
_CLOCK = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?")
_ODD_INT = re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0b[01_]+|0o?[0-7_]+|[0-9][0-9_]*)")
_ODD_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+")


def plain_value(text: str) -> Value:
    """Returns what an unquoted scalar means; a `Trap` where readers of YAML differ."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return text[0] in "tT"
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NON_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return Trap(text) if trap_reading(text) else text


def trap_reading(text: str) -> str | None:
    """Returns what YAML 1.1 makes of plain text that YAML 1.2 reads otherwise, or ``None`` where they agree."""
    if _YES.fullmatch(text):
        return "true"
    if _NO.fullmatch(text):
        return "false"
    if _CLOCK.fullmatch(text):
        return f"the number {_sixties(text)}" if len(text) < 20 else "a number"
    if _ODD_INT.fullmatch(text):
        number = odd_number(text)
        return "a number" if number is None else f"the number {number}"
    return "a number" if _ODD_FLOAT.fullmatch(text) else None


def odd_number(text: str) -> int | None:
    """Returns the number that YAML 1.1 reads from ``010``, ``0x1f``, ``1_000``; ``None`` if it is none or too long."""
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if len(digits) > 19 or not _ODD_INT.fullmatch(text):
        return None
    try:
        for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8)):
            if digits.startswith(prefix):
                return sign * int(digits[2:], base)
        return sign * int(digits, 8 if digits.startswith("0") and len(digits) > 1 else 10)
    except ValueError:  # 089 is no octal number
        return None


def _sixties(text: str) -> str:
    total = 0.0
    for part in text.lstrip("+-").split(":"):
        total = total * 60 + float(part or 0)
    return f"{-total if text.startswith('-') else total:g}"


class Problem(NamedTuple):
    """One fault of a file; sorts by position."""

    place: Place
    path: str
    message: str


class Report:
    """Collects the problems of one file; the same fault of an anchored value is told once."""

    def __init__(self) -> None:
        self._problems: dict[tuple[Place, Path, str], Problem] = {}
        self._settled: set[Place] = set()

    def add(self, place: Place, path: Path, message: str) -> None:
        """Adds one problem, unless all is said of this place."""
        if place in self._settled:
            return
        dotted = ".".join(path_part(part) for part in path)
        self._problems.setdefault((place, path[-1:], message), Problem(place, dotted, message))

    def settle(self, place: Place, path: Path, message: str) -> None:
        """Adds one problem that leaves nothing else to say of the value at this place."""
        self.add(place, path, message)
        self._settled.add(place)

    def __bool__(self) -> bool:
        return bool(self._problems)

    def lines(self, name: str) -> tuple[str, ...]:
        """Returns one line a problem, sorted by position: ``name:line:column: key.path: message``."""
        return tuple(
            f"{name}:{place.line}:{place.column}: {path + ': ' if path else ''}{message}"
            for place, path, message in sorted(self._problems.values())
        )


def path_part(part: str | int) -> str:
    """Returns one step of a path as messages print it: short, on one line."""
    text = str(part)
    return text if re.fullmatch(r"[\w<$./+-]{1,60}", text, re.ASCII) else shown(text)


class At:
    """A node together with where it stands; rules walk with it and never meet a wrong type."""

    def __init__(self, node: Node, path: Path = (), fallback: Place | None = None) -> None:
        self.node = node
        self.path = path
        empty = isinstance(node, Scalar) and node.is_empty
        # An empty value has no text to point at, so its key stands for it.
        self.place = fallback if empty and fallback is not None else node.place

    def key(self, name: str) -> "At | None":
        """Returns the value of this key, if this is a mapping that has it."""
        if not isinstance(self.node, Mapping):
            return None
        entry = self.node.entry(name)
        return None if entry is None else At(entry.node, (*self.path, name), entry.key_place)

    def items(self) -> "list[At]":
        """Returns the items, if this is a list; else none."""
        if not isinstance(self.node, Sequence):
            return []
        return [At(item, (*self.path, index), self.place) for index, item in enumerate(self.node.items)]

    def entries(self) -> "list[tuple[Entry, At]]":
        """Returns the entries with their values, if this is a mapping; else none."""
        if not isinstance(self.node, Mapping):
            return []
        return [(entry, At(entry.node, (*self.path, entry.key), entry.key_place)) for entry in self.node.entries]

    def text(self) -> str | None:
        """Returns the text, if this is text."""
        value = self.node.value() if isinstance(self.node, Scalar) else None
        return value if type(value) is str else None

    def whole(self, lowest: int) -> int | None:
        """Returns the number, if this is a whole number of at least ``lowest``."""
        value = self.node.value() if isinstance(self.node, Scalar) else None
        return value if type(value) is int and value >= lowest else None

    def parsed(self, parse: Callable[[object], T]) -> T | None:
        """Returns the parsed value, or ``None`` where it does not parse."""
        try:
            return parse(self.node.value()) if isinstance(self.node, Scalar) else None
        except ValueError:
            return None
