"""How often a snapshot is worth its cost. Pure: times are arguments."""

import math
from dataclasses import dataclass

BUDGET_RATIO = 0.01
_SMOOTHING = 0.2


@dataclass(slots=True)
class SnapshotPace:
    """Steps between snapshots so that they take at most a share of the training time.

    A snapshot that takes ``d`` seconds every ``n`` steps of ``s`` seconds costs ``d / (n s)``; ``n`` is the smallest
    for which this stays within the budget.
    """

    budget_ratio: float = BUDGET_RATIO
    _step_s: float | None = None
    _stall_s: float | None = None
    _last_step: int | None = None
    _last_commit_s: float | None = None

    def committed(self, now_s: float) -> None:
        """Takes note that a step is committed."""
        if self._last_commit_s is not None:
            step_s = now_s - self._last_commit_s
            self._step_s = step_s if self._step_s is None else self._step_s + _SMOOTHING * (step_s - self._step_s)
        self._last_commit_s = now_s

    def snapped(self, step: int, stall_s: float) -> None:
        """Takes note of a snapshot and what it cost."""
        self._last_step, self._stall_s = step, stall_s
        if self._last_commit_s is not None:
            self._last_commit_s += stall_s  # the next step is not charged with it

    @property
    def every_steps(self) -> int | None:
        """Steps between snapshots, None as long as nothing was measured."""
        if self._step_s is None or self._stall_s is None:
            return None
        steps = self._stall_s / max(self.budget_ratio * self._step_s, 1e-9)
        return max(1, math.ceil(steps * (1.0 - 1e-9)))  # what rounding adds is no step

    def is_due(self, step: int) -> bool:
        """Returns whether to take a snapshot now."""
        every = self.every_steps
        return self._last_step is None or every is None or step - self._last_step >= every
