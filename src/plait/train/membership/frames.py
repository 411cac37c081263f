"""Length-prefixed JSON frames, and the protocol's messages as JSON values. No pickle ever comes from the network."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from plait.train.membership import speech as s

HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 * 2**20


class FrameBuffer:
    """Collects bytes and yields the complete frames among them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Takes received bytes; yields each complete frame's value.

        Raises:
            ValueError: a frame announces more than ``MAX_FRAME_BYTES`` or is no JSON.
        """
        self._data += data
        while len(self._data) >= HEADER_BYTES:
            length = int.from_bytes(self._data[:HEADER_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes is longer than {MAX_FRAME_BYTES}")
            if len(self._data) < HEADER_BYTES + length:
                return
            body = bytes(self._data[HEADER_BYTES : HEADER_BYTES + length])
            del self._data[: HEADER_BYTES + length]
            yield json.loads(body)


def frame(value: Any) -> bytes:
    """Returns the frame of one JSON value."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def to_wire(message: s.Message) -> list[Any]:
    """Returns a protocol message as JSON values."""
    fields = [_plain(getattr(message, f.name)) for f in dataclasses.fields(message)]
    return [type(message).__name__, *fields]


def from_wire(value: list[Any]) -> s.Message:  # noqa: PLR0911 - one a kind
    """Returns the protocol message of :func:`to_wire`; raises ``ValueError`` for an unknown kind."""
    kind, *fields = value
    match kind:
        case "Prepare":
            ballot, members, leaving, gone = fields
            return s.Prepare(s.Ballot(*ballot), tuple(members), tuple(leaving), frozenset(gone))
        case "Accept":
            return s.Accept(s.Ballot(*fields[0]), s.Report(*fields[1]))
        case "Refuse":
            ballot, seen, installed, gone = fields
            known = s.Proposal(s.Ballot(*installed[0]), tuple(installed[1])) if installed else None
            return s.Refuse(s.Ballot(*ballot), s.Ballot(*seen), known, frozenset(gone))
        case "Install":
            ballot, members, reports = fields
            told = tuple((name, s.Report(*report)) for name, report in reports)
            return s.Install(s.Ballot(*ballot), tuple(members), told)
        case "Complaint" | "Withdrawn":
            about: type[s.Complaint | s.Withdrawn] = s.Complaint if kind == "Complaint" else s.Withdrawn
            return about(s.Ballot(*fields[0]), fields[1])
        case "Gone" | "JoinAsk":
            form: type[s.Gone | s.JoinAsk] = s.Gone if kind == "Gone" else s.JoinAsk
            return form(frozenset(fields[0]))
        case "LeaveAsk":
            return s.LeaveAsk()
        case "Done":
            return s.Done()
        case _:
            raise ValueError(f"{kind!r} is no message of the protocol")


def _plain(value: Any) -> Any:
    if isinstance(value, s.Report):
        return [value.applied, value.held, value.payload]
    if isinstance(value, s.Proposal):
        return [_plain(value.ballot), list(value.members)]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
