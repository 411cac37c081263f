"""The interface of an importer: text or bytes that somebody pasted or captured, to a fragment."""

from typing import Protocol

from plait.errors import PlaitError
from plait.hardware.topology import Fragment


class UnreadableDump(PlaitError):
    """No importer can read this text; the message says what is missing. The only error of importers."""


class Importer(Protocol):
    """Reads one kind of dump. Pure: bytes in, a fragment out."""

    name: str

    def recognises(self, data: bytes) -> float:
        """Returns how sure it is that this is its kind, 0.0 to 1.0, by content alone (never by the file's name)."""
        ...

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns what is sure; what is not goes to ``unread``, ``conflicts`` or ``hides``.

        Raises:
            UnreadableDump: nothing of its kind is in there.
        """
        ...
