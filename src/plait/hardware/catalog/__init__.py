"""Published figures of well-known accelerator types, each with its source; read from ``accelerators.toml``."""

from typing import TYPE_CHECKING, Any

from plait.errors import PlaitError
from plait.hardware.catalog.rows import types, variants
from plait.hardware.device import DeviceCapability
from plait.words import did_you_mean

if TYPE_CHECKING:
    from plait.hardware.catalog.matching import ModelMatch, match_model

__all__ = [
    "ASSUMED_SUSTAINED_RATIO",
    "ASSUMED_TFLOPS",
    "ModelMatch",
    "UnknownAccelerator",
    "capability",
    "family_of",
    "known_types",
    "known_variants",
    "match_model",
    "predicted_speed",
]

ASSUMED_SUSTAINED_RATIO = 0.73
"""Median over the seven types whose largest bf16 matrix product was measured (stas00/ml-engineering)."""

ASSUMED_TFLOPS = 1.0
"""What a type without any published figure counts for until it is measured."""

_STAND_INS = {"bf16": ("fp16",), "fp16": ("bf16",), "fp8": ("fp16", "bf16"), "int8": ("fp16", "bf16")}
"""Whose figure counts for a precision that the type computes in without a published figure; fp32 comes last."""


class UnknownAccelerator(PlaitError):
    """The catalogue does not hold this accelerator type."""


def __getattr__(name: str) -> Any:
    # Every verb that reads a job file loads the catalogue; few match names.
    if name in {"ModelMatch", "match_model"}:
        from plait.hardware.catalog import matching

        return getattr(matching, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def known_types() -> tuple[str, ...]:
    """Returns every accelerator type of the catalogue, as its vendor writes it: the words of job and cluster files."""
    return tuple(types())


def known_variants(accelerator_type: str | None = None) -> tuple[str, ...]:
    """Returns the forms that differ in figures (``A100-PCIE-80GB``), of one type or of all."""
    return tuple(name for name, row in variants().items() if accelerator_type is None or row.family == accelerator_type)


def family_of(name: str) -> str:
    """Returns the accelerator type that jobs name for a type or one of its variants (``A100-PCIE-80GB``: ``A100``).

    Raises:
        UnknownAccelerator: neither is in the catalogue.
    """
    return capability(name).family


def capability(accelerator_type: str) -> DeviceCapability:
    """Returns the published figures of one device of this type or of this variant of one.

    Where a package holds several devices (MI250: two) the figures are those of one device, as programs see it.

    Raises:
        UnknownAccelerator: the type is not in the catalogue; the message names the nearest one that is.
    """
    found = types().get(accelerator_type) or variants().get(accelerator_type)
    if found is None:
        hint = did_you_mean(accelerator_type, types())
        raise UnknownAccelerator(f"unknown accelerator type {accelerator_type!r}{hint}")
    return found


def predicted_speed(accelerator_type: str, precision: str) -> tuple[float, str]:
    """Returns what one device sustains in dense TFLOPS, by published figures, and why.

    Use it as a relative speed until something was measured. A precision without a figure, or one that the type lacks,
    is counted in the nearest one that has a figure, and the reason says so.

    Raises:
        UnknownAccelerator: the type is not in the catalogue.
    """
    return predicted_speed_of(capability(accelerator_type), precision)


def predicted_speed_of(figures: DeviceCapability, precision: str) -> tuple[float, str]:
    """Returns the same from figures at hand; see :func:`predicted_speed`."""
    accelerator_type = figures.accelerator_type
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
    measured = figures.sustained_ratios
    if not measured or precision in {"fp32", "fp64"}:
        return ASSUMED_SUSTAINED_RATIO, "the median of other types, assumed"
    own = precision if precision in measured else next(iter(measured))
    return measured[own], f"measured on this type in {own}"


def _found(figures: DeviceCapability, wanted: str, used: str, peak: float) -> str:
    name = figures.accelerator_type
    if used == wanted:
        return f"{name}: {peak:g} dense TFLOPS in {used}"
    lack = "no figure for" if wanted in figures.precisions else "no"
    return f"{name} has {lack} {wanted}: {peak:g} dense TFLOPS in {used}"
