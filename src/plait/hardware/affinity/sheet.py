"""The device-device arrays while they are filled: estimates first, then what somebody states or measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from plait.hardware.affinity.measured import PairFigure
from plait.hardware.cost_model import Estimate
from plait.hardware.topology import Conflict
from plait.hardware.values import Source

_WORTH_A_WORD = 0.4
"""A figure this far from what was believed before is told as a conflict."""

_Array = TypeVar("_Array", bound=NDArray[Any])


@dataclass(slots=True)
class Sheet:
    """Writable arrays of one matrix; labels are those of the device axis."""

    labels: Sequence[str]

    bytes_per_s: NDArray[np.float64]
    expected: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    error: NDArray[np.float64]
    source: NDArray[np.uint8]
    kinds: NDArray[np.str_]
    details: dict[tuple[str, str], str] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)

    def put(self, i: int, j: int, estimate: Estimate) -> None:
        """Writes an estimate over whatever the cell held."""
        self.bytes_per_s[i, j] = self.expected[i, j] = or_nan(estimate.bytes_per_s)
        self.low[i, j] = or_nan(estimate.low_bytes_per_s if estimate.bytes_per_s is None else estimate.bytes_per_s)
        self.high[i, j] = or_nan(estimate.high_bytes_per_s if estimate.bytes_per_s is None else estimate.bytes_per_s)
        self.latency_s[i, j] = or_nan(estimate.latency_s)
        self.error[i, j] = or_nan(estimate.relative_error)
        self.source[i, j] = estimate.source
        self.kinds[i, j] = estimate.kind
        self.details[self.labels[i], self.labels[j]] = estimate.reason

    def state(self, i: int, j: int, figure: PairFigure) -> None:
        """Writes a stated figure where its source is believed at least as much as the cell's."""
        said = figure.bytes_per_s
        if figure.latency_s.value is not None:
            self.latency_s[i, j] = figure.latency_s.value
        if said.value is None or (not np.isnan(self.bytes_per_s[i, j]) and said.source < self.source[i, j]):
            return
        before = self.bytes_per_s[i, j]
        if not np.isnan(before) and i != j and abs(said.value - before) > _WORTH_A_WORD * before:
            why = self.details.get((self.labels[i], self.labels[j]), "")
            self.conflicts.append(
                Conflict(
                    subject=f"bandwidth {self.labels[i]} to {self.labels[j]}",
                    said=(
                        f"{said.value / 1e9:.4g} GB/s ({said.source.name.lower()}: {said.detail})",
                        f"{before / 1e9:.4g} GB/s ({Source(self.source[i, j]).name.lower()}: {why})",
                    ),
                )
            )
        self.bytes_per_s[i, j] = self.low[i, j] = self.high[i, j] = said.value
        self.error[i, j] = or_nan(said.relative_error)
        self.source[i, j] = said.source
        self.details[self.labels[i], self.labels[j]] = said.detail


def blank(labels: Sequence[str]) -> Sheet:
    """Returns a sheet in which nothing is known."""
    count = len(labels)

    def empty() -> NDArray[np.float64]:
        return np.full((count, count), np.nan)

    return Sheet(
        labels=labels,
        bytes_per_s=empty(),
        expected=empty(),
        low=empty(),
        high=empty(),
        latency_s=empty(),
        error=empty(),
        source=np.zeros((count, count), dtype=np.uint8),
        kinds=np.zeros((count, count), dtype="U10"),
    )


def or_nan(value: float | None) -> float:
    """Returns the value, NaN for unknown."""
    return np.nan if value is None else value


def shut(array: _Array) -> _Array:
    """Returns the array, no longer writable."""
    array.flags.writeable = False
    return array
