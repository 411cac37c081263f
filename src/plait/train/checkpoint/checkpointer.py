"""What a checkpointer is: the seam between training and wherever durable state is kept."""

from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from plait.errors import PlaitError


class CheckpointDamaged(PlaitError):
    """There are checkpoints, but none of them can be trusted."""


class CheckpointUnsupported(PlaitError):
    """The state holds something that no checkpoint can hold, or the place is one that cannot be written to."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A state whose content was verified.

    Attributes:
        step: Of which step it is.
        state: The state.
        skipped: What newer or nearer ones were damaged, one sentence each.
        where: Where it lay.
        reason: Why it was taken.
    """

    step: int
    state: Any
    skipped: tuple[str, ...] = ()
    where: str = ""
    reason: str = ""


class Checkpointer(Protocol):
    """Keeps the state of training so that it outlives every process.

    ``state`` is a tree of dictionaries, lists and tuples over tensors, numbers, strings, booleans and ``None``.
    """

    def save(self, state: Any, step: int) -> None:
        """Makes the state durable; it counts only once this has returned."""

    def latest(self) -> int | None:
        """Returns the step of the newest checkpoint that looks complete, ``None`` where there is none."""

    def load(self, step: int | None = None) -> LoadedCheckpoint | None:
        """Returns the newest good checkpoint, or that of ``step``; ``None`` where nothing was ever saved."""


def directory_of(url: str) -> str:
    """Returns the directory that a ``file://`` URL or plain path names.

    Raises:
        CheckpointUnsupported: The URL has another scheme or a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"", "file"} or parts.netloc not in {"", "localhost"}:
        raise CheckpointUnsupported(
            f"checkpoint.url is {url!r}, but checkpoints go to file:///directory or a plain path"
        )
    return unquote(parts.path) if parts.scheme else url
