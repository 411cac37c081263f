"""Huawei Ascend NPUs by ``npu-smi``: there is no public Python binding, and no torch is needed to find them."""

import collections
import dataclasses
import re

from plait.hardware.context import Context
from plait.hardware.topology import Component, Fragment
from plait.hardware.vendors.vendor import has_command, pci_functions, read_outputs

_VENDOR_ID = 0x19E5
_PLACES = ("/usr/local/Ascend/driver/tools", "/usr/local/sbin", "/usr/local/bin")
_DEVICE = re.compile(r"davinci\d+")
_MAPPING = re.compile(r"^\s*(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})\s+(\S.*?)\s*$", re.MULTILINE)
_POWER = re.compile(
    r"^\s*\|\s*(\d{1,3})\s+[\w.-]+\s*\|\s*[A-Za-z ]+\|\s*(\d{1,4}(?:\.\d+)?)\s+(\d{1,3})\b", re.MULTILINE
)


class Ascend:
    """Asks ``npu-smi`` for cards, chips, logical ids and the matrix of links."""

    name = "ascend"
    ways: tuple[str, ...] = ("npu-smi",)
    finds: tuple[str, ...] = ("model", "memory", "HCCS and SIO links", "dies of a card", "health", "power")
    visibility: tuple[str, ...] = ("ASCEND_RT_VISIBLE_DEVICES",)

    def trace(self, ctx: Context) -> str | None:
        """Returns the device file, the accelerator or the tool that shows an NPU."""
        devices = [name for name in ctx.list("/dev") if _DEVICE.fullmatch(name)]
        if devices:
            return f"/dev/{devices[0]}"
        functions = pci_functions(ctx, _VENDOR_ID, (0x12,))
        return f"PCI function {functions[0]}" if functions else has_command(ctx, "npu-smi", _PLACES)

    def probe(self, ctx: Context, *, use_library: bool = True) -> Fragment:  # noqa: ARG002
        """Returns NPUs; where a card holds two dies, each is an NPU of that ``package``."""
        tool = has_command(ctx, "npu-smi", _PLACES)
        if tool is None:
            return Fragment(origin="ascend probe", format=self.name, error="an NPU is there, but no npu-smi to ask")
        found = read_outputs(ctx, [(tool, "info"), (tool, "info", "-t", "topo")], self.name)
        if found.error is not None:
            return found
        powers = {int(card): watts for card, watts, _ in _POWER.findall(ctx.run((tool, "info")).stdout)}
        logical = _logical_ids(ctx.run((tool, "info", "-m")).stdout)
        components = [_completed(npu, powers, logical) for npu in found.components]
        return dataclasses.replace(found, components=tuple(_with_cards(components)))


def _logical_ids(text: str) -> dict[tuple[str, str], int]:
    """Returns ``(card, chip) -> logical id`` of ``npu-smi info -m``: the numbers that visible devices are named by."""
    return {(card, chip): int(number) for card, chip, number, _ in _MAPPING.findall(text)}


def _completed(npu: Component, powers: dict[int, str], logical: dict[tuple[str, str], int]) -> Component:
    card, chip = npu.extra.get("card"), npu.extra.get("chip")
    if npu.kind != "npu" or card is None:
        return npu
    extra = dict(npu.extra)
    if int(card) in powers:
        extra["power_w"] = powers[int(card)]
    number = logical.get((card, chip or "0"))
    return dataclasses.replace(
        npu,
        index=npu.index if number is None else number,
        health="ok" if npu.health is not None and npu.health.upper() == "OK" else npu.health,
        extra=extra,
    )


def _with_cards(components: list[Component]) -> list[Component]:
    """Marks the dies of a card that has more than one; each hangs under its own PCI port, so the card is no parent."""
    counts = collections.Counter(npu.extra["card"] for npu in components if npu.kind == "npu" and "card" in npu.extra)
    return [
        dataclasses.replace(npu, extra={**npu.extra, "package": f"card {npu.extra['card']}"})
        if counts[npu.extra.get("card", "")] > 1
        else npu
        for npu in components
    ]
