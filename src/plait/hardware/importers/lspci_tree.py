"""``lspci -t`` and ``-tv``: which function sits below which bridge, by the columns of the drawing.

A bus with several functions is drawn below one ``+``; later lines continue it in the same column. Pastes shorten the
tree (``+-...``), lose the root line, and shift a branch by a column.
"""

import re
from dataclasses import dataclass, field

_ROOT = re.compile(r"-*\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})\]", re.IGNORECASE)
_ROOT_BRANCH = re.compile(r"[+\\]-+\[[0-9a-f]{4,8}:[0-9a-f]{2}\]-", re.IGNORECASE)
_BUS = re.compile(r"-\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}))?\]", re.IGNORECASE)
_FUNCTION = re.compile(r"([0-9a-f]{2})\.([0-7])(?![0-9a-f])", re.IGNORECASE)
_STEM = re.compile(r"-*([+\\])-+|-+")
_NAME = re.compile(r" {1,4}(\S.*)$")
_DRAWN = re.compile(r"[-+\\]-")
_CUT = re.compile(r"[ |]*(?:\.\.\.|\u2026|\[\.\.\.\])[ ]*")
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
    """Where a function hangs; ``number`` is ``None`` above the root buses and ``""`` where the drawing lost it."""

    domain: str | None
    number: str | None
    bridge: str | None
    root: str | None


@dataclass(slots=True)
class Tree:
    """Functions in the order of the drawing, lines that its author shortened, and lines that contradict others."""

    functions: dict[str, Function] = field(default_factory=dict)
    elided: list[int] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)


def read_tree(lines: tuple[str, ...], *, is_whole: bool) -> Tree:
    """Returns the functions that a drawing shows; one whose line the end of the text cuts is left out."""
    reader = _Reader()
    for number, raw in enumerate(lines, 1):
        line = raw.expandtabs(8)
        if _DRAWN.search(line):
            reader.take(line, number, is_whole_line=is_whole or number < len(lines))
        elif not line.strip() or _CUT.fullmatch(line):
            reader.forget()  # an empty line begins another fragment, three dots stand for lines that were cut out
    return reader.tree


class _Reader:
    def __init__(self) -> None:
        self.tree = Tree()
        self._columns: dict[int, _Bus] = {}
        self._last: dict[tuple[str | None, str | None], tuple[int, int]] = {}
        self._ranges: list[tuple[str | None, int, int, str | None]] = []

    def forget(self) -> None:
        """Closes every branch but those of root buses, which say by themselves what they are."""
        self._columns = {column: bus for column, bus in self._columns.items() if bus.number is None}

    def take(self, line: str, number: int, *, is_whole_line: bool) -> None:
        at = len(line) - len(line.lstrip(" |"))
        bus = self._start(line, at)
        if bus is None:
            self.tree.unread.append(number)
            return
        where = at
        while where < len(line):
            if _ELIDED.match(line, where):
                self.tree.elided.append(number)
                return
            stem = _STEM.match(line, where)
            if stem is None:
                return
            if stem[1]:
                self._branch(stem, bus)
            where = stem.end()
            root = _ROOT.match(line, where - 1) if bus.number is None else None
            if root is not None and (root[1] or root[2] == "00"):
                bus, where = _root_bus(root), root.end()
                continue
            step = self._function(line, where, number, bus, is_whole_line=is_whole_line)
            if step is None:
                self._note_elided(line, where, number)
                return
            where, bus = step

    def _note_elided(self, line: str, where: int, number: int) -> None:
        if _ELIDED.match(line, where):
            self.tree.elided.append(number)

    def _branch(self, stem: re.Match[str], bus: _Bus) -> None:
        """A ``+`` has more functions of its bus below it, a backslash is the last one."""
        if stem[1] == "+" and bus.number != "":
            self._columns[stem.start(1)] = bus
        else:
            for column in (stem.start(1), stem.start(1) - 1, stem.start(1) + 1):
                if self._columns.pop(column, None) is not None:
                    return

    def _start(self, line: str, at: int) -> _Bus | None:
        """Returns the bus that a line continues; ``None`` where none is open in its column."""
        if at >= len(line) or line[at] not in "-+\\":
            return None
        if line[at] == "-":
            self._columns.clear()
            return _Bus(None, None, None, None)
        if _ROOT_BRANCH.match(line, at):
            self._columns = {column: bus for column, bus in self._columns.items() if column <= at}
            return _Bus(None, None, None, None)
        for deeper in [c for c in self._columns if c > at + 1]:
            del self._columns[deeper]
        near = [c for c in (at - 1, at + 1) if line[c : c + 1] != "|"] if at > 0 else []
        column = next((c for c in (at, *near) if c in self._columns), None)
        if column is None:
            # A fragment whose root line was left out: the bus of its first function is not shown.
            return None if self._columns else _Bus(None, "", None, "")
        for deeper in [c for c in self._columns if c > column]:
            del self._columns[deeper]
        return self._columns[column] if self._bars_stand(line, column) else None

    def _bars_stand(self, line: str, column: int) -> bool:
        """Whether every open branch left of a column goes on as a bar: where one does not, lines are missing."""
        return all("|" in line[max(0, c - 1) : c + 2] for c in self._columns if c < column - 1)

    def _function(
        self, line: str, where: int, number: int, bus: _Bus, *, is_whole_line: bool
    ) -> tuple[int, _Bus] | None:
        match = _FUNCTION.match(line, where)
        if match is None:
            return None
        below = _BUS.match(line, match.end())
        if below is None and not is_whole_line:
            return None  # the text ends here: a bus below it, or a part of its name, may be cut off
        address = _address(bus, match)
        if not self._ascends(bus, match):
            self.tree.unread.append(number)
            return None
        if below is not None and not self._nests(bus, below, address):
            self.tree.unread.append(number)
            return None
        named = None if below else _NAME.match(line, match.end())
        name = named[1].strip() if named else ""
        if address is not None and address not in self.tree.functions:
            function = Function(address, bus.bridge, bus.root or None, below is not None, name, number)
            self.tree.functions[address] = function
        if below is None:
            return len(line), bus
        return below.end(), _Bus(bus.domain or below[1], below[2].lower(), address, bus.root)

    def _ascends(self, bus: _Bus, match: re.Match[str]) -> bool:
        """Whether a function comes after those of its bus that were drawn before it, as it must."""
        place = (int(match[1], 16), int(match[2]))
        bus_name = (bus.domain, bus.number)
        if bus.number and self._last.get(bus_name, (-1, -1)) >= place:
            return False
        self._last[bus_name] = place
        return True

    def _nests(self, bus: _Bus, below: re.Match[str], address: str | None) -> bool:
        """Whether the buses below a bridge lie in the range of the bridge above it, and in no other one's.

        What lost lines or blanks moved into another column contradicts the numbers of the buses.
        """
        domain = bus.domain or below[1]
        first, last = int(below[2], 16), int(below[3] or below[2], 16)
        if any(r[:3] == (domain, first, last) for r in self._ranges):
            return False
        around = [r for r in self._ranges if r[0] == domain and r[1] <= first and last <= r[2]]
        innermost = min(around, key=lambda r: r[2] - r[1], default=None)
        crossing = any(
            r[0] == domain
            and r[1] <= last
            and first <= r[2]
            and r not in around
            and not (first <= r[1] and r[2] <= last)
            for r in self._ranges
        )
        if crossing or last < first or (innermost is not None and innermost[3] != bus.bridge):
            return False
        hangs_below_another = bus.bridge is not None or (bool(bus.number) and not bus.root)
        if hangs_below_another and innermost is None:
            return False
        self._ranges.append((domain, first, last, address))
        return True


def _root_bus(match: re.Match[str]) -> _Bus:
    domain = (match[1] or "0000").lower()
    return _Bus(domain, match[2].lower(), None, f"{domain}:{match[2].lower()}")


def _address(bus: _Bus, match: re.Match[str]) -> str | None:
    if not bus.number:
        return None
    short = f"{bus.number}:{match[1].lower()}.{match[2]}"
    return f"{bus.domain}:{short}" if bus.domain else short
