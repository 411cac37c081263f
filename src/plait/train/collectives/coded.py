r"""An all-reduce whose values travel encoded, with error feedback on both sides.

Each member encodes its values part by part and sends every part to the member that adds it up (the *server* of that
part); the server adds what was decoded, in the order of ranks, encodes the sum and hands it out; all decode the same
bytes, so all end with the same bits. Two hops and, with one bit a value, 1/32 of the bytes of an fp32 ring. Both sides
keep what their encoding lost and add it the next time (Tang et al., 1-bit Adam, arXiv 2102.02888, algorithm 1).

Errors are in units of the step's mean: a member's values come weighted by its share of the step. Then

.. math:: \text{result}_t + \text{debt}_t = \text{exact}_t + \text{debt}_{t-1}, \qquad
          \text{debt} = \sum_i e_i + E,

whatever the shares. New errors lie in buffers of their own until the step commits, so that a step whose exchange broke
can be exchanged again.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plait.train.collectives.mesh import Key, Mesh, MeshBroken, MeshWork
from plait.train.compression.codec import Codec
from plait.train.compression.message import MessageLayout, shard_bounds


class Feedback:
    """What the encodings of one stretch have lost so far: on the way to the servers, and as a server.

    Attributes:
        worker: fp32, of the stretch's length.
        server: fp32, of the length of this member's part.
        part: Where that part lies in the stretch.
    """

    def __init__(self, count: int, device: torch.device | None = None) -> None:
        self.worker = torch.zeros(count, device=device)
        self.server = torch.zeros(0, device=device)
        self.part = (0, 0)
        self._new_worker = torch.zeros(count, device=device)
        self._new_server = torch.zeros(0, device=device)

    def take_part(self, first: int, end: int) -> None:
        """Makes this member the server of another part; what it owed as a server of the old one it owes as a worker."""
        if (first, end) == self.part:
            return
        self.fold()
        self.part = (first, end)
        self.server = self.worker.new_zeros(end - first)
        self._new_server = self.worker.new_zeros(end - first)

    def fold(self) -> None:
        """Moves the server's error into the worker's: their sum is what counts."""
        first, end = self.part
        self.worker[first:end].add_(self.server)
        self.server.zero_()

    def new(self) -> tuple[Tensor, Tensor]:
        """Returns where the errors of the running exchange go."""
        return self._new_worker, self._new_server

    def settle(self) -> None:
        """An exchange without loss follows: nothing will be owed once it commits."""
        self._new_worker.zero_()
        self._new_server.zero_()

    def commit(self) -> None:
        """The exchange counts: its errors are the errors from now on."""
        self.worker, self._new_worker = self._new_worker, self.worker
        self.server, self._new_server = self._new_server, self.server


Prepare = Callable[[int, int], Tensor]
"""Returns the values from one place to another that are to be encoded, without the error of earlier steps."""


class CodedSum(MeshWork):
    """One encoded sum on its way; the result replaces ``values``."""

    def __init__(  # noqa: PLR0917 - the first three are the mesh's own
        self,
        mesh: Mesh,
        key: Key,
        ranks: Sequence[int],
        values: Tensor,
        codec: Codec,
        layout: MessageLayout,
        feedback: Feedback | None,
        prepare: Prepare | None = None,
    ) -> None:
        super().__init__(mesh, key, ranks)
        self._values = values
        self._codec = codec
        self._feedback = feedback
        self._prepare: Prepare = prepare or (lambda first, end: values[first:end])
        edges = shard_bounds(len(values), [1.0] * len(ranks))
        self._part = {rank: (edges[place], edges[place + 1]) for place, rank in enumerate(ranks)}
        self._layouts = {rank: layout.cut(first, end) for rank, (first, end) in self._part.items()}
        self._heard: dict[int, bytes] = {}
        self._sums: dict[int, bytes] = {}
        self._own = b""
        self._is_handed_out = False
        if feedback is not None:
            feedback.take_part(*self._part[mesh.rank])

    def begin(self) -> None:
        """Encodes all parts and sends each to its server.

        Raises:
            BadValues: There is an infinity or NaN.
        """
        messages = {rank: self._encoded(rank) for rank in self._part}
        self._own = messages.pop(self.mesh.rank)
        for rank, message in messages.items():
            self.others[rank].send(self.key, 0, memoryview(message))
        self._add_up()

    def _encoded(self, rank: int) -> bytes:
        first, end = self._part[rank]
        error = new = None
        if self._feedback is not None:
            error, new = self._feedback.worker[first:end], self._feedback.new()[0][first:end]
        return self._message(rank, self._prepare(first, end), error, new)

    def _message(self, rank: int, values: Tensor, error: Tensor | None, new: Tensor | None) -> bytes:
        layout = self._layouts[rank]
        message = torch.empty(layout.payload_bytes(self._codec), dtype=torch.uint8, device=values.device)
        layout.encode(self._codec, values, error, new, message)
        return message.cpu().numpy().tobytes()

    def take(self, rank: int, hop: int, data: bytes) -> None:
        """Takes in a member's values (hop 0), or the sum of its part (hop 1)."""
        wanted = self._layouts[rank if hop else self.mesh.rank].payload_bytes(self._codec)
        if len(data) != wanted:
            raise MeshBroken(f"member {rank} sent {len(data)} bytes of {self._codec.name} where {wanted} were expected")
        (self._sums if hop else self._heard)[rank] = data
        self._add_up()

    def _add_up(self) -> None:
        if len(self._heard) == len(self.others) and not self._is_handed_out:
            self._is_handed_out = True
            self._hand_out()
        if self._is_handed_out and len(self._sums) == len(self.others) + 1:
            for rank, data in self._sums.items():
                first, end = self._part[rank]
                self._decode(rank, data, self._values[first:end])
            self.is_over = True

    def _hand_out(self) -> None:
        """Adds up this member's part in the order of ranks, and sends the sum to all."""
        first, end = self._part[self.mesh.rank]
        total = self._values.new_zeros(end - first)
        for rank in self._part:
            data = self._own if rank == self.mesh.rank else self._heard[rank]
            self._decode(self.mesh.rank, data, total, add=True)
        error = new = None
        if self._feedback is not None:
            error, new = self._feedback.server, self._feedback.new()[1]
        data = self._message(self.mesh.rank, total, error, new)
        self._sums[self.mesh.rank] = data
        for peer in self.others.values():
            peer.send(self.key, 1, memoryview(data))

    def _decode(self, part: int, data: bytes, out: Tensor, *, add: bool = False) -> None:
        if data:
            message = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(out.device)
            self._layouts[part].decode(self._codec, message, out, add=add)
