"""YAML text to a tree with positions, and what is wrong with it as YAML."""

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from yaml import events as ev
from yaml.error import MarkedYAMLError

from plait.spec.tree import Entry, Mapping, Node, Path, Place, Report, Scalar, Sequence
from plait.words import did_you_mean

MAX_BYTES = 2**20
MAX_DEPTH = 24
MAX_VALUES = 20_000

# What YAML forbids in a file, and the marks of byte order within the text.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _NotYaml(Exception):
    """What follows cannot be read; the problem is in the report."""


def compose(data: bytes, report: Report) -> Node | None:
    """Returns the tree of a file's one document, or ``None`` where it cannot be read; problems go to the report."""
    text = _decode(data, report)
    if text is None:
        return None
    composer = _Composer(text, report)
    try:
        return composer.document()
    except _NotYaml:
        return None
    except MarkedYAMLError as error:
        _tell_syntax_error(error, text, report)
        return None


def _decode(data: bytes, report: Report) -> str | None:
    if len(data) > MAX_BYTES:
        report.add(Place(1, 1), (), f"the file has {len(data)} bytes; at most {MAX_BYTES} are read")
        return None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        report.add(Place(1, 1), (), "the file is UTF-16; save it as UTF-8")
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = len(before.rpartition(b"\n")[2].decode("utf-8")) + 1
        found = f"byte 0x{data[error.start]:02x} is not UTF-8"
        report.add(Place(before.count(b"\n") + 1, column), (), f"{found}; save the file as UTF-8")
        return None
    text = text.removeprefix("\ufeff")
    if (match := _UNPRINTABLE.search(text)) is not None:
        before_text = text[: match.start()]
        place = Place(before_text.count("\n") + 1, len(before_text.rpartition("\n")[2]) + 1)
        report.add(place, (), f"the character U+{ord(match[0]):04X} is not allowed in YAML; remove it")
        return None
    return text


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1) if mark is not None else Place(1, 1)


class _Composer:
    """Builds the tree from the parser's events; the parser keeps no stack of ours, so depth is under control."""

    def __init__(self, text: str, report: Report) -> None:
        # The pure Python parser: it is there in every installation, and its positions and messages are the same.
        self._events: Iterator[ev.Event] = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        self._report = report
        self._anchors: dict[str, tuple[Node, int] | None] = {}
        self._count = 0

    def document(self) -> Node | None:
        next(self._events)  # the start of the stream
        start = next(self._events)
        if not isinstance(start, ev.DocumentStartEvent):
            return None
        root = self._node(next(self._events), (), 1)
        next(self._events)  # the end of the document
        after = next(self._events)
        if isinstance(after, ev.DocumentStartEvent):
            self._report.add(_place(after.start_mark), (), "a second document starts here; one file holds one document")
        return root

    def _node(self, event: ev.Event, path: Path, depth: int) -> Node:
        place = _place(event.start_mark)
        if depth > MAX_DEPTH:
            self._stop(place, path[:3], f"nested more than {MAX_DEPTH} deep")
        if isinstance(event, ev.AliasEvent):
            return self._alias(event, path)
        assert isinstance(event, ev.ScalarEvent | ev.CollectionStartEvent)
        self._count_values(1, place, path)
        anchor, before = event.anchor, self._count
        if anchor is not None:
            self._anchors[anchor] = None
        tag = event.tag
        if tag is not None:
            short = tag.replace("tag:yaml.org,2002:", "!!")
            tell = self._report.settle if isinstance(event, ev.ScalarEvent) else self._report.add
            tell(place, path, f"the tag {short!r} has no meaning here; remove it")
        node: Node
        if isinstance(event, ev.ScalarEvent):
            node = Scalar(place, event.value, event.style is None)
        elif isinstance(event, ev.SequenceStartEvent):
            node = self._sequence(place, path, depth)
        else:
            node = self._mapping(place, path, depth)
        if anchor is not None:
            self._anchors[anchor] = (node, self._count - before + 1)
        return node

    def _sequence(self, place: Place, path: Path, depth: int) -> Sequence:
        node = Sequence(place)
        while not isinstance(event := next(self._events), ev.SequenceEndEvent):
            node.items.append(self._node(event, (*path, len(node.items)), depth + 1))
        return node

    def _mapping(self, place: Place, path: Path, depth: int) -> Mapping:
        node = Mapping(place)
        merges: list[tuple[Node, Place]] = []
        while not isinstance(event := next(self._events), ev.MappingEndEvent):
            key_place = _place(event.start_mark)
            is_merge = isinstance(event, ev.ScalarEvent) and event.value == "<<" and event.style is None
            key_node = self._node(event, (*path, "?"), depth + 1)
            key = key_node.text if isinstance(key_node, Scalar) else None
            value = self._node(next(self._events), (*path, key if key is not None else "?"), depth + 1)
            if is_merge:
                merges.append((value, key_place))
            elif key is None:
                self._report.add(key_place, path, "a key must be plain text, not a list or a mapping")
            elif key == "" and isinstance(key_node, Scalar) and key_node.is_empty:
                self._report.add(key_place, path, "a key is missing before ':'")
            elif (first := node.entry(key)) is not None:
                said = f"this key is given twice; first at line {first.key_place.line}"
                self._report.add(key_place, (*path, key), said)
            else:
                node.entries.append(Entry(key, key_place, value))
        for value, key_place in merges:
            self._merge(node, value, key_place, path)
        return node

    def _merge(self, node: Mapping, value: Node, key_place: Place, path: Path) -> None:
        sources = value.items if isinstance(value, Sequence) else [value]
        for source in sources:
            if not isinstance(source, Mapping):
                self._report.add(key_place, (*path, "<<"), "a merge key takes a mapping or a list of mappings")
                return
            for entry in source.entries:
                if node.entry(entry.key) is None:
                    self._count_values(1, key_place, path)
                    node.entries.append(Entry(entry.key, entry.key_place, entry.node, is_merged=True))

    def _alias(self, event: ev.AliasEvent, path: Path) -> Node:
        place, name = _place(event.start_mark), event.anchor or ""
        if name not in self._anchors:
            known = did_you_mean(name, self._anchors)
            self._report.settle(place, path, f"there is no anchor {name!r} before this alias{known}")
            return Scalar(place, "", plain=False)
        anchored = self._anchors[name]
        if anchored is None:
            self._report.settle(place, path, f"the anchor {name!r} holds itself")
            return Scalar(place, "", plain=False)
        node, size = anchored
        self._count_values(size, place, path)
        return node

    def _count_values(self, number: int, place: Place, path: Path) -> None:
        self._count += number
        if self._count > MAX_VALUES:
            self._stop(place, path[:3], f"the file holds more than {MAX_VALUES} values")

    def _stop(self, place: Place, path: Path, message: str) -> NoReturn:
        self._report.add(place, path, message)
        raise _NotYaml


def _tell_syntax_error(error: MarkedYAMLError, text: str, report: Report) -> None:
    problem, context = error.problem or "", error.context or ""
    mark, start = error.problem_mark, error.context_mark
    if r"'\t'" in problem:
        _tell_tabs(text, mark, report)
    elif "could not find expected ':'" in problem:
        report.add(_place(start or mark), (), "a key needs a ':' behind it")
    elif "quoted scalar" in context and "end of stream" in problem:
        report.add(_place(start or mark), (), "the quoted text that starts here never ends")
    else:
        message = _block_message(problem, context, start, _is_within_line(text, mark))
        report.add(_place(mark or start), (), message or f"not YAML: {' '.join(f'{context} {problem}'.split())}")


def _block_message(problem: str, context: str, start: Any, is_within_line: bool) -> str | None:
    if "mapping values are not allowed here" in problem:
        return "':' is not allowed here; quote text that holds ': ' or start a new line"
    if problem.startswith("expected ',' or"):
        close = "}" if "mapping" in context else "]"
        return f"',' or '{close}' is missing; the bracket was opened at line {_place(start).line}"
    if problem == "expected <block end>, but found ':'":
        return "a key is missing before ':'"
    if problem.startswith("expected <block end>"):
        block = f"this does not line up with the block that starts at line {_place(start).line}; indent alike"
        return "this is not expected here; quote the whole value" if is_within_line else block
    if "expected '<document start>'" in problem:
        return "nothing may follow the end of the document"
    match = re.search("found character (.+) that cannot start any token", problem)
    return f"plain text cannot start with {match[1]}; quote it" if match is not None else None


def _is_within_line(text: str, mark: Any) -> bool:
    lines = text.splitlines()
    return mark is not None and mark.line < len(lines) and bool(lines[mark.line][: mark.column].strip())


def _tell_tabs(text: str, mark: Any, report: Report) -> None:
    first = mark.line if mark is not None else 0
    lines = text.splitlines()
    found = False
    for number, line in enumerate(lines[first:], first + 1):
        indent = re.match(r"[ ]*\t", line)
        if indent and line.strip() and not line.lstrip().startswith("#"):
            report.add(Place(number, indent.end()), (), "a tab cannot indent in YAML; use blanks")
            found = True
    if not found:
        report.add(_place(mark), (), "a tab is not allowed here; use blanks")
