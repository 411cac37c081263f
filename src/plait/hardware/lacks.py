"""What a single device lacks for a job, each lack in its own phrase, and what had to be believed of it."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plait.hardware.device import Device, DeviceCapability, Need
from plait.hardware.features import FEATURES
from plait.hardware.free_devices import told_speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """``lacks`` is empty where the device fits; ``notes`` say what is unknown and was believed, or must be minded."""

    memory_bytes: int | None
    lacks: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def lacking(self, lack: str) -> "Judgement":
        """Returns the judgement with one more lack."""
        return replace(self, lacks=(*self.lacks, lack))


def judge(
    device: Device,
    figures: DeviceCapability | None,
    *,
    memory_bytes: int | None,
    precisions: Sequence[str],
    operators: AbstractSet[str],
    features: AbstractSet[str],
    vendors: AbstractSet[str],
    refuses: AbstractSet[Need],
    implementations: Mapping[str, frozenset[str]] | None,
) -> Judgement:
    """Compares one device with what is wanted of each; see :class:`plait.hardware.negotiation.JobRequirement`."""
    has = device.memory_bytes
    if has is None and figures is not None:
        has = figures.memory_bytes
    vendor = figures.vendor if figures is not None else None
    found = [
        *_health(device),
        *_memory(has, memory_bytes),
        *_vendor(vendor, vendors),
        *_precision(figures, precisions),
        *_features(figures, features),
        *_operators(vendor, operators, implementations),
        *_needs(figures, refuses),
    ]
    return Judgement(
        memory_bytes=has,
        lacks=tuple(text for is_lack, text in found if is_lack),
        notes=tuple(text for is_lack, text in found if not is_lack),
    )


_Finding = tuple[bool, str]
"""Whether it is a lack (or a note), and the phrase."""


def _health(device: Device) -> Iterator[_Finding]:
    if device.state != "healthy":
        yield True, f"it is {device.state}"


def _memory(has: int | None, wanted: int | None) -> Iterator[_Finding]:
    if wanted is None:
        return
    if has is None:
        yield False, f"its memory is not known, {_gib(wanted)} are believed"
    elif has < wanted:
        yield True, f"it has {_gib(has)} of memory of the {_gib(wanted)} wanted"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.4g} GiB"


def _vendor(vendor: str | None, wanted: AbstractSet[str]) -> Iterator[_Finding]:
    if not wanted:
        return
    if vendor is None:
        yield False, "its vendor is not known"
    elif vendor.casefold() not in {name.casefold() for name in wanted}:
        yield True, f"its vendor is {vendor}, and the job runs on {_listed(sorted(wanted))}"


def _precision(figures: DeviceCapability | None, wanted: Sequence[str]) -> Iterator[_Finding]:
    if not wanted:
        return
    if figures is None or not figures.precisions:
        yield False, "what it computes in is not known"
    elif not figures.precisions & set(wanted):
        yield True, f"it does not compute in {_listed(wanted)}; it has {', '.join(sorted(figures.precisions))}"


def _features(figures: DeviceCapability | None, wanted: AbstractSet[str]) -> Iterator[_Finding]:
    for name in sorted(wanted):
        has = FEATURES[name](figures) if figures is not None else None
        if has is None:
            yield False, f"whether it has {name} is not known"
        elif not has:
            yield True, f"it has no {name}"


def _operators(
    vendor: str | None, wanted: AbstractSet[str], implementations: Mapping[str, frozenset[str]] | None
) -> Iterator[_Finding]:
    for name in sorted(wanted) if implementations is not None else ():
        assert implementations is not None
        has = implementations.get(name, frozenset())
        if "any" in has or (vendor is not None and vendor.casefold() in has):
            continue
        if vendor is None and has:
            yield False, f"whether {name} runs on it is not known"
        else:
            yield True, f"there is no {name} for {vendor or 'any vendor'}"


def _needs(figures: DeviceCapability | None, refuses: AbstractSet[Need]) -> Iterator[_Finding]:
    for need in figures.needs if figures is not None else ():
        if need.kind not in refuses:
            if need.kind != "tensor_cores":
                yield False, f"it needs {_spoken(need.kind)}: {need.why}"
        elif need.kind == "tensor_cores":
            yield False, "its rate in 16 bits is that of matrix products alone, so that in fp32 counts"
        else:
            yield True, f"it needs {_spoken(need.kind)}, which the job does not do: {need.why}"


def _spoken(kind: Need) -> str:
    return kind.replace("_", " ")


def slow_peers(links: NDArray[np.float64], device: int, others: Sequence[int], wanted: float) -> str | None:
    """Returns what the links of a device to these others lack, by their slower direction; unknown ones are believed."""
    both = [np.minimum(links[device, other], links[other, device]) for other in others if other != device]
    if not both:
        return "no other device fits that it could be linked to"
    if any(np.isnan(links[device, other] + links[other, device]) for other in others if other != device):
        return None
    if max(both) >= wanted:
        return None
    return (
        f"its fastest link to a device that fits has {told_speed(float(max(both)))} of the {told_speed(wanted)} wanted"
    )


def _listed(names: Sequence[str]) -> str:
    *rest, last = names
    return f"{', '.join(rest)} or {last}" if rest else last
