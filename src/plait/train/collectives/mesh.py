"""Small sums over plain sockets between all members of a generation: one hop, and no thread to wake.

A vote is a few hundred bytes, so its time is latency. A back end's work passes through a queue and two threads of its
own before it reaches the wire; here the caller itself writes to its peers and reads from them. All members add in the
order of ranks, so all get the same bits.
"""

import contextlib
import select
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor

from plait.train.collectives.sockets import retries_of, steady, unconfirmed_bytes

_FRAME = struct.Struct(">IIQI")
Key = tuple[int, int]
"""Number of an exchange among the same members, and the bits of their ranks (0: all)."""

Work = TypeVar("Work", bound="MeshWork")
_READ_BYTES = 1 << 14
"""Between frames so much is read at a time; what is left of a longer frame is read straight into its place."""

MOST_ONE_HOP_BYTES = 32 * 2**10
"""Up to here everybody sends all to everybody; beyond, each member adds up one part and hands it out."""


class MeshBroken(RuntimeError):
    """A peer's connection ended, or what came over it does not fit.

    Attributes:
        rank: The peer at the other end of a connection that broke, ``None`` where it was closed or nothing broke.
        unsent_bytes: What was still to be sent to it; where the connection still lives, what it has not confirmed too.
    """

    def __init__(self, text: str, rank: int | None = None, unsent_bytes: int = 0) -> None:
        super().__init__(text)
        self.rank = rank
        self.unsent_bytes = unsent_bytes


@dataclass(slots=True)
class _LongFrame:
    """A frame of which a part has come."""

    key: Key
    hop: int
    data: bytearray
    filled: int

    def room(self) -> memoryview:
        return memoryview(self.data)[self.filled :]


class Peer:
    """The connection to one other member; frames arrive in the order in which they were sent."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.connection = connection
        self.rank = rank
        self.outbox: deque[memoryview] = deque()
        self._rest = bytearray()
        self._long: _LongFrame | None = None
        self._ended: MeshBroken | None = None

    def send(self, key: Key, hop: int, data: memoryview) -> None:
        """Queues a frame and writes what the kernel takes; it never waits."""
        self.outbox.append(memoryview(_FRAME.pack(len(data), *key, hop)))
        if len(data):  # an empty rest would never leave
            self.outbox.append(data)
        self.flush()

    def flush(self) -> None:
        """Writes what the kernel takes."""
        while self.outbox:
            try:
                written = self.connection.sendmsg(list(self.outbox)[:8])
            except BlockingIOError:
                return
            except OSError as error:
                raise self._broken(f"broke: {error.strerror}") from error
            while written:
                first = self.outbox.popleft()
                if written < len(first):
                    self.outbox.appendleft(first[written:])
                    break
                written -= len(first)

    def receive(self) -> list[tuple[Key, int, bytearray]]:
        """Returns the frames (key, hop, data) that are complete now, without waiting.

        What a peer sent before its end counts: others may have seen it too. The end is told when nothing is left.
        """
        frames: list[tuple[Key, int, bytearray]] = []
        while self._ended is None:
            try:
                read_bytes, wanted_bytes = self._read()
            except BlockingIOError:
                break
            except OSError as error:
                self._ended = self._broken(f"broke: {error.strerror}")
                break
            if not read_bytes:
                self._ended = MeshBroken(f"member {self.rank} closed its connection")
            while (frame := self._next()) is not None:
                frames.append(frame)
            if read_bytes < wanted_bytes:
                break
        if self._ended is not None and not frames:
            raise self._ended
        return frames

    def _broken(self, what: str) -> MeshBroken:
        unsent_bytes = sum(map(len, self.outbox))  # of a dead connection the kernel does not know
        return MeshBroken(f"the connection to member {self.rank} {what}", self.rank, unsent_bytes)

    def _read(self) -> tuple[int, int]:
        """Reads what has come; returns how many bytes, and how many there was room for."""
        if self._long is not None:
            room = self._long.room()
            count = self.connection.recv_into(room)
            self._long.filled += count
            return count, len(room)
        data = self.connection.recv(_READ_BYTES)
        self._rest += data
        return len(data), _READ_BYTES

    def _next(self) -> tuple[Key, int, bytearray] | None:
        if self._long is not None:
            if self._long.filled < len(self._long.data):
                return None
            done, self._long = self._long, None
            return done.key, done.hop, done.data
        if len(self._rest) < _FRAME.size:
            return None
        length, number, mask, hop = _FRAME.unpack_from(self._rest)
        end = _FRAME.size + length
        if len(self._rest) < end:
            self._long = _LongFrame((number, mask), hop, bytearray(length), len(self._rest) - _FRAME.size)
            self._long.data[: self._long.filled] = self._rest[_FRAME.size :]
            self._rest.clear()
            return None
        data = self._rest[_FRAME.size : end]
        del self._rest[:end]
        return (number, mask), hop, data


class MeshWork(ABC):
    """An exchange on its way over a mesh; like a back end's work it has ``is_completed`` and ``wait``."""

    def __init__(self, mesh: "Mesh", key: Key, ranks: Sequence[int]) -> None:
        self.key = key
        self.error: MeshBroken | None = None
        self.is_over = False
        self.mesh = mesh
        self.others = {rank: mesh.peers[rank] for rank in ranks if rank != mesh.rank}

    @abstractmethod
    def begin(self) -> None:
        """Sends what this member has to say first."""

    @abstractmethod
    def take(self, rank: int, hop: int, data: bytearray) -> None:
        """Takes in a frame of a member."""

    def missing(self) -> frozenset[int]:
        """Returns the ranks from which messages are missing."""
        return frozenset(self.others)

    def is_completed(self) -> bool:
        """Whether the result is in place and all that others need for theirs has left, or the mesh is broken."""
        if not self._can_go():
            self.mesh.take(0.0)
        return self._can_go()

    def _can_go(self) -> bool:
        return self.error is not None or (self.is_over and not self.mesh.owes())

    def wait(self, timeout: timedelta | None = None) -> None:
        """Waits until the result is in place.

        Raises:
            RuntimeError: the mesh broke, or the time is over; the exchange goes on then.
        """
        until_s = None if timeout is None else time.monotonic() + timeout.total_seconds()
        while not self._can_go():
            left_s = 1.0 if until_s is None else until_s - time.monotonic()
            if left_s <= 0.0:
                raise RuntimeError("the sum is not complete yet")
            self.mesh.take(left_s)
        if self.error is not None:
            raise self.error


class MeshSum(MeshWork):
    """A sum of tensors as they are."""

    def __init__(self, mesh: "Mesh", key: Key, ranks: Sequence[int], tensor: Tensor) -> None:
        super().__init__(mesh, key, ranks)
        self.tensor = tensor
        self._flat = tensor.contiguous().reshape(-1)
        one_hop = tensor.nbytes <= MOST_ONE_HOP_BYTES
        self._bounds = bounds(self._flat.numel(), 1 if one_hop else len(ranks))
        self._place = {rank: 0 if one_hop else place for place, rank in enumerate(ranks)}
        self._awaited = 0 if one_hop else len(self.others)
        self._parts: dict[int, bytearray] = {}
        self._sums: dict[int, bytearray] = {}
        self._is_handed_out = False

    def begin(self) -> None:
        """Sends each member the values that it adds up."""
        for rank, peer in self.others.items():
            peer.send(self.key, 0, _bytes(self._part(rank)))

    def take(self, rank: int, hop: int, data: bytearray) -> None:
        """Takes in one member's values (hop 0), or the sum of its part (hop 1)."""
        wanted = self._part(rank if hop else self.mesh.rank).nbytes
        if len(data) != wanted:
            raise MeshBroken(f"member {rank} sent {len(data)} bytes where {wanted} were expected")
        (self._sums if hop else self._parts)[rank] = data
        self.go_on()

    def go_on(self) -> None:
        """Adds up once all values are here, hands the sum out, and is over once everybody's sum is in place."""
        if len(self._parts) == len(self.others) and not self._is_handed_out:
            self._is_handed_out = True
            own = self._part(self.mesh.rank)
            own.copy_(self._added(own))
            if self._awaited:
                for peer in self.others.values():
                    peer.send(self.key, 1, _bytes(own))
        if self._is_handed_out and len(self._sums) == self._awaited:
            for rank, data in self._sums.items():
                part = self._part(rank)
                part.copy_(_tensor(data, part))
            if self._flat.data_ptr() != self.tensor.data_ptr():
                self.tensor.copy_(self._flat.view_as(self.tensor))
            self.is_over = True

    def _part(self, rank: int) -> Tensor:
        """The values that this member adds up."""
        place = self._place[rank]
        return self._flat[self._bounds[place] : self._bounds[place + 1]]

    def _added(self, own: Tensor) -> Tensor:
        """Adds up in the order of ranks, so that the bits do not depend on who comes first."""
        rows = [own if rank == self.mesh.rank else _tensor(self._parts[rank], own) for rank in self._place]
        total = rows[0].clone()
        for row in rows[1:]:
            total += row
        return total


class Mesh:
    """Connections to all other members of one generation. Safe to use from several threads."""

    def __init__(self, rank: int, connections: Mapping[int, socket.socket]) -> None:
        self.rank = rank
        self.size = len(connections) + 1
        self.peers = {index: Peer(connection, index) for index, connection in connections.items()}
        self._rank_of = {peer.connection.fileno(): index for index, peer in self.peers.items()}
        self._poll = select.poll()
        self._works: dict[Key, MeshWork] = {}
        self._early: dict[Key, list[tuple[int, int, bytearray]]] = {}
        self._next: dict[int, int] = {}
        self._lock = threading.RLock()
        self._broken: MeshBroken | None = None
        self._is_steady = False

    def all_reduce(self, tensor: Tensor, among: Sequence[int] | None = None) -> MeshSum:
        """Starts to sum a tensor in place; all who take part start the sums of one kind in the same order.

        Args:
            tensor: On the CPU; of the same shape and type everywhere.
            among: The ranks that take part, rising, this one among them. ``None``: all. Sums among some do not mind
                the order of sums among others.
        """
        return self.start(lambda key, ranks: MeshSum(self, key, ranks, tensor), among)

    def start(self, make: Callable[[Key, Sequence[int]], Work], among: Sequence[int] | None = None) -> Work:
        """Starts an exchange that ``make`` returns for a key and the ranks that take part; see :meth:`all_reduce`."""
        with self._lock:
            mask = 0 if among is None else sum(1 << rank for rank in among)
            key = (self._next.get(mask, 0), mask)
            self._next[mask] = key[0] + 1
            work = make(key, range(self.size) if among is None else among)
            self._works[key] = work
            try:
                if self._broken is not None:
                    raise self._broken
                work.begin()
                for rank, hop, data in self._early.pop(key, ()):
                    work.take(rank, hop, data)
            except MeshBroken as error:
                self._break(error)
            return work

    def steady(self) -> None:
        """From now on connections carry long streams evenly, which bursts of coded values have no need of."""
        with self._lock:
            if not self._is_steady:
                self._is_steady = True
                for peer in self.peers.values():
                    steady(peer.connection)

    @property
    def broken(self) -> MeshBroken | None:
        """Why nothing more can be exchanged, if so."""
        return self._broken

    def stuck(self, least_retries: int) -> MeshBroken | None:
        """Returns what to say of a connection whose data was sent again so often, and still not confirmed."""
        for rank, peer in self.peers.items():
            if (retries := retries_of(peer.connection)) >= least_retries:
                unsent_bytes = sum(map(len, peer.outbox)) + unconfirmed_bytes(peer.connection)
                told = f"gives no answer, though {unsent_bytes} bytes were sent again {retries} times"
                return MeshBroken(f"the connection to member {rank} {told}", rank, unsent_bytes)
        return None

    def owes(self) -> bool:
        """Whether something is still to be written to a peer."""
        return any(peer.outbox for peer in self.peers.values())

    def take(self, timeout_s: float, bell: int | None = None) -> None:
        """Waits at most so long for something to come, and moves the sums on.

        Args:
            timeout_s: How long.
            bell: A descriptor that ends the wait when it can be read; it is left as it is.
        """
        with self._lock:
            if self._broken is not None:
                self._break(self._broken)
                return
            self._watch()
            if bell is not None:
                self._poll.register(bell, select.POLLIN)
        ready = self._poll.poll(timeout_s * 1000.0)
        with self._lock:
            try:
                for descriptor, _ in ready:
                    if descriptor in self._rank_of:  # else it is a bell, of this call or an earlier one
                        self._move(self._rank_of[descriptor])
                self._retire()
            except MeshBroken as error:
                self._break(error)

    def _watch(self) -> None:
        for descriptor, rank in self._rank_of.items():
            wants = select.POLLIN | (select.POLLOUT if self.peers[rank].outbox else 0)
            self._poll.register(descriptor, wants)

    def _move(self, rank: int) -> None:
        peer = self.peers[rank]
        peer.flush()
        for key, hop, data in peer.receive():
            work = self._works.get(key)
            if work is None:
                self._early.setdefault(key, []).append((rank, hop, data))
            else:
                work.take(rank, hop, data)

    def _retire(self) -> None:
        """Drops the sums that are over."""
        for key in [key for key, work in self._works.items() if work.is_over]:
            del self._works[key]

    def _break(self, error: MeshBroken) -> None:
        self._broken = error
        for work in self._works.values():
            if not work.is_over:
                work.error = error
        self._works.clear()
        for peer in self.peers.values():
            peer.outbox.clear()

    def close(self) -> None:
        """Ends all connections; sums that are on their way end with an error, here and at the peers."""
        for peer in self.peers.values():
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._break(MeshBroken("the group was given up"))
        for peer in self.peers.values():
            peer.connection.close()


def bounds(length: int, parts: int) -> tuple[int, ...]:
    """Returns where each of ``parts`` nearly equal parts of ``length`` values begins, and the end."""
    return tuple(length * part // parts for part in range(parts + 1))


def _tensor(data: bytearray, like: Tensor) -> Tensor:
    return torch.frombuffer(data, dtype=like.dtype) if data else torch.empty(0, dtype=like.dtype)


def _bytes(part: Tensor) -> memoryview:
    """Returns a copy: the values may change before the kernel has taken them all."""
    return memoryview(part.view(torch.uint8).numpy().tobytes())
