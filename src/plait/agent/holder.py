"""Room in this node's memory for copies of other nodes' snapshots; the holder is started when somebody knocks."""

import logging
import os
import select
import socket
from pathlib import Path

from plait.agent.companion import Companion

PATIENCE_S = 2.0

logger = logging.getLogger(__name__)


class NodeHolder:
    """Listens for those who look for room, and hands the socket on to a holder when one knocks."""

    def __init__(self, host: str, token_file: Path | None, state_directory: Path) -> None:
        """Listens on a free port of this host; without a token, or where it cannot, nowhere."""
        self._token_file = token_file
        self._process = Companion("plait.train.checkpoint.holder", "holder", state_directory)
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
        return self._process.pids

    def look(self) -> None:
        """Starts the holder if somebody knocks and none runs."""
        if self._listener is None or self.pids:
            return
        if select.select([self._listener], [], [], 0.0)[0]:
            told = ["--token-file", str(self._token_file), "--listen-fd", str(self._listener.fileno())]
            self._process.start(told, os.environ, [self._listener.fileno()])

    async def stop(self) -> None:
        """Ends the holder and stops listening."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._process.stop(PATIENCE_S)
