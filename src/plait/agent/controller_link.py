"""The connection to the controller: lost and found again for as long as the agent lives."""

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from plait.agent.messages import Acknowledge, FromAgent, Heartbeat, Progress, Register, ToAgent, Welcome
from plait.agent.outbox import Outbox, Report
from plait.errors import ControllerUnreachable
from plait.wire import Codec

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
WELCOME_TIMEOUT_S = 5.0
LONGEST_HEARTBEAT_INTERVAL_S = 1.0
SEND_TIMEOUT_MS = 4000
"""Unacknowledged bytes older than this end the connection, so that a cut link does not look alive for minutes."""

_MOST_UNSENT_BYTES = 4 * 1024 * 1024
_LONGEST_LINE_BYTES = 8 * 1024 * 1024
_FROM_AGENT: Codec[FromAgent] = Codec(FromAgent)
_TO_AGENT: Codec[ToAgent] = Codec(ToAgent)

logger = logging.getLogger(__name__)


def next_pause_s(failures: int, chance: float) -> float:
    """Returns how long to wait after this many failures in a row: doubling from 0.1 s to 2 s, times 0.75 .. 1.25.

    Args:
        failures: At least 1.
        chance: Uniform in [0, 1); it keeps many agents from coming back in the same instant.
    """
    return float(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 10), LONGEST_PAUSE_S)) * (0.75 + chance / 2)


def split_address(text: str) -> tuple[str, int]:
    """Splits ``host:port``.

    Raises:
        ControllerUnreachable: It is not of that form.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ControllerUnreachable(f"{text.strip()!r} is no address of a controller; expected host:port")
    return host.strip("[]"), int(port)


class ControllerLink:
    """Keeps one connection, resends what was not acknowledged, and hands orders on."""

    def __init__(self, outbox: Outbox, address: Callable[[], str], token_file: Path) -> None:
        self._outbox = outbox
        self._address = address
        self._token_file = token_file
        self._writer: asyncio.StreamWriter | None = None
        self._failures = 0
        self._changed = asyncio.Event()
        self._answered_at = time.monotonic()
        self._lease_s: float | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the controller has taken this agent in and the connection stands."""
        return self._writer is not None

    @property
    def lease_ran_out(self) -> bool:
        """Whether the controller has been silent for longer than it granted."""
        return self._lease_s is not None and time.monotonic() - self._answered_at > self._lease_s

    def report(self, report: Report) -> None:
        """Keeps a report until it is acknowledged and sends it where that is possible now."""
        self._outbox.add(report)
        self._send(report)

    def tell(self, progress: Progress) -> None:
        """Sends progress where that is possible now, else drops it."""
        self._send(progress)

    def _send(self, message: FromAgent) -> None:
        if self._writer is None:
            return
        if self._writer.transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
            self._writer.transport.abort()  # nobody reads at the other end; a new connection starts afresh
            return
        self._writer.write(_FROM_AGENT.encode(message) + b"\n")

    async def run(self, registration: Callable[[str], Register], obey: Callable[[ToAgent], None]) -> None:
        """Connects again and again, for ever.

        Args:
            registration: Returns the agent's first word, given the token.
            obey: Carries out one order.
        """
        while True:
            try:
                await self._converse(registration, obey)
            except (OSError, ValueError, ControllerUnreachable) as error:  # TimeoutError is an OSError
                if self._failures == 0:
                    logger.warning("no connection to the controller: %s", _words(error))
            self._failures += 1
            await asyncio.sleep(next_pause_s(self._failures, random.random()))

    async def _converse(self, registration: Callable[[str], Register], obey: Callable[[ToAgent], None]) -> None:
        host, port = split_address(self._address())
        async with asyncio.timeout(WELCOME_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, limit=_LONGEST_LINE_BYTES)
        try:
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SEND_TIMEOUT_MS)
            token = self._token_file.read_text(encoding="utf-8").strip()
            asked_at = time.monotonic()
            writer.write(_FROM_AGENT.encode(registration(token)) + b"\n")
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                line = await reader.readline()
            welcome = _TO_AGENT.decode(line) if line else None
            if not isinstance(welcome, Welcome):
                raise ControllerUnreachable(f"the controller at {host}:{port} did not take this agent in")
            self._writer = writer
            self._lease_s, self._answered_at = welcome.lease_s, asked_at
            await self._stay(reader, welcome, obey)
        finally:
            self._writer = None
            self._changed.set()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _stay(self, reader: asyncio.StreamReader, welcome: Welcome, obey: Callable[[ToAgent], None]) -> None:
        logger.info("connected to the controller")
        self._failures = 0
        for report in self._outbox.pending():
            self._send(report)
        beating = asyncio.create_task(self._beat(min(welcome.heartbeat_interval_s, LONGEST_HEARTBEAT_INTERVAL_S)))
        try:
            while line := await reader.readline():
                order = _TO_AGENT.decode(line)
                if isinstance(order, Acknowledge):
                    if order.heartbeat_sent_s is not None:
                        self._answered_at = max(self._answered_at, order.heartbeat_sent_s)
                    self._outbox.acknowledge(order.number)
                    self._changed.set()
                else:
                    obey(order)
        finally:
            beating.cancel()
        logger.warning("the controller closed the connection")

    async def _beat(self, interval_s: float) -> None:
        while True:
            self._send(Heartbeat(sent_s=time.monotonic()))
            await asyncio.sleep(interval_s)

    async def flush(self, within_s: float) -> None:
        """Waits until every report is acknowledged, no connection stands, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._outbox.pending() and self.is_connected:
                    self._changed.clear()
                    await self._changed.wait()


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return f"a line was not understood ({error.errors()[0]['msg']})"
    return str(error) or type(error).__name__
