"""How long tasks of unknown length will still run, learnt from those that ended (Kaplan and Meier, 1958).

Where lengths are heavy-tailed, who has run long will run long; where they are bounded, who has run long is nearly
done. Which of the two holds is in the lengths seen so far: the mean residual life of their survival curve, in which
tasks that still run count as "at least so long". Until anything has ended, a task is expected to run as long again as
it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST_S = 3600.0
"""Expected at least beyond the longest length seen, and for a task that has not run when nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The survival curve: of all tasks, ``survival[i]`` run longer than ``at_s[i]`` (ascending)."""

    at_s: Floats
    survival: Floats

    def residual_s(self, served_s: Floats) -> Floats:
        """Returns the mean time that tasks which have run ``served_s`` will still run."""
        if not len(self.at_s):
            return np.maximum(served_s, LEAST_S)
        last = len(self.at_s)
        # beyond[i]: the area under the curve from step i - 1 on; after the last step the tail is exponential.
        tail = float(self.survival[-1]) * max(LEAST_S, 0.5 * float(self.at_s[-1]))
        steps = np.concatenate([[1.0], self.survival])
        pieces = steps[:-1] * np.diff(self.at_s, prepend=0.0)
        beyond = np.append(np.cumsum(pieces[::-1])[::-1], 0.0) + tail
        index = np.searchsorted(self.at_s, served_s, side="right")
        survival = steps[index]
        to_next = np.append(self.at_s, 0.0)[index] - served_s
        area = np.where(index < last, survival * to_next + beyond[np.minimum(index + 1, last)], tail)
        is_known = survival > 1e-9
        residual: Floats = np.where(is_known, area / np.where(is_known, survival, 1.0), np.maximum(LEAST_S, served_s))
        return residual


def lengths(ended_s: Sequence[float], running_s: Sequence[float]) -> Lengths:
    """Returns the survival curve of lengths, given those that ended and how long others have run so far.

    One more task that never ends is added, so that a few short ones do not make all look short.
    """
    seen = sorted([(value, 0) for value in ended_s] + [(value, 1) for value in running_s if value > 0])
    if not ended_s:
        return Lengths(at_s=np.empty(0), survival=np.empty(0))
    at_risk = len(seen) + 1 - np.arange(len(seen), dtype=np.float64)
    is_end = np.array([censored == 0 for _, censored in seen])
    survival: Floats = np.cumprod(1.0 - is_end / at_risk, dtype=np.float64)
    return Lengths(at_s=np.array([value for value, _ in seen]), survival=survival)
