"""Copies of snapshots in the memory of other nodes: what a saver, a trainer and the holder there say to each other.

One TCP connection a request: both sides prove that they know the run's key without telling it, then come JSON lines,
and the bytes of a snapshot as they lie in shared memory. Data carries xxh3-128 of each block, so that what arrived, and
what lay in another node's memory meanwhile, is verified before it is used.
"""

import base64
import contextlib
import hmac
import json
import logging
import secrets
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import xxhash

from plait.errors import PlaitError
from plait.train.checkpoint.blocks import BlockHasher, BlockTable
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.index import Index, decoded
from plait.train.checkpoint.peers import Peers
from plait.train.checkpoint.reading import Place
from plait.train.checkpoint.segment import Segment, SlotRecord

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
GREETING_TIMEOUT_S = 10.0
"""A holder that is only being started answers after a moment."""

TRANSFER_TIMEOUT_S = 30.0
"""The longest that a connection may stand still."""

_LINE_BYTES = 64 * 2**20
GREETING_BYTES = 4096
"""No line of somebody who has not proved who it is may be longer."""

_CHUNK_BYTES = 4 * 2**20


class PeerRefused(PlaitError):
    """The other node does not take or give this; the message says why."""


class PeerHasNewer(PeerRefused):
    """The other node holds a copy of a higher generation."""


# The line


def send_line(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends one JSON line."""
    connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def receive_line(connection: socket.socket, most_bytes: int = _LINE_BYTES) -> dict[str, Any]:
    """Returns the next JSON line; reads nothing beyond it.

    Raises:
        PeerRefused: The connection ended, or what came is no such line.
    """
    parts: list[bytes] = []
    size = 0
    while size < most_bytes:
        seen = connection.recv(65536, socket.MSG_PEEK)
        if not seen:
            raise PeerRefused("the connection ended before an answer came")
        end = seen.find(b"\n")
        part = connection.recv(end + 1 if end >= 0 else len(seen))
        parts.append(part)
        size += len(part)
        if part.endswith(b"\n"):
            found = json.loads(b"".join(parts))
            if isinstance(found, dict):
                return found
            break
    raise PeerRefused("what came is no message")


def receive_into(connection: socket.socket, view: memoryview) -> None:
    """Fills memory from the connection.

    Raises:
        PeerRefused: The connection ended early.
    """
    at = 0
    while at < len(view):
        count = connection.recv_into(view[at:], min(len(view) - at, _CHUNK_BYTES))
        if count == 0:
            raise PeerRefused(f"the connection ended {len(view) - at} bytes early")
        at += count


def proof(key: str, role: str, nonces: tuple[str, str]) -> str:
    """Returns what only somebody who knows the key can say, once."""
    return hmac.new(key.encode(), f"{role}/{nonces[0]}/{nonces[1]}".encode(), "sha256").hexdigest()


@contextlib.contextmanager
def connected(peers: Peers, address: str) -> Iterator[socket.socket]:
    """Yields a connection on which both sides have proved who they are.

    Raises:
        OSError: Nobody answers.
        PeerRefused: The other side does not know the run's key, or finds that this one does not.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(GREETING_TIMEOUT_S)
        nonces = str(receive_line(connection, GREETING_BYTES)["nonce"]), secrets.token_hex(16)
        hello = {"run": peers.run, "nonce": nonces[1], "proof": proof(peers.key, "asks", nonces)}
        send_line(connection, hello)
        answer = receive_line(connection)
        if not hmac.compare_digest(str(answer.get("proof", "")), proof(peers.key, "holds", nonces)):
            raise PeerRefused(f"{address} does not know this run's key")
        connection.settimeout(TRANSFER_TIMEOUT_S)
        yield connection


def _asked(connection: socket.socket, message: Mapping[str, Any]) -> dict[str, Any]:
    send_line(connection, message)
    return _agreed(connection)


def _agreed(connection: socket.socket) -> dict[str, Any]:
    answer = receive_line(connection)
    if answer.get("kind") == "refused":
        raise (PeerHasNewer if answer.get("is_older") else PeerRefused)(str(answer.get("why")))
    return answer


# Sending


def send_copy(
    peers: Peers, address: str, segment: Segment, slot: int, *, url: str, member: str, insists: bool = False
) -> SlotRecord:
    """Sends the snapshot in a slot to another node; returns what was sent.

    Args:
        peers: Whose key is used.
        address: Of the other node's holder.
        segment: Where the snapshot lies.
        slot: In which slot.
        url: Where the run's checkpoints lie, which tells its copies from others.
        member: Whose snapshot it is.
        insists: Whether a copy of a higher generation is to be replaced: for one whose claim was just found to stand.

    Raises:
        OSError: The connection failed.
        PeerRefused: The other node does not want it, or the slot was written while it was sent.
    """
    record = segment.record(slot)
    if record is None:
        raise PeerRefused(f"slot {slot} holds no whole snapshot")
    hasher = BlockHasher(record.data_bytes)
    with connected(peers, address) as connection:
        offer = {
            "kind": "keep", "url": url, "member": member, "generation": record.generation, "step": record.step,
            "index_bytes": record.index_bytes, "data_bytes": record.data_bytes, "insists": insists,
        }  # fmt: skip
        _asked(connection, offer)
        connection.sendall(segment.index(slot, record.index_bytes))
        data = segment.data(slot)
        for first in range(0, record.data_bytes, _CHUNK_BYTES):
            part = data[first : min(first + _CHUNK_BYTES, record.data_bytes)]
            hasher.update(part)
            connection.sendall(part)
        is_whole = segment.record(slot) == record
        hashes = base64.b64encode(hasher.table().hashes).decode()
        _asked(connection, {"is_whole": is_whole, "index_hash": record.index_hash.hex(), "hashes": hashes})
        if not is_whole:
            raise PeerRefused(f"slot {slot} was written while it was sent")
    return record


def drop_copy(peers: Peers, address: str, url: str, member: str) -> None:
    """Has another node forget the copy of a member that needs it no more.

    Raises:
        OSError: The connection failed.
        PeerRefused: The other side does not know the key.
    """
    with connected(peers, address) as connection:
        _asked(connection, {"kind": "drop", "url": url, "member": member})


# Fetching


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy that another node holds."""

    node: str
    address: str
    member: str
    generation: int
    step: int


def copies_of(peers: Peers, url: str) -> list[Copy]:
    """Returns the copies that peers hold of a run's snapshots; those that do not answer are told and passed over."""
    if not peers.addresses:
        return []
    with ThreadPoolExecutor(max_workers=len(peers.addresses)) as asking:
        found = asking.map(lambda pair: _copies_on(peers, url, *pair), peers.addresses)
        return [copy for copies in found for copy in copies]


def _copies_on(peers: Peers, url: str, node: str, address: str) -> list[Copy]:
    try:
        with connected(peers, address) as connection:
            answer = _asked(connection, {"kind": "list", "url": url})
        return [
            Copy(node=node, address=address, member=str(member), generation=int(generation), step=int(step))
            for member, generation, step in answer["copies"]
        ]
    except (OSError, ValueError, KeyError, TypeError, PeerRefused) as error:
        _log.info("%s at %s tells of no copies: %s", node, address, error)
        return []


class Fetching:
    """A copy on its way here: first its index, then its data."""

    def __init__(self, connection: socket.socket, url: str, copy: Copy) -> None:
        """Asks for the copy and reads its index.

        Raises:
            OSError: The connection failed.
            PeerRefused: The copy is not there any more.
            CheckpointDamaged: The index is not as it was sent.
        """
        wanted = {
            "kind": "fetch",
            "url": url,
            "member": copy.member,
            "generation": copy.generation,
            "step": copy.step,
        }
        answer = _asked(connection, wanted)
        self._connection = connection
        self._what = f"the copy on {copy.node}"
        data = bytearray(int(answer["index_bytes"]))
        receive_into(connection, memoryview(data))
        if xxhash.xxh3_128_hexdigest(data) != answer["index_hash"]:
            raise CheckpointDamaged(f"the index of {self._what} is not as it was sent")
        self.index: Index = decoded(bytes(data))
        self._table = BlockTable(
            block_bytes=int(answer["block_bytes"]),
            file_bytes=int(answer["data_bytes"]),
            hashes=base64.b64decode(answer["hashes"], validate=True),
        )

    def read(self, place: Place) -> None:
        """Reads the data into memory that is there, verified; after an error it holds anything.

        Raises:
            OSError: The connection failed.
            CheckpointDamaged: Some block is not as it was sent.
        """
        size = max(_CHUNK_BYTES, self._table.block_bytes)
        for first in range(0, self._table.file_bytes, size):
            pieces = place(first, min(first + size, self._table.file_bytes))
            for piece in pieces:
                receive_into(self._connection, piece)
            self._table.check_pieces(pieces, first, self._what)


@contextlib.contextmanager
def fetching(peers: Peers, url: str, copy: Copy) -> Iterator[Fetching]:
    """Yields a copy on its way here; whatever goes wrong makes it unreadable.

    Raises:
        CheckpointDamaged: It cannot be had whole.
    """
    try:
        with connected(peers, copy.address) as connection:
            yield Fetching(connection, url, copy)
    except (OSError, ValueError, KeyError, TypeError, PeerRefused) as error:
        raise CheckpointDamaged(f"the copy on {copy.node} cannot be fetched: {error}") from error
