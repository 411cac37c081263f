"""Connects all members of a generation to each other; who cannot show its secret is not let in."""

import contextlib
import hashlib
import hmac
import socket
import struct
import time
from collections.abc import Callable

from plait.train.collectives.mesh import Mesh

_HELLO = struct.Struct(">H32s")


class MeshBuilder:
    """Connects the members of a generation: each listens, and connects to those of lower rank."""

    def __init__(self, host: str, rank: int, size: int, token: str) -> None:
        """``token`` is secret to the generation; who cannot show it is not let in."""
        self._rank = rank
        self._size = size
        self._token = token
        self._listener = socket.create_server((host, 0), backlog=size)
        self.address = f"{host}:{self._listener.getsockname()[1]}"

    def connect(self, address_of: Callable[[int], str], timeout_s: float) -> Mesh:
        """Returns the mesh; ``address_of`` waits for a member's address.

        Raises:
            OSError: a member could not be reached, or did not come in time.
        """
        until_s = time.monotonic() + timeout_s
        peers: dict[int, socket.socket] = {}
        try:
            for rank in range(self._rank):
                host, port = address_of(rank).rsplit(":", 1)
                peers[rank] = socket.create_connection((host, int(port)), timeout=timeout_s)
                peers[rank].sendall(_HELLO.pack(self._rank, self._proof(self._rank)))
            while len(peers) < self._size - 1:
                self._listener.settimeout(max(0.01, until_s - time.monotonic()))
                self._welcome(self._listener.accept()[0], peers)
        except BaseException:
            for connection in peers.values():
                connection.close()
            raise
        finally:
            self.close()
        return Mesh(self._rank, dict(sorted(peers.items())))

    def close(self) -> None:
        """Stops listening; a waiting :meth:`connect` ends with an error."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _proof(self, rank: int) -> bytes:
        return hmac.digest(self._token.encode(), f"mesh {rank}".encode(), hashlib.sha256)

    def _welcome(self, connection: socket.socket, peers: dict[int, socket.socket]) -> None:
        """Takes in a member that shows the token; drops anybody else."""
        connection.settimeout(1.0)
        try:
            rank, proof = _HELLO.unpack(_exactly(connection, _HELLO.size))
        except OSError:
            connection.close()
            return
        if not hmac.compare_digest(proof, self._proof(rank)) or not self._rank < rank < self._size or rank in peers:
            connection.close()
            return
        peers[rank] = connection


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionResetError("the connection ended")
        data += part
    return data
