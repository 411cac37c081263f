"""Offline packing: given when each block lives, choose where, so that the whole needs as few bytes as it can.

This is dynamic storage allocation with known lifetimes, strongly NP-hard (Garey and Johnson 1979, problem SR2). Placing
the blocks one by one into the tightest gap that is free during their whole life does well on training steps (Sekiyama
et al., "Profile-guided memory optimization for deep neural networks", 2018; Pisarchyk and Lee, "Efficient memory
management for deep neural net inference", 2020, "greedy by size"). The order decides: several are tried, then blocks
that stick out at the top are moved forward. The peak of live bytes is a lower bound, so each packing says how far from
perfect it can be at most.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from plait.errors import PlaitError
from plait.hardware.memory.gaps import Gaps
from plait.hardware.memory.lifetimes import Lifetimes
from plait.hardware.memory.trace import Ints

ALIGNMENT_BYTES = 512
"""What CUDA, HIP and CANN kernels may expect of an address."""

NEVER = np.iinfo(np.int64).max // 4
"""An end of life after all others."""

GREEDY_BLOCKS = 2500
"""Most blocks that are placed greedily together; larger sets are first divided in time."""

ROUND_BLOCKS = 4000
"""Blocks placed again while a packing is improved, in all rounds together."""

PATIENCE = 6
"""Rounds without any gain after which a packing is left as it is."""

CLOSE_ENOUGH_RATIO = 1.0005
"""A packing this near to its lower bound is not improved further."""


Obstacle = tuple[int, int]
"""Offset and size of a range that never becomes free."""


class PackingWrong(PlaitError):
    """Two blocks of a packing share bytes while both live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Where each block goes.

    Attributes:
        offsets: First byte of each block, in the order of the lifetimes' rows.
        height_bytes: End of the highest block or obstacle.
        lower_bound_bytes: No packing of these blocks around these obstacles is lower than this.
        reason: Which order won, in one sentence.
    """

    offsets: Ints
    height_bytes: int
    lower_bound_bytes: int
    reason: str


def pack(
    lifetimes: Lifetimes,
    *,
    obstacles: Sequence[Obstacle] = (),
    alignment_bytes: int = ALIGNMENT_BYTES,
    rounds: int | None = None,
) -> Packing:
    """Packs blocks around ranges that are taken all the time.

    Args:
        lifetimes: The blocks, sizes in bytes.
        obstacles: Ranges that are taken all the time; they do not overlap.
        alignment_bytes: Every offset is a multiple of it.
        rounds: How many times blocks at the top are moved forward in the order and placed again; by default as many as
            keep the work the same for few blocks and for many.

    Returns:
        A packing that :func:`check_packing` accepts. The same input gives the same packing.
    """
    blocks = lifetimes.rounded(alignment_bytes)
    walls = [(low, -(-size // alignment_bytes) * alignment_bytes) for low, size in obstacles]
    highest = max((low + size for low, size in walls), default=0)
    bound = max(highest, blocks.peak_bytes() + sum(size for _, size in walls))
    if len(blocks) == 0:
        height = highest
        return Packing(offsets=blocks.sizes.copy(), height_bytes=height, lower_bound_bytes=height, reason="no blocks")
    if len(blocks) > GREEDY_BLOCKS:
        offsets = _divided(blocks, walls)
        reason = f"{len(blocks)} blocks, divided in time"
    else:
        offsets, reason = _best_order(blocks, walls, bound, ROUND_BLOCKS // len(blocks) if rounds is None else rounds)
    height = max(int((offsets + blocks.sizes).max()), highest)
    return Packing(offsets=offsets, height_bytes=height, lower_bound_bytes=bound, reason=reason)


def check_packing(lifetimes: Lifetimes, offsets: Ints, obstacles: Sequence[Obstacle] = ()) -> None:
    """Proves that no two blocks overlap, by a sweep over time that shares nothing with the packer.

    Raises:
        PackingWrong: Two blocks share bytes while both live; the message names them.
    """
    changes: list[tuple[int, int, int]] = []
    for row in range(len(lifetimes)):
        changes += [(int(lifetimes.starts[row]), 1, row), (int(lifetimes.ends[row]), 0, row)]
        if lifetimes.wrapped_ends[row] > 0:
            changes += [(0, 1, row), (int(lifetimes.wrapped_ends[row]), 0, row)]
    live = sorted((low, low + size, -1 - number) for number, (low, size) in enumerate(obstacles) if size > 0)
    for (_, top, first), (low, _, second) in pairwise(live):
        if low < top:
            raise PackingWrong(f"obstacles {-1 - first} and {-1 - second} overlap at byte {low}")
    for _, begins, row in sorted(changes):
        low, size = int(offsets[row]), int(lifetimes.sizes[row])
        if size == 0:
            continue
        if not begins:
            live.remove((low, low + size, row))
            continue
        place = bisect_left(live, (low, low + size, row))
        for other in live[max(place - 1, 0) : place + 1]:
            if other[0] < low + size and low < other[1]:
                raise PackingWrong(f"blocks {row} and {other[2]} overlap at byte {max(low, other[0])}")
        insort(live, (low, low + size, row))


class _Board:
    """Blocks placed so far, in the order of their offsets; finds the tightest gap for one more."""

    def __init__(self, capacity: int, rows: Ints) -> None:
        """Starts with ``rows``: columns start, end, offset, top; ``capacity`` more can be added."""
        self._count = rows.shape[1]
        self._rows = np.empty((4, self._count + capacity), dtype=np.int64)
        self._rows[:, : self._count] = rows[:, np.argsort(rows[2], kind="stable")]

    def place(self, size: int, start: int, end: int, wrapped_end: int) -> int:
        """Puts a block into the tightest free gap of its life, or above all; returns the offset."""
        starts, ends, offsets, tops = self._rows[:, : self._count]
        meets = (starts < end) & (ends > start)
        if wrapped_end > 0:
            meets |= starts < wrapped_end
        offset = _tightest(offsets[meets], tops[meets], size)
        self._insert(start, end, offset, offset + size)
        if wrapped_end > 0:
            self._insert(0, wrapped_end, offset, offset + size)
        return offset

    def _insert(self, start: int, end: int, offset: int, top: int) -> None:
        place = int(np.searchsorted(self._rows[2, : self._count], offset))
        self._rows[:, place + 1 : self._count + 1] = self._rows[:, place : self._count]
        self._rows[:, place] = (start, end, offset, top)
        self._count += 1


def _rows_of(blocks: Lifetimes, rows: Ints, offsets: Ints, walls: Sequence[Obstacle]) -> Ints:
    """Returns the rows of a board for obstacles and placed blocks; a block with two intervals has two rows."""
    tops = offsets + blocks.sizes
    wraps = rows[blocks.wrapped_ends[rows] > 0]
    columns = (
        np.array([(-1, NEVER, low, low + size) for low, size in walls], dtype=np.int64).reshape(-1, 4).T,
        np.stack([blocks.starts[rows], blocks.ends[rows], offsets[rows], tops[rows]]),
        np.stack([np.zeros_like(wraps), blocks.wrapped_ends[wraps], offsets[wraps], tops[wraps]]),
    )
    return np.concatenate(columns, axis=1)


def _tightest(offsets: Ints, tops: Ints, size: int) -> int:
    """Returns where ``size`` bytes fit the tightest among ranges that are sorted by offset."""
    if len(offsets) == 0:
        return 0
    covered = np.maximum.accumulate(tops)
    gaps = offsets.copy()
    gaps[1:] -= covered[:-1]
    gaps[gaps < size] = NEVER
    best = int(gaps.argmin())
    if gaps[best] == NEVER:
        return int(covered[-1])
    return int(covered[best - 1]) if best else 0


def _place_all(blocks: Lifetimes, order: Ints, walls: Sequence[Obstacle]) -> Ints:
    offsets = np.zeros(len(blocks), dtype=np.int64)
    board = _Board(2 * len(blocks), _rows_of(blocks, order[:0], offsets, walls))
    columns = [column[order].tolist() for column in (blocks.sizes, blocks.starts, blocks.ends, blocks.wrapped_ends)]
    for row, size, start, end, wrapped in zip(order.tolist(), *columns, strict=True):
        offsets[row] = board.place(size, start, end, wrapped)
    return offsets


def _length(blocks: Lifetimes) -> Ints:
    return blocks.ends - blocks.starts + blocks.wrapped_ends


def _peak_first(blocks: Lifetimes) -> Ints:
    """Blocks that live when most bytes do, then the others; the large ones first among each."""
    times = np.concatenate([blocks.starts, blocks.ends])
    changes = np.concatenate([blocks.sizes, -blocks.sizes])
    order = np.lexsort((changes, times))
    live = np.cumsum(changes[order])
    # Blocks that wrap live at the start, too.
    for row in np.flatnonzero(blocks.wrapped_ends > 0):
        live[times[order] < blocks.wrapped_ends[row]] += blocks.sizes[row]
    peak = times[order][int(live.argmax())]
    at_peak = ((blocks.starts <= peak) & (blocks.ends > peak)) | (blocks.wrapped_ends > peak)
    return np.lexsort((blocks.starts, -blocks.sizes, ~at_peak))


ORDERS: tuple[tuple[str, Callable[[Lifetimes], Ints]], ...] = (
    ("the largest first", lambda blocks: np.lexsort((blocks.starts, -_length(blocks), -blocks.sizes))),
    ("those at the peak first", _peak_first),
    ("the largest area first", lambda blocks: np.lexsort((blocks.starts, -blocks.sizes * _length(blocks)))),
    ("the longest-lived first", lambda blocks: np.lexsort((-blocks.sizes, -_length(blocks)))),
)
"""Orders of placement, best on training steps first."""


def _best_order(blocks: Lifetimes, walls: Sequence[Obstacle], bound: int, rounds: int) -> tuple[Ints, str]:
    best: tuple[int, Ints, Ints, str] | None = None
    for name, ordering in ORDERS:
        order = ordering(blocks)
        offsets = _place_all(blocks, order, walls)
        height = int((offsets + blocks.sizes).max())
        if best is None or height < best[0]:
            best = (height, offsets, order, name)
        if height <= bound * CLOSE_ENOUGH_RATIO:
            break
    assert best is not None
    height, offsets, order, name = best
    moved = idle = 0
    tried, tried_offsets = order, offsets
    for _ in range(rounds):
        if height <= bound * CLOSE_ENOUGH_RATIO or idle == PATIENCE:
            break
        tried = _top_forward(blocks, tried, tried_offsets)
        tried_offsets = _place_all(blocks, tried, walls)
        tried_height = int((tried_offsets + blocks.sizes).max())
        idle += 1
        if tried_height < height:
            height, offsets, moved, idle = tried_height, tried_offsets, moved + 1, 0
    improved = f", improved {moved} times" if moved else ""
    return offsets, f"tightest gap, {name}{improved}"


def _top_forward(blocks: Lifetimes, order: Ints, offsets: Ints) -> Ints:
    """Moves the blocks that end at the very top to the first third of the places before them."""
    tops = (offsets + blocks.sizes)[order]
    highest = tops >= tops.max()
    keys = np.arange(len(order), dtype=np.float64)
    keys[highest] = keys[highest] / 3 - 0.5
    return order[np.argsort(keys, kind="stable")]


def _divided(blocks: Lifetimes, walls: Sequence[Obstacle]) -> Ints:
    """Packs many blocks: at a moment when few live, those few are placed first, then both sides by themselves."""
    offsets = np.zeros(len(blocks), dtype=np.int64)
    _divide(blocks, np.arange(len(blocks), dtype=np.int64), np.empty(0, dtype=np.int64), offsets, walls)
    return offsets


def _divide(blocks: Lifetimes, rows: Ints, placed: Ints, offsets: Ints, walls: Sequence[Obstacle]) -> None:
    """Places ``rows`` beside the rows in ``placed``, whose offsets are known."""
    if len(rows) <= GREEDY_BLOCKS:
        _place_rows(blocks, rows, placed, offsets, walls)
        return
    cut = _quiet_moment(blocks, rows)
    starts, ends = blocks.starts[rows], blocks.ends[rows]
    crosses = ((starts < cut) & (ends > cut)) | (blocks.wrapped_ends[rows] > 0)
    _place_rows(blocks, rows[crosses], placed, offsets, walls)
    known = np.concatenate([placed, rows[crosses]])
    wraps = blocks.wrapped_ends[known]
    left, right = rows[~crosses & (ends <= cut)], rows[~crosses & (starts >= cut)]
    if len(right) == len(rows):
        # All begin at once; there is no moment to divide at.
        _place_rows(blocks, rows, placed, offsets, walls)
        return
    _divide(blocks, left, known[(blocks.starts[known] < cut) | (wraps > 0)], offsets, walls)
    _divide(blocks, right, known[(blocks.ends[known] > cut) | (wraps > cut)], offsets, walls)


def _quiet_moment(blocks: Lifetimes, rows: Ints) -> int:
    """Returns the time in the middle half at which the fewest of the blocks live."""
    starts, ends = np.sort(blocks.starts[rows]), np.sort(blocks.ends[rows])
    middle = np.unique(starts[len(starts) // 4 : -len(starts) // 4])
    live = np.searchsorted(starts, middle, side="left") - np.searchsorted(ends, middle, side="right")
    return int(middle[int(live.argmin())])


def _place_rows(blocks: Lifetimes, rows: Ints, placed: Ints, offsets: Ints, walls: Sequence[Obstacle]) -> None:
    """Places the largest of ``rows`` greedily, then the many small ones in one sweep above everything they meet."""
    order = rows[np.lexsort((blocks.starts[rows], -blocks.sizes[rows]))]
    large, small = order[:GREEDY_BLOCKS], order[GREEDY_BLOCKS:]
    board = _Board(2 * len(large), _rows_of(blocks, placed, offsets, walls))
    columns = (blocks.sizes, blocks.starts, blocks.ends, blocks.wrapped_ends)
    for row, *block in zip(large.tolist(), *(column[large].tolist() for column in columns), strict=True):
        offsets[row] = board.place(*block)
    if len(small) == 0:
        return
    known = np.concatenate([placed, large])
    highest = max((low + size for low, size in walls), default=0)
    floor = max(int((offsets[known] + blocks.sizes[known]).max(initial=0)), highest)
    offsets[small] = floor + sweep(blocks.select(small))


def sweep(blocks: Lifetimes) -> Ints:
    """Packs blocks in the order of their starts, each into the tightest gap of its moment; n log n.

    Worse than the greedy placement, for it looks neither at how long a block lives nor at what comes; it serves the
    many small blocks, and as the plain version that the others are compared with. Blocks that wrap are held all the
    time.
    """
    offsets = np.zeros(len(blocks), dtype=np.int64)
    arena = Gaps()
    wraps = blocks.wrapped_ends > 0
    for row in np.flatnonzero(wraps).tolist():
        offsets[row] = arena.take(int(blocks.sizes[row]))
    rows = np.flatnonzero(~wraps)
    times = np.concatenate([blocks.starts[rows], blocks.ends[rows]])
    begins = np.concatenate([np.ones(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)])
    for change in np.lexsort((begins, times)).tolist():
        row = int(rows[change % len(rows)])
        if begins[change]:
            offsets[row] = arena.take(int(blocks.sizes[row]))
        else:
            arena.give(int(offsets[row]), int(blocks.sizes[row]))
    return offsets
