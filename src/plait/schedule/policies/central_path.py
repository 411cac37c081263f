"""Time shares by an interior-point method: the centre of all best solutions, not one arbitrary corner of them.

Gavel's programs (Narayanan et al., OSDI 2020) fix only the level of the worst-off task; how the rest is shared out
depends on the solver. Their authors used an interior-point solver, whose answer is close to the analytic centre of the
set of optima: tasks of one kind get equal shares. A vertex would give one of them all. The barrier method here does the
same, and its Newton systems have one small block a task, so that a step costs O(tasks x types^2).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GAP = 1e-8
"""Distance of the objective from its bound at which the method stops, as with the solvers that it stands for."""

SHRINK = 0.12
"""Factor on the weight of the barrier between two centrings."""

MOST_STEPS = 400
"""Newton steps after which the best point so far is returned; a few dozen are usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Maximise the least ``scale[i] * rate of task i`` over tasks where ``counts[i]``."""

    scale: Floats
    counts: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Minimise the largest ``(age_s[i] + remaining[i] / rate of task i) / fair_s[i]``.

    The barrier is that of the program in the form in which conic solvers take it: ``1 / rate`` is a variable of its own
    above a second-order cone, which leaves 1.5 times the logarithm of the slack and half that of the rate.
    """

    age_s: Floats
    remaining: Floats
    fair_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Maximise the sum of ``per_share[i, j] * x[i, j]``; all zero asks for the centre of all that is feasible."""

    per_share: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What all programs have alike. Task i may use type j for the share ``x[i, j]`` of the time.

    ``rates`` and ``devices`` are (tasks, types): work a second, and devices held while it runs there. ``capacity`` is
    devices by type, all above 0, ``floors`` the least rate that a task must get (0: none).
    """

    rates: Floats
    devices: Floats
    capacity: Floats
    floors: Floats


@dataclass(slots=True)
class _Point:
    """A strictly feasible point and its slacks."""

    x: Floats
    level: float
    rate: Floats = field(default_factory=lambda: np.zeros(0))
    idle: Floats = field(default_factory=lambda: np.zeros(0))
    free: Floats = field(default_factory=lambda: np.zeros(0))
    above: Floats = field(default_factory=lambda: np.zeros(0))
    slack: Floats = field(default_factory=lambda: np.zeros(0))


def solve_shares(shares: Shares, goal: Level | Delay | Gain, start: Floats | None = None) -> Floats:
    """Returns shares x (tasks, types) within 1e-8 of the optimum, near the centre of the optimal face.

    Args:
        shares: The constraints.
        goal: What to strive for; its values should be of the order of one.
        start: A strictly feasible point, needed where ``shares.floors`` are not all zero.
    """
    way = _Path(shares, goal)
    return way.run(even_shares(shares) if start is None else way.inwards(start))


def even_shares(shares: Shares) -> Floats:
    """Returns a strictly feasible point: everyone's even part of half of what there is."""
    num_tasks, num_types = shares.rates.shape
    demand = np.maximum(shares.devices.sum(axis=0), 1e-9)
    by_type = np.minimum(0.5 * shares.capacity / demand, 0.5 / num_types)
    return np.tile(np.maximum(by_type, 1e-9), (num_tasks, 1))


class _Path:
    """Follows the central path: Newton's method on ``-goal / weight - sum of log slacks`` while the weight falls."""

    def __init__(self, shares: Shares, goal: Level | Delay | Gain) -> None:
        self.shares = shares
        self.goal = goal
        self.has_floor = shares.floors > 0
        num_tasks = shares.rates.shape[0]
        self.counts = goal.counts if isinstance(goal, Level) else np.full(num_tasks, isinstance(goal, Delay))
        self.has_level = bool(self.counts.any())
        self.gain = goal.per_share if isinstance(goal, Gain) else np.zeros_like(shares.rates)
        self.times = 1.5 if isinstance(goal, Delay) else 1.0
        self.num_logs = (
            shares.rates.size + num_tasks + len(shares.capacity) + int(self.has_floor.sum() + self.counts.sum())
        )

    def run(self, x: Floats) -> Floats:
        point = self._point(x, self._start_level(x))
        assert point is not None, "the start is strictly feasible"
        weight, last, steps = 1.0, GAP / self.num_logs, 0
        while steps < MOST_STEPS:
            point, taken = self._centre(point, weight, MOST_STEPS - steps)
            steps += taken
            if weight <= last:
                break
            weight = max(weight * SHRINK, last)
        return np.clip(point.x, 0.0, 1.0)

    def inwards(self, x: Floats) -> Floats:
        """Returns a point between ``x``, which may be a hair from the boundary, and an even one, as floors allow."""
        even = even_shares(self.shares)
        for part in 0.5 ** np.arange(1, 21):
            inner: Floats = x + part * (even - x)
            if self._point(inner, self._start_level(inner)) is not None:
                return inner
        return x

    def _start_level(self, x: Floats) -> float:
        if not self.has_level:
            return 0.0
        rate = np.maximum((self.shares.rates * x).sum(axis=1), 1e-300)
        if isinstance(self.goal, Level):
            least = float((self.goal.scale * rate)[self.counts].min())
            return least - 0.1 * abs(least) - 1e-3
        assert isinstance(self.goal, Delay)
        worst = float(((self.goal.age_s + self.goal.remaining / rate) / self.goal.fair_s).max())
        return -1.1 * worst

    def _point(self, x: Floats, level: float) -> _Point | None:
        """Returns the point with its slacks, or None where it is not strictly feasible."""
        shares = self.shares
        rate = (shares.rates * x).sum(axis=1)
        idle = 1.0 - x.sum(axis=1)
        free = shares.capacity - (shares.devices * x).sum(axis=0)
        if x.min() <= 0 or idle.min() <= 0 or free.min() <= 0:
            return None
        above = np.where(self.has_floor, rate - shares.floors, 1.0)
        slack = np.where(self.counts, self._slack(rate, level), 1.0)
        if above.min() <= 0 or slack.min() <= 0:
            return None
        return _Point(x=x, level=level, rate=rate, idle=idle, free=free, above=above, slack=slack)

    def _slack(self, rate: Floats, level: float) -> Floats:
        if isinstance(self.goal, Level):
            return self.goal.scale * rate - level
        if isinstance(self.goal, Delay):
            return -level * self.goal.fair_s - self.goal.age_s - self.goal.remaining / np.maximum(rate, 1e-300)
        return np.ones_like(rate)

    def _value(self, point: _Point, weight: float) -> float:
        goal = point.level if self.has_level else float((self.gain * point.x).sum())
        logs = np.log(point.x).sum() + np.log(point.idle).sum() + np.log(point.free).sum()
        if isinstance(self.goal, Delay):
            logs += 0.5 * np.log(point.rate).sum()
        return float(-goal / weight - logs - np.log(point.above).sum() - self.times * np.log(point.slack).sum())

    def _centre(self, point: _Point, weight: float, most: int) -> tuple[_Point, int]:
        value = self._value(point, weight)
        for step in range(most):
            dx, dlevel, decrease = self._direction(point, weight)
            if not np.isfinite(decrease) or decrease < 1e-6:
                return point, step
            length = min(1.0, 0.99 / max(float((-dx / point.x).max()), 1e-12))
            while length > 1e-12:
                new = self._point(point.x + length * dx, point.level + length * dlevel)
                if new is not None:
                    new_value = self._value(new, weight)
                    if new_value <= value - 1e-4 * length * decrease:
                        break
                length *= 0.5
            else:
                return point, step
            assert new is not None
            point, value = new, new_value
        return point, most

    def _direction(self, point: _Point, weight: float) -> tuple[Floats, float, float]:
        """Returns Newton's step (x, level) and how much it lowers the value to first order."""
        shares, x = self.shares, point.x
        by_rate, by_level, bend = self._slopes(point)
        times, pull = self.times, by_rate / point.slack
        in_rate = 0.5 / point.rate if isinstance(self.goal, Delay) else np.zeros_like(point.rate)
        floor = np.where(self.has_floor, 1.0 / point.above, 0.0)
        grad = -self.gain / weight - 1.0 / x + (1.0 / point.idle)[:, None] + shares.devices / point.free
        grad -= shares.rates * (times * pull + floor + in_rate)[:, None]
        grad_level = -1.0 / weight - times * float((by_level / point.slack).sum()) if self.has_level else 0.0
        # Each task's block is diag(1/x^2) + 11'/idle^2 + bend rates rates': both rank-one parts are inverted in closed
        # form, since the block is nearly singular once a slack is small.
        own_curve = times * pull**2
        curve = own_curve + times * bend / point.slack + floor**2 + 2.0 * in_rate**2
        block = _Block(x, point.idle, shares.rates, curve)
        push = times * pull * by_level / point.slack
        system: Any = np.zeros((len(shares.capacity) + 1, len(shares.capacity) + 1))
        right: Any = np.zeros(len(shares.capacity) + 1)
        inner = block.solve(grad)
        toward = block.along[:, :] * (push / block.stretch)[:, None]
        used = shares.devices
        system[:-1, :-1] = block.weighted(used) + np.diag(point.free**2)
        system[:-1, -1] = (used * toward).sum(axis=0)
        system[-1, :-1] = system[:-1, -1]
        right[:-1] = -(used * inner).sum(axis=0)
        if self.has_level:
            own = times * (by_level / point.slack) ** 2
            rest = np.maximum(curve - own_curve, 0.0)
            system[-1, -1] = -float((own * (1.0 + rest * block.reach) / block.stretch).sum())
            right[-1] = grad_level - float((push * (shares.rates * inner).sum(axis=1)).sum())
        else:
            system[-1, -1] = -1.0
        try:
            solution = np.linalg.solve(system, right)
        except np.linalg.LinAlgError:
            # At the boundary a type's row may vanish altogether; the shortest step leaves its price alone.
            solution = np.linalg.lstsq(system, right, rcond=None)[0]
        price, dlevel = solution[:-1], float(solution[-1]) if self.has_level else 0.0
        dx = -inner - block.solve(used * price) - toward * dlevel
        return dx, dlevel, -float((grad * dx).sum() + grad_level * dlevel)

    def _slopes(self, point: _Point) -> tuple[Floats, Floats, Floats]:
        """Returns the slack's derivatives by rate and by level, and minus its second derivative by rate."""
        if isinstance(self.goal, Level):
            by_rate = np.where(self.counts, self.goal.scale, 0.0)
            return by_rate, np.where(self.counts, -1.0, 0.0), np.zeros_like(by_rate)
        if isinstance(self.goal, Delay):
            rate = point.rate
            return self.goal.remaining / rate**2, -self.goal.fair_s, 2.0 * self.goal.remaining / rate**3
        zero = np.zeros_like(point.rate)
        return zero, zero, zero


class _Block:
    """The inverse of every task's block of the Hessian: ``diag(1/x^2) + 11'/idle^2 + curve r r'``."""

    def __init__(self, x: Floats, idle: Floats, rates: Floats, curve: Floats) -> None:
        self.square = x**2
        self.total = idle**2 + self.square.sum(axis=1)
        self.rates = rates
        self.curve = curve
        self.along = self._without_rates(rates)
        self.reach = np.maximum((rates * self.along).sum(axis=1), 0.0)
        self.stretch = 1.0 + curve * self.reach

    def _without_rates(self, right: Floats) -> Floats:
        part = self.square * right
        result: Floats = part - self.square * (part.sum(axis=1) / self.total)[:, None]
        return result

    def solve(self, right: Floats) -> Floats:
        """Returns the inverse times (tasks, types)."""
        part = self._without_rates(right)
        pulled = self.curve * (self.along * right).sum(axis=1) / self.stretch
        result: Floats = part - self.along * pulled[:, None]
        return result

    def weighted(self, used: Floats) -> Floats:
        """Returns ``sum over tasks of diag(used) inverse diag(used)``, (types, types)."""
        square, along = self.square * used, self.along * used
        lost = square.T @ (square / self.total[:, None]) + along.T @ (along * (self.curve / self.stretch)[:, None])
        result: Floats = np.diag((square * used).sum(axis=0)) - lost
        return result
