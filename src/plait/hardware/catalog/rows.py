"""Reads the tables of the catalogue; each file only when somebody asks for what it holds."""

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from typing import Any

from plait.hardware.device import DeviceCapability, FigureSource, PeerLinks, Requirement
from plait.hardware.topology import PciPort

_GIB = 2**30

_SHARED = ("vendor", "precisions", "needs", "devices_per_package")
"""What a variant takes over from its type: facts of the chip. Figures are never taken over."""

_WHY = {
    "tensor_cores": "the 16-bit figure is that of the matrix units: matrix products with sides that are multiples of 8",
    "format_conversion": "matrices are kept in a tiled layout of the vendor's own; what is not must be converted",
    "custom_op": "operators outside the vendor's set need an implementation",
}


def load(name: str) -> dict[str, Any]:
    """Returns one file of the catalogue as tables."""
    return tomllib.loads(importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


@functools.cache
def types() -> dict[str, DeviceCapability]:
    """Returns the accelerator types by name."""
    return {name: _read(name, name, row) for name, row in load("accelerators.toml").items()}


@functools.cache
def variants() -> dict[str, DeviceCapability]:
    """Returns the forms of types that differ in figures, by name."""
    rows = load("accelerators.toml")
    found = {}
    for name, row in load("variants.toml").items():
        shared = {key: rows[row["of"]][key] for key in _SHARED if key in rows[row["of"]]}
        found[name] = _read(name, row["of"], {**shared, **row})
    return found


def _read(name: str, family: str, row: Mapping[str, Any]) -> DeviceCapability:
    parts = row.get("devices_per_package", 1)

    def share(key: str, unit: float = 1.0) -> float | None:
        return row[key] * unit / parts if key in row else None

    sizes = tuple(size * _GIB // parts for size in row.get("memory_gib", ()))
    generation, lanes = row.get("pcie", (None, None))
    share_note = f"one of {parts} devices of a package; " if parts > 1 else ""
    ratios = dict(row.get("sustained_ratios", {}))
    return DeviceCapability(
        accelerator_type=name,
        family=family,
        vendor=row["vendor"],
        form=row.get("form", ""),
        architecture=row.get("architecture", ""),
        year=row.get("year"),
        memory_bytes=sizes[0] if sizes else None,
        memory_options_bytes=sizes,
        memory_bytes_per_s=share("memory_gb_per_s", 1e9),
        memory_type=row.get("memory_type", ""),
        shares_host_memory=row.get("shares_host_memory", False),
        fp32_tflops=share("fp32_tflops"),
        tf32_tflops=share("tf32_tflops"),
        fp16_tflops=share("fp16_tflops"),
        bf16_tflops=share("bf16_tflops"),
        fp8_tflops=share("fp8_tflops"),
        precisions=frozenset(row["precisions"]),
        sustained_ratio=ratios.get("bf16"),
        sustained_ratios=ratios,
        devices_per_package=parts,
        pcie=PciPort(max_generation=generation, max_lanes=lanes),
        peer_links=_peer_links(row["link"], parts) if "link" in row else None,
        tdp_w=share("tdp_w"),
        needs=tuple(Requirement(kind, _WHY[kind]) for kind in row.get("needs", ())),
        source=f"grade {row['grade']}: {share_note}{row['source']}",
        sources={figure: _source(text) for figure, text in row.get("sources", {}).items()},
        note=row.get("note", ""),
    )


def _peer_links(link: Mapping[str, Any], parts: int) -> PeerLinks:
    total, pair = link.get("gb_per_s"), link.get("pair_gb_per_s")
    links = link.get("links")
    return PeerLinks(
        kind=link.get("kind"),
        name=link["name"],
        links=links // parts if links is not None else None,
        bytes_per_s=total * 1e9 / parts if total is not None else None,
        pair_bytes_per_s=pair * 1e9 if pair is not None else None,
    )


def _source(text: str) -> FigureSource:
    grade, _, source = text.partition(": ")
    if grade not in {"A", "B", "C"}:
        raise ValueError(f"a figure's source begins with its grade A, B or C and a colon; got {text!r}")
    return FigureSource(grade, source)  # type: ignore[arg-type]
