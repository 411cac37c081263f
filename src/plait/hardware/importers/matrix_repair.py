"""A header that lost or gained a word, put right by the rows below it.

Every row says where it is: the mark of the diagonal stands in the row's own column. A header is believed where its
rows agree with it; where they do not, the smallest change of it that makes more of them agree is taken.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from plait.hardware.importers.cells import is_affinity, is_self, link_of, pieces_of
from plait.hardware.importers.matrix_header import Header, is_cell, is_name
from plait.hardware.importers.paste import words

Columns = list[str | None]

_MOST_ROWS = 80
_MOST_BAD = 4
_FEWEST_ROWS = 2


def repaired(header: Header, lines: Sequence[str]) -> Columns:
    """Returns the columns of a header as its rows confirm them.

    Only rows count in which every word is a cell or an affinity. A word is dropped from the header where more of them
    agree without it; a column is put in only where all of them agree with it.

    Args:
        header: As read.
        lines: What follows the header.
    """
    rows = list(_whole_rows(lines))
    best, agreeing = header.columns, _agreeing(header.columns, rows)
    if not rows or (header.bad == 0 and agreeing == len(rows)):
        return best
    for candidate in _shorter(header.columns):
        count = _agreeing(candidate, rows)
        if count > agreeing and (count >= _FEWEST_ROWS or len(candidate) <= _FEWEST_ROWS):
            best, agreeing = candidate, count
    if agreeing < len(rows) and len(rows) >= _FEWEST_ROWS:
        return next((longer for longer in _longer(best) if _agreeing(longer, rows) == len(rows)), best)
    return best


def _whole_rows(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields label and words of the undamaged rows up to the next header."""
    for line in lines[:_MOST_ROWS]:
        found = words(line)
        if len(found) < 2 or not is_name(found[0].rstrip(":")):
            continue
        if is_name(found[1]):
            return
        cells: list[str] = []
        for word in found[1:]:
            cells.extend(pieces_of(word) or [word])
        if all(is_cell(cell) or is_affinity(cell) for cell in cells):
            yield found[0].rstrip(":"), cells


def _agreeing(columns: Columns, rows: Sequence[tuple[str, list[str]]]) -> int:
    """Returns how many rows have the mark in their own column and as many cells as there are columns."""
    count = 0
    for label, cells in rows:
        index = columns.index(label) if label in columns else _nameless(columns, cells)
        if index is None or len(cells) < len(columns) or not (is_self(cells[index]) or cells[index] == "0"):
            continue
        body, tail = cells[: len(columns)], cells[len(columns) :]
        if is_self(cells[index]) and any(is_affinity(cell) and not is_cell(cell) for cell in body):
            continue
        count += not tail or link_of(tail[0]) is None
    return count


def _nameless(columns: Columns, cells: Sequence[str]) -> int | None:
    """Returns the column of a row that the header does not name, where the mark stands in one without a name."""
    mark = next((at for at, cell in enumerate(cells[: len(columns)]) if is_self(cell)), None)
    return mark if mark is not None and columns[mark] is None else None


def _shorter(columns: Columns) -> Iterator[Columns]:
    """Yields the header without words that name nothing."""
    bad = [at for at, name in enumerate(columns) if name is None]
    if len(bad) <= _MOST_BAD:
        for size in range(1, len(bad) + 1):
            for dropped in combinations(bad, size):
                yield [name for at, name in enumerate(columns) if at not in dropped]


def _longer(columns: Columns) -> Iterator[Columns]:
    """Yields the header with a column where one was lost."""
    for at in range(len(columns) + 1):
        yield [*columns[:at], None, *columns[at:]]
