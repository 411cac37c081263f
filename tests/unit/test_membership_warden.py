"""The warden's own rules, fed with times; no process and no connection."""

import asyncio
import errno
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from plait.train.membership import protocol as p
from plait.train.membership import speech as s
from plait.train.membership.frames import FrameBuffer, frame
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


class Connection:
    """A stream from a peer that greets and then breaks."""

    def __init__(self, error: OSError) -> None:
        self._heard: list[bytes | OSError] = [frame(["hello", "w0", "word", {}, True]), error]

    async def read(self, _num_bytes: int) -> bytes:
        match self._heard.pop(0):
            case bytes(data):
                return data
            case error:
                raise error


@pytest.mark.parametrize(
    ("error", "is_dead"),
    [
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
        (BrokenPipeError(errno.EPIPE, "what a reset is where the peer's end was seen before"), True),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), False),
        (OSError(errno.EHOSTUNREACH, "no route"), False),
    ],
)
async def test_a_socket_that_is_closed_means_death_and_a_network_that_fails_does_not(
    joiner: Warden, error: OSError, is_dead: bool
) -> None:
    """One of two who takes a death for silence waits for the other for ever."""
    await joiner._converse(cast("Any", Connection(error)), MagicMock(), "w0")
    assert ("w0" in joiner.state.gone) is is_dead
    assert ("w0" in joiner.peers) is not is_dead


async def test_a_peer_that_ends_while_it_is_written_to_breaks_the_pipe() -> None:
    """Two writes without a look at what has come: the first is answered by a reset, the second finds it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader, writer = await asyncio.open_connection(*server.getsockname())
        server.accept()[0].close()
        writer.write(b"beat")
        writer.write(b"beat")
        with pytest.raises(BrokenPipeError):
            await reader.read(1)
