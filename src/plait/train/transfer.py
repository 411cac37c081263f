"""State from a peer to those who join: one plain TCP stream a fetch, served beside training."""

import contextlib
import hmac
import json
import socket
import threading
import time
from typing import Any

import torch

from plait.errors import PlaitError
from plait.train.checkpoint.tree import described, raw_bytes, rebuilt

_LINE_BYTES = 4096
_CHUNK_BYTES = 4 * 2**20


def copy_of(state: Any) -> tuple[Any, list[torch.Tensor]]:
    """Returns a frozen copy of a nested state, flattened; training may go on changing the original."""
    skeleton, tensors = described(state)
    return skeleton, [tensor.to("cpu", copy=True) for tensor in tensors]


class StateServer:
    """Serves frozen copies of this member's state by generation, each from a thread of its own."""

    def __init__(self, host: str, secret: str) -> None:
        self._secret = secret
        self._copies: dict[str, tuple[Any, list[torch.Tensor]]] = {}
        self._published = threading.Condition()
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="plait-state", daemon=True).start()

    def publish(self, generation: str, state: Any) -> None:
        """Makes a copy of the state available under this generation; older copies are dropped."""
        frozen = copy_of(state)
        with self._published:
            self._copies = {generation: frozen}
            self._published.notify_all()

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="plait-state-out", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), connection:
            connection.settimeout(60.0)
            asked = json.loads(connection.makefile("rb").readline(_LINE_BYTES))
            if not hmac.compare_digest(str(asked["secret"]).encode(), self._secret.encode()):
                return
            with self._published:
                if not self._published.wait_for(lambda: asked["generation"] in self._copies, 30.0):
                    return
                skeleton, tensors = self._copies[asked["generation"]]
            header = json.dumps(skeleton, separators=(",", ":")).encode()
            connection.sendall(len(header).to_bytes(8, "big") + header)
            for tensor in tensors:
                data = raw_bytes(tensor)
                for start in range(0, len(data), _CHUNK_BYTES):
                    connection.sendall(data[start : start + _CHUNK_BYTES])
            connection.sendall(b"!")


class Fetch:
    """One fetch of a peer's state, running in a thread; ``state`` is there once :attr:`is_over` and no ``error``."""

    def __init__(self, address: str, generation: str, secret: str) -> None:
        self.donor_address = address
        self.state: Any = None
        self.error: str | None = None
        self.started_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(address, generation, secret), daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the fetch has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Waits for the end for at most this long."""
        self._thread.join(timeout_s)

    def _run(self, address: str, generation: str, secret: str) -> None:
        try:
            self.state = fetch(address, generation, secret)
        except (OSError, ValueError, PlaitError) as error:
            self.error = f"the state could not be fetched from {address}: {error}"


def fetch(address: str, generation: str, secret: str) -> Any:
    """Returns the state that the peer at ``host:port`` publishes for a generation.

    Raises:
        OSError: the connection failed.
        PlaitError: the stream ended early.
    """
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60.0) as connection:
        connection.sendall(json.dumps({"generation": generation, "secret": secret}).encode() + b"\n")
        skeleton = json.loads(_exactly(connection, int.from_bytes(_exactly(connection, 8), "big")))
        state = rebuilt(skeleton, lambda count: _tensor(connection, count))
        if bytes(_exactly(connection, 1)) != b"!":
            raise PlaitError("the stream does not end where its header says")
    return state


def _tensor(connection: socket.socket, num_bytes: int) -> torch.Tensor:
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(_exactly(connection, num_bytes), dtype=torch.uint8)


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view, min(len(view), _CHUNK_BYTES))
        if count == 0:
            raise PlaitError(f"the stream ended {len(view)} bytes early")
        view = view[count:]
    return data
