"""Room in this node's memory for copies of other nodes' snapshots; the holder is started when somebody knocks."""

import asyncio
import logging
import os
import select
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

from plait.agent.environment import MARK
from plait.agent.processes import die_with_parent

PATIENCE_S = 2.0
_LOOK_S = 0.02

logger = logging.getLogger(__name__)


class NodeHolder:
    """Listens for those who look for room, and hands the socket on to a holder when one knocks."""

    def __init__(self, host: str, token_file: Path | None, state_directory: Path) -> None:
        """Listens on a free port of this host; without a token, or where it cannot, nowhere."""
        self._token_file = token_file
        self._state_directory = state_directory
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: socket.socket | None = None
        self.address = ""
        """``host:port``, empty where this node takes no copies."""
        if token_file is None:
            return
        try:
            self._listener = socket.create_server((host, 0))
            self.address = f"{host}:{self._listener.getsockname()[1]}"
        except OSError as error:
            logger.warning("this node takes no copies of snapshots: %s: %s", host, error.strerror)

    @property
    def pids(self) -> frozenset[int]:
        """The process that is not a stray, if there is one."""
        is_alive = self._process is not None and self._process.poll() is None
        return frozenset({self._process.pid}) if is_alive and self._process is not None else frozenset()

    def look(self) -> None:
        """Starts the holder if somebody knocks and none runs."""
        if self._listener is None or self.pids:
            return
        if select.select([self._listener], [], [], 0.0)[0]:
            self._start(self._listener)

    def _start(self, listener: socket.socket) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "plait.train.checkpoint.holder",
                "--token-file", str(self._token_file), "--listen-fd", str(listener.fileno()),
            ],
            env={**os.environ, MARK: f"{self._state_directory}:holder"},
            stdin=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
            # As for workers: the agent has one thread, and the holder must not outlive it.
            preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509
        )  # fmt: skip

    async def stop(self) -> None:
        """Ends the holder and stops listening."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        for _ in range(round(PATIENCE_S / _LOOK_S)):
            if process.poll() is not None:
                return
            await asyncio.sleep(_LOOK_S)
        process.kill()
        process.wait()
