"""The header of a square table: the devices, glued or wrapped or with a word that cannot be read, and the titles."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from plait.hardware.importers.cells import is_affinity, is_self, is_unknown, link_of, p2p_of
from plait.hardware.importers.paste import LONGEST_LINE, words

TITLES = ("CPU Affinity", "NUMA Affinity", "Node Affinity", "GPU NUMA ID")
"""Columns behind the square part, as vendors print them."""

ACCELERATOR = re.compile(
    r"(?:GPU|NPU|MLU|DCU|HCU|XPU|PPU|MetaX)[0-9]{1,4}|GPU\ue000[0-9]{1,3}/[0-9]{1,3}|Phy-ID[0-9]{1,4}",
    re.ASCII | re.IGNORECASE,
)
_TITLE = re.compile(r"(CPU|NUMA|Node)\s*Affinity|(GPU)\s*NUMA\s*ID", re.IGNORECASE)
_PIECE_OF_TITLE = re.compile(r"CPU?|NUMA?|Node?|GPU|Aff?i?n?i?t?y?")
_NUMBERED = re.compile(r"(?:GPU|NPU|NIC|MLU|DCU|HCU|Phy-ID)[0-9]", re.ASCII | re.IGNORECASE)
_NUMBERED_NIC = re.compile(r"NIC[0-9]{1,3}", re.ASCII | re.IGNORECASE)
_GLUED = re.compile(
    r"(?:GPU|NPU|NIC|MLU|DCU|HCU)[0-9]+|Phy-ID[0-9]+|mlx[0-9]+_(?:bond_)?[0-9]+|ib[0-9]+", re.ASCII | re.IGNORECASE
)
_OTHER_NAME = re.compile(r"[A-Za-z](?=[A-Za-z_.:-]*[0-9])[A-Za-z0-9_.:-]{0,30}[A-Za-z0-9]", re.ASCII)
_ALIKE = re.compile(r"([A-Za-z][A-Za-z_.-]+)[0-9]+(?:\1[0-9]+)+", re.ASCII)
_TWICE = re.compile(r"([A-Za-z][A-Za-z_.-]+)[0-9]\S*\1[0-9]", re.ASCII)
_PIECE_OF_STEM = re.compile(r"(?:G?P?U?|N?P?U?|N?I?C?)[0-9]+", re.ASCII)
_LOST = "\ufffd"
QUOTES = "`'\"*"
"""Marks that notes put around words of a table."""


@dataclass(slots=True)
class Header:
    """Columns in order (``None``: a word that names no device), titles behind them, and how many words are bad."""

    columns: list[str | None]
    titles: list[str]
    bad: int


def header_of(line: str, *, is_cut: bool) -> Header | None:
    """Returns the header that a line is, ``None`` where it is none.

    Args:
        line: The line, wrapped parts joined.
        is_cut: Whether the text ends inside it, so that its last word may be the beginning of a longer one.
    """
    if not ACCELERATOR.search(line) or len(line) > LONGEST_LINE:
        return None
    first = _TITLE.search(line)
    titles = [_title(m) for m in _TITLE.finditer(line)]
    if len(set(titles)) < len(titles):
        return None  # two headers on one line
    tokens = _words(line[: first.start()] if first else line)
    while tokens and first is None and _PIECE_OF_TITLE.fullmatch(tokens[-1]):
        tokens.pop()
    if is_cut and tokens and not _TITLE.search(line[-16:]):
        tokens.pop()  # the last word may be the beginning of a longer one
    if not tokens or (len(tokens) > 1 and is_cell(tokens[1]) and not is_name(tokens[1])):
        return None
    columns = _columns(tokens)
    if columns and columns[0] is None and not line[:1].isspace():
        columns = columns[1:]  # a word in the corner
    names = [name for name in columns if name is not None]
    bad = len(columns) - len(names)
    if not any(ACCELERATOR.fullmatch(name) for name in names) or bad * 2 > len(names):
        return None
    return Header(columns, titles, bad)


def _words(text: str) -> list[str]:
    """Returns the words in front of the titles; an empty field between tabs is a word that was lost."""
    plain = text.translate({ord(c): " " for c in QUOTES})
    if "\t" not in plain.strip():
        return words(plain)
    fields = [piece.strip() for piece in plain.strip(" \t").split("\t")]
    return [word for piece in fields for word in (words(piece) or [_LOST])]


def _columns(tokens: Sequence[str]) -> list[str | None]:
    columns: list[str | None] = []
    for token in tokens:
        glued = _glued_names(token)
        columns.extend(glued or [token if is_name(token) else None])
    return [None if name is not None and name in columns[:at] else name for at, name in enumerate(columns)]


def _glued_names(token: str) -> list[str]:
    """Returns the names that ran together in a word (``GPU0GPU1mlx5_0``, ``hns_8hns_9``), none where it is one word."""
    found = _GLUED.findall(token)
    if len(found) > 1 and "".join(found) == token:
        return list(found)
    alike = _ALIKE.fullmatch(token)
    return re.findall(re.escape(alike[1]) + "[0-9]+", token) if alike else []


def longer_header(
    text: str, more: str, header: Header, labels: frozenset[str], *, is_cut: bool
) -> tuple[str, Header] | None:
    """Returns the header with a wrapped line joined, ``None`` where that line is none of it.

    The break may stand between words or inside one: what leaves fewer words unreadable is taken, then what names more
    of the rows (``labels``: the words that lines begin with).
    """
    joined = (f"{text} {more.lstrip()}", f"{text}{more}")
    found = [(line, longer) for line in joined if (longer := header_of(line, is_cut=is_cut)) is not None]
    if not found:
        return None
    line, best = min(
        found,
        key=lambda pair: (pair[1].bad, -_labelled(pair[1], labels), _stems(pair[1]), -len(pair[1].titles)),
    )
    grows = len(best.columns) + len(best.titles) - best.bad > len(header.columns) + len(header.titles) - header.bad
    is_better = grows or _labelled(best, labels) > _labelled(header, labels)
    return (line, best) if is_better and best.bad <= max(1, header.bad) else None


def _stems(header: Header) -> int:
    """Returns how many kinds of names there are: a name broken in two makes one more."""
    return len({name.rstrip("0123456789") for name in header.columns if name is not None})


def _labelled(header: Header, labels: frozenset[str]) -> int:
    return sum(name in labels for name in header.columns)


def is_name(token: str) -> bool:
    """Returns whether a word can name a device: an accelerator, or any word with a digit that is no cell."""
    if ACCELERATOR.fullmatch(token) or _NUMBERED_NIC.fullmatch(token):
        return True
    if _PIECE_OF_STEM.fullmatch(token) or _NUMBERED.search(token):
        return False
    if len(_GLUED.findall(token)) > 1 or _TWICE.match(token):
        return False
    return _OTHER_NAME.fullmatch(token) is not None and link_of(token) is None and not is_affinity(token)


def _title(match: re.Match[str]) -> str:
    return "GPU NUMA ID" if match[2] else {"cpu": TITLES[0], "numa": TITLES[1], "node": TITLES[2]}[match[1].lower()]


def is_cell(word: str) -> bool:
    """Returns whether a word is what a cell of these tables holds."""
    return link_of(word) is not None or is_self(word) or is_unknown(word) or p2p_of(word) is not None
