"""The rows of a square table: whose they are, and which of their words are cells, placed by the diagonal."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from plait.hardware.importers.cells import is_affinity, is_damaged_cell, is_self, link_of, pieces_of
from plait.hardware.importers.matrix_header import QUOTES, is_cell, is_name
from plait.hardware.importers.paste import words

_GLUED_CELL = re.compile(r"(?:SYS|SOC|NODE|PHB|PXB|PIX|NV[0-9]*|X)$")


@dataclass(slots=True)
class SplitRow:
    """A row's words put in order: cells left and right of the diagonal (``None``: cannot be placed), then the tail."""

    left: list[str] | None
    right: list[str] | None
    tail: list[str]
    is_complete: bool = True


def starts_row(line: str) -> bool:
    """Returns whether a line begins with a device and a cell."""
    found = line.replace("|", " ").split(maxsplit=2)
    return len(found) > 1 and (is_cell(found[1]) or found[1] == "0") and is_name(found[0])


def label_of(line: str, columns: Sequence[str | None]) -> tuple[str, str]:
    """Returns the device that a row begins with and the rest of the line; empty where it begins with none."""
    bare = line.lstrip(" \t|" + QUOTES)
    match = re.match(r"[^\s|]+", bare)
    if match is None:
        return "", ""
    word = match[0].rstrip(":" + QUOTES)
    if word in columns:
        return word, bare[match.end() :]
    folded = next((name for name in columns if name is not None and name.lower() == word.lower()), None)
    if folded is not None:
        return folded, bare[match.end() :]
    # "GPU0X", "GPU1NV1": the longest name whose rest begins like a cell.
    glued = [n for n in columns if n is not None and word.startswith(n) and re.match(r"[A-Z]", word[len(n) :])]
    if glued:
        name = max(glued, key=len)
        return name, bare[len(name) :]
    return (word, bare[match.end() :]) if is_name(word) and not _GLUED_CELL.search(word) else ("", "")


def split_row(rest: str, columns: Sequence[str | None], label: str, *, has_titles: bool) -> SplitRow | None:
    """Returns a row's words in order, ``None`` where the diagonal does not stand where the header puts the label."""
    size = len(columns)
    index = columns.index(label) if label in columns else None
    if "\t" in rest:
        by_tabs = _by_tabs(rest, size, index)
        if by_tabs is not None or _has_hole(rest, size):
            return by_tabs
    return _by_words(rest, size, index, has_titles=has_titles)


def _has_hole(rest: str, size: int) -> bool:
    """Whether tabs show an empty cell: its neighbours must not move into it."""
    fields = [piece.strip() for piece in rest.split("\t")]
    cells = fields[1 : size + 1] if not fields[0] else fields[:size]
    last = max((at for at, cell in enumerate(cells) if is_cell(cell) and not is_affinity(cell)), default=-1)
    return "" in cells[:last]


def _by_tabs(rest: str, size: int, index: int | None) -> SplitRow | None:
    fields = [piece.strip() for piece in rest.split("\t")]
    if not fields[0]:
        fields = fields[1:]
    if index is None or len(fields) < size or not is_self(fields[index]):
        return None
    cells, tail = fields[:size], fields[size:]
    if any(" " in cell or is_affinity(cell) or pieces_of(cell) for cell in cells):
        return None
    if any("#" in piece or link_of(piece) is not None or is_self(piece) for piece in tail):
        return None
    return SplitRow(cells[:index], cells[index + 1 :], _without_empty_end(tail))


def _without_empty_end(tail: list[str]) -> list[str]:
    while tail and not tail[-1]:
        tail = tail[:-1]
    return tail


def _by_words(rest: str, size: int, index: int | None, *, has_titles: bool) -> SplitRow | None:
    tokens: list[str] = []
    for word in words(rest):
        if word.startswith("#"):
            break
        tokens.extend(pieces_of(word) or [word])
    if index is not None and len(tokens) == size and tokens[index] == "0":
        return SplitRow(tokens[:index], tokens[index + 1 :], [])  # rocm-smi marks the diagonal with 0
    marks = [at for at, token in enumerate(tokens[:size]) if is_self(token)]
    if index is None:
        return _whole_row(tokens, size, marks, has_titles=has_titles)
    if index not in marks and len(marks) != 1:
        return _without_mark(tokens, size, index)
    at = index if index in marks else marks[0]
    right, tail, is_complete = _behind(tokens[at + 1 :], size - 1 - index, has_titles=has_titles)
    if at != index and not is_complete:
        return None  # the label contradicts the diagonal
    left = tokens[:at] if at == index and _are_cells(tokens[:at]) else None
    return SplitRow(left, right if _are_cells(right or ()) else None, tail, is_complete)


def _are_cells(run: Sequence[str]) -> bool:
    """Whether no word of a run can have been put in: beside a lost cell it would shift the ones between unseen."""
    return all(is_cell(word) or is_damaged_cell(word) or word.isdigit() for word in run)


def _whole_row(tokens: list[str], size: int, marks: list[int], *, has_titles: bool) -> SplitRow | None:
    """A row whose label the header lacks: only a full one can say which column it is."""
    if len(marks) != 1 or not all(is_cell(token) for token in tokens[: marks[0]]):
        return None
    right, tail, is_complete = _behind(tokens[marks[0] + 1 :], size - 1 - marks[0], has_titles=has_titles)
    is_complete = is_complete and all(is_cell(cell) for cell in right or ())
    return SplitRow(tokens[: marks[0]], right, tail) if is_complete else None


def _without_mark(tokens: list[str], size: int, index: int) -> SplitRow | None:
    """A row whose diagonal is destroyed: it counts where all other cells are there and are cells."""
    body = tokens[:size]
    if (
        len(body) < size
        or link_of(body[index]) is not None
        or not all(is_cell(cell) for at, cell in enumerate(body) if at != index)
    ):
        return None
    if len(tokens) > size and not is_affinity(tokens[size]):
        return None
    return SplitRow(body[:index], body[index + 1 :], tokens[size:])


def _behind(tokens: list[str], needed: int, *, has_titles: bool) -> tuple[list[str] | None, list[str], bool]:
    """Returns the cells behind the diagonal, the tail, and whether the cells are as many as the header says.

    Words between cells and tail (``NUMA 0`` in somebody's notes) are a tail only where the header has no titles.
    """
    count = next((at for at, token in enumerate(tokens) if is_affinity(token)), len(tokens))
    if count == needed:
        return tokens[:needed], tokens[needed:], True
    if count > needed:
        extra = tokens[needed:count]
        is_note = not has_titles and not any(is_cell(word) for word in extra)
        if is_note and all(is_cell(cell) for cell in tokens[:needed]):
            return tokens[:needed], tokens[needed:], True
        return None, tokens[count:], False
    if count == len(tokens):
        return tokens, [], False  # the row ends early: whether cells are missing inside it, the caller decides
    return None, tokens[count:], False
