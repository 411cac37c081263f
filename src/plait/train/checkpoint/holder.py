"""The holder: a small process that keeps copies of other nodes' snapshots in this node's memory.

The node's agent listens, and starts it when somebody knocks first: a node whose memory nobody needs runs none. A copy
lies in a segment of the same form as a trainer's own; a slot counts only once all hashes agree, and the former copy
stays until then. A copy of an older generation never replaces a newer one. It never imports PyTorch.
"""

import argparse
import base64
import contextlib
import hmac
import logging
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from plait.train.checkpoint.blocks import BlockHasher, BlockTable
from plait.train.checkpoint.copies import (
    GREETING_BYTES,
    TRANSFER_TIMEOUT_S,
    PeerHasNewer,
    PeerRefused,
    proof,
    receive_into,
    receive_line,
    send_line,
)
from plait.train.checkpoint.peers import run_key
from plait.train.checkpoint.segment import Segment, SegmentUnusable, SlotRecord, pages

_log = logging.getLogger(__name__)

EXPIRY_S = 24 * 3600.0
"""A copy that nobody has renewed for so long is of a run that is over."""

KEPT_FREE_RATIO = 0.1
"""Of this node's memory, what must stay free for its own work when a copy is taken."""

_LOOK_S = 0.5
_CHUNK_BYTES = 4 * 2**20
_SLOTS = 2


@dataclass(slots=True)
class Held:
    """The copy of one member's snapshot."""

    segment: Segment
    tables: list[BlockTable | None] = field(default_factory=lambda: [None] * _SLOTS)
    """Hashes of what each slot holds."""
    renewed_s: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """For moments: what counts changes, or is looked at."""
    coming: threading.Lock = field(default_factory=threading.Lock)
    """One copy comes at a time."""
    slots: tuple[threading.Lock, ...] = field(default_factory=lambda: tuple(threading.Lock() for _ in range(_SLOTS)))
    """A slot is not written while it is sent; a sender that stands still keeps nobody from the copy that is whole."""

    def close(self) -> None:
        """Frees the memory once nobody uses it."""
        with contextlib.ExitStack() as stack:
            for lock in (self.coming, *self.slots, self.lock):
                stack.enter_context(lock)
            self.segment.close()

    def has_room(self, index_bytes: int, data_bytes: int) -> bool:
        """Whether a copy of this size fits."""
        here = self.segment
        return here.index_capacity_bytes >= index_bytes and here.data_capacity_bytes >= data_bytes

    def newest(self) -> tuple[int, SlotRecord] | None:
        """Returns the slot that holds a whole copy, and what it holds."""
        with self.lock:
            slot = self.segment.newest()
            record = self.segment.record(slot) if slot is not None else None
        return (slot, record) if slot is not None and record is not None else None


Owner = tuple[str, str, str]
"""Run, URL and member."""


def free_bytes() -> tuple[int, int]:
    """Returns the memory that new work may take, and all that this machine has."""
    found = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in {"MemAvailable", "MemTotal"}:
            found[name] = int(value.split()[0]) * 1024
    return found["MemAvailable"], found["MemTotal"]


class Holder:
    """Keeps copies and hands them out."""

    def __init__(
        self,
        listener: socket.socket,
        key_of: Callable[[str], str],
        *,
        linger_s: float = 60.0,
        memory: Callable[[], tuple[int, int]] = free_bytes,
    ) -> None:
        """Uses a socket that listens already.

        Args:
            listener: Where others knock.
            key_of: Returns the key of a run.
            linger_s: Ends after so long without anybody and without a copy.
            memory: Returns free and total bytes of this machine.
        """
        self._listener = listener
        self._key_of = key_of
        self._linger_s = linger_s
        self._memory = memory
        self._held: dict[Owner, Held] = {}
        self._lock = threading.Lock()
        self._making = threading.Lock()
        """One new memory at a time, so that what is free is known."""
        self._clients = 0
        self._useful_s = time.monotonic()
        self.ending = threading.Event()

    def serve(self) -> None:
        """Serves until told to end or useless."""
        self._listener.settimeout(_LOOK_S)
        while not self.ending.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if self._is_useless():
                    return
                continue
            except OSError:  # closed, or the caller was gone before it was taken
                if self._listener.fileno() < 0:
                    return
                continue
            with self._lock:
                self._clients += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _is_useless(self) -> bool:
        now_s = time.monotonic()
        with self._lock:
            old = [owner for owner, held in self._held.items() if now_s - held.renewed_s > EXPIRY_S]
            gone = [self._held.pop(owner) for owner in old]
            if self._held or self._clients:
                self._useful_s = now_s
            is_useless = now_s - self._useful_s > self._linger_s
        for held in gone:
            held.close()
        return is_useless

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(TRANSFER_TIMEOUT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                run = self._introduced(connection)
                try:
                    self._obey(connection, run, receive_line(connection))
                except (PeerRefused, SegmentUnusable) as refusal:
                    is_older = isinstance(refusal, PeerHasNewer)
                    send_line(connection, {"kind": "refused", "why": str(refusal), "is_older": is_older})
        except (OSError, ValueError, KeyError, TypeError, PeerRefused) as error:
            _log.warning("a connection ended: %r", error)
        finally:
            with self._lock:
                self._clients -= 1

    def _introduced(self, connection: socket.socket) -> str:
        mine = secrets.token_hex(16)
        send_line(connection, {"nonce": mine})
        hello = receive_line(connection, GREETING_BYTES)
        run = str(hello["run"])
        key, nonces = self._key_of(run), (mine, str(hello["nonce"]))
        if not hmac.compare_digest(str(hello["proof"]), proof(key, "asks", nonces)):
            send_line(connection, {"kind": "refused", "why": "the run's key is another"})
            raise PeerRefused(f"somebody does not know the key of run {run!r}")
        send_line(connection, {"proof": proof(key, "holds", nonces)})
        return run

    def _obey(self, connection: socket.socket, run: str, message: Mapping[str, Any]) -> None:
        url = str(message["url"])
        match message["kind"]:
            case "keep":
                self._keep(connection, (run, url, str(message["member"])), message)
            case "list":
                with self._lock:
                    mine = [(o[2], held.newest()) for o, held in self._held.items() if o[:2] == (run, url)]
                copies = [[member, found[1].generation, found[1].step] for member, found in mine if found is not None]
                send_line(connection, {"kind": "copies", "copies": copies})
            case "fetch":
                self._give(connection, (run, url, str(message["member"])), message)
            case "drop":
                with self._lock:
                    gone = self._held.pop((run, url, str(message["member"])), None)
                if gone is not None:
                    gone.close()
                send_line(connection, {"kind": "dropped"})
            case other:
                raise PeerRefused(f"{other!r} is not understood here")

    def _keep(self, connection: socket.socket, owner: Owner, message: Mapping[str, Any]) -> None:
        held = self._place(owner, message)
        with held.coming:
            found = held.newest()
            slot = 1 - found[0] if found is not None else 0
            with held.slots[slot]:
                self._receive(connection, held, slot, message)
        send_line(connection, {"kind": "kept"})

    def _receive(self, connection: socket.socket, held: Held, slot: int, message: Mapping[str, Any]) -> None:
        """Reads a copy into a slot; it counts, and the one before it does not, once all hashes agree."""
        index_bytes, data_bytes = int(message["index_bytes"]), int(message["data_bytes"])
        held.segment.begin(slot)
        send_line(connection, {"kind": "send"})
        index = bytearray(index_bytes)
        receive_into(connection, memoryview(index))
        hasher, data = BlockHasher(data_bytes), held.segment.data(slot)
        for first in range(0, data_bytes, _CHUNK_BYTES):
            part = data[first : min(first + _CHUNK_BYTES, data_bytes)]
            receive_into(connection, part)
            hasher.update(part)
        trailer, table = receive_line(connection), hasher.table()
        self._check(trailer, bytes(index), table)
        with held.lock:
            held.tables[slot] = table
            held.segment.complete(
                slot,
                step=int(message["step"]),
                generation=int(message["generation"]),
                index=bytes(index),
                data_bytes=data_bytes,
            )
            held.segment.begin(1 - slot)  # only the newest counts, whatever its generation and step
            held.renewed_s = time.monotonic()

    @staticmethod
    def _check(trailer: Mapping[str, Any], index: bytes, table: BlockTable) -> None:
        if not trailer["is_whole"]:
            raise PeerRefused("the snapshot was written while it was sent")
        if xxhash.xxh3_128_hexdigest(index) != trailer["index_hash"]:
            raise PeerRefused("the index did not arrive as it was sent")
        if base64.b64decode(trailer["hashes"]) != table.hashes:
            raise PeerRefused("the data did not arrive as it was sent")

    def _place(self, owner: Owner, message: Mapping[str, Any]) -> Held:
        """Returns where a copy is to lie: the memory of the former one where it fits."""
        index_bytes, data_bytes = int(message["index_bytes"]), int(message["data_bytes"])
        with self._lock:
            gone = self._outdated(owner, int(message["generation"]), insists=bool(message["insists"]))
            held = self._held.get(owner)
            if held is not None and not held.has_room(index_bytes, data_bytes):
                gone.append(self._held.pop(owner))
                held = None
        for one in gone:
            one.close()
        if held is not None:
            return held
        with self._making:
            needed = _SLOTS * (pages(index_bytes) + pages(data_bytes))
            free, total = self._memory()
            if free - needed < KEPT_FREE_RATIO * total:
                raise PeerRefused(f"{needed} bytes for a copy would leave too little of the {free} bytes free here")
            made = Held(
                Segment.create(
                    "plait-copy", num_slots=_SLOTS, index_bytes=2 * index_bytes + 65536, data_bytes=data_bytes
                )
            )
        with self._lock:
            former, self._held[owner] = self._held.get(owner), made
        if former is not None:
            former.close()
        return made

    def _outdated(self, owner: Owner, generation: int, *, insists: bool) -> list[Held]:
        """Takes out and returns the copies of members that have led before.

        Raises:
            PeerHasNewer: There is one of a higher generation.
        """
        kin = {
            o: found for o, held in self._held.items() if o[:2] == owner[:2] and (found := held.newest()) is not None
        }
        newest = max((record.generation for _, record in kin.values()), default=-1)
        if newest > generation and not insists:
            raise PeerHasNewer(f"a copy of generation {newest} is held, and this one is of generation {generation}")
        old = [other for other, (_, record) in kin.items() if other != owner and record.generation != generation]
        return [self._held.pop(other) for other in old]

    def _give(self, connection: socket.socket, owner: Owner, message: Mapping[str, Any]) -> None:
        with self._lock:
            held = self._held.get(owner)
        if held is None:
            raise PeerRefused("this copy is not held here any more")
        wanted = (int(message["generation"]), int(message["step"]))
        found = held.newest()
        if found is None or (found[1].generation, found[1].step) != wanted:
            raise PeerRefused("another copy is held here meanwhile")
        slot, record = found
        with held.slots[slot]:
            table = held.tables[slot]
            if table is None or held.segment.record(slot) != record:
                raise PeerRefused("another copy is held here meanwhile")
            answer = {
                "kind": "copy", "index_bytes": record.index_bytes, "index_hash": record.index_hash.hex(),
                "data_bytes": record.data_bytes, "block_bytes": table.block_bytes,
                "hashes": base64.b64encode(table.hashes).decode(),
            }  # fmt: skip
            send_line(connection, answer)
            connection.sendall(held.segment.index(slot, record.index_bytes))
            connection.sendall(held.segment.data(slot)[: record.data_bytes])


def main(arguments: list[str] | None = None) -> int:
    """Runs a holder: ``python -m plait.train.checkpoint.holder --token-file FILE --listen HOST:PORT``."""
    parser = argparse.ArgumentParser(prog="plait-holder")
    parser.add_argument("--token-file", required=True, type=Path, help="with the cluster's token")
    parser.add_argument("--listen-fd", type=int, help="a socket that listens already")
    parser.add_argument("--listen", help="host:port to listen on; its address is printed")
    parser.add_argument("--linger-s", type=float, default=60.0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s holder: %(message)s")
    if options.listen_fd is not None:
        listener = socket.socket(fileno=options.listen_fd)
    else:
        host, _, port = options.listen.rpartition(":")
        listener = socket.create_server((host, int(port)))
        sys.stdout.write(f"{host}:{listener.getsockname()[1]}\n")
        sys.stdout.flush()

    def key_of(run: str) -> str:
        return run_key(options.token_file.read_text(encoding="utf-8").strip().encode(), run)

    holder = Holder(listener, key_of, linger_s=options.linger_s)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: holder.ending.set())
    holder.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
