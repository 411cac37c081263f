"""Reads pieces of workers' logs for the API."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a log; ``next_offset`` is in bytes."""

    text: str
    next_offset: int


def read_chunk(path: Path, offset: int) -> Chunk:
    """Returns what the log holds from ``offset`` on, at most ``CHUNK_BYTES``; nothing where there is no log yet.

    The piece never ends within a character.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return Chunk(text="", next_offset=offset)
    whole = _whole_characters(data)
    return Chunk(text=whole.decode("utf-8", "replace"), next_offset=offset + len(whole))


def _whole_characters(data: bytes) -> bytes:
    for cut in range(min(3, len(data))):
        byte = data[len(data) - 1 - cut]
        if byte & 0xC0 == 0x80:
            continue  # inside a character: look further left for its start
        length = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return data if length <= cut + 1 else data[: len(data) - 1 - cut]
    return data
