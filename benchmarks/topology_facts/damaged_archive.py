"""Damage to a captured tree: files that are missing, cut or garbled, links that lead nowhere, an archive cut off."""

import bz2
import functools
import io
import random
import re
import tarfile

from topology_facts.mutate import mutated

_NUMBER = re.compile(rb"-?[0-9]+|[0-9a-f,]+")
_BLOCK_BYTES = 512
_END = bytes(2 * _BLOCK_BYTES)


def damaged_archive(data: bytes, seed: int) -> bytes:
    """Returns a damaged copy of a tar archive, compressed or plain.

    One in four is damaged as bytes: cut, or with some bytes changed. In the others, files are dropped and texts
    damaged as pastes are, which no checksum notices.
    """
    rng = random.Random(seed)
    plain, members = _opened(data)
    if rng.randrange(4) == 0:
        return _damaged_bytes(data, plain, members, rng)
    out = []
    lost = rng.random() * 0.3
    for member in members:
        if rng.random() < lost:
            continue
        end = member.offset_data + (-(-member.size // _BLOCK_BYTES) * _BLOCK_BYTES if member.isreg() else 0)
        changed = _changed(member, plain, rng)
        out.append(plain[member.offset : end] if changed is None else changed)
    return b"".join(out) + _END


@functools.lru_cache(maxsize=32)
def _opened(data: bytes) -> tuple[bytes, tuple[tarfile.TarInfo, ...]]:
    plain = bz2.decompress(data) if data.startswith(b"BZh") else data
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
        return plain, tuple(archive.getmembers())


def _changed(member: tarfile.TarInfo, plain: bytes, rng: random.Random) -> bytes | None:
    """Returns the blocks of a member with another text or target, ``None`` where it stays."""
    header = tarfile.TarInfo(member.name)
    header.type = member.type
    if member.issym() and rng.random() < 0.02:
        header.linkname = rng.choice(("../nowhere", ".", "../" * 60, member.name.rpartition("/")[2]))
        return header.tobuf()
    content = plain[member.offset_data : member.offset_data + member.size] if member.isreg() else b""
    # A lone number or mask has nothing that could tell a cut one from a whole one.
    if not content or rng.random() >= 0.05 or _NUMBER.fullmatch(content.strip()):
        return None
    content = mutated(content, rng.randrange(2**32))[0]
    header.size = len(content)
    return header.tobuf() + content + bytes(-len(content) % _BLOCK_BYTES)


def _damaged_bytes(data: bytes, plain: bytes, members: tuple[tarfile.TarInfo, ...], rng: random.Random) -> bytes:
    whole = plain if rng.randrange(2) else data
    if rng.randrange(2):
        return whole[: rng.randrange(len(whole))]
    changed = bytearray(whole)
    for _ in range(rng.randrange(1, 6)):
        # In an archive that is not compressed only headers are worth hitting: a changed value is another machine.
        header = rng.choice(members).offset + rng.randrange(_BLOCK_BYTES)
        changed[rng.randrange(len(whole)) if whole is data else header] ^= 1 << rng.randrange(8)
    return bytes(changed)
