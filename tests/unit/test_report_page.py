"""The page about a run: complete in itself, well formed, escaped, and written whole or not at all."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlaitError
from plait.monitor.drawing import duration, number, tag, tick_text, ticks, time_ticks
from plait.monitor.report import write_report

EVIL = "<script>alert('x')</script> & \"more\""
VOID = {"meta", "br", "link"}


def rows(*, steps: int = 60, loss: bool = True, reason: str = "measured") -> list[dict[str, Any]]:
    """Two members; the second is lost half-way and a third one joins later."""
    written: list[dict[str, Any]] = []
    for step in range(steps):
        members: tuple[str, ...] = ("w0", "w1")
        generation = "1"
        if step >= steps // 2:
            members, generation = ("w0",), "2"
        if step >= steps * 3 // 4:
            members, generation = ("w0", "w2"), "3"
        parts = {
            name: {"k": 4 // len(members), "compute_s": 0.09, "samples": 16 // len(members), "accelerator_type": "T4"}
            for name in members
        }
        at = 1_700_000_000.0 + 0.1 * (step + 1)
        body = {"samples": 16, "step_s": 0.1, "generation": generation, "members": parts}
        written.append({"kind": "step", "at": at, "step": step, "loss": 5 / (step + 1) if loss else None, **body})
        change = {"kind": "membership", "at": at, "step": step, "generation": generation, "members": list(members)}
        if step == steps // 2:
            written.append({**change, "lost": ["w1"], "joined": [], "reason": reason, "gap_s": 0.2})
        if step == steps * 3 // 4:
            written.append({**change, "lost": [], "joined": ["w2"], "reason": reason, "gap_s": 0.1})
            split = {"w0": 2, "w2": 2}
            written.append({"kind": "split", "at": at, "step": step, "split": split, "reason": reason})
    return written


def page(tmp_path: Path, written: list[dict[str, Any]], title: str | None = None) -> str:
    timeline = tmp_path / "timeline"
    timeline.mkdir()
    (timeline / "w0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written), encoding="utf-8")
    write_report(tmp_path, tmp_path / "out" / "report.html", title)
    return (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


class Balance(HTMLParser):
    """Fails on an end tag that closes nothing, and gathers all text and attributes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(text: str) -> Balance:
    parser = Balance()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def drawings(text: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)]


def test_the_page_is_well_formed_and_needs_no_other_file(tmp_path: Path) -> None:
    text = page(tmp_path, rows())
    parser = parsed(text)
    assert not [pair for pair in parser.attributes if pair[0] in {"src", "href", "srcset"}]
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_there_are_four_charts_and_all_their_numbers_are_finite(tmp_path: Path) -> None:
    charts = drawings(page(tmp_path, rows()))
    labels = [chart.get("aria-label") for chart in charts]
    assert labels == [
        "Loss over time",
        "Samples per second by device",
        "Who was in the group",
        "Micro-batches by device",
    ]
    for chart in charts:
        for element in chart.iter():
            for name in ("d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height"):
                assert not re.search("nan|inf", element.get(name, "")), (element.tag, name)
                assert name not in {"width", "height"} or float(element.get(name, "1")) > 0


def test_losses_and_joins_are_marked_in_the_charts_and_told_in_the_list(tmp_path: Path) -> None:
    text = page(tmp_path, rows(reason="its connection closed"))
    membership = drawings(text)[2]
    marks = [element.get("class") for element in membership.iter() if (element.get("class") or "").startswith("mark")]
    assert marks == ["mark lost", "mark joined"]
    words = " ".join(parsed(text).text)
    assert "w1 lost: 1 member in generation 2" in words
    assert "w2 joined: 2 members in generation 3" in words
    assert words.count("its connection closed") == 3


def test_text_from_the_run_is_escaped_everywhere(tmp_path: Path) -> None:
    text = page(tmp_path, rows(reason=EVIL), title=EVIL)
    parser = parsed(text)
    assert parser.tags.count("script") == 1
    assert "<script>alert" not in text
    assert EVIL in parser.text
    assert any(name == "data-tip" and EVIL in value for name, value in parser.attributes)


def test_a_run_without_recorded_loss_says_how_to_record_it(tmp_path: Path) -> None:
    text = page(tmp_path, rows(loss=False))
    assert "run.record(loss=loss)" in text
    assert len(drawings(text)) == 3


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_run_of_very_few_steps_has_a_page(tmp_path: Path, steps: int) -> None:
    parsed(page(tmp_path, rows(steps=steps)))


def test_a_long_run_does_not_grow_the_page(tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    (tmp_path / "short").mkdir()
    assert len(page(tmp_path / "long", rows(steps=6000))) < 1.6 * len(page(tmp_path / "short", rows(steps=600)))


def test_the_page_is_named_after_the_job(tmp_path: Path) -> None:
    run_dir = tmp_path / "job-7" / "run"
    run_dir.mkdir(parents=True)
    assert "<h1>job-7</h1>" in page(run_dir, rows())


def test_a_run_without_steps_is_refused_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    (tmp_path / "timeline" / "w0.jsonl").touch()
    with pytest.raises(PlaitError, match=f"{tmp_path} holds no committed step"):
        write_report(tmp_path, tmp_path / "report.html")


def test_a_failed_write_leaves_the_older_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = page(tmp_path, rows(steps=3))

    def no_space(descriptor: int, mode: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path, tmp_path / "out" / "report.html", "newer")
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8") == older
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


finite = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False).map(lambda value: round(value, 6))


@given(low=finite, width=st.floats(min_value=1e-3, max_value=1e6), count=st.integers(2, 12))
def test_ticks_lie_in_the_range_and_are_evenly_and_roundly_spaced(low: float, width: float, count: int) -> None:
    high = low + width
    values = ticks(low, high, count)
    step = 10.0 ** len(str(int(high)))
    assert 1 <= len(values) <= count + 1
    assert all(low - 1e-6 * step <= value <= high + 1e-6 * step for value in values)
    if len(values) > 1:
        gap = values[1] - values[0]
        assert f"{gap:.1e}"[:3] in {"1.0", "2.0", "2.5", "5.0"}


@given(st.floats(min_value=0.01, max_value=1e7))
def test_time_ticks_start_at_zero_and_stay_few(duration_s: float) -> None:
    values = time_ticks(duration_s)
    assert values[0] == 0
    assert values[-1] <= duration_s * (1 + 1e-9)
    assert 1 <= len(values) <= 10
    assert list(values) == sorted(set(values))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.2, "59 s"),
        (59.7, "1:00 min"),
        (60, "1:00 min"),
        (65.4, "1:05 min"),
        (3599.9, "1:00 h"),
        (7800, "2:10 h"),
    ],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1.2345, "1.23"), (12345.6, "12,346"), (0.01234, "0.0123"), (-5.5, "-5.50")]
)
def test_numbers_have_three_digits_and_separated_thousands(value: float, text: str) -> None:
    assert number(value) == text


def test_ticks_of_one_axis_have_the_same_decimals() -> None:
    assert [tick_text(value, (0.0, 0.5, 1.0)) for value in (0.0, 0.5, 1.0)] == ["0.0", "0.5", "1.0"]
    assert [tick_text(value, (0.0, 1000.0)) for value in (0.0, 1000.0)] == ["0", "1,000"]


def test_attribute_values_are_escaped() -> None:
    assert tag("g", data_tip='"><x>') == '<g data-tip="&quot;&gt;&lt;x&gt;"></g>'
