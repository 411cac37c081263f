"""The warden's own rules, fed with times; no process and no connection."""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from plait.train.membership import protocol as p
from plait.train.membership import speech as s
from plait.train.membership.frames import FrameBuffer
from plait.train.membership.pulse import PHASES, Pulse, new_pulse
from plait.train.membership.warden import Warden, WardenConfig, order

CONFIG = WardenConfig(
    me="w2",
    listen="127.0.0.1:0",
    seeds={"w0": "127.0.0.1:1", "w1": "127.0.0.1:2"},
    joining=True,
    secret="word",
    heartbeat_interval_s=0.2,
    heartbeat_timeout_s=1.0,
    formation_timeout_s=30.0,
    worker_pid=os.getpid(),
)


class Book:
    """Stands where the stream to the worker is."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self._buffer = FrameBuffer()

    def write(self, data: bytes) -> None:
        self.said += self._buffer.feed(data)


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def channel() -> Iterator[socket.socket]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield mine


@pytest.fixture
def pulse() -> Iterator[Pulse]:
    handle = new_pulse()
    yield Pulse(handle)
    os.close(handle)


@pytest.fixture
def joiner(book: Book, channel: socket.socket, pulse: Pulse) -> Warden:
    """Its worker is ready, and it has not been let in."""
    warden = Warden(CONFIG, channel, pulse)
    warden.worker_writer = cast("Any", book)
    warden.has_report = True
    warden.state = p.joiner("w2", s.Report(None))
    return warden


def test_a_joiner_waits_while_there_is_hope(joiner: Warden, book: Book) -> None:
    joiner._look_for_a_group(joiner.started_s + 29.0)
    assert book.said == []


def test_a_joiner_that_nobody_lets_in_gives_up(joiner: Warden, book: Book) -> None:
    joiner._look_for_a_group(joiner.started_s + 30.5)
    assert book.said == [["fault", "was let in by none of w0, w1 within 30 s"]]


def test_a_joiner_whose_group_has_ended_gives_up_at_once(joiner: Warden, book: Book) -> None:
    joiner.state = replace(joiner.state, gone=frozenset({"w0", "w1"}))
    joiner._look_for_a_group(joiner.started_s)
    assert book.said == [["fault", "came too late to join: w0, w1 had ended"]]


def test_one_that_was_let_in_is_left_alone(joiner: Warden, book: Book) -> None:
    joiner.state = replace(joiner.state, installed=s.Proposal(s.Ballot(1, "w0"), ("w0", "w2")))
    joiner._look_for_a_group(joiner.started_s + 300.0)
    assert book.said == []


def test_members_without_an_address_are_not_dialled_yet(joiner: Warden) -> None:
    joiner.addresses = {"w0": "", "w1": "", "w2": "127.0.0.1:3"}
    joiner._dial_missing()
    assert not joiner.dialing


def test_a_config_comes_to_the_warden_as_it_was() -> None:
    fields = {name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__}
    assert WardenConfig(**json.loads(json.dumps(fields))) == CONFIG


def test_a_pulse_is_seen_through_another_handle() -> None:
    handle = new_pulse()
    worker, warden = Pulse(handle), Pulse(handle)
    os.close(handle)
    assert warden.read() == (0, "starting")
    for step, phase in enumerate(PHASES):
        worker.write(2**40 + step, phase)
        assert warden.read() == (2**40 + step, phase)


def test_the_tenth_member_comes_after_the_second() -> None:
    assert sorted(["w10", "w2", "w0"], key=order) == ["w0", "w2", "w10"]
