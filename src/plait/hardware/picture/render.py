"""Draws nodes one below another, then the matrix of all devices, then the scale of colours."""

import itertools
from collections.abc import Mapping

from plait.hardware.affinity.matrix import AffinityMatrix
from plait.hardware.picture.drawing import COLOURS, STEPS_GB_PER_S, WIDTHS, Drawing, Rect, rate_words
from plait.hardware.picture.node import draw_nodes
from plait.hardware.topology import Fragment

_MARGIN = 20.0
_CELL_WIDTH, _CELL_HEIGHT = 40.0, 22.0
_MOST_DEVICES = 64
_MOST_LINES = 12


def render(nodes: Mapping[str, Fragment], matrix: AffinityMatrix, title: str = "Topology") -> str:
    """Returns an SVG document.

    Args:
        nodes: One merged fragment a node, as the matrix was built from.
        matrix: Theirs.
        title: For screen readers and for who opens the file.
    """
    drawing = Drawing()
    width, y = 560.0, _MARGIN
    for right, bottom in draw_nodes(drawing, nodes, matrix, (_MARGIN, _MARGIN)):
        width, y = max(width, right + _MARGIN), bottom + 12
    y = _scale(drawing, y) + 22
    if len(nodes) > 1:
        y = _fabric(drawing, matrix, y) + 10
    if 2 <= len(matrix.devices) <= _MOST_DEVICES:
        right, y = _matrix(drawing, matrix, y)
        width = max(width, right + _MARGIN)
    return drawing.document(width, y + _MARGIN, title)


def _fabric(drawing: Drawing, matrix: AffinityMatrix, y: float) -> float:
    drawing.text((_MARGIN, y + 14), "Between nodes, all NICs together", "title")
    pairs = list(itertools.combinations(matrix.nodes, 2))
    for number, (a, b) in enumerate(pairs[:_MOST_LINES]):
        cell = matrix.node_cell(a, b)
        words = f"{a} to {b}: {rate_words(cell.value)} GB/s {cell.kind}, {cell.detail}"
        drawing.text((_MARGIN, y + 34 + 16 * number), words, room=760)
    if len(pairs) > _MOST_LINES:
        drawing.text((_MARGIN, y + 34 + 16 * _MOST_LINES), f"and {len(pairs) - _MOST_LINES} more pairs", "soft")
    return y + 44 + 16 * min(len(pairs), _MOST_LINES + 1)


def _matrix(drawing: Drawing, matrix: AffinityMatrix, top: float) -> tuple[float, float]:
    count = len(matrix.devices)
    labels = [_label(matrix, i) for i in range(count)]
    longest = max(len(label) for label in labels)
    left, y = _MARGIN + max(50.0, 5.6 * longest + 10), top + 44
    drawing.text((_MARGIN, top + 14), "Bandwidth in GB/s, from row to column", "title")
    for number, label in enumerate(labels):
        at = (left + number * _CELL_WIDTH + _CELL_WIDTH / 2 - 1.5, y - 7)
        drawing.text(at, matrix.names[number], "small", anchor="middle", room=_CELL_WIDTH)
        drawing.text((left - 8, y + number * _CELL_HEIGHT + 14), label, "small", anchor="end")
    for i, j in itertools.product(range(count), repeat=2):
        place = Rect(left + j * _CELL_WIDTH, y + i * _CELL_HEIGHT, _CELL_WIDTH - 3, _CELL_HEIGHT - 3)
        cell = matrix.cell(matrix.devices[i], matrix.devices[j])
        tip = f"{labels[i]} to {labels[j]}: {cell.detail} ({cell.source.name.lower()})"
        if i == j or cell.value is None:
            drawing.box(place, "unknown", tip)
        else:
            drawing.patch(place, cell.value, tip)
        if i != j:
            at = (place.x + place.width / 2, place.y + 13.5)
            drawing.text(at, rate_words(cell.value), "small", anchor="middle")
    return left + count * _CELL_WIDTH, y + count * _CELL_HEIGHT


def _label(matrix: AffinityMatrix, i: int) -> str:
    name = matrix.names[i]
    return f"{matrix.nodes[matrix.node_of[i]]}/{name}" if len(matrix.nodes) > 1 else name


def _scale(drawing: Drawing, y: float) -> float:
    bounds = ["under 5", *(f"{a:g} to {b:g}" for a, b in itertools.pairwise(STEPS_GB_PER_S)), "250 and more"]
    x = _MARGIN + 40
    drawing.text((_MARGIN, y + 16), "GB/s:", "name")
    for words, colour, width in zip(bounds, COLOURS, WIDTHS, strict=True):
        line = f'<path d="M{x:.1f} {y + 12:.1f}h24" stroke="{colour}" stroke-width="{width}" fill="none"/>'
        drawing.parts.append(line)
        drawing.text((x + 29, y + 16), words, "small")
        x += 42 + 5.4 * len(words)
    drawing.path(f"M{x:.1f} {y + 12:.1f}h24", None)
    drawing.text((x + 29, y + 16), "unknown", "small")
    return y + 22
