"""What a pool knows of the steps it saw: the allocations of each, and the plan made from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from plait.hardware.memory.lifetimes import Lifetimes, make_lifetimes
from plait.hardware.memory.packing import ALIGNMENT_BYTES, Obstacle, pack
from plait.hardware.memory.trace import EventKind, MemoryTrace


@dataclass(slots=True)
class StepRecord:
    """The allocations of one step, in order; ``ends`` and ``wrapped_ends`` are -1 until the block is freed.

    Time counts allocations and frees within the step. ``missed_ratio`` is the share of the step's bytes that its
    plan did not place, ``None`` where there was no plan yet.
    """

    sizes: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    wrapped_ends: list[int] = field(default_factory=list)
    clock: int = 0
    signature: int = 0
    missed_ratio: float | None = None

    def add(self, size: int, stream: int) -> int:
        """Notes an allocation; returns its position."""
        self.sizes.append(size)
        self.streams.append(stream)
        self.starts.append(self.clock)
        self.ends.append(-1)
        self.wrapped_ends.append(-1)
        self.clock += 1
        self.signature = follow(self.signature, size, stream)
        return len(self.sizes) - 1

    def freed(self, position: int, present: "StepRecord", steps_later: int) -> None:
        """Notes a free that happens in ``present``, which is this step or a later one."""
        if steps_later == 0:
            self.ends[position] = present.clock
        elif steps_later == 1:
            self.wrapped_ends[position] = present.clock
        present.clock += 1

    def has(self, position: int, size: int) -> bool:
        """Whether the step allocated this size at this position."""
        return position < len(self.sizes) and self.sizes[position] == size

    def lifetimes(self) -> tuple[Lifetimes, list[int]]:
        """Returns the lifetimes of the blocks that were freed within this step or the next, and their positions."""
        positions = [
            position
            for position, (end, wrapped) in enumerate(zip(self.ends, self.wrapped_ends, strict=True))
            if end >= 0 or wrapped >= 0
        ]
        ends = [self.ends[position] if self.ends[position] >= 0 else self.clock for position in positions]
        # A block freed later in the next step than it was allocated in this one is alive all the time.
        wrapped = [
            min(self.wrapped_ends[position], self.starts[position]) if self.ends[position] < 0 else 0
            for position in positions
        ]
        return (
            make_lifetimes(
                np.array([self.sizes[position] for position in positions], dtype=np.int64),
                np.array([self.starts[position] for position in positions], dtype=np.int64),
                np.array(ends, dtype=np.int64),
                np.array(wrapped, dtype=np.int64),
            ),
            positions,
        )


def records_of(trace: MemoryTrace) -> list[tuple[StepRecord, list[tuple[int, int]]]]:
    """Returns the steps of a trace, each with the (size, stream) of the blocks that outlive the step after it.

    The last step is left out: when its last blocks are freed is not known.
    """
    found: list[tuple[StepRecord, list[tuple[int, int]]]] = []
    records = [StepRecord()]
    live: dict[int, tuple[int, int, int, int]] = {}
    for event in trace:
        record, step = records[-1], len(records) - 1
        if event.kind is EventKind.STEP:
            if step > 0:
                stays = [(size, stream) for born, _, size, stream in live.values() if born < step]
                found.append((records[step - 1], stays))
            records.append(StepRecord())
        elif event.size_bytes == 0:
            continue
        elif event.kind is EventKind.ALLOCATE:
            live[event.block] = (step, record.add(event.size_bytes, event.stream), event.size_bytes, event.stream)
        else:
            born, position, _, _ = live.pop(event.block)
            records[born].freed(position, record, step - born)
    return found


def follow(signature: int, size: int, stream: int) -> int:
    """Returns the signature of a sequence of allocations after one more."""
    return hash((signature, size, stream))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Where each allocation of a step goes.

    Attributes:
        signature: Of the whole sequence of allocations.
        prefixes: Signature of the sequence after each allocation.
        sizes: Requested bytes of each allocation.
        areas: Area of each allocation's place, -1 where the plan leaves it to the moment (blocks that stay).
        offsets: Place within the area.
        height_bytes: Sum of the heights of the areas' packings.
        reason: How the packing came about.
    """

    signature: int
    prefixes: list[int]
    sizes: list[int]
    areas: list[int]
    offsets: list[int]
    height_bytes: int
    reason: str


def plan_step(
    record: StepRecord,
    area_of: Callable[[int, int], int],
    obstacles: Mapping[int, Sequence[Obstacle]],
    alignment_bytes: int = ALIGNMENT_BYTES,
) -> StepPlan:
    """Packs the blocks of a step, each area by itself.

    Args:
        record: A step whose frees are known, those of the next step included.
        area_of: Gives the area for a size and a stream.
        obstacles: Of each area, the ranges of blocks that stay.
        alignment_bytes: Every offset is a multiple of it.
    """
    lifetimes, positions = record.lifetimes()
    areas, offsets = [-1] * len(record.sizes), [0] * len(record.sizes)
    rows_of: dict[int, list[int]] = {}
    for row, position in enumerate(positions):
        areas[position] = area_of(record.sizes[position], record.streams[position])
        rows_of.setdefault(areas[position], []).append(row)
    height, reasons = 0, []
    for area, rows in sorted(rows_of.items()):
        part = lifetimes.select(np.array(rows, dtype=np.int64))
        packing = pack(part, obstacles=obstacles.get(area, ()), alignment_bytes=alignment_bytes)
        for row, offset in zip(rows, packing.offsets.tolist(), strict=True):
            offsets[positions[row]] = offset
        height += packing.height_bytes
        excess = packing.height_bytes / packing.lower_bound_bytes - 1 if packing.lower_bound_bytes else 0.0
        noun = "block" if len(rows) == 1 else "blocks"
        reasons.append(f"{len(rows)} {noun} within {excess:.1%} of the least possible ({packing.reason})")
    prefixes, signature = [], 0
    for size, stream in zip(record.sizes, record.streams, strict=True):
        signature = follow(signature, size, stream)
        prefixes.append(signature)
    return StepPlan(
        signature=record.signature,
        prefixes=prefixes,
        sizes=list(record.sizes),
        areas=areas,
        offsets=offsets,
        height_bytes=height,
        reason="; ".join(reasons),
    )
