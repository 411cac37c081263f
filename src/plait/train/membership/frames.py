"""Length-prefixed JSON frames, and the protocol's messages as JSON values. No pickle ever comes from the network."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from plait.train.membership import protocol as p

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


_TYPES = {
    cls.__name__: cls
    for cls in (p.Prepare, p.Accept, p.Refuse, p.Install, p.Gone, p.Complaint, p.JoinAsk, p.LeaveAsk, p.Done)
}


def to_wire(message: p.Message) -> list[Any]:
    """Returns a protocol message as JSON values."""
    fields = [_plain(getattr(message, f.name)) for f in dataclasses.fields(message)]
    return [type(message).__name__, *fields]


def from_wire(value: list[Any]) -> p.Message:
    """Returns the protocol message of :func:`to_wire`; raises ``KeyError`` for an unknown kind."""
    kind, *fields = value
    match kind:
        case "Prepare":
            ballot, members, leaving, gone = fields
            return p.Prepare(p.Ballot(*ballot), tuple(members), tuple(leaving), frozenset(gone))
        case "Accept":
            return p.Accept(p.Ballot(*fields[0]), p.Report(*fields[1]))
        case "Refuse":
            ballot, seen, installed, gone = fields
            known = p.Proposal(p.Ballot(*installed[0]), tuple(installed[1])) if installed else None
            return p.Refuse(p.Ballot(*ballot), p.Ballot(*seen), known, frozenset(gone))
        case "Install":
            ballot, members, reports = fields
            told = tuple((name, p.Report(*report)) for name, report in reports)
            return p.Install(p.Ballot(*ballot), tuple(members), told)
        case "Complaint":
            return p.Complaint(p.Ballot(*fields[0]), fields[1])
        case "Gone" | "JoinAsk":
            form: type[p.Gone | p.JoinAsk] = p.Gone if kind == "Gone" else p.JoinAsk
            return form(frozenset(fields[0]))
        case _:
            message = _TYPES[kind]()
            assert isinstance(message, p.LeaveAsk | p.Done)
            return message


def _plain(value: Any) -> Any:
    if isinstance(value, p.Report):
        return [value.applied, value.held, value.payload]
    if isinstance(value, p.Proposal):
        return [_plain(value.ballot), list(value.members)]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
