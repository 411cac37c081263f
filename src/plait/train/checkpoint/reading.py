"""Ranges of a checkpoint's file: cut into requests, several of which are on their way, verified as they come."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise

from plait.train.checkpoint.blocks import BlockTable
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.stores import Buffer, Fill

READ_BYTES = 8 * 2**20
"""The most that one request asks for; a multiple of every size of blocks."""

_BATCH_BYTES = 16 * 2**20
_READERS = 6
_STRIDE_BYTES = 2**20
"""How much is verified and then handed on while the processor's cache still holds it."""

Range = tuple[int, int]
Take = Callable[[int, Buffer], None]
Place = Callable[[int, int], list[memoryview]]
OpenRange = Callable[[int, int], AbstractContextManager[Fill]]
Again = Callable[[Callable[[], int]], int]


def joined(ranges: Sequence[Range]) -> list[Range]:
    """Returns the union of ranges, sorted, with those that touch made one."""
    found: list[Range] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return found


def batches(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Cuts ranges into requests of at most 8 MiB and puts as many together as make 16 MiB."""
    batch: list[Range] = []
    size = 0
    for first, end in ranges:
        # Cut at multiples of 8 MiB of the file, so that every piece begins with a block.
        cuts = [first, *range((first // READ_BYTES + 1) * READ_BYTES, end, READ_BYTES), end]
        for start, stop in pairwise(cuts):
            batch.append((start, stop))
            size += stop - start
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def read_verified(
    table: BlockTable, ranges: Sequence[Range], fetch: Callable[[list[Range]], list[Buffer]], take: Take, what: str
) -> int:
    """Reads the blocks around ranges; returns the bytes read.

    Args:
        table: Hashes of the file's blocks.
        ranges: Bytes wanted, ``[first, end)``.
        fetch: Returns the bytes of ranges of the file; is called from several threads.
        take: Is given verified stretches by their offset, from several threads and in any order; no two overlap, and
            together they cover all ranges.
        what: The file's name, for messages.

    Raises:
        CheckpointDamaged: Some block is not as it was written, or missing.
    """
    wanted = list(batches(joined([table.around(first, end) for first, end in ranges if end > first])))

    def read(batch: list[Range]) -> int:
        for part, (first, end) in zip(fetch(batch), batch, strict=True):
            if len(part) != end - first:
                raise CheckpointDamaged(f"{what} ends before byte {end}")
            _hand_over(table, memoryview(part), first, take, what)
        return sum(end - first for first, end in batch)

    if len(wanted) < 2:
        return sum(map(read, wanted))
    with ThreadPoolExecutor(max_workers=min(_READERS, len(wanted))) as readers:
        coming = [readers.submit(read, batch) for batch in wanted]
        try:
            return sum(one.result() for one in coming)
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise


def read_into(table: BlockTable, place: Place, open_range: OpenRange, again: Again, what: str) -> int:
    """Reads a whole file into memory that is there, verified; returns the bytes read.

    After an error the memory holds anything.

    Args:
        table: Hashes of the file's blocks.
        place: Returns where the bytes ``[first, end)`` of the file are to go, as consecutive pieces of memory.
        open_range: Opens a range of the file; is called from several threads.
        again: Calls a function again for as long as that may help.
        what: The file's name, for messages.

    Raises:
        CheckpointDamaged: Some block is not as it was written, or missing.
    """
    ranges = [pair for batch in batches([(0, table.file_bytes)]) for pair in batch]
    stride = max(_STRIDE_BYTES, table.block_bytes)

    def read(first: int, end: int) -> int:
        with open_range(first, end) as fill:
            for at in range(first, end, stride):
                pieces = place(at, min(at + stride, end))
                for piece in pieces:
                    fill(piece)
                table.check_pieces(pieces, at, what)
        return end - first

    if len(ranges) < 2:
        return sum(again(partial(read, first, end)) for first, end in ranges)
    with ThreadPoolExecutor(max_workers=min(_READERS, len(ranges))) as readers:
        coming = [readers.submit(again, partial(read, first, end)) for first, end in ranges]
        try:
            return sum(one.result() for one in coming)
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise


def _hand_over(table: BlockTable, view: memoryview, first: int, take: Take, what: str) -> None:
    """Verifies whole blocks that begin at ``first`` and gives them to ``take`` while they are in the cache.

    Raises:
        CheckpointDamaged: A block is not the one that was written.
    """
    stride = max(_STRIDE_BYTES, table.block_bytes)
    for at in range(0, len(view), stride):
        table.check(view[at : at + stride], first + at, what)
        take(first + at, view[at : at + stride])
