"""What a program allocated and freed, in order: the input of plans, replays and comparisons.

A trace is four parallel arrays. Allocations and frees name a *block*, a number that is used once; step marks say where
a training step ends. Sizes are the bytes that the program asked for, before any allocator rounds them.
"""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plait.errors import PlaitError

Ints = NDArray[np.int64]

FORMAT = "plait-memory-trace"
FORMAT_VERSION = 1


class TraceUnreadable(PlaitError):
    """A file is no memory trace, or its events contradict one another."""


class EventKind(IntEnum):
    """What happened at one place of a trace."""

    ALLOCATE = 0
    FREE = 1
    STEP = 2


@dataclass(frozen=True, slots=True)
class Event:
    """One allocation or free, or the end of a step (whose ``block`` is -1 and ``size_bytes`` 0)."""

    kind: EventKind
    block: int
    size_bytes: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """Allocations and frees of one device in the order in which they happened.

    Attributes:
        kinds: ``EventKind`` of each event, uint8.
        blocks: The block that each event is about, -1 at step marks.
        sizes: Requested bytes, of a free those of its allocation, 0 at step marks.
        streams: Number of the stream that the block belongs to.
        origin: Where the trace comes from, for people.
        notes: What a reader had to leave out, one sentence each.
    """

    kinds: NDArray[np.uint8]
    blocks: Ints
    sizes: Ints
    streams: Ints
    origin: str = ""
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[Event]:
        kinds = [EventKind(kind) for kind in EventKind]
        columns = (self.kinds.tolist(), self.blocks.tolist(), self.sizes.tolist(), self.streams.tolist())
        for kind, block, size, stream in zip(*columns, strict=True):
            yield Event(kinds[kind], block, size, stream)

    @property
    def num_steps(self) -> int:
        """Number of step marks."""
        return int(np.count_nonzero(self.kinds == EventKind.STEP))

    def live_bytes(self) -> Ints:
        """Returns the requested bytes that are live after each event."""
        return np.cumsum(np.where(self.kinds == EventKind.ALLOCATE, self.sizes, -self.sizes))

    def peak_live_bytes(self) -> int:
        """Returns the largest sum of requested bytes that was live at one time."""
        return int(self.live_bytes().max(initial=0))

    def validate(self) -> None:
        """Checks that every block is allocated once and freed at most once, after that, with the same size.

        Raises:
            TraceUnreadable: An event contradicts an earlier one; the message names the event.
        """
        live: dict[int, tuple[int, int]] = {}
        seen: set[int] = set()
        for position, event in enumerate(self):
            if event.kind is EventKind.STEP:
                continue
            if event.kind is EventKind.ALLOCATE:
                if event.block in seen:
                    raise TraceUnreadable(f"event {position} allocates block {event.block} a second time")
                if event.size_bytes < 0:
                    raise TraceUnreadable(f"event {position} allocates {event.size_bytes} bytes")
                seen.add(event.block)
                live[event.block] = (event.size_bytes, event.stream)
            elif live.pop(event.block, None) != (event.size_bytes, event.stream):
                raise TraceUnreadable(
                    f"event {position} frees block {event.block} ({event.size_bytes} bytes), which is not live so"
                )


class TraceBuilder:
    """Collects events one by one; sizes of frees are filled in from their allocations."""

    def __init__(self, origin: str = "") -> None:
        self._origin = origin
        self._events: list[tuple[int, int, int, int]] = []
        self._live: dict[int, tuple[int, int]] = {}
        self._next = 0

    def allocate(self, size_bytes: int, stream: int = 0) -> int:
        """Adds an allocation; returns its block."""
        block = self._next
        self._next += 1
        self._live[block] = (size_bytes, stream)
        self._events.append((EventKind.ALLOCATE, block, size_bytes, stream))
        return block

    def free(self, block: int) -> None:
        """Adds the free of ``block``; a second one is a programmer's error."""
        size, stream = self._live.pop(block)
        self._events.append((EventKind.FREE, block, size, stream))

    def end_step(self) -> None:
        """Adds the mark that one training step has ended."""
        self._events.append((EventKind.STEP, -1, 0, 0))

    def build(self, notes: tuple[str, ...] = ()) -> MemoryTrace:
        """Returns the trace so far; the builder may go on."""
        table = np.array(self._events, dtype=np.int64).reshape(-1, 4)
        return MemoryTrace(
            kinds=table[:, 0].astype(np.uint8),
            blocks=table[:, 1].copy(),
            sizes=table[:, 2].copy(),
            streams=table[:, 3].copy(),
            origin=self._origin,
            notes=notes,
        )


def write_trace(trace: MemoryTrace, path: Path) -> None:
    """Writes ``trace`` to ``path``: compressed arrays in one archive, about two bytes an event."""
    header = {"format": FORMAT, "version": FORMAT_VERSION, "origin": trace.origin, "notes": list(trace.notes)}
    with path.open("wb") as file:
        np.savez_compressed(
            file,
            header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
            kinds=trace.kinds,
            # Blocks and sizes repeat from step to step once the running number is taken out, and then compress well.
            blocks=np.diff(trace.blocks, prepend=0),
            sizes=trace.sizes,
            streams=trace.streams.astype(np.int32),
        )


def read_trace(path: Path) -> MemoryTrace:
    """Reads what :func:`write_trace` wrote, and checks it.

    Raises:
        TraceUnreadable: The file is missing, of another kind or version, or its events contradict one another.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            if header.get("format") != FORMAT or header.get("version") != FORMAT_VERSION:
                raise TraceUnreadable(f"{path} is {header.get('format')} version {header.get('version')}, not a trace")
            trace = MemoryTrace(
                kinds=archive["kinds"].astype(np.uint8),
                blocks=np.cumsum(archive["blocks"], dtype=np.int64),
                sizes=archive["sizes"].astype(np.int64),
                streams=archive["streams"].astype(np.int64),
                origin=str(header["origin"]),
                notes=tuple(str(note) for note in header["notes"]),
            )
    except (OSError, ValueError, KeyError, AttributeError, EOFError, zipfile.BadZipFile) as problem:
        raise TraceUnreadable(f"{path} is not a memory trace: {problem}") from problem
    if len({len(trace.kinds), len(trace.blocks), len(trace.sizes), len(trace.streams)}) != 1:
        raise TraceUnreadable(f"{path} is not a memory trace: its columns differ in length")
    if trace.kinds.max(initial=0) > max(EventKind):
        raise TraceUnreadable(f"{path} holds an event of unknown kind {trace.kinds.max()}")
    trace.validate()
    return trace
