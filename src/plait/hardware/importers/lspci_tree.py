"""``lspci -t`` and ``-tv``: which function sits below which bridge, by the columns of the drawing.

A bus with several functions is drawn below one ``+``; later lines continue it in the same column. Pastes shorten the
tree (``+-...``), lose the root line, and shift a branch by a column.
"""

import re
from dataclasses import dataclass, field

_ROOT = re.compile(r"-*\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})\]", re.IGNORECASE)
_BUS = re.compile(r"-\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}))?\]", re.IGNORECASE)
_FUNCTION = re.compile(r"([0-9a-f]{2})\.([0-7])(?![0-9a-f])", re.IGNORECASE)
_STEM = re.compile(r"-*([+\\])-+|-+")
_NAME = re.compile(r" {1,4}(\S.*)$")
_ELIDED = re.compile(r"[-+\\ ]*(?:\.\.\.|\u2026)")


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the tree.

    Attributes:
        address: ``bb:dd.f``, with the domain in front where the drawing shows it.
        parent: Address of the bridge above it, ``None`` on a root bus.
        root: The root bus (``0000:80``), ``None`` where the drawing does not show it.
        is_bridge: Whether a bus hangs below it.
        name: What ``-v`` prints, empty without.
        line: Line number, from 1.
    """

    address: str
    parent: str | None
    root: str | None
    is_bridge: bool
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class _Bus:
    domain: str | None
    number: str | None
    bridge: str | None
    root: str | None


@dataclass(slots=True)
class Tree:
    """Functions in the order of the drawing, and lines that its author shortened."""

    functions: dict[str, Function] = field(default_factory=dict)
    elided: list[int] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)


def read_tree(lines: tuple[str, ...], *, is_whole: bool) -> Tree:
    """Returns the functions that a drawing shows; one whose line the end of the text cuts is left out."""
    tree = Tree()
    columns: dict[int, _Bus] = {}
    for number, raw in enumerate(lines, 1):
        line = raw.expandtabs(8)
        if not re.search(r"[-+\\]-", line):
            if re.match(r"[ |]*$", line) and line.strip() == "" and number > 1:
                columns = {}  # an empty line begins another fragment
            continue
        _read_line(line, number, columns, tree, is_whole_line=is_whole or number < len(lines))
    return tree


def _read_line(line: str, number: int, columns: dict[int, _Bus], tree: Tree, *, is_whole_line: bool) -> None:
    at = len(line) - len(line.lstrip(" |"))
    bus = _start(line, at, columns)
    if bus is None:
        tree.unread.append(number)
        return
    where, known = bus
    while where < len(line):
        if _ELIDED.match(line, where):
            tree.elided.append(number)
            return
        stem = _STEM.match(line, where)
        if stem is None:
            return
        root = _ROOT.match(line, where) if known.number is None and known.root is None else None
        if stem[1]:
            columns[stem.start(1)] = known
            where = stem.end()
            if known.number is None:
                root = _ROOT.match(line, where)
        if root is not None:
            known, where = _root_bus(root), root.end()
            continue
        where = max(where, stem.end())
        step = _function(line, where, number, known, tree, is_whole_line=is_whole_line)
        if step is None:
            if not _ELIDED.match(line, where):
                return
            continue
        where, known = step


def _start(line: str, at: int, columns: dict[int, _Bus]) -> tuple[int, _Bus] | None:
    """Returns where the drawing of a line begins and the bus that it continues."""
    if at >= len(line):
        return None
    if line[at] == "-":
        for column in list(columns):
            del columns[column]
        return at, _Bus(None, None, None, None)
    if line[at] not in "+\\":
        return None
    for column in (at, at - 1, at + 1):
        if column in columns:
            for deeper in [c for c in columns if c > column]:
                del columns[deeper]
            return at, columns[column]
    # A fragment whose root line was left out: the bus of its first function is not shown.
    return at, _Bus(None, "", None, "")


def _root_bus(match: re.Match[str]) -> _Bus:
    domain = (match[1] or "0000").lower()
    return _Bus(domain, match[2].lower(), None, f"{domain}:{match[2].lower()}")


def _function(
    line: str, where: int, number: int, bus: _Bus, tree: Tree, *, is_whole_line: bool
) -> tuple[int, _Bus] | None:
    match = _FUNCTION.match(line, where)
    if match is None:
        return None
    below = _BUS.match(line, match.end())
    address = _address(bus, match)
    if below is None and not is_whole_line:
        return None  # the text ends here: a bus below it, or a part of its name, may be cut off
    named = None if below else _NAME.match(line, match.end())
    name = named[1].strip() if named else ""
    if address is not None and address not in tree.functions:
        root = bus.root or None
        tree.functions[address] = Function(address, bus.bridge, root, below is not None, name, number)
    if below is None:
        return len(line), bus
    return below.end(), _Bus(bus.domain or below[1], below[2].lower(), address, bus.root)


def _address(bus: _Bus, match: re.Match[str]) -> str | None:
    if not bus.number:
        return None
    short = f"{bus.number}:{match[1].lower()}.{match[2]}"
    return f"{bus.domain}:{short}" if bus.domain else short
