"""The first 48 bytes of each message: what it is, of which step, and whether it arrived whole.

Little endian: magic (4 bytes), version, codec, flags (1 byte each), a zero, bucket (4), CRC-32 of the payload (4), then
8 bytes each: step, generation (the first 8 bytes of its name's BLAKE2b), number of values, bytes of payload.
"""

import hashlib
import struct
import zlib
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from plait.train.compression.codec import MalformedMessage

_MAGIC: Final = b"PLGR"
_VERSION: Final = 1
_HAS_CHECKSUM: Final = 1
_FORM: Final = struct.Struct("<4sBBBxIIQQQQ")

HEADER_BYTES: Final = _FORM.size
"""How far into a message its payload begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a message is; sender and receiver work it out for themselves, and the two have to be equal.

    Attributes:
        codec: The codec's number.
        bucket: Which stretch, or part of one, by number.
        step: The step it belongs to.
        generation: Hash of the generation's name; see :func:`generation_hash`.
        count: How many fp32 values it stands for.
        payload_bytes: How many bytes follow.
    """

    codec: int
    bucket: int
    step: int
    generation: int
    count: int
    payload_bytes: int


def generation_hash(name: str) -> int:
    """Returns the number that stands for a generation in headers."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def seal(message: Tensor, header: Header, *, with_checksum: bool = True) -> None:
    """Writes the header in front of the payload, which has to be there already.

    Args:
        message: uint8, of shape (``HEADER_BYTES + payload_bytes``,), on the CPU.
        header: What it says.
        with_checksum: Whether to guard the payload by CRC-32; about 1 s for each 1 to 3 GB.

    Raises:
        ValueError: The message is of another size.
    """
    data = message.numpy().data
    if len(data) != HEADER_BYTES + header.payload_bytes:
        raise ValueError(f"a message of {len(data)} bytes cannot hold {header.payload_bytes} bytes of payload")
    checksum = zlib.crc32(data[HEADER_BYTES:]) if with_checksum else 0
    flags = _HAS_CHECKSUM if with_checksum else 0
    numbers = (header.step, header.generation, header.count, header.payload_bytes)
    _FORM.pack_into(data, 0, _MAGIC, _VERSION, header.codec, flags, header.bucket, checksum, *numbers)


def unseal(message: Tensor, expected: Header) -> Tensor:
    """Returns the payload of a message, as a view.

    Args:
        message: uint8, on the CPU; may be longer than the message.
        expected: What it has to be.

    Raises:
        MalformedMessage: It is something else, or damaged; the text names the first field that differs.
    """
    data = message.numpy().data
    header, checksum = parse(data)
    for field in Header.__slots__:
        got, wanted = getattr(header, field), getattr(expected, field)
        if got != wanted:
            raise MalformedMessage(f"{field} of the message is {got}, expected {wanted}")
    end = HEADER_BYTES + header.payload_bytes
    if len(data) < end:
        raise MalformedMessage(f"the message has {len(data)} bytes of {end}")
    if checksum is not None and (found := zlib.crc32(data[HEADER_BYTES:end])) != checksum:
        raise MalformedMessage(f"checksum of the message is {checksum:#010x}, its payload has {found:#010x}")
    return message[HEADER_BYTES:end]


def parse(data: memoryview | bytes) -> tuple[Header, int | None]:
    """Returns the header of a message and the checksum of its payload, ``None`` where it carries none.

    Raises:
        MalformedMessage: This is no message of this version of Plait.
    """
    if len(data) < HEADER_BYTES:
        raise MalformedMessage(f"the message has {len(data)} bytes, its header alone has {HEADER_BYTES}")
    magic, version, codec, flags, bucket, checksum, *numbers = _FORM.unpack_from(data)
    if magic != _MAGIC:
        raise MalformedMessage(f"magic of the message is {magic!r}, expected {_MAGIC!r}")
    if version != _VERSION:
        raise MalformedMessage(f"version of the message is {version}, expected {_VERSION}")
    if flags & ~_HAS_CHECKSUM:
        raise MalformedMessage(f"flags of the message are {flags:#04x}, this version knows {_HAS_CHECKSUM:#04x}")
    step, generation, count, payload_bytes = numbers
    header = Header(
        codec=codec, bucket=bucket, step=step, generation=generation, count=count, payload_bytes=payload_bytes
    )
    return header, checksum if flags & _HAS_CHECKSUM else None


def new_message(payload_bytes: int) -> Tensor:
    """Returns room for a header and a payload."""
    return torch.zeros(HEADER_BYTES + payload_bytes, dtype=torch.uint8)
