"""Captured trees inside a tar archive, plain or compressed, read in memory without unpacking anything."""

import bz2
import lzma
import posixpath
import re
import zlib
from collections.abc import Sequence

from plait.errors import PlaitError
from plait.hardware.contexts.captured import Entry
from plait.hardware.contexts.tar_members import BLOCK_BYTES, TarMembers, is_header

_LARGEST_ARCHIVE_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20

_MAGIC = {b"BZh": "bz2", b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz"}
_TAR_MAGIC = slice(257, 262)

_UNDER_SYS = re.compile(r"^(?P<root>(?:.*?/)?)sys/(?:devices|bus|class|kernel|fs)(?:/|$)")
_INSIDE_SYS = re.compile(r"^(?P<root>(?:.*?/)?)(?:devices/(?:system/(?:node|cpu)|pci[0-9a-f:]+)|bus/pci|class)(?:/|$)")


class DamagedArchive(PlaitError):
    """An archive cannot be opened: it is damaged, too large once unpacked, or holds no file at all."""


class ArchiveTree:
    """The files of an archive by absolute path."""

    def __init__(self, files: dict[str, bytes], links: dict[str, str], directories: set[str]) -> None:
        """Takes contents and link targets by absolute path; missing parent directories are filled in."""
        self._files = files
        self._links = links
        self._children: dict[str, set[str]] = {path: set() for path in directories}
        for path in [*files, *links, *directories]:
            while path != "/":
                parent, name = posixpath.split(path)
                names = self._children.setdefault(parent, set())
                if name in names:
                    break
                names.add(name)
                path = parent  # noqa: PLW2901 - climbs to the root

    def entry(self, path: str) -> Entry | None:
        """Returns what is at this very path, ``None`` where nothing is."""
        if path in self._links:
            return Entry(link_target=self._links[path])
        if path in self._files:
            return Entry()
        return Entry(is_directory=True) if path in self._children or path == "/" else None

    def names(self, path: str) -> Sequence[str]:
        """Returns the names in a directory."""
        return tuple(self._children.get(path, ()))

    def data(self, path: str) -> bytes | None:
        """Returns the bytes of a file, ``None`` where it is missing."""
        return self._files.get(path)


def looks_like_archive(data: bytes) -> bool:
    """Returns whether these bytes begin as a tar archive or as one of the known compressions does."""
    return data[_TAR_MAGIC] == b"ustar" or any(data.startswith(magic) for magic in _MAGIC)


def archive_tree(data: bytes, origin: str) -> tuple[ArchiveTree, bool]:
    """Opens an archive of a captured tree; the directory that holds ``sys`` becomes its root.

    An archive of the inside of ``/sys`` is hung in at ``/sys``.

    Returns:
        The tree, and whether the archive is whole (``False``: cut off at its end; what was readable is there).

    Raises:
        DamagedArchive: it cannot be opened, or is larger than 256 MiB unpacked.
    """
    plain, is_whole = _decompressed(data, origin)
    if len(plain) < BLOCK_BYTES or not is_header(plain, 0):
        raise DamagedArchive(f"{origin}: not a tar archive that can be read")
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    directories: set[str] = set()
    members = TarMembers(plain)
    for member in members:
        name = posixpath.normpath("/" + member.name).lstrip("/")
        if member.sort == "directory":
            directories.add(name)
        elif member.sort == "file":
            files[name] = member.data
        elif member.sort == "link":
            links[name] = member.target
    is_whole &= members.is_whole
    if not files:
        raise DamagedArchive(f"{origin}: an archive without a readable file")
    return _rooted(files, links, directories), is_whole


def _rooted(files: dict[str, bytes], links: dict[str, str], directories: set[str]) -> ArchiveTree:
    names = [*files, *links]
    roots = [m["root"] for n in names if (m := _UNDER_SYS.match(n))]
    prefix, mount = (min(roots, key=len), "/") if roots else ("", "/")
    if not roots:
        inside = [m["root"] for n in names if (m := _INSIDE_SYS.match(n))]
        prefix, mount = (min(inside, key=len), "/sys/") if inside else ("", "/")

    def place(name: str) -> str:
        return mount + name.removeprefix(prefix)

    def target(text: str) -> str:
        return place(text[1:]) if text.startswith("/") and prefix and text[1:].startswith(prefix) else text

    return ArchiveTree(
        {place(n): data for n, data in files.items() if n.startswith(prefix)},
        {place(n): target(text) for n, text in links.items() if n.startswith(prefix)},
        {place(n) for n in directories if n.startswith(prefix) and n + "/" != prefix},
    )


def _decompressed(data: bytes, origin: str) -> tuple[bytes, bool]:
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    if kind is None:
        return data, True
    try:
        plain, is_whole = _inflate(data, kind)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        # A block that fails its checksum may already have given wrong bytes: nothing of it is believed.
        raise DamagedArchive(f"{origin}: the compressed data is damaged ({error})") from None
    if len(plain) >= _LARGEST_ARCHIVE_BYTES:
        raise DamagedArchive(f"{origin}: more than {_LARGEST_ARCHIVE_BYTES >> 20} MiB once unpacked")
    return plain, is_whole


def _inflate(data: bytes, kind: str) -> tuple[bytes, bool]:
    out = bytearray()
    if kind == "gz":
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        out += inflater.decompress(data, _LARGEST_ARCHIVE_BYTES)
        return bytes(out), inflater.eof
    decompressor = bz2.BZ2Decompressor() if kind == "bz2" else lzma.LZMADecompressor()
    feed = data
    while not decompressor.eof and len(out) < _LARGEST_ARCHIVE_BYTES:
        got = decompressor.decompress(feed, _CHUNK_BYTES)
        feed = b""
        out += got
        if not got and decompressor.needs_input:
            break
    return bytes(out), decompressor.eof
