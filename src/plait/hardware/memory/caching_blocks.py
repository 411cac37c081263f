"""Blocks, pools and rules of the model of PyTorch's caching allocator, by their names in its source."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

MIB = 1 << 20
MIN_BLOCK_BYTES = 512
SMALL_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_OWN_SEGMENT_BYTES = 10 * MIB
ROUND_LARGE_BYTES = 2 * MIB
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class CachingRules:
    """Settings as in ``PYTORCH_CUDA_ALLOC_CONF``; the defaults are PyTorch's.

    Attributes:
        expandable_segments: Grow one range a pool instead of taking segments.
        max_split_bytes: ``max_split_size_mb``: larger blocks are never split.
        max_non_split_rounding_bytes: How much larger than the request an unsplittable block may be.
        roundup_power2_divisions: Round sizes up to this many steps between powers of two; 0 is off.
        garbage_collection_ratio: ``garbage_collection_threshold`` of the capacity; 0 is off.
    """

    expandable_segments: bool = False
    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    roundup_power2_divisions: int = 0
    garbage_collection_ratio: float = 0.0

    def round_size(self, size_bytes: int) -> int:
        """Returns the bytes that a block for this request has at least (``round_size``)."""
        if size_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        divisions = self.roundup_power2_divisions
        if divisions > 1 and size_bytes > MIN_BLOCK_BYTES * divisions:
            return _round_to_power2_division(size_bytes, divisions)
        return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def segment_bytes(size_bytes: int) -> int:
    """Returns the bytes taken from the driver for a rounded request (``get_allocation_size``)."""
    if size_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def _round_to_power2_division(size: int, divisions: int) -> int:
    if size & (size - 1) == 0:
        return size
    step = (1 << (size.bit_length() - 1)) // divisions
    return -(-size // step) * step if step else size


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; neighbours are linked in the order of addresses."""

    address: int
    size: int
    pool: "BlockPool"
    stream: int
    allocated: bool = False
    mapped: bool = True
    previous: "Block | None" = None
    next: "Block | None" = None
    age: int = 0
    requested: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Order among the free blocks of one stream."""
        return (self.size, self.address)

    @property
    def is_whole_segment(self) -> bool:
        """Whether nothing was split off (``!is_split``)."""
        return self.previous is None and self.next is None


@dataclass(slots=True)
class BlockPool:
    """Free blocks for small requests, or for large ones."""

    is_small: bool
    # Free mapped blocks of each stream, by size and address; a mirror finds the block of a key.
    free: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    # Mapped and unmapped blocks of each stream's expandable range, the last one open.
    tails: dict[int, Block] = field(default_factory=dict)

    @property
    def granule(self) -> int:
        """Bytes that an expandable segment grows by."""
        return SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES

    def insert(self, block: Block) -> None:
        """Takes a free block in."""
        insort(self.free.setdefault(block.stream, []), block.key)
        self.blocks[block.address] = block

    def erase(self, block: Block) -> None:
        """Takes a free block out."""
        keys = self.free[block.stream]
        del keys[bisect_left(keys, block.key)]
        del self.blocks[block.address]


def head_of(block: Block) -> Block:
    """Returns the first block of a block's segment."""
    while block.previous is not None:
        block = block.previous
    return block


def link(first: Block | None, second: Block | None) -> None:
    """Makes two blocks neighbours."""
    if first is not None:
        first.next = second
    if second is not None:
        second.previous = first


def absorb(block: Block, following: Block) -> Block:
    """Joins a mapped block with the mapped one behind it, neither being in a pool."""
    block.size += following.size
    link(block, following.next)
    return block


def can_grow_to(block: Block) -> int:
    """Returns the size of a block with the unmapped range behind it."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def room_from(block: Block) -> int:
    """Returns the bytes from the free block before an unmapped one to the end of the free and unmapped run."""
    previous = block.previous
    room = previous.size if previous is not None and previous.mapped and not previous.allocated else 0
    current: Block | None = block
    while current is not None and not current.allocated:
        room += current.size
        current = current.next
    return room
