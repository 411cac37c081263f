"""The interface of a vendor's probe, and what probes share: tools that exist, what PCI shows, tools' outputs."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from plait.hardware.context import Context
from plait.hardware.contexts.captured import COMMANDS_DIRECTORY
from plait.hardware.pci import class_code, hexadecimal
from plait.hardware.sysfs_files import text_of
from plait.hardware.topology import Fragment


class Vendor(Protocol):
    """Finds the devices of one vendor. Stateless; everything it sees of the machine comes through the context.

    Attributes:
        name: The vendor's word in components (``nvidia``) and in messages.
        ways: How it asks, best first, as the support table prints it (``NVML``, ``nvidia-smi``).
        finds: What a fragment of it may hold, as the support table prints it.
        visibility: The variables that limit what a process sees of its devices.
    """

    name: str
    ways: tuple[str, ...]
    finds: tuple[str, ...]
    visibility: tuple[str, ...]

    def trace(self, ctx: Context) -> str | None:
        """Returns what shows that something of this vendor is here (``PCI device 0000:07:00.0``), else ``None``.

        Reads a few small files, runs nothing, loads nothing: it is asked in the caller's own process.
        """
        ...

    def probe(self, ctx: Context, *, use_library: bool = True) -> Fragment:
        """Returns what is here. What failed is in ``error``, ``warnings`` and ``hides``; nothing is guessed.

        Args:
            ctx: The machine. Vendor libraries are loaded only where it is the host that this process runs on.
            use_library: ``False`` asks tools and files only, after a library has crashed or hung.
        """
        ...


def has_command(ctx: Context, name: str, places: Sequence[str] = ()) -> str | None:
    """Returns how to start a tool: its name where it is on the path, else its full path in one of ``places``.

    On a captured machine a tool counts as there when one of its outputs was recorded.
    """
    recorded = ctx.list(COMMANDS_DIRECTORY)
    if any(entry == name or entry.startswith((f"{name} ", f"{name}.txt")) for entry in recorded):
        return name
    for directory in ctx.env.get("PATH", "").split(":"):
        if directory and name in ctx.list(directory):
            return name
    return next((f"{place}/{name}" for place in places if name in ctx.list(place)), None)


def pci_functions(ctx: Context, vendor_id: int, bases: Sequence[int]) -> tuple[str, ...]:
    """Returns the PCI addresses of a vendor's functions of these base classes (0x03 display, 0x12 accelerator)."""
    found = []
    for address in ctx.list("/sys/bus/pci/devices"):
        at = f"/sys/bus/pci/devices/{address}"
        if hexadecimal(text_of(ctx, f"{at}/vendor") or "") != vendor_id:
            continue
        code = class_code(text_of(ctx, f"{at}/class") or "")
        if code is not None and code >> 8 in bases:
            found.append(address)
    return tuple(found)


def read_outputs(ctx: Context, commands: Sequence[Sequence[str]], name: str) -> Fragment:
    """Returns what the outputs of a vendor's tools say together; a command that fails is a warning.

    ``error`` is set where none of them gave anything.
    """
    from plait.hardware.importers import read_dump
    from plait.hardware.importers.importer import UnreadableDump
    from plait.hardware.merge import merge

    fragments: list[Fragment] = []
    failures: list[str] = []
    for argv in commands:
        said = " ".join((argv[0].rpartition("/")[2], *argv[1:]))
        result = ctx.run(argv)
        # Some tools print all they know and then end badly (topo -m beside a software RDMA device: 255).
        if not result.stdout.strip():
            why = (result.stderr.strip() or f"status {result.code}, no output").splitlines()[-1]
            failures.append(f"{said}: {why[:200]}")
            continue
        try:
            fragments.append(read_dump(result.stdout.encode(), said))
        except UnreadableDump as error:
            failures.append(str(error)[:300])
    if not fragments:
        return Fragment(origin=f"{name} tools", format=name, error="; ".join(failures) or "no tool to ask")
    found = merge(fragments)
    return dataclasses.replace(found, warnings=(*found.warnings, *failures))
