"""A machine as it was captured: a tree of files with links inside it, and the outputs of tools that were recorded."""

import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plait.hardware.context import CommandResult

_MOST_LINKS = 40
"""Links followed on one path before it counts as a loop; the kernel's own limit."""

COMMANDS_DIRECTORY = "/commands"
"""Where a captured tree keeps recorded outputs: one file a command, named by its words (``nvidia-smi topo -m``)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree: a link with its target, or a directory, or a file."""

    link_target: str | None = None
    is_directory: bool = False


class Tree(Protocol):
    """Files of a captured machine by absolute path; links are entries and are not followed."""

    def entry(self, path: str) -> Entry | None:
        """Returns what is at this very path, ``None`` where nothing is."""
        ...

    def names(self, path: str) -> Sequence[str]:
        """Returns the names in a directory."""
        ...

    def data(self, path: str) -> bytes | None:
        """Returns the bytes of a file, ``None`` where they are missing."""
        ...


class DirectoryTree:
    """A captured tree that lies unpacked in a directory, or another root of the same host."""

    def __init__(self, root: Path) -> None:
        """Takes the directory that stands for ``/``."""
        self._root = os.fspath(root)

    def entry(self, path: str) -> Entry | None:
        """Returns what is at this very path, ``None`` where nothing is."""
        place = self._root + path
        try:
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode):
                return Entry(link_target=os.readlink(place))  # noqa: PTH115 - same cost as the plain call beside it
        except (OSError, ValueError):
            return None
        if stat.S_ISDIR(mode):
            return Entry(is_directory=True)
        return Entry() if stat.S_ISREG(mode) else None

    def names(self, path: str) -> Sequence[str]:
        """Returns the names in a directory."""
        try:
            return os.listdir(self._root + path)  # noqa: PTH208
        except OSError:
            return ()

    def data(self, path: str) -> bytes | None:
        """Returns the bytes of a file, ``None`` where they cannot be read."""
        try:
            return Path(self._root + path).read_bytes()
        except OSError:
            return None


class CapturedContext:
    """A captured tree behind the operations of a live host. Links never lead out of the tree.

    ``commands`` maps the words of a command joined by blanks to what it printed; further outputs are looked up in the
    tree itself as ``/commands/WORDS`` with or without ``.txt``, slashes in the words written as underscores.
    """

    def __init__(
        self,
        tree: Tree,
        *,
        commands: Mapping[str, CommandResult] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Takes the tree, recorded command outputs, and the environment variables that were set."""
        self.env: Mapping[str, str] = dict(env or {})
        self._tree = tree
        self._commands = dict(commands or {})
        self._resolved: dict[str, str | None] = {"/": "/"}

    def read(self, path: str) -> bytes | None:
        """Returns the file's bytes, ``None`` where it cannot be read."""
        place = self.link(path)
        return None if place is None else self._tree.data(place)

    def list(self, path: str) -> tuple[str, ...]:
        """Returns the names in a directory, sorted; empty where it cannot be read."""
        place = self.link(path)
        return () if place is None else tuple(sorted(self._tree.names(place)))

    def link(self, path: str) -> str | None:
        """Returns the absolute path inside the tree that this path resolves to, ``None`` where it is missing."""
        return self._resolve(posixpath.normpath("/" + path.lstrip("/")), 0)

    def run(self, argv: Sequence[str]) -> CommandResult:
        """Returns the recorded output of this command, status 127 where none was recorded."""
        words = " ".join(argv)
        if words in self._commands:
            return self._commands[words]
        name = f"{COMMANDS_DIRECTORY}/{words.replace('/', '_')}"
        for path in (name, f"{name}.txt"):
            data = self.read(path)
            if data is not None:
                return CommandResult(0, data.decode("utf-8", "replace"))
        return CommandResult(127, "", f"{argv[0]}: output was not captured")

    def _resolve(self, path: str, links: int) -> str | None:
        if path in self._resolved:
            return self._resolved[path]
        if links > _MOST_LINKS:
            return None
        parent, name = posixpath.split(path)
        place = self._resolve(parent, links)
        found = None
        if place is not None:
            here = posixpath.join(place, name)
            entry = self._tree.entry(here)
            if entry is not None and entry.link_target is not None:
                target = posixpath.normpath(posixpath.join(place, entry.link_target))
                # Two leading slashes survive normpath; what climbs above the root stays at the root.
                found = self._resolve("/" + target.lstrip("/"), links + 1)
            elif entry is not None:
                found = here
        self._resolved[path] = found
        return found
