"""The saver: a small process that holds the trainers' shared memory and makes it durable, also after they have died.

It is started by the node's agent, or by the session where there is no agent, and it never imports PyTorch. Trainers
find it by the name of an abstract Unix socket, which disappears with the process. A trainer hands over its segment and
then says which slot to persist; when its connection ends without a good-bye, the saver persists the newest whole slot
by itself. A restarted trainer fetches the segments of its predecessor.
"""

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from plait.train.checkpoint.charge import FAULTS, Charge
from plait.train.checkpoint.repository import CheckpointFenced
from plait.train.checkpoint.tiers import STORE

_log = logging.getLogger(__name__)

MESSAGE_BYTES = 256 * 1024
END_PATIENCE_S = 4.0
_FIRST_S = 30.0
"""Whoever has started a saver may take so long to come, on a machine that is busy."""

_LOOK_S = 0.2
_END_LOOK_S = 0.02


def socket_address(name: str) -> str:
    """Returns the abstract socket of a saver; other users' savers have other names."""
    return f"\0plait-saver-{os.getuid()}-{name}"


def send(connection: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Sends one message with file descriptors."""
    socket.send_fds(connection, [json.dumps(message).encode()], list(descriptors))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the next message and its descriptors, None once the other side has closed."""
    data, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 16)
    if not data:
        return None
    return json.loads(data), descriptors


class Saver:
    """Serves the trainers of one node for one place where checkpoints lie."""

    def __init__(self, name: str, linger_s: float) -> None:
        """Listens under ``name``; ends once there has been nobody and nothing to do for ``linger_s`` seconds.

        Raises:
            OSError: Another saver has this name.
        """
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._listener.bind(socket_address(name))
        self._listener.listen(64)
        self._linger_s = linger_s
        self._charges: dict[tuple[str, str], Charge] = {}
        self._clients = 0
        self._idle_since_s = time.monotonic() + _FIRST_S
        self._lock = threading.Lock()
        self.ending = threading.Event()

    def serve(self) -> None:
        """Serves until told to end or useless."""
        self._listener.settimeout(_LOOK_S)
        while not self.ending.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                with self._lock:
                    if not self._clients and time.monotonic() - self._idle_since_s > self._linger_s:
                        break
                continue
            if not _is_of_same_user(connection):
                connection.close()
                continue
            with self._lock:
                self._clients += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        self._listener.close()
        deadline_s = time.monotonic() + END_PATIENCE_S
        while self._clients and time.monotonic() < deadline_s:
            time.sleep(_END_LOOK_S)

    def _serve(self, connection: socket.socket) -> None:
        charge: Charge | None = None
        is_over = False
        try:
            with connection:
                while (got := receive(connection)) is not None:
                    message, descriptors = got
                    if message["kind"] == "bye":
                        is_over = True
                        send(connection, {"kind": "gone", "behind": self._let_go(charge)})
                        break
                    charge = self._obey(connection, message, descriptors, charge)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("a trainer's connection ended: %r", error)
        finally:
            if charge is not None and not is_over:
                charge.persist_last()
            with self._lock:
                self._clients -= 1
                self._idle_since_s = time.monotonic()

    def _let_go(self, charge: Charge | None) -> dict[str, Any] | None:
        """Frees the memory of a trainer that needs nothing any more; returns what went wrong behind its back."""
        if charge is None:
            return None
        with self._lock:
            if self._charges.get(charge.key) is charge:
                del self._charges[charge.key]
        fault = charge.let_go()
        return {"error": fault.error, "is_fenced": fault.is_fenced} if fault is not None else None

    def _obey(
        self, connection: socket.socket, message: dict[str, Any], descriptors: list[int], charge: Charge | None
    ) -> Charge | None:
        match message["kind"]:
            case "hello":
                charge = Charge(message, descriptors[0])
                with self._lock:
                    former = self._charges.get(charge.key)
                    self._charges[charge.key] = charge
                if former is not None:
                    with former.lock:
                        former.segment.close()
                send(connection, {"kind": "welcome", "pid": os.getpid()})
            case "claim" if charge is not None:
                base, newer = message["base_step"], message["lists_newer"]
                send(connection, _answered(lambda: charge.take_claim(base, lists_newer=newer)))
            case "persist" if charge is not None:
                tiers = message.get("tiers", [STORE])
                send(connection, _answered(lambda: charge.persist(message["slot"], message.get("metric"), tiers)))
            case "fetch":
                self._fetch(connection, message["url"])
            case other:
                send(connection, {"kind": "failed", "error": f"{other!r} is not understood here"})
        return charge

    def _fetch(self, connection: socket.socket, url: str) -> None:
        """Hands out the segments of trainers that are gone or alive, for whoever starts again."""
        with self._lock:
            held = [charge for charge in self._charges.values() if charge.url == url]
        for charge in held:
            send(connection, {"kind": "segment", "member": charge.member}, (charge.segment.descriptor,))
        send(connection, {"kind": "end"})


def _answered(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except CheckpointFenced as error:
        return {"kind": "failed", "error": str(error), "is_fenced": True}
    except FAULTS as error:
        return {"kind": "failed", "error": str(error), "is_fenced": False}


def _is_of_same_user(connection: socket.socket) -> bool:
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", peer)[1] == os.getuid())


def main(arguments: list[str] | None = None) -> int:
    """Runs a saver: ``python -m plait.train.checkpoint.saver --name NAME``."""
    parser = argparse.ArgumentParser(prog="plait-saver")
    parser.add_argument("--name", required=True)
    parser.add_argument("--linger-s", type=float, default=0.0)
    parser.add_argument("--detach", action="store_true", help="return once it listens; it goes on by itself")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s saver: %(message)s")
    try:
        saver = Saver(options.name, options.linger_s)
    except OSError:
        return 0  # there is one already
    if options.detach and os.fork():
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: saver.ending.set())
    with contextlib.suppress(BrokenPipeError):
        saver.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
