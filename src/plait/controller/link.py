"""One agent's connection: JSON lines both ways."""

import asyncio
import logging
from typing import Annotated, Final

from pydantic import Discriminator, ValidationError

from plait.agent.messages import FromAgent, KnownWorker, Register, ToAgent
from plait.wire import Codec

log = logging.getLogger(__name__)

LINE_BYTES: Final = 4 * 2**20
"""No line is longer; an agent with ten thousand workers registers in about 1 MiB."""
_FROM_AGENT: Codec[FromAgent] = Codec(Annotated[FromAgent, Discriminator("kind")])
_TO_AGENT: Codec[ToAgent] = Codec(Annotated[ToAgent, Discriminator("kind")])


class Link:
    """A registered agent. ``heard_s`` and ``answered_s`` are on the event loop's clock."""

    def __init__(self, register: Register, writer: asyncio.StreamWriter, now_s: float) -> None:
        self.node = register.node
        self.incarnation = register.incarnation
        self.copies = register.copies
        self.known: dict[tuple[str, str], KnownWorker] = {
            (worker.attempt_id, worker.worker_id): worker for worker in register.workers
        }
        self.sent_s: dict[tuple[str, str], float] = {}
        """When each worker was last ordered to start or stop over this connection."""
        self.heard_s = now_s
        self.answered_s = now_s
        self._writer = writer

    @property
    def is_open(self) -> bool:
        """Whether messages can still be sent."""
        return not self._writer.is_closing()

    def send(self, message: ToAgent) -> None:
        """Queues a message; what is lost with the connection is made up for at the next registration."""
        if self.is_open:
            self._writer.write(_TO_AGENT.encode(message) + b"\n")

    def close(self) -> None:
        """Drops the connection; the agent comes back by itself."""
        self._writer.close()


async def read_message(reader: asyncio.StreamReader) -> FromAgent | None:
    """Returns the next message, or None at the end of the connection or where the other side talks nonsense."""
    try:
        line = await reader.readline()
        return _FROM_AGENT.decode(line) if line.endswith(b"\n") else None
    except (ConnectionError, ValueError) as error:
        kind = "a malformed message" if isinstance(error, ValidationError) else str(error)
        log.warning("a connection ended: %s", kind)
        return None
