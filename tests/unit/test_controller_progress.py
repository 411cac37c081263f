"""Of many progress lines the furthest counts, and few are events."""

from dataclasses import replace

from plait.agent.messages import Progress
from plait.controller.progress import EVENT_INTERVAL_S, ProgressBoard

LINE = Progress(
    attempt_id="digits-1/train/1",
    worker_id="w0",
    step=1,
    total_steps=100,
    samples_per_s=10.0,
    loss=2.0,
    generation="1",
    split=(("w0", 3), ("w1", 1)),
)


def test_the_first_line_is_an_event_and_then_one_an_interval() -> None:
    board = ProgressBoard()
    assert board.take(LINE, 0.0) == LINE
    told = [board.take(replace(LINE, step=2 + number), 0.1 * number) for number in range(1, 40)]
    assert sum(line is not None for line in told) == int(3.9 // EVENT_INTERVAL_S)
    latest = board.of_attempt(LINE.attempt_id)
    assert latest is not None
    assert latest.line.step == 41


def test_another_split_is_an_event_at_once() -> None:
    board = ProgressBoard()
    board.take(LINE, 0.0)
    other = replace(LINE, step=2, split=(("w0", 4),), reason="w1 is lost")
    assert board.take(other, 0.01) == other


def test_a_member_that_lags_does_not_turn_progress_back() -> None:
    board = ProgressBoard()
    board.take(replace(LINE, step=9), 0.0)
    assert board.take(replace(LINE, worker_id="w1", step=8), 5.0) is None
    latest = board.of_job("digits-1")
    assert [one.line.step for one in latest] == [9]
    assert board.of_job("digits-11") == ()


def test_what_is_not_finite_is_no_number() -> None:
    board = ProgressBoard()
    line = board.take(replace(LINE, loss=float("inf"), samples_per_s=float("nan")), 0.0)
    assert line is not None
    assert (line.loss, line.samples_per_s) == (None, 0.0)
