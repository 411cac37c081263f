"""Checkpoints as directories of a file system: written aside, made durable, renamed into place, verified when read.

A checkpoint is ``step-000000000042/`` with ``data.bin`` (all tensors), ``tree.json`` (everything else) and
``manifest.json`` (step, sizes and SHA-256 of both, and of itself). It is complete or not there: the name appears by one
atomic rename after all of it, and the directory, has been flushed. One process writes at a time.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from plait.train.checkpoint.checkpointer import CheckpointDamaged, LoadedCheckpoint, directory_of
from plait.train.checkpoint.tree import bytes_of, described, padding_bytes, raw_bytes, rebuilt

_log = logging.getLogger(__name__)

FORMAT = 1
_NAME = re.compile(r"step-(\d{12,})")
_ASIDE = re.compile(r"\.(?:saving|removing)-\d+-(?P<host>.+)-(?P<pid>\d+)")
_CHUNK_BYTES = 16 * 2**20


class FileCheckpointer:
    """A :class:`~plait.train.checkpoint.checkpointer.Checkpointer` under a directory."""

    def __init__(self, url: str, keep: int = 3) -> None:
        """Uses the directory of a ``file://`` URL or plain path, which need not exist yet.

        Args:
            url: Where to.
            keep: Newest checkpoints that are kept, at least 1.
        """
        if keep < 1:
            raise ValueError(f"checkpoint.keep is {keep}; at least 1 checkpoint must be kept")
        self.directory = Path(directory_of(url))
        self.keep = keep

    def save(self, state: Any, step: int) -> None:
        """Writes, flushes and publishes the state of a step, then removes what is older than the last ``keep``.

        A good checkpoint of the same step is left as it is.
        """
        if step < 0:
            raise ValueError(f"the step of a checkpoint is {step}; steps count from 0")
        form, tensors = described(state)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sweep()
        target = self.directory / f"step-{step:012d}"
        if target.exists():
            if _fault(target) is None:
                return
            self._remove(target)
        aside = self._aside("saving", step)
        aside.mkdir()
        files = {
            "data.bin": _write_tensors(aside / "data.bin", tensors),
            "tree.json": _write(aside / "tree.json", form),
        }
        body = {"format": FORMAT, "step": step, "files": files}
        _write(aside / "manifest.json", {"body": body, "sha256": _hash_of(body)})
        _flush_directory(aside)
        aside.rename(target)
        _flush_directory(self.directory)
        for old in self._steps()[: -self.keep]:
            self._remove(self.directory / f"step-{old:012d}")

    def latest(self) -> int | None:
        """Returns the step of the newest checkpoint whose files are all there in full size."""
        return next((step for step in reversed(self._steps()) if _manifest_fault(self._path(step)) is None), None)

    def load(self, step: int | None = None) -> LoadedCheckpoint | None:
        """Returns the newest checkpoint whose hashes are right, or that of ``step``.

        Raises:
            CheckpointDamaged: There are checkpoints, but all (or that of ``step``) are damaged.
        """
        steps = [step] if step is not None else self._steps()[::-1]
        skipped: list[str] = []
        for number in steps:
            try:
                return LoadedCheckpoint(number, _read(self._path(number)), tuple(skipped))
            except (OSError, ValueError, KeyError, TypeError) as error:
                skipped.append(f"checkpoint {self._path(number)} is damaged: {error}")
                _log.warning("%s", skipped[-1])
        if skipped:
            raise CheckpointDamaged("; ".join(skipped))
        return None

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:012d}"

    def _steps(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        return sorted(int(found[1]) for entry in self.directory.iterdir() if (found := _NAME.fullmatch(entry.name)))

    def _aside(self, purpose: str, step: int) -> Path:
        return self.directory / f".{purpose}-{step}-{socket.gethostname()}-{os.getpid()}"

    def _remove(self, path: Path) -> None:
        # Renamed first, so that what is half removed does not look like a checkpoint.
        aside = self._aside("removing", int(path.name.removeprefix("step-")))
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _sweep(self) -> None:
        """Removes what this process, or a process of this host that is gone, left half done."""
        for entry in self.directory.iterdir():
            found = _ASIDE.fullmatch(entry.name)
            if found and found["host"] == socket.gethostname() and not _is_another(int(found["pid"])):
                shutil.rmtree(entry, ignore_errors=True)


def _is_another(pid: int) -> bool:
    """Returns whether a process other than this one runs under this number."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _canonical(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _hash_of(value: Any) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, value: Any) -> dict[str, Any]:
    data = json.dumps(value, separators=(",", ":")).encode()
    with path.open("wb") as file:
        file.write(data)
        _flush(file)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _write_tensors(path: Path, tensors: list[Tensor]) -> dict[str, Any]:
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("wb") as file:
        for tensor in tensors:
            data = raw_bytes(tensor)
            for part in (data, bytes(padding_bytes(len(data)))):
                digest.update(part)
                file.write(part)
                num_bytes += len(part)
        _flush(file)
    return {"bytes": num_bytes, "sha256": digest.hexdigest()}


def _manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of a checkpoint; raises ``ValueError`` or ``OSError`` where it is not complete."""
    outer = json.loads((path / "manifest.json").read_bytes())
    body: dict[str, Any] = outer["body"]
    if outer["sha256"] != _hash_of(body):
        raise ValueError("the manifest does not agree with its own hash")
    if body["format"] != FORMAT:
        raise ValueError(f"its format is {body['format']}; this version reads {FORMAT}")
    if f"step-{body['step']:012d}" != path.name:
        raise ValueError(f"its manifest is of step {body['step']}")
    for name, entry in body["files"].items():
        if (size := (path / name).stat().st_size) != entry["bytes"]:
            raise ValueError(f"{name} has {size} bytes instead of {entry['bytes']}")
    return body


def _manifest_fault(path: Path) -> str | None:
    try:
        _manifest(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return str(error)
    return None


def _fault(path: Path) -> str | None:
    """Returns what is wrong with a checkpoint after reading all of it, ``None`` where it is good."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        for name, entry in _manifest(path)["files"].items():
            with (path / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256")
            if digest.hexdigest() != entry["sha256"]:
                return f"{name} does not have the hash of the manifest"
        return None
    return _manifest_fault(path) or "it cannot be read"


def _read(path: Path) -> Any:
    files = _manifest(path)["files"]
    tree = (path / "tree.json").read_bytes()
    if hashlib.sha256(tree).hexdigest() != files["tree.json"]["sha256"]:
        raise ValueError("tree.json does not have the hash of the manifest")
    digest = hashlib.sha256()
    with (path / "data.bin").open("rb") as file:
        state = rebuilt(json.loads(tree), _reader(file, digest.update))
        if file.read(1):
            raise ValueError("data.bin goes on after the last tensor")
    if digest.hexdigest() != files["data.bin"]["sha256"]:
        raise ValueError("data.bin does not have the hash of the manifest")
    return state


def _reader(file: BufferedIOBase, update: Callable[[Any], None]) -> Callable[[int], Tensor]:
    """Returns a function that reads the next tensor straight into its own memory and hashes it on the way."""

    def read(num_bytes: int) -> Tensor:
        data = torch.empty(num_bytes, dtype=torch.uint8)
        view = bytes_of(data)
        for first in range(0, num_bytes, _CHUNK_BYTES):
            part = view[first : first + _CHUNK_BYTES]
            if file.readinto(part) != len(part):
                raise ValueError("data.bin ends early")
            update(part)
        update(file.read(padding_bytes(num_bytes)))
        return data

    return read
