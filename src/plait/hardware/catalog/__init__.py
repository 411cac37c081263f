"""Published figures of well-known accelerator types, each with its source; read from ``accelerators.toml``."""

import functools
import importlib.resources
import tomllib
from typing import Any

from plait.errors import PlaitError
from plait.hardware.device import DeviceCapability
from plait.words import did_you_mean

_GIB = 2**30

ASSUMED_SUSTAINED_RATIO = 0.73
"""Median over the seven types whose largest bf16 matrix product was measured (stas00/ml-engineering)."""

ASSUMED_TFLOPS = 1.0
"""What a type without any published figure counts for until it is measured."""

_STAND_INS = {"bf16": ("fp16",), "fp16": ("bf16",), "fp8": ("fp16", "bf16"), "int8": ("fp16", "bf16")}
"""Whose figure counts for a precision that the type computes in without a published figure; fp32 comes last."""


class UnknownAccelerator(PlaitError):
    """The catalogue does not hold this accelerator type."""


def known_types() -> tuple[str, ...]:
    """Returns every accelerator type of the catalogue, as its vendor writes it."""
    return tuple(_catalogue())


def capability(accelerator_type: str) -> DeviceCapability:
    """Returns the published figures of one device of this type.

    Where a package holds several devices (MI250: two) the figures are those of one device, as programs see it.

    Raises:
        UnknownAccelerator: the type is not in the catalogue; the message names the nearest one that is.
    """
    found = _catalogue().get(accelerator_type)
    if found is None:
        hint = did_you_mean(accelerator_type, _catalogue())
        raise UnknownAccelerator(f"unknown accelerator type {accelerator_type!r}{hint}")
    return found


def predicted_speed(accelerator_type: str, precision: str) -> tuple[float, str]:
    """Returns what one device sustains in dense TFLOPS, by published figures, and why.

    Use it as a relative speed until something was measured. A precision without a figure, or one that the type lacks,
    is counted in the nearest one that has a figure, and the reason says so.

    Raises:
        UnknownAccelerator: the type is not in the catalogue.
    """
    figures = capability(accelerator_type)
    stand_ins = _STAND_INS.get(precision, ()) if precision in figures.precisions else ()
    for candidate in (precision, *stand_ins, "fp32"):
        peak = getattr(figures, f"{candidate}_tflops", None)
        if peak is not None and candidate in figures.precisions:
            ratio, how = _sustained(figures, candidate)
            return peak * ratio, f"{_found(figures, precision, candidate, peak)}, of which {ratio:.0%} last ({how})"
    for other in ("fp16", "bf16"):
        peak = getattr(figures, f"{other}_tflops")
        if peak is not None:
            # Nobody publishes the fp32 rate of some matrix engines; a quarter is the usual step from 16 to 32 bits.
            ratio, how = _sustained(figures, "fp32")
            found = f"{accelerator_type} has no figure for {precision}: a quarter of {peak:g} dense TFLOPS in {other}"
            return peak / 4 * ratio, f"{found}, of which {ratio:.0%} last ({how})"
    return ASSUMED_TFLOPS, f"no published figure for {accelerator_type}: {ASSUMED_TFLOPS:g} TFLOPS assumed"


def _sustained(figures: DeviceCapability, precision: str) -> tuple[float, str]:
    # The measurements are of matrix units; they say nothing of the vector units that fp32 and fp64 run on.
    if figures.sustained_ratio is None or precision in {"fp32", "fp64"}:
        return ASSUMED_SUSTAINED_RATIO, "the median of other types, assumed"
    return figures.sustained_ratio, "measured on this type in bf16"


def _found(figures: DeviceCapability, wanted: str, used: str, peak: float) -> str:
    name = figures.accelerator_type
    if used == wanted:
        return f"{name}: {peak:g} dense TFLOPS in {used}"
    lack = "no figure for" if wanted in figures.precisions else "no"
    return f"{name} has {lack} {wanted}: {peak:g} dense TFLOPS in {used}"


@functools.cache
def _catalogue() -> dict[str, DeviceCapability]:
    text = importlib.resources.files(__name__).joinpath("accelerators.toml").read_text(encoding="utf-8")
    return {name: _read(name, row) for name, row in tomllib.loads(text).items()}


def _read(name: str, row: dict[str, Any]) -> DeviceCapability:
    parts = row.get("devices_per_package", 1)

    def share(key: str, unit: float = 1.0) -> float | None:
        return row[key] * unit / parts if key in row else None

    sizes = tuple(size * _GIB // parts for size in row.get("memory_gib", ()))
    share_note = f"one of {parts} devices of a package; " if parts > 1 else ""
    return DeviceCapability(
        accelerator_type=name,
        vendor=row["vendor"],
        memory_bytes=sizes[0] if sizes else None,
        memory_options_bytes=sizes,
        memory_bytes_per_s=share("memory_gb_per_s", 1e9),
        fp32_tflops=share("fp32_tflops"),
        tf32_tflops=share("tf32_tflops"),
        fp16_tflops=share("fp16_tflops"),
        bf16_tflops=share("bf16_tflops"),
        fp8_tflops=share("fp8_tflops"),
        precisions=frozenset(row["precisions"]),
        sustained_ratio=row.get("sustained_ratio"),
        devices_per_package=parts,
        source=f"grade {row['grade']}: {share_note}{row['source']}",
    )
