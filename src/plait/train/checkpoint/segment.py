"""A segment of shared memory with slots, readable by other processes even after its writer has died.

The segment is an anonymous memory file (``memfd``): it has no name in any file system that could leak, it is not
bounded by the size of ``/dev/shm``, and it lives as long as one process holds it. Layout, in pages::

    header | slot 0: record, index, data | slot 1: record, index, data | ...

A slot's record carries a sequence number which is odd while the slot is being written. Whoever finds it even, with the
record's own hash right, and finds it unchanged after having read the slot, has read one whole snapshot.
"""

import contextlib
import errno
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Self

import xxhash

from plait.errors import PlaitError

PAGE_BYTES = 4096
MAGIC = b"PLAITSEG"
_HEADER = struct.Struct("<8sIIQQ")  # magic, version, slots, index_bytes, data_bytes
_RECORD = struct.Struct("<QqqQQ16s")  # sequence, step, generation, index_bytes, data_bytes, hash of the index
_HASH = struct.Struct("<16s")
_VERSION = 1
_MADV_POPULATE_WRITE = 23
_POPULATE_BYTES = 32 * 2**20


class SegmentUnusable(PlaitError):
    """The shared memory cannot be had, or is not a segment of this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord:
    """What a complete slot holds. ``sequence`` changes with every write."""

    sequence: int
    step: int
    generation: int
    index_bytes: int
    data_bytes: int
    index_hash: bytes


def pages(num_bytes: int) -> int:
    """Returns ``num_bytes`` rounded up to whole pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


class Segment:
    """Slots in shared memory; one process writes, others read."""

    def __init__(self, descriptor: int, *, num_slots: int, index_bytes: int, data_bytes: int) -> None:
        """Maps the memory; use :meth:`create` or :meth:`attach`."""
        self.descriptor = descriptor
        self.num_slots = num_slots
        self.index_capacity_bytes = index_bytes
        self.data_capacity_bytes = data_bytes
        self._slot_bytes = PAGE_BYTES + index_bytes + data_bytes
        self.memory = mmap.mmap(descriptor, PAGE_BYTES + num_slots * self._slot_bytes)
        self._view = memoryview(self.memory)

    @classmethod
    def create(cls, name: str, *, num_slots: int, index_bytes: int, data_bytes: int) -> Self:
        """Makes a segment whose pages are all there already, so that no later copy pays for page faults.

        Args:
            name: Shown by the kernel in ``/proc/PID/maps``; need not be unique.
            num_slots: Snapshots that fit side by side.
            index_bytes: Room for the index of a slot.
            data_bytes: Room for the data of a slot.

        Raises:
            SegmentUnusable: There is not that much memory.
        """
        index_bytes, data_bytes = pages(index_bytes), pages(data_bytes)
        total = PAGE_BYTES + num_slots * (PAGE_BYTES + index_bytes + data_bytes)
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, total)
            os.posix_fallocate(descriptor, 0, total)  # a lack of memory is an error here, not a SIGBUS later
            segment = cls(descriptor, num_slots=num_slots, index_bytes=index_bytes, data_bytes=data_bytes)
        except OSError as error:
            os.close(descriptor)
            raise SegmentUnusable(f"{total} bytes of shared memory cannot be had: {error.strerror}") from error
        segment._fault_in()
        _HEADER.pack_into(segment.memory, 0, MAGIC, _VERSION, num_slots, index_bytes, data_bytes)
        return segment

    @classmethod
    def attach(cls, descriptor: int) -> Self:
        """Maps a segment that another process has made; takes the descriptor over.

        Raises:
            SegmentUnusable: It is not a segment of this version.
        """
        try:
            head = os.pread(descriptor, _HEADER.size, 0)
            magic, version, slots, index_bytes, data_bytes = _HEADER.unpack(head)
            total = PAGE_BYTES + slots * (PAGE_BYTES + index_bytes + data_bytes)
            if (magic, version) != (MAGIC, _VERSION) or os.fstat(descriptor).st_size != total:
                raise SegmentUnusable(f"this memory begins with {head[:12]!r} and is no segment of version {_VERSION}")
            return cls(descriptor, num_slots=slots, index_bytes=index_bytes, data_bytes=data_bytes)
        except (OSError, struct.error) as error:
            raise SegmentUnusable(f"this memory cannot be read as a segment: {error}") from error

    def _fault_in(self) -> None:
        try:
            for first in range(0, len(self.memory), _POPULATE_BYTES):  # in parts, as the call keeps other threads out
                self.memory.madvise(_MADV_POPULATE_WRITE, first, min(_POPULATE_BYTES, len(self.memory) - first))
        except OSError as error:  # kernels before 5.14
            if error.errno != errno.EINVAL:
                raise
            for page in range(0, len(self.memory), PAGE_BYTES):
                self.memory[page] = 0

    def _at(self, slot: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"slot {slot} of {self.num_slots}")
        return PAGE_BYTES + slot * self._slot_bytes

    def data(self, slot: int) -> memoryview:
        """Returns the data of a slot, page-aligned and whole pages long."""
        first = self._at(slot) + PAGE_BYTES + self.index_capacity_bytes
        return self._view[first : first + self.data_capacity_bytes]

    def index(self, slot: int, num_bytes: int) -> bytes:
        """Returns the first bytes of a slot's index."""
        first = self._at(slot) + PAGE_BYTES
        return bytes(self._view[first : first + num_bytes])

    def begin(self, slot: int) -> None:
        """Marks a slot as being written; whatever it held counts no more."""
        at = self._at(slot)
        (sequence,) = struct.unpack_from("<Q", self.memory, at)
        struct.pack_into("<Q", self.memory, at, sequence | 1)

    def complete(self, slot: int, *, step: int, generation: int, index: bytes, data_bytes: int) -> SlotRecord:
        """Marks a slot as whole, with this index; call :meth:`begin` before its data is touched.

        Raises:
            SegmentUnusable: The index or the data is larger than its room.
        """
        if len(index) > self.index_capacity_bytes or data_bytes > self.data_capacity_bytes:
            raise SegmentUnusable(
                f"{len(index)} and {data_bytes} bytes do not fit into {self.index_capacity_bytes} and "
                f"{self.data_capacity_bytes}"
            )
        at = self._at(slot)
        (sequence,) = struct.unpack_from("<Q", self.memory, at)
        self._view[at + PAGE_BYTES : at + PAGE_BYTES + len(index)] = index
        record = SlotRecord(
            sequence=(sequence | 1) + 1,
            step=step,
            generation=generation,
            index_bytes=len(index),
            data_bytes=data_bytes,
            index_hash=xxhash.xxh3_128_digest(index),
        )
        packed = _packed(record)
        # The sequence number is the last to be written: until then the slot reads as being written.
        self._view[at + 8 : at + len(packed)] = packed[8:]
        struct.pack_into("<Q", self.memory, at, record.sequence)
        return record

    def record(self, slot: int) -> SlotRecord | None:
        """Returns what a slot holds, None while it is empty, being written, or torn."""
        at = self._at(slot)
        raw = bytes(self._view[at : at + _RECORD.size + _HASH.size])
        sequence, step, generation, index_bytes, data_bytes, index_hash = _RECORD.unpack_from(raw)
        if sequence == 0 or sequence % 2 or index_bytes > self.index_capacity_bytes:
            return None
        found = SlotRecord(
            sequence=sequence,
            step=step,
            generation=generation,
            index_bytes=index_bytes,
            data_bytes=data_bytes,
            index_hash=index_hash,
        )
        if _packed(found) != raw or xxhash.xxh3_128_digest(self.index(slot, index_bytes)) != index_hash:
            return None
        return found

    def newest(self) -> int | None:
        """Returns the complete slot with the highest (generation, step), None where there is none."""
        whole = [(r.generation, r.step, i) for i in range(self.num_slots) if (r := self.record(i)) is not None]
        return max(whole)[2] if whole else None

    def close(self) -> None:
        """Lets go of the memory; it is freed once no process holds it."""
        self._view.release()
        with contextlib.suppress(BufferError):  # views that are still in use keep the mapping until they go
            self.memory.close()
        os.close(self.descriptor)


def _packed(record: SlotRecord) -> bytes:
    body = _RECORD.pack(
        record.sequence, record.step, record.generation, record.index_bytes, record.data_bytes, record.index_hash
    )
    return body + _HASH.pack(xxhash.xxh3_128_digest(body))
