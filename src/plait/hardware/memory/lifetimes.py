"""From events to lifetimes: how long each block lives, as intervals of event numbers."""

from dataclasses import dataclass

import numpy as np

from plait.hardware.memory.trace import EventKind, Ints, MemoryTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Blocks with the half-open intervals ``[starts, ends)`` in which they live; one row a block.

    In a repeating step a block can outlive the step's end and be freed in the next one. Time then runs in a circle, and
    such a block has a second interval ``[0, wrapped_ends)``; the others have ``wrapped_ends`` 0.
    """

    sizes: Ints
    starts: Ints
    ends: Ints
    wrapped_ends: Ints

    def __len__(self) -> int:
        return len(self.sizes)

    def select(self, rows: Ints) -> "Lifetimes":
        """Returns the given rows, in that order."""
        return Lifetimes(
            sizes=self.sizes[rows],
            starts=self.starts[rows],
            ends=self.ends[rows],
            wrapped_ends=self.wrapped_ends[rows],
        )

    def rounded(self, alignment_bytes: int) -> "Lifetimes":
        """Returns the same blocks with their sizes rounded up to a multiple of ``alignment_bytes``."""
        sizes = np.maximum(-(-self.sizes // alignment_bytes), 1) * alignment_bytes
        return Lifetimes(sizes=sizes, starts=self.starts, ends=self.ends, wrapped_ends=self.wrapped_ends)

    def peak_bytes(self) -> int:
        """Returns the most bytes that live at one time: no packing can be lower."""
        times = np.concatenate([self.starts, self.ends, np.zeros_like(self.starts), self.wrapped_ends])
        wraps = np.where(self.wrapped_ends > 0, self.sizes, 0)
        changes = np.concatenate([self.sizes, -self.sizes, wraps, -wraps])
        # At equal times, frees come first: an interval does not include its end.
        order = np.lexsort((changes, times))
        return int(np.cumsum(changes[order]).max(initial=0))


def make_lifetimes(sizes: Ints, starts: Ints, ends: Ints, wrapped_ends: Ints | None = None) -> Lifetimes:
    """Returns lifetimes from arrays; ``wrapped_ends`` defaults to no block crossing the end of the step."""
    wrapped = np.zeros_like(starts) if wrapped_ends is None else wrapped_ends
    return Lifetimes(sizes=sizes, starts=starts, ends=ends, wrapped_ends=wrapped)


def lifetimes_of(trace: MemoryTrace) -> tuple[Lifetimes, Ints]:
    """Returns the lifetimes of a whole trace and the block of each row; what is never freed lives until the end."""
    positions = np.arange(len(trace), dtype=np.int64)
    allocates = trace.kinds == EventKind.ALLOCATE
    frees = trace.kinds == EventKind.FREE
    blocks = trace.blocks[allocates]
    order = np.argsort(blocks, kind="stable")
    ends = np.full(len(blocks), len(trace), dtype=np.int64)
    ends[order[np.searchsorted(blocks[order], trace.blocks[frees])]] = positions[frees]
    return make_lifetimes(trace.sizes[allocates], positions[allocates], ends), blocks
