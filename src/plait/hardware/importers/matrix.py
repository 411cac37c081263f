"""The square tables of vendors' topology commands, read from text that lost tabs, cells, rows or line breaks.

One rule runs through it: the diagonal says where a row is. A cell counts only where the row's own column holds the
mark of the diagonal, or where the cells behind the mark are exactly as many as the header says. What cannot be placed
so is left unread; nothing is shifted into a free column.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from plait.hardware.importers.cells import is_affinity, link_of, pieces_of
from plait.hardware.importers.matrix_header import ACCELERATOR, header_of, is_cell, longer_header
from plait.hardware.importers.matrix_repair import repaired
from plait.hardware.importers.matrix_rows import SplitRow, label_of, split_row, starts_row
from plait.hardware.importers.paste import Paste, read_paste, words

_TWO_WORDS = re.compile(r"\bGPU ([0-9]{1,3}/[0-9]{1,3})(?![0-9])", re.ASCII)
_CAPTION = re.compile(r"={2,}\s*([^=]{3,80}?)\s*={2,}|([A-Z][A-Z -]{4,60} TABLE):")
_PIECE_OF_CELL = re.compile(r"[A-Z0-9]{1,3}", re.ASCII)
_MOST_TABLES = 64
_MOST_LOST = 4
_WIDTH_OF_A_CELL = 4


@dataclass(slots=True)
class Row:
    """One row: cells by column name, unknown ones absent; ``tail`` is what follows, empty fields kept where tabs show.

    ``is_cut`` says that the text ends inside this row, so that its last word may be a piece of a word.
    """

    name: str
    line: int
    cells: dict[str, str]
    tail: list[str]
    is_cut: bool = False
    last_is_cell: bool = False
    is_sure: bool = True
    """Whether all of its cells could be placed."""
    is_wrapped: bool = False


@dataclass(slots=True)
class Matrix:
    """A square table: columns in the header's order, ``None`` where a name cannot be read."""

    line: int
    caption: str
    columns: list[str | None]
    titles: list[str]
    rows: dict[str, Row] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)
    disagreeing: list[tuple[str, int]] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    is_doubtful: bool = False
    has_loose_lines: bool = False
    """Whether cells stand below it that no row took: what is wrapped may be joined wrongly then."""

    @property
    def names(self) -> list[str]:
        """The devices of the header."""
        return [name for name in self.columns if name is not None]

    def cells(self) -> Iterator[tuple[str, str, str]]:
        """Yields row, column and cell, without the diagonal."""
        for row in self.rows.values():
            for column, cell in row.cells.items():
                if column != row.name:
                    yield row.name, column, cell


@functools.lru_cache(maxsize=4)
def find_matrices(data: bytes) -> tuple[Matrix, ...]:
    """Returns the square tables of a paste in order; a header without a single readable row counts where it is sure.

    The same bytes are searched once, however many importers ask.
    """
    paste = read_paste(data)
    return tuple(_Finder(paste).run()) if ACCELERATOR.search(_TWO_WORDS.sub("GPU0", paste.text)) else ()


class _Finder:
    def __init__(self, paste: Paste) -> None:
        self._lines = [_TWO_WORDS.sub("GPU\ue000\\1", line) for line in paste.lines]
        self._is_whole = paste.is_whole
        self._begins_row = [starts_row(line) for line in self._lines]
        self._labels = frozenset(
            words(line)[0] for line, begins in zip(self._lines, self._begins_row, strict=True) if begins
        )
        self._last = max((i for i, line in enumerate(self._lines) if line.strip()), default=-1)
        self._found: list[Matrix] = []
        self._caption = ""

    def run(self) -> list[Matrix]:
        i = 0
        while i < len(self._lines) and len(self._found) < _MOST_TABLES:
            i = self._take(i)
        sure = [m for m in self._found if m.rows or not m.is_doubtful]
        for matrix in sure:
            _drop_joined_wrongly(matrix)
            _drop_unconfirmed(matrix)
            _drop_pieces_of_names(matrix)
            _restore(matrix)
        return sure

    def _take(self, i: int) -> int:
        line = self._lines[i]
        if not line.strip():
            return i + 1
        caption = _CAPTION.search(line)
        if caption:
            self._caption = caption[1] or caption[2]
            return i + 1
        after = 0 if self._begins_row[i] else self._take_header(i)
        if after:
            return after
        if not self._found:
            return i + 1
        after = self._take_row(self._found[-1], i)
        if not after and sum(link_of(word) is not None for word in words(line)) * 2 > len(words(line)):
            self._found[-1].has_loose_lines = True
        return after or i + 1

    def _take_header(self, i: int) -> int:
        text = self._lines[i]
        header = header_of(text, is_cut=self._is_cut(i))
        if header is None:
            return 0
        i += 1
        while i < len(self._lines) and self._lines[i].strip() and not self._begins_row[i]:
            longer = longer_header(text, self._lines[i], header, self._labels, is_cut=self._is_cut(i))
            if longer is None:
                break
            text, header = longer
            i += 1
        columns = repaired(header, self._lines[i : i + 80])
        doubtful = header.bad > 0 or not header.titles
        self._found.append(Matrix(i, self._caption, columns, header.titles, is_doubtful=doubtful))
        self._caption = ""
        return i

    def _take_row(self, matrix: Matrix, i: int) -> int:
        label, rest = label_of(self._lines[i], matrix.columns)
        if not label:
            return 0
        first, text, split = i, rest, _split(rest, matrix, label)
        if split is None and not self._begins_row[i]:
            return 0
        while self._goes_on(split, matrix, i + 1):
            longer = _longest(text, self._lines[i + 1], split, matrix, label)
            if longer is None:
                break
            text, split = longer
            i += 1
        if split is not None and not split.is_complete and not (i == self._last == first and self._is_below(matrix, i)):
            split.right = None  # cells are missing inside the row, or it was cut by hand: no telling which
        if split is None or not self._keep(matrix, label, split, first, i):
            matrix.unread.append(first + 1)
            matrix.strangers.append(label)
            return 0
        return i + 1

    def _is_below(self, matrix: Matrix, i: int) -> bool:
        """Whether the words of a row stand below those of the header, so that none between them is missing."""
        starts = [
            [match.start() for match in re.finditer(r"[^\s|]+", line.expandtabs(8))]
            for line in (self._lines[matrix.line - 1], self._lines[i])
        ]
        columns, cells = starts[0][: len(matrix.columns)], starts[1][1:]
        return len(columns) == len(matrix.columns) and all(
            abs(column - cell) < _WIDTH_OF_A_CELL for column, cell in zip(columns, cells, strict=False)
        )

    def _goes_on(self, split: SplitRow | None, matrix: Matrix, i: int) -> bool:
        """Whether the row may be wrapped onto line ``i``."""
        is_short = split is None or not split.is_complete or len(split.tail) < len(matrix.titles)
        if not is_short or i >= len(self._lines) or not self._lines[i].strip() or self._begins_row[i]:
            return False
        found = words(self._lines[i])
        if split is not None and split.is_complete:
            return all(is_affinity(word) for word in found)
        return all(is_cell(w) or is_affinity(w) or pieces_of(w) or _PIECE_OF_CELL.fullmatch(w) for w in found)

    def _keep(self, matrix: Matrix, label: str, split: SplitRow, first: int, last: int) -> bool:
        name = _claim(matrix, label, split)
        if name is None:
            return False
        index = matrix.columns.index(name)
        placed = [
            *zip(matrix.columns, split.left or (), strict=False),
            *zip(matrix.columns[index + 1 :], split.right or (), strict=False),
        ]
        cells = {column: cell for column, cell in placed if column is not None and cell}
        is_cut = self._is_cut(last)
        row = Row(
            name,
            first + 1,
            cells,
            split.tail,
            is_cut=is_cut,
            last_is_cell=is_cut and not split.tail,
            is_wrapped=last > first,
            is_sure=split.left is not None and split.right is not None and split.is_complete,
        )
        known = matrix.rows.get(name)
        if known is None:
            matrix.rows[name] = row
        elif known.cells != cells or known.tail != split.tail:
            matrix.disagreeing.append((name, first + 1))
        return True

    def _is_cut(self, i: int) -> bool:
        return i == self._last and i == len(self._lines) - 1 and not self._is_whole


def _longest(
    text: str, more: str, before: SplitRow | None, matrix: Matrix, label: str
) -> tuple[str, SplitRow | None] | None:
    """Returns the row with the next line joined, between words or inside one: what leaves fewer odd words."""
    found: list[tuple[int, bool, bool, str, SplitRow | None]] = []
    for joined in (f"{text} {more.lstrip()}", f"{text}{more}"):
        split = _split(joined, matrix, label)
        odd = sum(not is_cell(word) and not is_affinity(word) for word in words(joined))
        if split is None:
            # The mark of the diagonal may stand on a line further down.
            if before is None:
                found.append((odd, True, True, joined, None))
        elif len(split.tail) <= len(matrix.titles):
            grows = (before is None or not before.is_complete) and split.right is not None
            if split.is_complete or grows:
                found.append((odd, False, not split.is_complete, joined, split))
    best = min(found, key=lambda entry: entry[:3], default=None)
    return (best[3], best[4]) if best is not None else None


def _split(text: str, matrix: Matrix, label: str) -> SplitRow | None:
    return split_row(text, matrix.columns, label, has_titles=bool(matrix.titles))


def _drop_joined_wrongly(matrix: Matrix) -> None:
    """Where lines of cells are left over or rows come twice, which row a wrapped line belongs to is not sure."""
    for row in matrix.rows.values():
        if row.is_wrapped and (matrix.has_loose_lines or matrix.disagreeing):
            row.cells, row.tail, row.is_sure = {}, [], False


def _drop_unconfirmed(matrix: Matrix) -> None:
    """Where a header has an unreadable word, or a row contradicts it, columns need a whole row of their own."""
    contradicts = any(label in matrix.columns or ACCELERATOR.fullmatch(label) for label in matrix.strangers)
    if None not in matrix.columns and not contradicts:
        return
    for index, name in enumerate(matrix.columns):
        if name is not None and not (name in matrix.rows and matrix.rows[name].is_sure):
            _rename(matrix, index, name, None)


def _drop_pieces_of_names(matrix: Matrix) -> None:
    """A NIC without a row whose name is a piece of another (``mlx5`` of ``mlx5_3``, ``mx5_9`` by ``mlx5_8``) is none.

    Other names are the labels of unread rows, and those of the header without their numbers.
    """
    stems = {name.rstrip("0123456789") for name in matrix.names}
    for index, name in enumerate(matrix.columns):
        if name is None or name in matrix.rows or ACCELERATOR.fullmatch(name):
            continue
        stem = name.rstrip("0123456789")
        is_begun = index == len(matrix.columns) - 1 and any(_begins(name, other) for other in matrix.names)
        if is_begun or any(_is_piece(name, o) for o in matrix.strangers) or any(_is_piece(stem, o) for o in stems):
            _rename(matrix, index, name, None)


def _begins(part: str, whole: str) -> bool:
    """Whether a name is the beginning of another one or of one formed like it (``rocep3s0`` beside ``rocep0s0f0``)."""
    shapes = [re.sub("[0-9]+", "#", name) for name in (part, whole)]
    return part != whole and (whole.startswith(part) or (shapes[0] != shapes[1] and shapes[1].startswith(shapes[0])))


def _is_piece(part: str, whole: str) -> bool:
    """Whether a name is another one that lost characters."""
    rest = iter(whole)
    return part != whole and len(whole) - len(part) <= _MOST_LOST and all(character in rest for character in part)


def _restore(matrix: Matrix) -> None:
    """Puts the blank back into names of two words."""
    if not any("\ue000" in name for name in matrix.names):
        return

    def plain(name: str) -> str:
        return name.replace("\ue000", " ")

    matrix.columns = [None if name is None else plain(name) for name in matrix.columns]
    for row in matrix.rows.values():
        row.name = plain(row.name)
        row.cells = {plain(column): cell for column, cell in row.cells.items()}
    matrix.rows = {row.name: row for row in matrix.rows.values()}


def _claim(matrix: Matrix, label: str, split: SplitRow) -> str | None:
    """Returns the name of a row's column, ``None`` where header and label contradict each other.

    A column whose name cannot be read takes the label of its row. Where both can be read and differ, the one that
    continues its neighbours' numbers is right; where neither does, the column is nobody's.
    """
    if label in matrix.columns:
        return label
    index = len(split.left or ())
    named = matrix.columns[index]
    if named is None:
        matrix.columns[index] = label
        return label
    if named in matrix.rows:
        return None
    fits_label, fits_named = (_continues(matrix.columns, index, name) for name in (label, named))
    if fits_named and not fits_label:
        are_two = ACCELERATOR.fullmatch(label) and ACCELERATOR.fullmatch(named)
        return named if not are_two and (_is_piece(label, named) or _is_piece(named, label)) else None
    _rename(matrix, index, named, label if fits_label and not fits_named else None)
    return label if fits_label and not fits_named else None


def _continues(columns: Sequence[str | None], index: int, name: str) -> bool:
    number = re.search(r"[0-9]+$", name)
    if number is None:
        return False
    stem = name[: number.start()]
    neighbours = {f"{stem}{int(number[0]) + step}": index + step for step in (-1, 1)}
    return any(0 <= at < len(columns) and columns[at] == other for other, at in neighbours.items())


def _rename(matrix: Matrix, index: int, old: str, new: str | None) -> None:
    matrix.columns[index] = new
    if new is None:
        matrix.rows.pop(old, None)
    for row in matrix.rows.values():
        cell = row.cells.pop(old, None)
        if cell is not None and new is not None:
            row.cells[new] = cell
