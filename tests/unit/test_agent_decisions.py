"""The agent's small decisions: causes, stop steps, reconnects, reports, memory kills."""

import signal
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.agent.causes import failure_of
from plait.agent.controller_link import LONGEST_PAUSE_S, next_pause_s, split_address
from plait.agent.messages import Progress, WorkerDown, WorkerUp
from plait.agent.oom import OomCounter, counter_files
from plait.agent.outbox import Outbox, Report
from plait.agent.reports import MOST_REMEMBERED, Reports
from plait.agent.stopping import stop_steps
from plait.agent.worker_lines import ProgressLine
from plait.errors import ControllerUnreachable


@pytest.mark.parametrize(
    ("exit_code", "ended_by", "stop_reason", "given_up", "by_kernel", "cause", "words"),
    [
        (0, None, None, None, False, None, ""),
        (0, None, "resized", None, False, None, ""),
        (75, None, None, None, False, "oom", "exit code 75"),
        (76, None, None, None, False, "network", "exit code 76"),
        (77, None, None, None, False, "device_fault", "exit code 77"),
        (1, None, None, None, False, "user", "exit code 1"),
        (None, signal.SIGSEGV, None, None, False, "lost", "SIGSEGV"),
        (None, signal.SIGKILL, None, None, False, "lost", "SIGKILL"),
        (None, signal.SIGKILL, None, None, True, "oom", "ran out of memory"),
        (None, signal.SIGSEGV, None, None, True, "lost", "SIGSEGV"),
        (None, signal.SIGKILL, None, "frozen for 1.5 s", True, "lost", "frozen for 1.5 s"),
        (None, signal.SIGTERM, "resized", None, False, "cancelled", "resized"),
        (76, None, "resized", None, False, "cancelled", "resized"),
        (78, None, None, None, False, "lost", "left in order"),
        (None, 63, None, None, False, "lost", "signal 63"),
    ],
)
def test_the_cause_follows_from_how_a_worker_ended(  # noqa: PLR0917 - one row of the table
    exit_code: int | None,
    ended_by: int | None,
    stop_reason: str | None,
    given_up: str | None,
    by_kernel: bool,
    cause: str | None,
    words: str,
) -> None:
    found, detail = failure_of(
        exit_code, ended_by, stop_reason=stop_reason, given_up=given_up, kernel_killed_for_memory=by_kernel
    )
    assert found == cause
    assert words in detail


def test_an_elastic_worker_leaves_first_and_is_terminated_after_half_the_grace() -> None:
    assert stop_steps(is_elastic=True, grace_s=10) == ((0, "leave"), (5, "terminate"), (10, "kill"))
    assert stop_steps(is_elastic=False, grace_s=10) == ((0, "terminate"), (10, "kill"))


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_before_reconnecting_grow_and_stay_bounded(failures: int, chance: float) -> None:
    pause_s = next_pause_s(failures, chance)
    assert 0.07 < pause_s <= LONGEST_PAUSE_S * 1.25
    assert next_pause_s(failures + 1, chance) >= pause_s


@pytest.mark.parametrize("text", ["localhost", ":80", "host:", "host:http"])
def test_an_address_without_host_or_port_is_named(text: str) -> None:
    with pytest.raises(ControllerUnreachable, match=text):
        split_address(text)


def test_addresses_are_split_at_the_last_colon() -> None:
    assert split_address("n0:9400\n") == ("n0", 9400)
    assert split_address("[::1]:9400") == ("::1", 9400)


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=30))
def test_the_outbox_keeps_exactly_what_is_unacknowledged(moves: list[int | None]) -> None:
    outbox = Outbox()
    last, acknowledged = 0, 0
    for move in moves:
        if move is None:
            last += 1
            number = outbox.next_number()
            assert number == last
            outbox.add(WorkerUp(number=number, attempt_id="a", worker_id="w0", pid=1))
        else:
            outbox.acknowledge(move)
            acknowledged = max(acknowledged, min(move, last))
        numbers = [report.number for report in outbox.pending()]
        assert numbers == list(range(acknowledged + 1, last + 1))
        assert all(a < b for a, b in pairwise(numbers))


class Heard:
    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.progress: list[Progress] = []

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def tell(self, progress: Progress) -> None:
        self.progress.append(progress)


def test_only_the_latest_progress_goes_out_and_the_last_before_the_end() -> None:
    heard = Heard()
    reports = Reports(Outbox(), heard)
    for step in range(100):
        reports.progress(("a", "w0"), ProgressLine(step=step))
    assert len(heard.progress) < 100
    reports.down(("a", "w0"), None, "", exit_code=0, signal=None)
    assert heard.progress[-1].step == 99


def test_an_end_is_repeated_under_a_new_number_and_old_ends_are_forgotten() -> None:
    heard = Heard()
    reports = Reports(Outbox(), heard)
    assert not reports.repeat_down(("a", "w0"))
    reports.down(("a", "w0"), "oom", "big", exit_code=75, signal=None)
    assert reports.repeat_down(("a", "w0"))
    first, second = heard.reports
    assert isinstance(first, WorkerDown)
    assert isinstance(second, WorkerDown)
    assert (first.number, second.number) == (1, 2)
    assert (second.failure, second.detail, second.exit_code) == ("oom", "big", 75)
    for index in range(MOST_REMEMBERED):
        reports.down(("b", f"w{index}"), None, "", exit_code=0, signal=None)
    assert not reports.repeat_down(("a", "w0"))
    assert len(reports.ended()) == MOST_REMEMBERED


def test_the_memory_counter_comes_from_the_own_group_first(tmp_path: Path) -> None:
    files = counter_files("8:memory:/job/a\n0::/job\n", tmp_path)
    assert files[0] == tmp_path / "memory/job/a/memory.oom_control"
    assert files[1] == tmp_path / "job/memory.events"
    assert files[-1] == Path("/proc/vmstat")


def test_a_rise_is_seen_although_one_sample_came_in_between(tmp_path: Path) -> None:
    file = tmp_path / "memory.events"
    file.write_text("low 0\noom 3\noom_kill 2\n")
    counter = OomCounter((tmp_path / "absent", file))
    assert not counter.rose()
    file.write_text("low 0\noom 9\noom_kill 3\n")
    assert counter.rose()
    counter.sample()
    assert counter.rose()
    counter.sample()
    assert not counter.rose()


def test_without_any_counter_nothing_ever_rises(tmp_path: Path) -> None:
    assert not OomCounter((tmp_path / "absent",)).rose()
