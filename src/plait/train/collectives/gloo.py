"""One generation's process group over gloo: no store that could die, works that can be given up at once.

The rendezvous runs over the wardens (:class:`WardenStore`), so no single process hosts it. PyTorch's own
``ProcessGroupGloo.abort`` frees nobody; :meth:`GlooGroup.abort` shuts the group's sockets down instead, which ends
every pending work on both sides at once.
"""

import contextlib
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from plait.errors import PlaitError
from plait.train.collectives.mesh import Mesh, MeshSum
from plait.train.collectives.mesh_builder import MeshBuilder
from plait.train.collectives.mover import Mover
from plait.train.collectives.planned import Debt, MomentumShare, PlannedSum
from plait.train.collectives.routes import Routes
from plait.train.collectives.travel import TimedBackEnd
from plait.train.comm.quiet import QuietMeasuring
from plait.train.compression import codec as codec_of
from plait.train.compression.codec import Codec
from plait.train.compression.message import MessageLayout, message_layout
from plait.train.membership.link import WardenLink, Warned

POLL_S = 0.0005
MOST_DIRECT_BYTES = 2**20
MOST_DIRECT_MEMBERS = 64
_MEETING_S = 30.0
_ADDRESS = re.compile(rb"\x02\x00(..)(....)", re.DOTALL)


class WardenStore(Store):
    """The rendezvous of one generation: each value goes to every member through the wardens."""

    def __init__(self, link: WardenLink, generation: str, others: list[str]) -> None:
        super().__init__()
        self.link = link
        self.generation = generation
        self._others = others
        self.given_up = False
        self.seen: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Publishes a value to all members."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.seen[key] = data
        self.link.publish(self.generation, self._others, key, data)

    def get(self, key: str) -> bytes:
        """Waits for a value; raises ``Warned`` when the generation is given up meanwhile."""
        while (value := self.link.lookup(self.generation, key)) is None:
            if self.given_up:
                raise Warned
            time.sleep(POLL_S)
        self.seen[key] = value
        return value

    def wait(self, keys: list[str], _timeout: timedelta | None = None) -> None:
        """Waits for all of the keys."""
        for key in keys:
            self.get(key)


class GlooGroup:
    """A process group of one generation; build it with :meth:`build`, which can be given up too."""

    def __init__(self, store: WardenStore, group: Any, mesh: Mesh | None, routes: Routes) -> None:
        self._store = store
        self._group = group
        self.mesh = mesh
        self.routes = routes
        self.size = len(routes.names)
        self._mover: Mover | None = None

    @classmethod
    def build(
        cls, link: WardenLink, generation: str, members: tuple[str, ...], routes: Routes, timeout_s: float
    ) -> "GlooGroup":
        """Connects all members of the generation.

        Raises:
            Warned: the group is about to change.
            RuntimeError: a peer could not be reached.
        """
        others = [m for m in members if m != link.me]
        store = WardenStore(link, generation, others)
        rank, size = members.index(link.me), len(members)
        made: list[Any] = []
        meeting = MeshBuilder(link.address.rsplit(":", 1)[0], rank, size, link.token(generation))

        def connect() -> None:
            try:
                store.set(f"mesh/{rank}", meeting.address)
                group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s))
                mesh = None
                if size <= MOST_DIRECT_MEMBERS:
                    mesh = meeting.connect(lambda other: store.get(f"mesh/{other}").decode(), timeout_s)
                made.append(cls(store, group, mesh, routes))
            except Exception as error:  # noqa: BLE001 - handed to the waiting thread
                made.append(error)
            finally:
                meeting.close()

        builder = threading.Thread(target=connect, name="plait-rendezvous", daemon=True)
        builder.start()
        while builder.is_alive():
            link.pump()
            if link.stop_asked or link.released:
                store.given_up = True
                meeting.close()
                _shut_sockets(_listeners(store))
                raise Warned
            builder.join(POLL_S)
        if not isinstance(made[0], cls):
            raise RuntimeError(f"generation {generation} could not connect: {made[0]}") from made[0]  # noqa: TRY004
        return made[0]

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        """Starts an all-reduce in place; returns a work with ``is_completed`` and ``wait``.

        A small sum goes directly from everybody to everybody: one hop where a ring takes 2 (n - 1). A large one goes
        by what was measured, or along islands, if there are any.
        """
        is_here = tensor.device.type == "cpu" and self.mesh is not None and op == dist.ReduceOp.SUM
        if self.mesh is not None and is_here and tensor.nbytes <= MOST_DIRECT_BYTES:
            return self.mesh.all_reduce(tensor)
        fits = tensor.dtype == torch.float32 and tensor.is_contiguous()
        if self.mesh is not None and is_here and fits and not self.routes.is_plain(tensor.nbytes):
            self.mesh.steady()
            return self.planned(tensor.view(-1), message_layout([(tensor.numel(), 1)]), codec_of("fp32"))
        work = self._by_back_end(tensor, op)
        is_a_choice = is_here and fits and self.routes.tables is not None
        return TimedBackEnd(work, tensor.nbytes) if is_a_choice else work

    def _by_back_end(self, tensor: Tensor, op: Any) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return self._group.allreduce([tensor], options)

    def measuring(self, codecs: Sequence[str]) -> QuietMeasuring:
        """Begins to measure links and ways to sum, with nothing else under way; all members do at the same time."""
        assert self.mesh is not None
        rank, link = self.mesh.rank, self._store.link
        token = link.token(f"{self._store.generation} measuring")
        meeting = MeshBuilder(link.address.rsplit(":", 1)[0], rank, self.size, token)

        def connect() -> Mesh:
            self._store.set(f"measuring/{rank}", meeting.address)
            return meeting.connect(lambda other: self._store.get(f"measuring/{other}").decode(), _MEETING_S)

        def plain(tensor: Tensor) -> None:
            self._by_back_end(tensor, dist.ReduceOp.SUM).wait()

        return QuietMeasuring(connect, self.routes.names, codecs, plain)

    def planned(
        self,
        values: Tensor,
        message: MessageLayout,
        codec: Codec,
        debt: Debt | None = None,
        momentum: MomentumShare | None = None,
    ) -> PlannedSum:
        """Starts a sum over all members by the plan of this generation; see :class:`PlannedSum`.

        A thread moves it on while the caller computes; who waits for it calls :meth:`rest` before.

        Raises:
            PlaitError: The group is so large that its members have no direct connections.
        """
        mesh = self.mesh
        if mesh is None:
            raise PlaitError(f"a group of {self.size} members has no direct connections, which compression needs")
        route = self.routes.of(message, codec)
        work = mesh.start(lambda key, ranks: PlannedSum(mesh, key, ranks, values, route, debt=debt, momentum=momentum))
        if self._mover is None:
            self._mover = Mover(mesh)
        self._mover.go()
        return work

    def rest(self) -> None:
        """The caller moves exchanges on itself from now on, until it starts another one."""
        if self._mover is not None:
            self._mover.rest()

    def all_reduce_among(self, tensor: Tensor, ranks: Sequence[int]) -> MeshSum:
        """Starts a sum of a small tensor on the CPU over some of the members, in place."""
        if self.mesh is None:
            raise RuntimeError(f"a group of {self.size} has no direct connections; at most {MOST_DIRECT_MEMBERS} have")
        return self.mesh.all_reduce(tensor, ranks)

    def close(self) -> None:
        """Ends the direct connections, here and at the peers."""
        if self._mover is not None:
            self._mover.close()
        if self.mesh is not None:
            self.mesh.close()

    def abort(self) -> None:
        """Ends all pending works, here and at the peers, and frees the group in the background."""
        self._store.given_up = True
        self.close()
        _shut_sockets(_listeners(self._store))
        # Freeing the group may wait for its works. The list must hold the only reference when the thread starts: a
        # name in this function would make the caller free it whenever the thread is faster.
        held = [self._group]
        self._group = None
        # Not a daemon: a thread that the interpreter's end stops inside PyTorch's destructors aborts the process.
        threading.Thread(target=held.clear, name="plait-free").start()


def _listeners(store: WardenStore) -> set[tuple[str, int]]:
    """Returns the addresses on which gloo listens for this generation, read from its rendezvous values."""
    found = set()
    for value in list(store.seen.values()):
        for port, address in _ADDRESS.findall(value):
            number = struct.unpack(">H", port)[0]
            if number and address[0] != 0:
                found.add((socket.inet_ntoa(address), number))
    return found


def _shut_sockets(addresses: set[tuple[str, int]]) -> None:
    """Shuts down this process's connections from or to any of these addresses, and no others."""
    if not addresses:
        return
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                if copy.family != socket.AF_INET or copy.type != socket.SOCK_STREAM:
                    continue
                peer = copy.getpeername()  # fails for a listener, whose shutdown would end this process in gloo
                if copy.getsockname()[:2] in addresses or peer[:2] in addresses:
                    copy.shutdown(socket.SHUT_RDWR)
