"""Lines of workers: whole, stamped, valid UTF-8, whatever comes out of the pipes."""

import os
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.agent.logs import LONGEST_LINE_BYTES, LineCutter, WorkerLog, open_pipe, read_available, stamped

AT = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)


def cut(chunks: list[bytes]) -> list[bytes]:
    cutter = LineCutter()
    lines = [line for chunk in chunks for line in cutter.feed(chunk)]
    return lines + cutter.finish()


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_how_bytes_are_chunked_does_not_change_the_lines(data: bytes, places: list[int]) -> None:
    bounds = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    chunks = [data[a:b] for a, b in pairwise(bounds)]
    assert cut(chunks) == cut([data])


@given(st.lists(st.sampled_from([b"a", b"bc", b"", b"\xff\xfe"]), max_size=5), st.sampled_from([b"\n", b"\r\n"]))
def test_every_kind_of_line_end_gives_the_same_lines(lines: list[bytes], end: bytes) -> None:
    assert cut([line + end for line in lines]) == lines


def test_a_progress_bar_gives_a_line_for_each_return() -> None:
    assert cut([b"10%\r20%", b"\r30%\n"]) == [b"10%", b"20%", b"30%"]


def test_a_line_without_end_is_handed_out_in_pieces() -> None:
    cutter = LineCutter()
    lines = cutter.feed(b"x" * (2 * LONGEST_LINE_BYTES + 5))
    assert [len(line) for line in lines] == [LONGEST_LINE_BYTES, LONGEST_LINE_BYTES]
    assert cutter.finish() == [b"x" * 5]


def test_a_stamped_line_is_valid_utf8() -> None:
    assert stamped(AT, "err", b"caf\xc3\xa9 \xff") == "2026-03-04T05:06:07.000089Z err café \\xff\n".encode()


def test_the_two_streams_do_not_mix_within_a_line(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path / "deep" / "w0.log", now=lambda: AT)
    log.write("out", b"hal")
    log.write("err", b"oops\n")
    log.write("out", b"lo\nrest")
    log.note("ended")
    log.close()
    words = [line.split(" ", 1)[1] for line in (tmp_path / "deep" / "w0.log").read_text("utf-8").splitlines()]
    assert words == ["err oops", "out hallo", "err [plait] ended", "out rest"]


def test_lines_that_cannot_be_written_are_counted_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WorkerLog(tmp_path / "w0.log", now=lambda: AT)
    file = log._file
    assert file is not None

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "_file", Full())
    log.write("out", b"a\nb\n")
    monkeypatch.setattr(log, "_file", file)
    log.write("out", b"c\n")
    log.close()
    text = (tmp_path / "w0.log").read_text("utf-8")
    assert "2 lines before this one could not be written" in text
    assert text.endswith("out c\n")


def test_reading_a_pipe_tells_empty_from_ended() -> None:
    read_end, write_end = open_pipe()
    try:
        assert read_available(read_end) == b""
        os.write(write_end, b"x")
        assert read_available(read_end) == b"x"
    finally:
        os.close(write_end)
    assert read_available(read_end) is None
    os.close(read_end)
