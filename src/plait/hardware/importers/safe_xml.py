"""XML that a stranger pasted: read without entities, without external files, and as far as it is well-formed."""

import re
import xml.parsers.expat
from collections.abc import Iterator
from dataclasses import dataclass, field

from plait.hardware.importers.paste import read_paste

_DEEPEST = 200
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
_BEGINNING = re.compile(r"<(?:\?xml|!--|!DOCTYPE|[A-Za-z_][\w.:-]*[\s/>])")
_PROLOGUE = re.compile(r"\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[.*?\])?[^>]*>", re.DOTALL)
_TAG = re.compile(r"<([A-Za-z_][\w.:-]*)[\s/>]")
_STREAMS = frozenset({"stdout", "stderr"})
"""``mpirun --tag-output`` writes these in front of lines, as if they were elements."""
_LOOK_AT = 65536
"""Characters within which the first element has to begin for a dump to be recognised."""


@dataclass(slots=True)
class Element:
    """An element with its attributes, children in order, the text right inside it, and the line it starts at."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)
    text: str = ""
    is_closed: bool = False
    """Whether its end was read; the text of one that was cut may be half a word."""

    def walk(self) -> Iterator["Element"]:
        """Yields this element and everything below it in the order of the document."""
        yield self
        for child in self.children:
            yield from child.walk()

    def all(self, tag: str) -> list["Element"]:
        """Returns the children of this name."""
        return [child for child in self.children if child.tag == tag]


@dataclass(frozen=True, slots=True)
class Document:
    """The root element, ``None`` where there is none, and why reading stopped early (``line 7: ...``)."""

    root: Element | None
    stopped: str = ""


class _Refused(Exception):
    """Something in the document that no honest dump has."""


def decode(data: bytes) -> str:
    """Returns the text of a dump: by its byte order mark, else UTF-8, else Latin-1; terminal codes taken out."""
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8")):
        if data.startswith(mark):
            text = data[len(mark) :].decode(encoding, "replace")
            break
    else:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
    return _FORBIDDEN.sub("", _TERMINAL.sub("", text))


def first_tag(data: bytes) -> str | None:
    """Returns the name of the first element without its prefix, ``None`` where there is none near the start."""
    tag = _first_tag(decode(data[:_LOOK_AT]))
    return tag if tag is not None and tag not in _STREAMS else _first_tag(read_paste(data).text[:_LOOK_AT])


def _first_tag(text: str) -> str | None:
    start = _BEGINNING.search(text)
    if start is None:
        return None
    position = start.start()
    while match := _PROLOGUE.match(text, position):
        position = match.end()
    tag = _TAG.match(text, position)
    return _bare(tag[1]) if tag else None


def read_xml(data: bytes, wrap_in: str | None = None) -> Document:
    """Reads a document up to its first fault; what came before it is kept.

    Text in front (a prompt, a command) is skipped. Declared entities are refused, a ``DOCTYPE`` without any is fine.
    Prefixes of names are dropped. ``wrap_in`` names an element to put around a piece cut out of a document. Where the
    text as it is stops early, it is tried once more without what logs and mails put in front of lines.
    """
    document = _read_text(decode(data), wrap_in)
    is_tagged = document.root is not None and document.root.tag in _STREAMS
    if not document.stopped and not is_tagged:
        return document
    cleaned = _read_text(read_paste(data).text, wrap_in)
    return cleaned if is_tagged or _size(cleaned) > _size(document) else document


def _size(document: Document) -> int:
    return 0 if document.root is None else sum(1 for _ in document.root.walk())


def _read_text(text: str, wrap_in: str | None) -> Document:
    start = _BEGINNING.search(text)
    if start is None:
        return Document(None, "no element in it")
    # Pasted output may repeat the declaration's encoding wrongly; the text is decoded already.
    body = "\n" * text.count("\n", 0, start.start()) + text[start.start() :]
    if body.lstrip("\n").startswith("<?xml"):
        body = re.sub(r"<\?xml[^>]*\?>", "", body, count=1)
    if wrap_in is not None:
        body = f"<{wrap_in}>{body}</{wrap_in}>"
    reader = _Reader()
    try:
        reader.parse(body)
    except (xml.parsers.expat.ExpatError, _Refused, ValueError) as error:
        return Document(reader.root, _told(error))
    return Document(reader.root)


def _told(error: Exception) -> str:
    if isinstance(error, xml.parsers.expat.ExpatError):
        return f"line {error.lineno}: {xml.parsers.expat.errors.messages.get(error.code, 'not well-formed')}"
    return str(error)


class _Reader:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._parser = xml.parsers.expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.EntityDeclHandler = self._entity
        self._parser.buffer_text = True

    def parse(self, text: str) -> None:
        self._parser.Parse(text, True)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) >= _DEEPEST:
            raise _Refused(f"line {self._parser.CurrentLineNumber}: nested deeper than {_DEEPEST} elements")
        bare = {_bare(key): value for key, value in attributes.items() if not key.startswith("xmlns")}
        element = Element(_bare(name), bare, self._parser.CurrentLineNumber)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, _name: str) -> None:
        self._open.pop().is_closed = True

    def _text(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data

    def _entity(self, name: str, *_declaration: object) -> None:
        raise _Refused(f"line {self._parser.CurrentLineNumber}: declares the entity {name!r}, which is refused")


def _bare(name: str) -> str:
    return name.rpartition(":")[2]
