"""Features of hardware that a job can ask for by name, read off published figures: yes, no, or unknown."""

from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from plait.errors import PlaitError
from plait.hardware.device import DeviceCapability
from plait.hardware.topology import LinkKind
from plait.words import did_you_mean

_MATRIX_UNIT_RATIO = 4.0
"""Vector units do 16 bits at no more than twice the rate of 32; matrix units start at eight times (V100)."""


class UnknownFeature(PlaitError):
    """No feature of hardware has this name."""


def _has_matrix_units(figures: DeviceCapability) -> bool | None:
    if any(need.kind == "tensor_cores" for need in figures.needs):
        return True
    rates = [rate for rate in (figures.fp16_tflops, figures.bf16_tflops) if rate is not None]
    if not rates or figures.fp32_tflops is None:
        return None
    return max(rates) >= _MATRIX_UNIT_RATIO * figures.fp32_tflops


def _has_links(kind: str | None) -> Callable[[DeviceCapability], bool | None]:
    def has(figures: DeviceCapability) -> bool | None:
        if figures.peer_links is None:
            return None
        return kind is None or figures.peer_links.kind == kind

    return has


FEATURES: Mapping[str, Callable[[DeviceCapability], bool | None]] = {
    "tensor_cores": _has_matrix_units,
    "shared_host_memory": lambda figures: figures.shares_host_memory,
    "peer_links": _has_links(None),
    **{kind: _has_links(kind) for kind in get_args(LinkKind) if kind in {"nvlink", "xgmi", "hccs", "mx", "ub", "c2c"}},
}
"""Each feature with how it is read; ``None`` where the figures do not tell."""


def check_features(names: Iterable[str]) -> None:
    """Refuses a feature that nobody knows.

    Raises:
        UnknownFeature: with the nearest right name.
    """
    for name in sorted(names):
        if name not in FEATURES:
            near = did_you_mean(name, FEATURES) or f"; known are {', '.join(sorted(FEATURES))}"
            raise UnknownFeature(f"there is no hardware feature {name!r}{near}")
