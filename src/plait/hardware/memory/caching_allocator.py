"""A replay model of PyTorch's caching allocator (``c10/cuda/CUDACachingAllocator.cpp``), the peer of the memory pool.

It follows the rules of the source, by their names there: sizes rounded to ``kMinBlockSize``; requests up to
``kSmallSize`` from small segments, others from large ones; the tightest free block of the stream, ties by address; the
rest split off where worth it; neighbours joined on free; with ``expandable_segments``, one address range a pool and
stream that is mapped in granules as it grows. The driver beneath is a counter of bytes with an optional capacity. Not
modelled: frees deferred by ``record_stream`` (a trace states when memory is free), graph pools, and fragmentation
inside the driver.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from plait.errors import PlaitError
from plait.hardware.memory.caching_blocks import (
    MIN_BLOCK_BYTES,
    ROUND_LARGE_BYTES,
    SMALL_BYTES,
    UNLIMITED,
    Block,
    BlockPool,
    CachingRules,
    absorb,
    can_grow_to,
    head_of,
    link,
    room_from,
    segment_bytes,
)
from plait.hardware.memory.trace import EventKind, MemoryTrace


class DeviceMemoryExhausted(PlaitError):
    """The device has no memory for a request, also after all cached memory was given back."""


class CachingAllocator:
    """Answers allocations as PyTorch's allocator would; addresses are made up, sizes are exact.

    Attributes:
        reserved_bytes: What is taken from the driver now; ``peak_reserved_bytes`` the most so far.
        allocated_bytes: Sum of the sizes of the blocks in use, as ``memory_allocated`` counts them.
        num_retries: Allocations that first had to give cached memory back.
    """

    def __init__(self, rules: CachingRules | None = None, capacity_bytes: int | None = None) -> None:
        self.rules = rules or CachingRules()
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.num_driver_calls = self.num_retries = 0
        self._pools = {True: BlockPool(is_small=True), False: BlockPool(is_small=False)}
        self._live: dict[int, Block] = {}
        self._next_address = 1 << 40

    def allocate(self, size_bytes: int, stream: int = 0) -> int:
        """Returns the address of a block for ``size_bytes``.

        Raises:
            DeviceMemoryExhausted: The capacity is used up, also after all retries.
        """
        size = self.rules.round_size(size_bytes)
        pool = self._pools[size <= SMALL_BYTES]
        block = self._find_free(pool, size, stream) or self._after_collection(pool, size, stream)
        if block is None:
            held = f"{self.allocated_bytes} allocated, {self.reserved_bytes} reserved of {self.capacity_bytes}"
            raise DeviceMemoryExhausted(f"no room for {size_bytes} bytes: {held}")
        self._split(block, size)
        block.allocated, block.requested = True, size_bytes
        self._live[block.address] = block
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block.address

    def free(self, address: int) -> None:
        """Returns the block at ``address`` to the cache; its free neighbours join it."""
        block = self._live.pop(address)
        block.allocated = False
        self.allocated_bytes -= block.size
        block.age = 0
        self._join_neighbours(block)
        block.pool.insert(block)

    def empty_cache(self) -> None:
        """Gives everything that is free and whole back to the driver (``release_cached_blocks``)."""
        for pool in self._pools.values():
            for block in list(pool.blocks.values()):
                if self.rules.expandable_segments:
                    self._unmap_free(block)
                elif block.is_whole_segment:
                    self._release(block)

    def segments(self) -> Iterator[tuple[int, int, list[tuple[int, int, bool]]]]:
        """Yields address and mapped size of each segment, with the (address, size, allocated) of its blocks."""
        blocks = {block.address: block for pool in self._pools.values() for block in pool.blocks.values()} | self._live
        heads = {id(head): head for head in (head_of(block) for block in blocks.values())}
        for head in heads.values():
            pieces = []
            block: Block | None = head
            while block is not None:
                if block.mapped:
                    pieces.append((block.address, block.size, block.allocated))
                block = block.next
            yield head.address, sum(size for _, size, _ in pieces), pieces

    def _after_collection(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        ratio = self.rules.garbage_collection_ratio
        if ratio > 0 and self.capacity_bytes is not None:
            self._collect_garbage(int(ratio * self.capacity_bytes), size)
        block = self._take_segment(pool, size, stream)
        if block is not None:
            return block
        self.num_retries += 1
        if self._release_oversized(size, stream):
            block = self._take_segment(pool, size, stream)
        if block is None:
            self.empty_cache()
            block = self._take_segment(pool, size, stream)
        return block

    def _find_free(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        if self.rules.garbage_collection_ratio > 0:
            for block in pool.blocks.values():
                block.age += 1
        keys = pool.free.get(stream, [])
        place = bisect_left(keys, (size, 0))
        if place == len(keys):
            return None
        block = pool.blocks[keys[place][1]]
        if self.rules.expandable_segments:
            # A block at the growing end counts with all that it can grow to, so inner ones are preferred.
            while place + 1 < len(keys):
                following = pool.blocks[keys[place + 1][1]]
                if can_grow_to(following) >= can_grow_to(block):
                    break
                block, place = following, place + 1
        limit = self.rules.max_split_bytes
        if size < limit <= block.size:
            return None
        if size >= limit and block.size >= size + self.rules.max_non_split_rounding_bytes:
            return None
        pool.erase(block)
        return block

    def _take_segment(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        if self.rules.expandable_segments:
            return self._grow(pool, size, stream)
        wanted = segment_bytes(size)
        if not self._reserve(wanted):
            return None
        block = Block(address=self._next_address, size=wanted, pool=pool, stream=stream)
        self._next_address += wanted + ROUND_LARGE_BYTES
        return block

    def _grow(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        """Maps granules behind the first range of the expandable segment that has room (``find_expandable_block``)."""
        unmapped = self._unmapped_with_room(pool, size, stream)
        first = unmapped.previous
        block = first if first is not None and first.mapped and not first.allocated else None
        missing = size - (block.size if block else 0)
        target: Block | None = unmapped
        if block is not None:
            pool.erase(block)
        while missing > 0:
            assert target is not None
            if target.mapped:
                # The free block behind an unmapped hole joins it.
                pool.erase(target)
                grown: Block | None = target
            else:
                grown = self._map(target, missing)
            if grown is None:
                if block is not None:
                    pool.insert(block)
                return None
            block = grown if block is None else absorb(block, grown)
            missing = size - block.size
            target = block.next
        assert block is not None
        # Mapping joins what lies behind as well.
        following = block.next
        if following is not None and following.mapped and not following.allocated:
            pool.erase(following)
            block = absorb(block, following)
        return block

    def _unmapped_with_room(self, pool: BlockPool, size: int, stream: int) -> Block:
        tail = pool.tails.get(stream)
        if tail is None:
            tail = Block(address=self._next_address, size=UNLIMITED, pool=pool, stream=stream, mapped=False)
            pool.tails[stream] = tail
            self._next_address += 1 << 44
        found, block = tail, tail.previous
        while block is not None:
            if not block.mapped and room_from(block) >= size:
                found = block
            block = block.previous
        return found

    def _map(self, target: Block, wanted: int) -> Block | None:
        """Maps the first granules of an unmapped block, as many as ``wanted`` bytes need; the rest stays unmapped."""
        granule = target.pool.granule
        length = min(-(-wanted // granule) * granule, target.size)
        if not self._reserve(length):
            return None
        if length == target.size:
            target.mapped = True
            return target
        block = Block(
            address=target.address,
            size=length,
            pool=target.pool,
            stream=target.stream,
            previous=target.previous,
            next=target,
        )
        if target.previous is not None:
            target.previous.next = block
        target.previous = block
        target.address += length
        if target.size < UNLIMITED:
            target.size -= length
        return block

    def _unmap_free(self, block: Block) -> None:
        """Gives the whole granules inside a free block back."""
        granule = block.pool.granule
        base = head_of(block).address
        low = base + -(-(block.address - base) // granule) * granule
        top = base + (block.address + block.size - base) // granule * granule
        if top <= low:
            return
        block.pool.erase(block)
        end = block.address + block.size
        if low > block.address:
            front = Block(address=block.address, size=low - block.address, pool=block.pool, stream=block.stream)
            link(block.previous, front)
            link(front, block)
            block.pool.insert(front)
        if end > top:
            back = Block(address=top, size=end - top, pool=block.pool, stream=block.stream)
            link(back, block.next)
            link(block, back)
            block.pool.insert(back)
        block.address, block.size, block.mapped = low, top - low, False
        self.reserved_bytes -= top - low

    def _split(self, block: Block, size: int) -> None:
        remaining = block.size - size
        if block.pool.is_small or self.rules.expandable_segments:
            splits = remaining >= MIN_BLOCK_BYTES
        else:
            splits = size < self.rules.max_split_bytes and remaining > SMALL_BYTES
        if not splits:
            return
        rest = Block(address=block.address + size, size=remaining, pool=block.pool, stream=block.stream)
        link(rest, block.next)
        link(block, rest)
        block.size = size
        block.pool.insert(rest)

    def _join_neighbours(self, block: Block) -> None:
        for neighbour in (block.previous, block.next):
            if neighbour is None or neighbour.allocated or not neighbour.mapped:
                continue
            block.pool.erase(neighbour)
            block.size += neighbour.size
            if neighbour is block.previous:
                block.address = neighbour.address
                link(neighbour.previous, block)
            else:
                link(block, neighbour.next)

    def _reserve(self, size: int) -> bool:
        if self.capacity_bytes is not None and self.reserved_bytes + size > self.capacity_bytes:
            return False
        self.num_driver_calls += 1
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _release(self, block: Block) -> None:
        block.pool.erase(block)
        self.reserved_bytes -= block.size

    def _release_oversized(self, size: int, stream: int) -> bool:
        """Gives back blocks too large to be split until the request fits (``release_available_cached_blocks``)."""
        limit = self.rules.max_split_bytes
        if limit >= UNLIMITED or self.rules.expandable_segments:
            return False
        wanted = max(size, limit)
        pool = self._pools[False]
        keys = pool.free.get(stream, [])
        place = bisect_left(keys, (wanted, 0))
        if place < len(keys):
            self._release(pool.blocks[keys[place][1]])
            return True
        released = 0
        while keys and released < wanted and keys[-1][0] >= limit:
            released += keys[-1][0]
            self._release(pool.blocks[keys[-1][1]])
        return released >= wanted

    def _collect_garbage(self, threshold: int, size: int) -> None:
        """Gives back whole free segments older than the average (``garbage_collect_cached_blocks``)."""
        if self.reserved_bytes <= threshold or self.rules.expandable_segments:
            return
        target = max(self.reserved_bytes - threshold, size)
        pool = self._pools[False]
        released = 0
        while released < target:
            whole = [block for block in pool.blocks.values() if block.is_whole_segment]
            if not whole:
                return
            average = sum(block.age for block in whole) / len(whole)
            for block in whole:
                if released < target and block.age >= average:
                    released += block.size
                    self._release(block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay of a trace came to; all in bytes, peaks over the whole trace."""

    reserved_bytes: int
    allocated_bytes: int
    live_bytes: int
    num_driver_calls: int

    @property
    def utilisation(self) -> float:
        """Peak of live bytes over the peak of reserved bytes."""
        return self.live_bytes / self.reserved_bytes if self.reserved_bytes else 1.0


def replay(trace: MemoryTrace, allocator: CachingAllocator | None = None) -> Replay:
    """Lets the model serve a whole trace; blocks of no bytes are served by no allocator and skipped.

    Raises:
        DeviceMemoryExhausted: The model's capacity does not suffice.
    """
    model = allocator or CachingAllocator()
    addresses: dict[int, int] = {}
    for event in trace:
        if event.kind is EventKind.STEP or event.size_bytes == 0:
            continue
        if event.kind is EventKind.ALLOCATE:
            addresses[event.block] = model.allocate(event.size_bytes, event.stream)
        else:
            model.free(addresses.pop(event.block))
    return Replay(
        reserved_bytes=model.peak_reserved_bytes,
        allocated_bytes=model.peak_allocated_bytes,
        live_bytes=trace.peak_live_bytes(),
        num_driver_calls=model.num_driver_calls,
    )
