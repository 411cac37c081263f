"""What a followed job looks like."""

from typing import Any

import pytest

from plait.cli.screen import PLAIN_INTERVAL_S, LiveScreen, PlainScreen, SilentScreen, figures


def progress(step: int, **fields: Any) -> Any:
    line = {
        "attempt_id": "j-1/t/1",
        "task": "t",
        "step": step,
        "total_steps": 10,
        "samples_per_s": 412.3,
        "loss": 3.21,
        "generation": "g1",
        "split": {"w0": 8, "w1": 0},
        "reason": "",
        "elastic": True,
        "device_speeds_sum": 0.0,
        "device_samples_per_s": 438.0,
        "at_s": 0.0,
    }
    return line | fields


def test_figures_compare_the_rate_with_the_sum_of_the_devices() -> None:
    assert figures(progress(1)) == [
        "412.3 samples/s of 438 (94%)",
        "loss 3.21",
        "world size 2 (1 left out)",
        "split w0:8 w1:0",
    ]


def test_what_is_not_known_is_left_out() -> None:
    assert figures(progress(1, loss=None, split={}, device_samples_per_s=None)) == ["412.3 samples/s"]


def test_plain_lines_are_limited_in_rate_but_the_last_step_always_shows(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()
    with screen:
        for step, now_s in ((1, 0.0), (2, 1.0), (3, PLAIN_INTERVAL_S), (3, 99.0), (10, 99.1)):
            screen.progress([progress(step)], now_s)
    steps = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert steps == ["t: step 1/10", "t: step 3/10", "t: step 10/10"]


def test_a_live_screen_prints_lines_and_bars(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveScreen() as screen:
        screen.line("t: w1 [lost]")
        screen.progress([progress(3)], 0.0)
    shown = capsys.readouterr().out
    assert "t: w1 [lost]" in shown
    assert "3/10" in shown


def test_a_silent_screen_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with SilentScreen() as screen:
        screen.line("x")
        screen.progress([progress(3)], 0.0)
    assert capsys.readouterr().out == ""
