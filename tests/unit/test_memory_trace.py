"""Traces: building, checking, files, and what is refused."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from plait.hardware.memory.lifetimes import lifetimes_of, make_lifetimes
from plait.hardware.memory.snapshot import read_snapshot
from plait.hardware.memory.trace import (
    EventKind,
    MemoryTrace,
    TraceBuilder,
    TraceUnreadable,
    read_trace,
    write_trace,
)


def small_trace() -> MemoryTrace:
    builder = TraceBuilder("by hand")
    first = builder.allocate(1000)
    second = builder.allocate(300, stream=2)
    builder.free(first)
    builder.end_step()
    builder.allocate(50)
    builder.free(second)
    return builder.build(notes=("a note",))


def test_live_bytes_follow_the_events() -> None:
    trace = small_trace()
    assert trace.live_bytes().tolist() == [1000, 1300, 300, 300, 350, 50]
    assert trace.peak_live_bytes() == 1300
    assert trace.num_steps == 1
    assert [event.kind for event in trace][3] is EventKind.STEP


def test_a_written_trace_is_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "step.npz"
    write_trace(small_trace(), path)
    again = read_trace(path)
    assert list(again) == list(small_trace())
    assert (again.origin, again.notes) == ("by hand", ("a note",))


@pytest.mark.parametrize("content", [b"", b"not a trace", b"PK\x03\x04broken"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(TraceUnreadable, match="not a memory trace"):
        read_trace(path)
    with pytest.raises(TraceUnreadable):
        read_trace(tmp_path / "missing.npz")


def test_contradictions_are_named() -> None:
    trace = small_trace()
    twice = MemoryTrace(
        kinds=np.zeros(2, dtype=np.uint8), blocks=np.array([4, 4]), sizes=np.array([8, 8]), streams=np.array([0, 0])
    )
    with pytest.raises(TraceUnreadable, match="event 1 allocates block 4 a second time"):
        twice.validate()
    sizes = trace.sizes.copy()
    sizes[2] = 999
    wrong = MemoryTrace(kinds=trace.kinds, blocks=trace.blocks, sizes=sizes, streams=trace.streams)
    with pytest.raises(TraceUnreadable, match="event 2 frees block 0"):
        wrong.validate()


def test_lifetimes_of_a_trace() -> None:
    lifetimes, blocks = lifetimes_of(small_trace())
    assert blocks.tolist() == [0, 1, 2]
    assert lifetimes.starts.tolist() == [0, 1, 4]
    assert lifetimes.ends.tolist() == [2, 5, 6]
    assert lifetimes.peak_bytes() == 1300


def test_a_block_that_crosses_the_end_of_the_step_counts_on_both_sides() -> None:
    lifetimes = make_lifetimes(np.array([10, 5]), np.array([6, 1]), np.array([8, 4]), np.array([2, 0]))
    assert lifetimes.peak_bytes() == 15


SNAPSHOT = {
    "segments": [],
    "device_traces": [
        [
            {"action": "free_completed", "addr": 1, "size": 512, "stream": 0},
            {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 7},
            {"action": "alloc", "addr": 4096, "size": 1000, "stream": 7, "frames": []},
            {"action": "alloc", "addr": 5120, "size": 700, "stream": 0},
            {"action": "free_requested", "addr": 4096, "size": 1000, "stream": 7},
            {"action": "alloc", "addr": 6144, "size": 100, "stream": 7},
            {"action": "free_completed", "addr": 4096, "size": 1000, "stream": 7},
            {"action": "alloc", "addr": 4096, "size": 40, "stream": 7},
            {"action": "segment_free", "addr": 0, "size": 2097152, "stream": 7},
        ]
    ],
}


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_snapshot_is_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(pickle.dumps(SNAPSHOT) if form == "pickle" else json.dumps(SNAPSHOT).encode())
    snapshot = read_snapshot(path)
    snapshot.trace.validate()
    assert snapshot.recorded_reserved_peak_bytes == 2097152
    # Memory is free from free_completed on, not from the request; the free of an older block is left out and told.
    assert snapshot.trace.peak_live_bytes() == 1800
    assert snapshot.trace.notes == ("1 frees of blocks older than the recording are left out",)
    assert snapshot.trace.streams.tolist() == [0, 1, 0, 0, 0]


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("run",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Evil()), "builtins.print"),
        (pickle.dumps([1, 2]), "no device_traces"),
        (pickle.dumps({"device_traces": [[{"action": "alloc"}]]}), "another shape"),
        (pickle.dumps({"device_traces": []}), "none with number 0"),
        (b"\x80\x04garbage", "neither a pickle nor JSON"),
        (b"{", "neither a pickle nor JSON"),
    ],
)
def test_other_snapshots_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(TraceUnreadable, match=message):
        read_snapshot(path)
    assert capsys.readouterr().out == ""
