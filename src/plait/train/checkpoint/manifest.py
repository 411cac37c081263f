"""The objects that make a checkpoint count: small JSON documents that carry their own hash."""

import json
from dataclasses import dataclass
from typing import Any

import xxhash

from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.commit import Writer

FORMAT = 2


def sealed(body: dict[str, Any]) -> bytes:
    """Returns a document with its hash."""
    return _around(json.dumps(body, separators=(",", ":"), sort_keys=True).encode())


def _around(text: bytes) -> bytes:
    return b'{"xxh3_128":"%b","body":%b}' % (xxhash.xxh3_128_hexdigest(text).encode(), text)


_BODY_AT = len(_around(b"")) - 1


def opened(data: bytes, what: str) -> dict[str, Any]:
    """Returns the body of a document.

    Raises:
        CheckpointDamaged: It is not what :func:`sealed` has written.
    """
    text = data[_BODY_AT:-1]
    if data != _around(text):
        raise CheckpointDamaged(f"{what} does not agree with its own hash")
    body: dict[str, Any] = json.loads(text)
    if body.get("format") != FORMAT:
        raise CheckpointDamaged(f"{what} has format {body.get('format')}; this version reads {FORMAT}")
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a rank has written: keys, sizes, and the hash of its index, which holds the hashes of the data."""

    rank: int
    data_key: str
    data_bytes: int
    index_key: str
    index_bytes: int
    index_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checkpoint: everything a reader needs to find and verify its parts.

    ``written_s`` is for people; nothing is decided by it.
    """

    step: int
    writer: Writer
    prefix: str
    receipts: tuple[Receipt, ...]
    seen: tuple[str, ...] = ()
    metric: float | None = None
    written_s: float | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(receipt.data_bytes + receipt.index_bytes for receipt in self.receipts)

    def encoded(self) -> bytes:
        """Returns the document."""
        files = [[r.rank, r.data_key, r.data_bytes, r.index_key, r.index_bytes, r.index_hash] for r in self.receipts]
        return sealed(
            {
                "format": FORMAT,
                "step": self.step,
                "generation": self.writer.generation,
                "owner": self.writer.owner,
                "prefix": self.prefix,
                "files": files,
                "seen": list(self.seen),
                "metric": self.metric,
                "written_s": self.written_s,
            }
        )


def manifest_from(data: bytes, what: str) -> Manifest:
    """Returns the manifest that a document holds.

    Raises:
        CheckpointDamaged: It holds none.
    """
    body = opened(data, what)
    try:
        return Manifest(
            step=int(body["step"]),
            writer=Writer(int(body["generation"]), str(body["owner"])),
            prefix=str(body["prefix"]),
            receipts=tuple(
                Receipt(rank=r, data_key=d, data_bytes=n, index_key=i, index_bytes=m, index_hash=h)
                for r, d, n, i, m, h in body["files"]
            ),
            seen=tuple(body["seen"]),
            metric=body["metric"],
            written_s=body["written_s"],
        )
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointDamaged(f"{what} lacks something: {error!r}") from error
