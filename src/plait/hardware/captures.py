"""Machines in a file: writes what the probes read of one, scrubbed, and reads that or what somebody pasted.

Attach a capture to a report of a fault: it holds the small files of ``/sys`` and ``/proc`` that the probes looked at,
the outputs of the vendors' tools, and no host name, serial number, UUID, MAC or IP address.
"""

import dataclasses
import io
import platform
import posixpath
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from plait.errors import PlaitError
from plait.hardware.context import CommandResult, Context
from plait.hardware.contexts import CapturedContext, DirectoryTree, archive_tree, looks_like_archive
from plait.hardware.contexts.captured import COMMANDS_DIRECTORY
from plait.hardware.discovery import discover, identify
from plait.hardware.importers import read_dump
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.merge import merge
from plait.hardware.sysfs import probe_sysfs
from plait.hardware.topology import Fragment
from plait.hardware.vendors import VENDORS
from plait.hardware.vendors.vendor import has_command

_ROOTS = ("sys", "proc", "commands", "devices", "bus", "class")
_KEPT = ("/sys/", "/proc/", "/etc/nv_tegra_release")
_MORE_COMMANDS = (
    ("nvidia-smi",),
    ("nvidia-smi", "topo", "-p2p", "r"),
    ("nvidia-smi", "nvlink", "-s"),
    ("rocm-smi", "--showproductname"),
    ("amd-smi", "topology", "--json"),
    ("lspci", "-tv"),
    ("lspci", "-nn"),
    ("ibstat",),
    ("xpu-smi", "topology", "-m"),
    ("mx-smi", "topo", "-n"),
)
"""Asked besides what the probes ask, because people who look into a fault want them."""

_STATUS_LINE = re.compile(rb"^Cpus_allowed_list:.*$", re.MULTILINE)
_COUNTED: Mapping[str, re.Pattern[str]] = {
    "GPU-00000000-0000-0000-0000-{:012d}": re.compile(
        r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE
    ),
    "MIG-00000000-0000-0000-0000-{:012d}": re.compile(
        r"MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE
    ),
    "00000000-0000-0000-0001-{:012d}": re.compile(
        r"(?<![\w-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![\w-])", re.IGNORECASE
    ),
    "0x{:016x}": re.compile(r"\b0x[0-9a-f]{16}\b", re.IGNORECASE),
    "02:00:00:00:00:{:02x}": re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", re.IGNORECASE),
    "192.0.2.{}": re.compile(r"(?<![\w.])(?!0\.|127\.|255\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
}
_DROPPED = re.compile(
    r"<(serial|board_part_number|board_serial|process_name|timestamp)>[^<]*</\1>|"
    r"^.*(?:Serial Number|Node GUID|System image GUID|Port GUID|CA name of)\s*:.*$",
    re.IGNORECASE | re.MULTILINE,
)


class UnreadableMachine(PlaitError):
    """A file or directory describes no machine; the message names it."""


def captured_context(path: Path) -> tuple[Context, bool] | None:
    """Returns what a probe reads of a captured tree or an archive of one, and whether that is whole.

    ``None`` is something else: a tool's output, or a directory of outputs.

    Raises:
        UnreadableMachine: an archive holds nothing of a machine, or the file cannot be read; the message names it.
    """
    if path.is_dir():
        is_tree = any((path / root).is_dir() for root in _ROOTS)
        return (CapturedContext(DirectoryTree(path)), True) if is_tree else None
    data = _bytes_of(path)
    if not looks_like_archive(data):
        return None
    try:
        tree, is_whole = archive_tree(data, str(path))
    except PlaitError as error:
        raise UnreadableMachine(str(error)) from None
    context = CapturedContext(tree)
    if not any(context.list(directory) for directory in ("/sys", "/proc", COMMANDS_DIRECTORY)):
        raise UnreadableMachine(f"{path}: the archive holds neither /sys nor outputs of tools")
    return context, is_whole


def read_machine(path: Path, probe: Callable[[Context], Fragment] = discover) -> Fragment:
    """Returns what a captured tree, an archive of one, a tool's output or a directory of outputs says.

    Args:
        path: Of any of these.
        probe: What is asked of a captured machine.

    Raises:
        UnreadableMachine: there is nothing of the kind; the message names the path.
    """
    captured = captured_context(path)
    if captured is not None:
        context, is_whole = captured
        found = probe(context)
        return found if is_whole else _with_note(found, f"{path} is cut off: what it held is read")
    if path.is_dir():
        return _folder(path)
    try:
        return identify(read_dump(_bytes_of(path), str(path)))
    except PlaitError as error:
        told = str(error)
        raise UnreadableMachine(told if str(path) in told else f"{path}: {told}") from None


def write_capture(ctx: Context, path: Path) -> dict[str, int]:
    """Writes an archive of what the probes read of a machine, scrubbed; returns how many files and commands it holds.

    Raises:
        OSError: the file cannot be written.
    """
    recorder = _Recorder(ctx)
    for vendor in VENDORS:
        if vendor.trace(recorder) is not None:
            vendor.probe(recorder, use_library=False)
    probe_sysfs(recorder)
    for argv in _MORE_COMMANDS:
        if has_command(ctx, argv[0]) is not None:
            recorder.run(argv)
    scrub = _Scrubber(platform.node())
    with tarfile.open(path, "w") as tar:
        for name, target in sorted(recorder.links.items()):
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name in sorted(recorder.directories):
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, data in sorted(recorder.files.items()):
            _add(tar, name, scrub.file(name, data))
        for words, output in sorted(recorder.outputs.items()):
            _add(tar, f"{COMMANDS_DIRECTORY}/{words}", scrub.text(output).encode())
    return {"files": len(recorder.files), "commands": len(recorder.outputs)}


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableMachine(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _folder(path: Path) -> Fragment:
    fragments: list[Fragment] = []
    failures: list[str] = []
    for file in sorted(path.iterdir()):
        if not file.is_file():
            continue
        try:
            fragments.append(read_dump(file.read_bytes(), file.name))
        except UnreadableDump as error:
            failures.append(str(error))
    if not fragments:
        raise UnreadableMachine(f"{path} holds neither a captured tree nor an output that can be read")
    found = identify(merge(fragments))
    for failure in failures:
        found = _with_note(found, failure)
    return found


def _with_note(fragment: Fragment, note: str) -> Fragment:
    return dataclasses.replace(fragment, warnings=(*fragment.warnings, note))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.size, entry.mode = len(data), 0o644
    tar.addfile(entry, io.BytesIO(data))


class _Recorder:
    """A context that keeps what was read through it."""

    def __init__(self, ctx: Context) -> None:
        self.env = ctx.env
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.directories: set[str] = set()
        self.outputs: dict[str, str] = {}
        self._ctx = ctx

    def read(self, path: str) -> bytes | None:
        data = self._ctx.read(path)
        if data is not None and path.startswith(_KEPT):
            place = self._place(path)
            if place is not None:
                self.files[place] = data
        return data

    def list(self, path: str) -> tuple[str, ...]:
        names = self._ctx.list(path)
        if names and path.startswith(_KEPT):
            place = self._place(path)
            if place is not None:
                self.directories.add(place)
        return names

    def link(self, path: str) -> str | None:
        found = self._ctx.link(path)
        if found is not None and path.startswith(_KEPT):
            self._place(path)
        return found

    def run(self, argv: Sequence[str]) -> CommandResult:
        result = self._ctx.run(argv)
        if result.stdout.strip():
            words = " ".join((posixpath.basename(argv[0]), *argv[1:]))
            self.outputs[words.replace("/", "_")] = result.stdout
        return result

    def _place(self, path: str) -> str | None:
        """Returns where a path really is, and keeps the links on the way there."""
        if path.startswith("/proc/self/"):
            return path  # a link to this process, whose number means nothing elsewhere
        place = "/"
        for part in path.strip("/").split("/"):
            here = posixpath.join(place, part)
            found = self._ctx.link(here)
            if found is None:
                return None
            if found != here:
                self.links[here] = found
                if found.startswith(_KEPT) and self._ctx.list(found):
                    self.directories.add(found)
            place = found
        return place


class _Scrubber:
    """Replaces what names a machine or a part of it by counters, the same everywhere in one capture."""

    def __init__(self, host: str) -> None:
        short = host.partition(".")[0]
        self._host = re.compile(rf"(?<!\w){re.escape(host)}(?!\w)|(?<!\w){re.escape(short)}(?!\w)") if short else None
        self._numbers: dict[str, dict[str, int]] = {}

    def file(self, name: str, data: bytes) -> bytes:
        """Returns a file without what identifies the machine."""
        if name == "/proc/self/status":
            return b"\n".join(_STATUS_LINE.findall(data)) + b"\n"
        if name.endswith("/unique_id"):
            return f"{self._number('unique', data.decode('ascii', 'replace')):016x}\n".encode()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return data
        return self.text(text).encode()

    def text(self, text: str) -> str:
        """Returns a tool's output without what identifies the machine."""
        text = _DROPPED.sub("", text)
        for shape, pattern in _COUNTED.items():
            text = pattern.sub(lambda match, shape=shape: shape.format(self._number(shape, match[0])), text)  # type: ignore[misc]
        return self._host.sub("host", text) if self._host is not None else text

    def _number(self, kind: str, word: str) -> int:
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(word.strip().casefold(), len(numbers) + 1)
