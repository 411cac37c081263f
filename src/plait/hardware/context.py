"""How probes see a machine: four operations that a live host, a captured tree and a folder of pastes all offer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command printed; ``code`` is its exit status, 127 where it does not exist."""

    code: int
    stdout: str
    stderr: str = ""


class Context(Protocol):
    """One machine, read only. Paths are absolute (``/sys/class/net``)."""

    env: Mapping[str, str]

    def read(self, path: str) -> bytes | None:
        """Returns the file's bytes, ``None`` where it cannot be read."""
        ...

    def list(self, path: str) -> tuple[str, ...]:
        """Returns the names in a directory, sorted; empty where it cannot be read."""
        ...

    def link(self, path: str) -> str | None:
        """Returns the absolute path that this path resolves to with links followed, ``None`` where it is missing."""
        ...

    def run(self, argv: Sequence[str]) -> CommandResult:
        """Runs a vendor's tool and returns what it printed; a captured tree answers from its recorded outputs."""
        ...
