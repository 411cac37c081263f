"""The devices that a group may be made of: their links, their names, and how groups of them compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plait.errors import PlaitError
from plait.hardware.rings import MOST_DEVICES, Weights

Unknown = Literal["pessimistic", "raise"]
_UNKNOWN = -1.0


class GroupImpossible(PlaitError):
    """No group of this size can be made of these devices, or not without guessing."""


@dataclass(frozen=True, slots=True)
class FreeDevices:
    """Free devices by their place, 0 to n - 1.

    Attributes:
        weights: Shape (n, n): the slower direction of each pair in bytes a second, -1 where nobody knows.
        at: The index of each in the matrix that was given.
        names: The name of each.
    """

    weights: Weights
    at: NDArray[np.int64]
    names: tuple[str, ...]

    def link_name(self, link: tuple[int, int]) -> str:
        """Returns ``GPU0-GPU1``."""
        return "-".join(self.names[place] for place in sorted(link))

    def indices(self, places: Sequence[int]) -> tuple[int, ...]:
        """Returns the indices in the matrix that was given."""
        return tuple(int(self.at[place]) for place in places)

    def bottleneck(self, ring: Sequence[int]) -> tuple[int, int] | None:
        """Returns the slowest link of a ring, of equals the first; ``None`` for a single device."""
        if len(ring) < 2:
            return None
        pairs = [(min(a, b), max(a, b)) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)]
        return min(pairs, key=lambda pair: (self.weights[pair], pair))

    def total(self, places: Sequence[int]) -> float:
        """Returns the bandwidth of all known pairs together."""
        at = np.array(places, dtype=np.int64)
        return float(self.whole[np.ix_(at, at)].sum()) / 2

    def others(self, places: Sequence[int]) -> tuple[int, ...]:
        """Returns the free devices besides these."""
        return tuple(sorted(set(range(len(self.weights))) - set(places)))

    @property
    def whole(self) -> Weights:
        """The weights in whole bytes a second, 0 where unknown: sums do not depend on the order of additions."""
        return np.rint(np.maximum(self.weights, 0.0))

    def totals(self, members: Weights) -> Weights:
        """Returns twice the bandwidth inside each set, one set a row."""
        n = len(self.weights)
        if n <= MOST_DEVICES:
            return _totals_of_sets(self.whole)[members.astype(np.int64) @ (1 << np.arange(n))]
        inside: Weights = ((members @ self.whole) * members).sum(axis=1)
        return inside

    def ranked(self, members: Weights) -> NDArray[np.int64]:
        """Returns the order of equally fast sets: total bandwidth, total among the others, lowest indices."""
        return np.lexsort((*(-members[:, ::-1]).T, -self.totals(1.0 - members), -self.totals(members)))


def free_devices(
    bytes_per_s: NDArray[np.float64], free: Sequence[int], labels: Sequence[str] | None, unknown: Unknown
) -> FreeDevices:
    """Returns the free rows and columns of a matrix; a pair is as fast as its slower direction.

    Raises:
        GroupImpossible: an index is out of range, or a pair is unknown and ``unknown`` is ``raise``.
        ValueError: the matrix is no square, or holds a negative bandwidth.
    """
    matrix = np.array(bytes_per_s, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a bandwidth matrix is square; this one has the shape {matrix.shape}")
    np.fill_diagonal(matrix, 0.0)
    if (matrix < 0).any():
        raise ValueError(f"a bandwidth cannot be negative; the matrix holds {matrix.min():g}")
    wrong = [i for i in free if not 0 <= i < len(matrix)]
    if wrong:
        raise GroupImpossible(f"there is no device {wrong[0]}; devices are numbered 0 to {len(matrix) - 1}")
    at = np.array(sorted(set(free)), dtype=np.int64)
    slower = np.minimum(matrix, matrix.T)[np.ix_(at, at)]  # NaN in one direction makes the pair unknown
    weights = np.where(np.isnan(slower), _UNKNOWN, slower)
    names = tuple(labels[i] if labels is not None else str(i) for i in at)
    pairs = np.argwhere(np.triu(weights < 0, 1))
    if unknown == "raise" and len(pairs):
        a, b = pairs[0]
        raise GroupImpossible(f"the bandwidth of {len(pairs)} pairs is unknown, {names[a]}-{names[b]} first")
    return FreeDevices(weights, at, names)


def _totals_of_sets(whole: Weights) -> Weights:
    """Returns twice the bandwidth inside each set of at most 16 devices, by the set's bits.

    A product of small matrices wakes the threads of the linear algebra library, which costs many times the sums.
    """
    inside = np.zeros(1)
    for device, row in enumerate(whole):
        to_set = np.zeros(1)
        for speed in row[:device]:
            to_set = np.concatenate((to_set, to_set + speed))
        inside = np.concatenate((inside, inside + 2 * to_set))
    return inside


def known(value: float) -> float | None:
    """Returns a weight as a figure: ``None`` where nobody knows it."""
    return None if value < 0 else float(value)


def told_speed(bytes_per_s: float | None) -> str:
    """Returns ``54 GB/s``, or ``an unknown bandwidth``."""
    return "an unknown bandwidth" if bytes_per_s is None else f"{bytes_per_s / 1e9:.4g} GB/s"
