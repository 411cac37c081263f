"""The members of a tar archive in memory, one after the other, up to the first header that is damaged.

A capture of ``/sys`` has ten thousand members of a few bytes each; the standard library spends its time on attributes
that nobody asks for here, and lets many kinds of exceptions out where headers are damaged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

BLOCK_BYTES = 512
_LARGEST_FILE_BYTES = 16 << 20
_CHECKSUM = slice(148, 156)
_SORTS: dict[bytes, Literal["file", "link", "hard_link", "directory"]] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard_link",
    b"2": "link",
    b"5": "directory",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its name as written, the bytes of a file, the target of a link (of a hard one, from the root)."""

    name: str
    sort: Literal["file", "link", "directory"]
    data: bytes = b""
    target: str = ""


class TarMembers:
    """Iterates over an archive; afterwards ``is_whole`` says whether it was read to its end."""

    def __init__(self, plain: bytes) -> None:
        """Takes an archive that is not compressed."""
        self._plain = plain
        self.is_whole = False

    def __iter__(self) -> Iterator[Member]:
        """Yields files, links and directories; devices and other members are passed over."""
        position = 0
        later: dict[str, str] = {}
        while True:
            header = self._plain[position : position + BLOCK_BYTES]
            if not header.strip(b"\0"):
                # Two empty blocks end an archive; one that is cut right behind a member lacks them.
                self.is_whole = len(header) == BLOCK_BYTES
                return
            size = _octal(header[124:136]) if is_header(header, 0) else None
            if size is None:
                return
            start = position + BLOCK_BYTES
            position = start + -(-size // BLOCK_BYTES) * BLOCK_BYTES
            if start + size > len(self._plain):
                return
            kind = header[156:157]
            if kind in {b"L", b"K", b"x", b"g"}:
                later |= _extension(kind, self._plain[start : start + size]) if kind != b"g" else {}
                continue
            member = self._member(header, kind, start, size, later)
            later = {}
            if member is not None:
                yield member

    def _member(self, header: bytes, kind: bytes, start: int, size: int, later: dict[str, str]) -> Member | None:
        sort = _SORTS.get(kind)
        prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
        name = later.get("path") or (f"{prefix}/" if prefix else "") + _text(header[:100])
        target = later.get("linkpath") or _text(header[157:257])
        if sort is None or size > _LARGEST_FILE_BYTES:
            return None
        if sort == "hard_link":
            return Member(name, "link", target="/" + target)
        if sort == "file" and name.endswith("/"):
            sort = "directory"  # as archives from before POSIX write one
        return Member(name, sort, self._plain[start : start + size] if sort == "file" else b"", target)


def is_header(plain: bytes, position: int) -> bool:
    """Returns whether the block at this place is a header with the right checksum."""
    block = plain[position : position + BLOCK_BYTES]
    if len(block) < BLOCK_BYTES:
        return False
    return _octal(block[_CHECKSUM]) == sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")


def _octal(field: bytes) -> int | None:
    """Returns a number of a header: octal digits, or binary where it is too large for them."""
    if field[0] & 0x80:
        return int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:], "big")
    digits = field.strip(b" \0")
    try:
        return int(digits or b"0", 8) if digits.isdigit() or not digits else None
    except ValueError:
        return None


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _extension(kind: bytes, data: bytes) -> dict[str, str]:
    """Returns what a long name (GNU) or an extended header (POSIX) says of the next member."""
    if kind == b"L":
        return {"path": _text(data)}
    if kind == b"K":
        return {"linkpath": _text(data)}
    found: dict[str, str] = {}
    while data:
        length, _, _ = data.partition(b" ")
        if not length.isdigit() or not 0 < int(length[:9]) <= len(data):
            break
        record, data = data[len(length) + 1 : int(length)], data[int(length) :]
        name, _, value = record.rstrip(b"\n").partition(b"=")
        if name in {b"path", b"linkpath"}:
            found[name.decode()] = value.decode("utf-8", "surrogateescape")
    return found
