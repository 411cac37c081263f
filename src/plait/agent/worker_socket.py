"""The Unix socket over which elastic workers tell their progress and hear of losses."""

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import struct
import tempfile
from functools import partial
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from plait.agent.worker import WorkerKey
from plait.agent.worker_lines import FromWorker, Hello, ProgressLine, StalledLine
from plait.wire import Codec

_LONGEST_PATH_BYTES = 100
_LONGEST_LINE_BYTES = 1024 * 1024
_CODEC: Codec[FromWorker] = Codec(FromWorker)

logger = logging.getLogger(__name__)


class WorkerListener(Protocol):
    """Who hears what workers say."""

    def worker_said_hello(self, key: WorkerKey, writer: asyncio.StreamWriter) -> bool:
        """Returns whether such a worker lives here."""
        ...

    def worker_progressed(self, key: WorkerKey, line: ProgressLine) -> None:
        """Takes the latest progress."""
        ...

    def worker_stalled(self, key: WorkerKey, line: StalledLine) -> None:
        """Takes word of a link that gave no answer for a while."""
        ...


def socket_path(state_directory: Path) -> Path:
    """Returns where the socket lies: in the state directory, or where that path is too long in a short private one."""
    path = state_directory / "agent.sock"
    if len(os.fsencode(path)) <= _LONGEST_PATH_BYTES:
        return path
    short = Path(tempfile.gettempdir()) / f"plait-{os.getuid()}"
    short.mkdir(mode=0o700, exist_ok=True)
    return short / f"{hashlib.sha256(os.fsencode(state_directory)).hexdigest()[:16]}.sock"


def _same_user(writer: asyncio.StreamWriter) -> bool:
    peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", peer)
    return bool(user == os.getuid())


async def _converse(listener: WorkerListener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    hello = _CODEC.decode(await reader.readline())
    if not isinstance(hello, Hello):
        logger.warning("a worker's first line was not hello but %s", hello.kind)
        return
    key = (hello.attempt_id, hello.worker_id)
    if not listener.worker_said_hello(key, writer):
        logger.warning("hello from %s of %s, which does not run here", hello.worker_id, hello.attempt_id)
        return
    while line := await reader.readline():
        said = _CODEC.decode(line)
        if isinstance(said, ProgressLine):
            listener.worker_progressed(key, said)
        elif isinstance(said, StalledLine):
            listener.worker_stalled(key, said)


async def _serve(listener: WorkerListener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        if _same_user(writer):
            await _converse(listener, reader, writer)
    except (OSError, ValueError) as error:  # ValidationError and an endless line are ValueErrors
        words = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        logger.warning("a worker's line was not understood: %s", words)
    except asyncio.CancelledError:
        pass
    finally:
        with contextlib.suppress(OSError):
            writer.close()


async def listen(path: Path, listener: WorkerListener) -> asyncio.Server:
    """Opens the socket (mode 0600), replacing one that a dead agent left."""
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - a local path, once
    server = await asyncio.start_unix_server(partial(_serve, listener), path, limit=_LONGEST_LINE_BYTES)
    path.chmod(0o600)  # noqa: ASYNC240
    return server
