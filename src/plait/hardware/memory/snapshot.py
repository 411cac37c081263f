"""Reads the memory snapshots that PyTorch dumps for CUDA and its relatives (``torch.cuda.memory._dump_snapshot``).

A snapshot is a pickle of plain lists and dictionaries. It is read by an unpickler that knows no class at all, so a
hostile file can be refused but not run. The same structure as JSON is read too.
"""

import io
import json
import pickle  # read through an unpickler that resolves no global
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.hardware.memory.trace import MemoryTrace, TraceBuilder, TraceUnreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One device of a recorded snapshot.

    Attributes:
        trace: Its allocations and frees; a block's memory counts as free from ``free_completed`` on.
        recorded_reserved_peak_bytes: Most bytes that the recorded allocator had taken from the driver since recording
            began, ``None`` where the dump holds no segment event.
    """

    trace: MemoryTrace
    recorded_reserved_peak_bytes: int | None


def read_snapshot(path: Path, device: int = 0) -> Snapshot:
    """Reads one device of a snapshot (pickle or JSON).

    Frees of blocks that were allocated before recording began cannot be replayed: they are left out, and
    ``trace.notes`` counts them.

    Raises:
        TraceUnreadable: The file is no snapshot, has no such device, or would need a class to be read.
    """
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise TraceUnreadable(f"{path} cannot be read: {problem}") from problem
    document = _parse(content, path)
    traces = document.get("device_traces") if isinstance(document, dict) else None
    if not isinstance(traces, list):
        raise TraceUnreadable(f"{path} holds no device_traces: record with torch.cuda.memory._record_memory_history()")
    if not 0 <= device < len(traces):
        raise TraceUnreadable(f"{path} holds {len(traces)} devices, none with number {device}")
    try:
        return _convert(traces[device], str(path))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise TraceUnreadable(f"{path} holds an entry of another shape: {problem!r}") from problem


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise TraceUnreadable(f"the snapshot asks for {module}.{name}; only plain lists and dictionaries are read")


def _parse(content: bytes, path: Path) -> Any:
    try:
        if content[:1] in (b"{", b"["):
            return json.loads(content)
        return _PlainUnpickler(io.BytesIO(content)).load()
    except TraceUnreadable as problem:
        raise TraceUnreadable(f"{path}: {problem}") from problem
    except Exception as problem:
        # A damaged pickle raises nearly anything, MemoryError and struct.error among them.
        raise TraceUnreadable(f"{path} is neither a pickle nor JSON: {problem!r}") from problem


def _convert(entries: Any, origin: str) -> Snapshot:
    builder = TraceBuilder(origin)
    live: dict[int, int] = {}
    streams: dict[int, int] = {}
    unknown_frees = 0
    reserved = peak = 0
    has_segments = False
    for entry in entries:
        action, address, size = entry["action"], int(entry.get("addr", 0)), int(entry.get("size", 0))
        if action == "alloc":
            if address in live:
                # The ring of entries dropped the free in between; the memory was free, or it could not be given again.
                builder.free(live.pop(address))
            live[address] = builder.allocate(size, streams.setdefault(int(entry["stream"]), len(streams)))
        elif action == "free_completed":
            block = live.pop(address, None)
            if block is None:
                unknown_frees += 1
            else:
                builder.free(block)
        elif action in ("segment_alloc", "segment_map"):
            has_segments = True
            reserved += size
            peak = max(peak, reserved)
        elif action in ("segment_free", "segment_unmap"):
            has_segments = True
            reserved -= size
    notes = (f"{unknown_frees} frees of blocks older than the recording are left out",) if unknown_frees else ()
    return Snapshot(trace=builder.build(notes), recorded_reserved_peak_bytes=peak if has_segments else None)
