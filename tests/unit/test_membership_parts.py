"""Frames on the wire, quorums, and what a new generation has to do first."""

import json
import threading
from collections import deque
from typing import get_args

import pytest

from plait.train.membership import speech as s
from plait.train.membership.frames import HEADER_BYTES, MAX_FRAME_BYTES, FrameBuffer, frame, from_wire, to_wire
from plait.train.membership.link import WardenLink
from plait.train.membership.outcome import decide
from plait.train.membership.protocol import founder, has_quorum, step

BALLOT = s.Ballot(3, "w1")
REPORT = s.Report(7, held=True, payload='{"ks": [1, 2]}')
MESSAGES: list[s.Message] = [
    s.Prepare(BALLOT, ("w0", "w1"), ("w2",), frozenset({"w3"})),
    s.Accept(BALLOT, REPORT),
    s.Accept(BALLOT, s.Report(None)),
    s.Refuse(BALLOT, s.Ballot(4, "w0"), s.Proposal(BALLOT, ("w0", "w1")), frozenset({"w2", "w3"})),
    s.Refuse(BALLOT, s.Ballot(4, "w0"), None, frozenset()),
    s.Install(BALLOT, ("w0", "w1"), (("w0", REPORT), ("w1", s.Report(None)))),
    s.Gone(frozenset({"w1", "w0"})),
    s.Complaint(BALLOT, "w2"),
    s.Complaint(BALLOT, None),
    s.Withdrawn(BALLOT, "w2"),
    s.JoinAsk(frozenset({"w0"})),
    s.LeaveAsk(),
    s.Done(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_comes_through_the_wire_as_it_was(message: s.Message) -> None:
    (value,) = FrameBuffer().feed(frame(to_wire(message)))
    assert from_wire(value) == message


def test_every_kind_of_message_is_tried() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(s.Message))


@pytest.mark.parametrize("size", [1, 3, HEADER_BYTES, 7])
def test_frames_are_found_however_the_bytes_are_cut(size: int) -> None:
    stream = b"".join(frame(to_wire(message)) for message in MESSAGES)
    buffer = FrameBuffer()
    found = [value for at in range(0, len(stream), size) for value in buffer.feed(stream[at : at + size])]
    assert [from_wire(value) for value in found] == MESSAGES


def test_a_frame_that_is_too_long_is_refused_by_its_header_alone() -> None:
    with pytest.raises(ValueError, match=f"a frame of {MAX_FRAME_BYTES + 1} bytes is longer than {MAX_FRAME_BYTES}"):
        list(FrameBuffer().feed((MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "big")))


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[1,", b""])
def test_a_frame_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        list(FrameBuffer().feed(len(body).to_bytes(HEADER_BYTES, "big") + body))


@pytest.mark.parametrize("value", [["Shout", 1], ["Prepare", 1], ["Accept"], [], ["Complaint", [1, "w0"]]])
def test_what_is_no_message_is_refused(value: list[object]) -> None:
    with pytest.raises((ValueError, TypeError, IndexError)):
        from_wire(json.loads(json.dumps(value)))


@pytest.mark.parametrize(
    ("target", "base", "gone", "is_quorum"),
    [
        ("abc", "abc", "", True),
        ("ab", "abc", "", True),
        ("a", "abc", "", False),
        ("bc", "abc", "", True),
        ("a", "ab", "", True),  # the half with the lowest
        ("b", "ab", "", False),
        ("b", "ab", "a", True),
        ("cd", "abcd", "", False),
        ("ad", "abcd", "", True),
        ("cd", "abcd", "a", True),
        ("cx", "abc", "b", False),  # a newcomer has no vote
        ("x", "abc", "abc", False),
    ],
)
def test_quorums(target: str, base: str, gone: str, is_quorum: bool) -> None:
    assert has_quorum(tuple(target), tuple(base), frozenset(gone)) is is_quorum


def test_a_leaver_counts_for_the_quorum_since_it_accepts_too() -> None:
    """Of two, the lower one leaves: the other alone is no majority of them."""
    state = founder("b", ("a", "b"), s.Report(4))
    state, _ = step(state, s.Received("a", s.Prepare(s.Ballot(1, "a"), ("a", "b"), (), frozenset())))
    state, _ = step(state, s.Received("a", s.Install(s.Ballot(1, "a"), ("a", "b"), (("a", REPORT), ("b", REPORT)))))
    state, outputs = step(state, s.Received("a", s.LeaveAsk()))
    assert s.Send("a", s.Prepare(s.Ballot(2, "b"), ("b",), ("a",), frozenset())) in outputs
    assert s.StopWorker() in outputs


R = s.Report


def test_all_at_one_step_have_nothing_to_do() -> None:
    outcome = decide(("a", "b"), {"a": R(4), "b": R(4)})
    assert (outcome.step, outcome.apply, outcome.fetch, outcome.donor) == (4, (), (), None)


def test_who_holds_what_somebody_has_applied_applies_it() -> None:
    outcome = decide(("a", "b", "c"), {"a": R(4, held=True), "b": R(5), "c": R(4, held=True)})
    assert (outcome.step, outcome.apply, outcome.fetch) == (5, ("a", "c"), ())


def test_what_nobody_has_applied_is_dropped() -> None:
    outcome = decide(("a", "b"), {"a": R(4, held=True), "b": R(4)})
    assert (outcome.step, outcome.apply, outcome.fetch) == (4, (), ())


def test_who_is_behind_and_holds_nothing_fetches_from_the_lowest_that_can_give() -> None:
    outcome = decide(("a", "b", "c"), {"a": R(3, held=True), "b": R(5), "c": R(4, held=True)})
    assert (outcome.step, outcome.apply, outcome.fetch, outcome.donor) == (5, ("c",), ("a",), "b")


def test_a_joiner_fetches_and_the_donor_may_first_have_to_apply() -> None:
    outcome = decide(("a", "b", "j"), {"a": R(4, held=True), "b": R(5), "j": R(None)})
    assert (outcome.step, outcome.apply, outcome.fetch, outcome.donor) == (5, ("a",), ("j",), "a")


def test_a_leaver_s_word_counts_for_the_step() -> None:
    outcome = decide(("a",), {"a": R(4, held=True), "leaver": R(5)})
    assert (outcome.step, outcome.apply, outcome.fetch) == (5, ("a",), ())


def test_at_the_first_generation_all_start_from_the_first_member() -> None:
    outcome = decide(("a", "b", "c"), {"a": R(0), "b": R(0), "c": R(0)}, frozenset("abc"))
    assert (outcome.step, outcome.apply, outcome.fetch, outcome.donor) == (0, (), ("b", "c"), "a")


def test_at_the_first_generation_who_has_resumed_further_is_the_donor() -> None:
    outcome = decide(("a", "b"), {"a": R(0), "b": R(6)}, frozenset("ab"))
    assert (outcome.step, outcome.fetch, outcome.donor) == (6, ("a",), "b")


def test_without_any_state_there_is_nothing_to_go_on_from() -> None:
    with pytest.raises(ValueError, match="none of a, b has any state"):
        decide(("a", "b"), {"a": R(None), "b": R(None)})


def test_where_no_member_can_reach_the_step_it_says_so() -> None:
    with pytest.raises(ValueError, match="no member of a can reach step 5"):
        decide(("a",), {"a": R(3), "leaver": R(5)})


def test_who_was_lost_is_told_with_its_reason_where_two_generations_come_at_once() -> None:
    link = WardenLink.__new__(WardenLink)  # without a warden
    link._lock, link._generations, link._store = threading.RLock(), deque(), {}
    report: list[object] = [7, True, ""]
    for number, members, lost in (
        (15, ["w7", "w8"], {"w2": "nothing was heard from it for 1.0 s", "w9": "its process died"}),
        (16, ["w7", "w8", "w9"], {}),
    ):
        link._take(["go", [number, "w7"], members, dict.fromkeys(members, report), lost, {}])
    found = link.next_generation()
    assert found is not None
    assert (found.ballot.number, found.members) == (16, ("w7", "w8", "w9"))
    assert found.lost == {"w2": "nothing was heard from it for 1.0 s"}  # w9 is there again
    assert link.next_generation() is None
