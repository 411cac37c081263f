"""When a state goes to which tier behind shared memory. Pure: times are arguments."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from plait.spec.job import Checkpoint

LOCAL, PEER, STORE = "local", "peer", "store"
"""A disk of this node, the memory of another node, and where checkpoints lie in the end."""

FIRST_S = 60.0
"""The first interval that is chosen by itself, before anything was measured."""

BUDGET_RATIO = 0.03
LEAST_S, MOST_S = 5.0, 3600.0
PRIOR_S = 86400.0
"""One fault a day is believed before there was one."""

_SMOOTHING = 0.3


def best_interval_s(cost_s: float, between_faults_s: float, *, took_s: float = 0.0) -> float:
    """Returns the interval of Young and Daly, ``sqrt(2 d M) - d``, in seconds.

    It is at most an hour, and longer than Young's where saves would cost more than 3 % of the time or follow each other
    with pauses shorter than themselves.

    Args:
        cost_s: By how much one save holds training up (d).
        between_faults_s: Mean time between faults (M).
        took_s: How long a save goes on behind the back of training.
    """
    best = math.sqrt(2.0 * cost_s * between_faults_s) - cost_s
    return max(min(best, MOST_S), cost_s / BUDGET_RATIO, 2.0 * took_s, LEAST_S)


@dataclass(slots=True)
class SaveCost:
    """By how much a save holds training up: its stall, and the steps that are slower while it is written."""

    cost_s: float | None = None
    """Seconds a save, smoothed; None before one was over."""
    _usual_s: float | None = None
    _last_s: float | None = None
    _under_way_s: float | None = None

    def began(self, stall_s: float) -> None:
        """A save has begun, and has held the training thread up for so long."""
        self._under_way_s = stall_s
        if self._last_s is not None:
            self._last_s += stall_s  # the next step is not charged with it

    def committed(self, now_s: float, *, is_saving: bool) -> None:
        """A step is committed."""
        step_s = now_s - self._last_s if self._last_s is not None else None
        self._last_s = now_s
        if self._under_way_s is not None:
            if step_s is not None and self._usual_s is not None:
                self._under_way_s += max(0.0, step_s - self._usual_s)
            if not is_saving:
                self.cost_s, self._under_way_s = _smoothed(self.cost_s, self._under_way_s), None
        elif step_s is not None:
            self._usual_s = _smoothed(self._usual_s, step_s)


def _smoothed(before: float | None, now: float) -> float:
    return now if before is None else before + _SMOOTHING * (now - before)


@dataclass(slots=True)
class FaultRate:
    """Mean time between faults, from those that were seen and what is believed before."""

    began_s: float
    faults: int = 0

    def between_s(self, now_s: float) -> float:
        """Returns the mean time between two faults in seconds."""
        return (PRIOR_S + now_s - self.began_s) / (1 + self.faults)


@dataclass(slots=True)
class SaveSchedule:
    """Which tiers a state is due for."""

    wanted: Checkpoint
    began_s: float
    cost: SaveCost = field(default_factory=SaveCost)
    took_s: float = 0.0
    """How long the last save went on."""
    rate: FaultRate = field(init=False)
    _last_s: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        """Counts all intervals from the beginning."""
        self.rate = FaultRate(self.began_s)
        self._last_s = dict.fromkeys((LOCAL, PEER, STORE), self.began_s)

    def interval_s(self, tier: str, now_s: float) -> float | None:
        """Returns the time between two saves to a tier, None where it is not used."""
        if tier == LOCAL:
            return self.wanted.local.interval_s if self.wanted.local is not None else None
        if tier == PEER:
            return self.wanted.peer_interval_s
        if not self.wanted.is_automatic:
            return self.wanted.interval_s
        if self.cost.cost_s is None:
            return FIRST_S
        return best_interval_s(self.cost.cost_s, self.rate.between_s(now_s), took_s=self.took_s)

    def due(self, now_s: float) -> frozenset[str]:
        """Returns the tiers that a state is due for."""
        intervals = {tier: self.interval_s(tier, now_s) for tier in self._last_s}
        return frozenset(
            tier
            for tier, interval_s in intervals.items()
            if interval_s is not None and now_s - self._last_s[tier] >= interval_s
        )

    def saved(self, tiers: Collection[str], now_s: float) -> None:
        """A save to these tiers has begun; what goes to the store is on the local disk first."""
        for tier in {*tiers, LOCAL} if STORE in tiers else tiers:
            self._last_s[tier] = now_s
