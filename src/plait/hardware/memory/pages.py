"""Pages of a device's memory under ranges of addresses: what is mapped, what is idle, what must be fetched.

An address range costs nothing until pages are put under it, and a page that nobody uses can be put under another range
(virtual memory management of CUDA, HIP and CANN; ``mmap`` on a host). So a hole between live blocks is no loss, once it
spans a page. Guo et al., "GMLake: efficient and transparent GPU memory defragmentation for large-scale DNN training
with virtual memory stitching", ASPLOS 2024, join holes so, too.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from plait.hardware.memory.gaps import Gaps


class Backing(Protocol):
    """Puts physical pages under a pool's addresses; a pool without one is a pure model.

    A page is taken from under a range only while no live block touches it. Work that a device has still queued on its
    old contents is the backing's to wait for.
    """

    def map(self, address: int, num_pages: int) -> None:
        """Puts pages under ``address``: pages that were unmapped before, or new ones."""

    def unmap(self, address: int, num_pages: int) -> None:
        """Takes the pages from under ``address`` and keeps them."""

    def release(self, num_pages: int) -> None:
        """Gives that many unmapped pages back to the device."""


class Area:
    """One range of addresses: its live blocks, its free gaps, and how many blocks touch each page.

    Attributes:
        base: First address; the offsets of all methods count from here.
    """

    def __init__(self, base: int, page_bytes: int, limit_bytes: int) -> None:
        self.base = base
        self._limit = limit_bytes
        self._page_bytes = page_bytes
        self._gaps = Gaps()
        self._mapped: NDArray[np.bool_] = np.zeros(64, dtype=np.bool_)
        self._users: NDArray[np.int32] = np.zeros(64, dtype=np.int32)

    def is_free(self, offset: int, size: int) -> bool:
        """Says whether this range is inside the area and no live block touches it."""
        return offset + size <= self._limit and self._gaps.holds(offset, size)

    def occupy(self, offset: int, size: int) -> None:
        """Takes exactly this range, which is free."""
        taken = self._gaps.take_at(offset, size)
        assert taken, f"range {offset}+{size} is in use"
        first, last = self.span(offset, size)
        self._users[first:last] += 1

    def vacate(self, offset: int, size: int) -> None:
        """Returns a range that was occupied."""
        self._gaps.give(offset, size)
        first, last = self.span(offset, size)
        self._users[first:last] -= 1

    def span(self, offset: int, size: int) -> tuple[int, int]:
        """Returns the pages that a range touches, as first and one past the last."""
        first, last = offset // self._page_bytes, -(-(offset + size) // self._page_bytes)
        if last > len(self._mapped):
            more = max(last, 2 * len(self._mapped)) - len(self._mapped)
            self._mapped = np.concatenate([self._mapped, np.zeros(more, dtype=np.bool_)])
            self._users = np.concatenate([self._users, np.zeros(more, dtype=np.int32)])
        return first, last

    def missing(self, offset: int, size: int) -> list[int]:
        """Returns the pages of a range that nothing is mapped under."""
        first, last = self.span(offset, size)
        return (first + np.flatnonzero(~self._mapped[first:last])).tolist()

    def idle(self) -> list[int]:
        """Returns the mapped pages that no live block touches."""
        return np.flatnonzero(self._mapped & (self._users == 0)).tolist()

    def set_mapped(self, pages: list[int], mapped: bool) -> None:
        """Takes note of pages mapped or unmapped."""
        self._mapped[pages] = mapped

    def find(self, size: int, candidates: int = 64) -> int | None:
        """Returns the offset for a block of which nothing is known: where the fewest idle pages come into use.

        Idle pages can be moved, so they are worth more than holes among live blocks. Of the places that are equal in
        this, the tightest is taken; ``None`` if no gap of the area is large enough.
        """
        best, fewest = None, 1 << 62
        for offset in self._gaps.fitting(size, candidates):
            if offset + size > self._limit:
                continue
            first, last = self.span(offset, size)
            woken = last - first - int(np.count_nonzero(self._users[first:last]))
            if woken < fewest:
                best, fewest = offset, woken
                if woken == 0:
                    break
        return best
