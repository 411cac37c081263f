"""Hashes of the blocks of a file: any part can be read alone and still be verified."""

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from plait.train.checkpoint.checkpointer import CheckpointDamaged

HASH_BYTES = 16
SMALLEST_BLOCK_BYTES = 64 * 1024
LARGEST_BLOCK_BYTES = 4 * 2**20
_USUAL_BLOCKS = 16384


def block_bytes_for(file_bytes: int) -> int:
    """Returns the size of blocks: 64 KiB, and for files above 1 GiB as much as keeps the table near 256 KiB."""
    size = SMALLEST_BLOCK_BYTES
    while size < LARGEST_BLOCK_BYTES and file_bytes > size * _USUAL_BLOCKS:
        size *= 2
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """xxh3-128 of each block of a file, joined; the last block may be shorter."""

    block_bytes: int
    file_bytes: int
    hashes: bytes

    def __post_init__(self) -> None:
        """Refuses a table that cannot belong to such a file."""
        if self.block_bytes < 1 or len(self.hashes) != HASH_BYTES * self.num_blocks:
            raise CheckpointDamaged(
                f"{len(self.hashes)} bytes of hashes do not cover {self.file_bytes} bytes by {self.block_bytes}"
            )

    @property
    def num_blocks(self) -> int:
        """Blocks of the file."""
        return -(-self.file_bytes // self.block_bytes)

    def around(self, first: int, end: int) -> tuple[int, int]:
        """Returns the smallest range of whole blocks that covers ``[first, end)``."""
        size = self.block_bytes
        return first // size * size, min(-(-end // size) * size, self.file_bytes)

    def check(self, data: memoryview | bytes, first: int, what: str) -> None:
        """Verifies whole blocks that were read from ``first`` on.

        Raises:
            CheckpointDamaged: A block is not the one that was written; the message names its offset in ``what``.
        """
        view, size = memoryview(data), self.block_bytes
        for at in range(0, len(view), size):
            number = (first + at) // size
            wanted = self.hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES]
            if xxhash.xxh3_128_digest(view[at : at + size]) != wanted:
                raise CheckpointDamaged(f"{what} does not have the bytes that were written at offset {first + at}")

    def check_pieces(self, pieces: Sequence[memoryview], first: int, what: str) -> None:
        """Verifies whole blocks that begin at ``first`` and lie in consecutive pieces of memory.

        Raises:
            CheckpointDamaged: A block is not the one that was written.
        """
        hasher = BlockHasher(sum(map(len, pieces)), self.block_bytes)
        for piece in pieces:
            hasher.update(piece)
        found, start = hasher.table().hashes, first // self.block_bytes * HASH_BYTES
        wanted = self.hashes[start : start + len(found)]
        if found != wanted:
            bad = next(
                n for n in range(0, len(found), HASH_BYTES) if found[n : n + HASH_BYTES] != wanted[n : n + HASH_BYTES]
            )
            at = first + bad // HASH_BYTES * self.block_bytes
            raise CheckpointDamaged(f"{what} does not have the bytes that were written at offset {at}")


class BlockHasher:
    """Builds a table from the bytes of a file, given in order."""

    def __init__(self, file_bytes: int, block_bytes: int | None = None) -> None:
        """Expects ``file_bytes`` bytes in all."""
        self.file_bytes = file_bytes
        self.block_bytes = block_bytes or block_bytes_for(file_bytes)
        self._hashes = bytearray()
        self._part: xxhash.xxh3_128 | None = None
        self._part_bytes = 0

    def update(self, data: memoryview | bytes | bytearray) -> None:
        """Takes the next bytes."""
        view, size = memoryview(data), self.block_bytes
        at = 0
        if self._part is not None:
            at = min(size - self._part_bytes, len(view))
            self._part.update(view[:at])
            self._part_bytes += at
            if self._part_bytes == size:
                self._hashes += self._part.digest()
                self._part = None
        digest = xxhash.xxh3_128_digest
        while len(view) - at >= size:
            self._hashes += digest(view[at : at + size])
            at += size
        if at < len(view):
            self._part, self._part_bytes = xxhash.xxh3_128(view[at:]), len(view) - at

    def table(self) -> BlockTable:
        """Returns the table once all bytes were given."""
        if self._part is not None:
            self._hashes += self._part.digest()
            self._part = None
        return BlockTable(block_bytes=self.block_bytes, file_bytes=self.file_bytes, hashes=bytes(self._hashes))
