"""Reading, merging and summing up the timeline that the members of a run write."""

import json
from pathlib import Path
from typing import Any

import pytest

from plait.errors import PlaitError
from plait.monitor.summary import summarise
from plait.monitor.timeline import read_timeline

START_S = 1_700_000_000.0


def step(number: int, at_s: float, members: dict[str, tuple[int, float]], **more: Any) -> dict[str, Any]:
    """One step row; ``members`` gives micro-batches (of 4 samples) and compute seconds."""
    return {
        "kind": "step",
        "at": START_S + at_s,
        "step": number,
        "loss": 5.0 - number / 10,
        "samples": 4 * sum(k for k, _ in members.values()),
        "step_s": 1.0,
        "generation": "1",
        "members": {
            name: {"k": k, "compute_s": compute_s, "samples": 4 * k, "accelerator_type": "T4"}
            for name, (k, compute_s) in members.items()
        },
        **more,
    }


def membership(number: int, at_s: float, generation: str, members: list[str], **more: Any) -> dict[str, Any]:
    row = {"at": START_S + at_s, "step": number, "generation": generation, "members": members, "lost": [], "joined": []}
    return {"kind": "membership", **row, "reason": "because", "gap_s": 0.1, **more}


def write(run_dir: Path, member: str, rows: list[dict[str, Any]], tail: str = "") -> None:
    path = run_dir / "timeline" / f"{member}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail, encoding="utf-8")


PAIR = {"w0": (3, 0.9), "w1": (1, 0.5)}


def test_rows_of_all_members_are_merged_by_step(tmp_path: Path) -> None:
    write(tmp_path, "w0", [step(0, 1, PAIR), step(1, 2, PAIR)])
    write(tmp_path, "w1", [step(1, 2.01, PAIR), step(2, 3.01, PAIR)])
    timeline = read_timeline(tmp_path)
    assert [row.step for row in timeline.steps] == [0, 1, 2]
    assert timeline.steps[0].members[0].micro_batches == 3
    assert timeline.steps[0].members[1].compute_s == 0.5
    assert timeline.unreadable_lines == 0


def test_a_line_cut_off_by_a_kill_is_counted_and_left_out(tmp_path: Path) -> None:
    write(tmp_path, "w0", [step(0, 1, PAIR)], tail='{"kind":"step","at":17')
    write(tmp_path, "w1", [step(0, 1, PAIR)], tail='{"kind":"step","at":17}\n')
    timeline = read_timeline(tmp_path)
    assert len(timeline.steps) == 1
    assert timeline.unreadable_lines == 2


def test_rows_of_kinds_that_a_newer_writer_knows_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "w0", [step(0, 1, PAIR), {"kind": "weather", "at": START_S}])
    assert read_timeline(tmp_path).unreadable_lines == 0


def test_a_step_redone_after_a_restart_counts_as_it_was_done_last(tmp_path: Path) -> None:
    write(tmp_path, "w0", [step(0, 1, PAIR), step(1, 2, PAIR), step(1, 9, {"w0": (4, 1.0)}), step(2, 10, PAIR)])
    timeline = read_timeline(tmp_path)
    assert [(row.step, len(row.members)) for row in timeline.steps] == [(0, 2), (1, 1), (2, 2)]


def forming(generation: str = "1", at_s: float = 0.0, number: int = 0) -> dict[str, dict[str, Any]]:
    """The first rows of w0 and w1: each takes the other for a joiner."""
    row = membership(number, at_s, generation, ["w0", "w1"], gap_s=None)
    return {"w0": {**row, "joined": ["w1"]}, "w1": {**row, "joined": ["w0"]}}


def test_a_membership_told_by_many_is_one_row_with_the_longest_gap_of_those_who_went_on(tmp_path: Path) -> None:
    change = membership(5, 6.0, "2", ["w0", "w1", "w2"], joined=["w2"])
    write(tmp_path, "w0", [forming()["w0"], change])
    write(tmp_path, "w1", [forming()["w1"], {**change, "gap_s": 0.3, "at": START_S + 6.2}])
    others = {**change, "joined": ["w0", "w1"], "at": START_S + 5.9, "reason": "w0, w1 joined", "gap_s": 12.0}
    write(tmp_path, "w2", [others])
    first, row = read_timeline(tmp_path).memberships
    assert (first.is_forming, first.joined) == (True, ("w0", "w1"))
    assert (row.is_forming, row.joined, row.gap_s, row.reason) == (False, ("w2",), 0.3, "because")
    assert row.at_s == START_S + 5.9


def test_the_group_of_a_new_attempt_forms_again(tmp_path: Path) -> None:
    for member in ("w0", "w1"):
        write(tmp_path, member, [forming()[member], forming(at_s=60.0, number=40)[member]])
    rows = read_timeline(tmp_path).memberships
    assert [(row.is_forming, row.step) for row in rows] == [(True, 0), (True, 40)]


def test_a_split_told_by_many_is_one_row(tmp_path: Path) -> None:
    row = {"kind": "split", "at": START_S, "step": 4, "split": {"w1": 1, "w0": 3}, "reason": "measured"}
    write(tmp_path, "w0", [row])
    write(tmp_path, "w1", [row, {**row, "step": 8}])
    assert [(split.step, split.split) for split in read_timeline(tmp_path).splits] == [
        (4, (("w0", 3), ("w1", 1))),
        (8, (("w0", 3), ("w1", 1))),
    ]


def test_a_directory_without_timeline_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlaitError, match=f"no timeline under {tmp_path}"):
        read_timeline(tmp_path)


def test_shares_speeds_and_utilisation_follow_from_samples_and_compute_times(tmp_path: Path) -> None:
    write(tmp_path, "w0", [step(number, number + 1.0, PAIR) for number in range(10)])
    summary = summarise(read_timeline(tmp_path))
    w0, w1 = summary.devices
    assert (w0.samples, w1.samples, w0.steps) == (120, 40, 10)
    assert (w0.share_ratio, w1.share_ratio) == (0.75, 0.25)
    assert w0.speed == pytest.approx(12 / 0.9)
    assert w1.speed == pytest.approx(4 / 0.5)
    assert w0.utilisation_ratio == pytest.approx(0.9)
    assert w1.utilisation_ratio == pytest.approx(0.5)
    assert summary.samples_per_s == pytest.approx(16.0)
    assert summary.share_of_speed_ratio == pytest.approx(16 / (12 / 0.9 + 4 / 0.5))


def test_the_wait_between_two_steps_counts_against_the_rate(tmp_path: Path) -> None:
    write(tmp_path, "w0", [step(0, 1.0, PAIR), step(1, 4.0, PAIR)])
    first, second = summarise(read_timeline(tmp_path)).stretches
    assert first.total_samples_per_s == pytest.approx(16.0)
    assert second.total_samples_per_s == pytest.approx(16 / 3)
    assert (second.start_s, second.end_s) == (1.0, 4.0)


def test_a_stretch_never_spans_two_generations(tmp_path: Path) -> None:
    rows = [step(number, number + 1.0, PAIR, generation="1" if number < 35 else "2") for number in range(100)]
    write(tmp_path, "w0", rows)
    stretches = summarise(read_timeline(tmp_path), max_stretches=10).stretches
    assert len(stretches) <= 12
    assert [part.last_step for part in stretches if part.generation == "1"][-1] == 34
    covered = [number for part in stretches for number in range(part.first_step, part.last_step + 1)]
    assert covered == list(range(100))


def test_a_lost_and_a_joined_member_have_their_own_spans_and_events(tmp_path: Path) -> None:
    alone = {"w0": (4, 0.9)}
    rows = [membership(0, 0.0, "1", ["w0", "w1"], joined=["w0", "w1"])]
    rows += [step(number, number + 1.0, PAIR) for number in range(3)]
    rows += [membership(3, 3.5, "2", ["w0"], lost=["w1"], reason="connection closed", gap_s=0.4)]
    rows += [step(number, number + 1.0, alone, generation="2") for number in range(3, 6)]
    rows += [membership(6, 6.0, "3", ["w0", "w2"], joined=["w2"])]
    rows += [step(number, number + 1.0, {"w0": (3, 0.9), "w2": (1, 0.9)}, generation="3") for number in range(6, 9)]
    write(tmp_path, "w0", rows)
    summary = summarise(read_timeline(tmp_path))
    assert [(event.kind, event.step) for event in summary.events] == [("formed", 0), ("lost", 3), ("joined", 6)]
    assert summary.events[1].what == "w1 lost: 1 member in generation 2"
    assert summary.events[1].reason == "connection closed"
    assert [event.gap_s for event in summary.events] == [None, 0.4, 0.1]
    assert [(span.member, span.start_s, span.end_s) for span in summary.spans] == [
        ("w0", 0.0, 3.0),
        ("w0", 3.0, 6.0),
        ("w0", 6.0, 9.0),
        ("w1", 0.0, 3.0),
        ("w2", 6.0, 9.0),
    ]
    by_name = {device.member: device for device in summary.devices}
    assert by_name["w1"].lost_at_s == 3.5
    assert by_name["w2"].joined_at_s == 6.0
    assert by_name["w0"].joined_at_s is None
    assert (summary.num_lost, summary.longest_gap_s) == (1, 0.4)


def test_a_hole_in_the_steps_is_told(tmp_path: Path) -> None:
    write(tmp_path, "w0", [step(number, number + 1.0, PAIR) for number in (0, 1, 4)])
    assert summarise(read_timeline(tmp_path)).missing_steps == 2


def test_losses_that_are_no_numbers_are_left_out_of_the_curve(tmp_path: Path) -> None:
    write(
        tmp_path, "w0", [step(0, 1, PAIR, loss=None), step(1, 2, PAIR, loss=float("nan")), step(2, 3, PAIR, loss=1.5)]
    )
    summary = summarise(read_timeline(tmp_path))
    assert [(number, loss) for _, number, loss in summary.losses] == [(2, 1.5)]


def test_members_are_ordered_by_their_number(tmp_path: Path) -> None:
    write(tmp_path, "w0", [step(0, 1, {f"w{index}": (1, 0.1) for index in (10, 2, 0)})])
    assert [device.member for device in summarise(read_timeline(tmp_path)).devices] == ["w0", "w2", "w10"]
