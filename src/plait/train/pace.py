"""How fast one device is, estimated from the times that its steps took before the collective."""

from dataclasses import dataclass, replace
from statistics import median

from plait.train.split import Cost

WINDOW = 5
"""Steps kept; their median ignores two odd ones."""

DRIFT_STEPS = 3
"""Steps in a row that must deviate before the old estimate is thrown away."""

DRIFT_RATIO = 0.15
SLOW_RATIO = 1.3
"""A device is called slow once it takes this many times what it took at its best."""

_SLOWEST_AVERAGING = 0.1
_MIN_SPREAD = 1.25
_KEPT_POINTS = 4
_FRESH_STEPS = 200
"""A time at another share counts for so many steps; later the device may have changed."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a step with this many micro-batches took on a device, last measured at its step number ``at_step``."""

    num_micro_batches: int
    seconds: float
    at_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What is known about one device.

    Attributes:
        recent: The last steps as (micro-batches, seconds).
        per_micro_s: Estimated seconds per micro-batch; ``None`` before the first step.
        fixed_ratio: Cost of a step that does not grow with the micro-batches, counted in micro-batches.
        noise_ratio: Mean relative deviation of a step from the estimate.
        num_steps: Steps observed.
        num_observed: Steps observed since the estimate was last started afresh.
        best_s: The lowest ``per_micro_s`` held by at least three steps.
        points: Times at different numbers of micro-batches, the newest last; what ``fixed_ratio`` follows from.
    """

    recent: tuple[tuple[int, float], ...] = ()
    per_micro_s: float | None = None
    fixed_ratio: float = 0.0
    noise_ratio: float = 0.0
    num_steps: int = 0
    num_observed: int = 0
    best_s: float | None = None
    points: tuple[Point, ...] = ()

    @property
    def cost(self) -> Cost | None:
        """The cost model, or ``None`` before the first step."""
        return None if self.per_micro_s is None else Cost(self.per_micro_s, self.fixed_ratio)

    @property
    def slowdown(self) -> float:
        """How many times longer a micro-batch takes than at this device's best; at least 1."""
        if self.best_s is None or self.per_micro_s is None:
            return 1.0
        return max(1.0, self.per_micro_s / self.best_s)

    def unit_s(self, num_micro_batches: int, seconds: float) -> float:
        """Returns seconds per micro-batch of one step after the fixed part."""
        return seconds / (self.fixed_ratio + num_micro_batches)


def observed(pace: Pace, num_micro_batches: int, seconds: float) -> Pace:
    """Returns the pace after one more step of a device that has a share in every step."""
    recent = (*pace.recent, (num_micro_batches, seconds))[-WINDOW:]
    units = [pace.unit_s(n, t) for n, t in recent]
    pace = replace(pace, recent=recent, num_steps=pace.num_steps + 1, num_observed=pace.num_observed + 1)
    if len(recent) < DRIFT_STEPS or pace.per_micro_s is None:
        # The first steps of a process are slow (lazy initialisation) but never fast, so the lowest counts.
        return replace(pace, per_micro_s=min(units))
    if _has_drifted(pace.per_micro_s, pace.noise_ratio, units):
        return _explained_by_size(pace) or _afresh(pace, units)
    middle = median(units)
    weight = max(_SLOWEST_AVERAGING, 1.0 / (pace.num_observed - DRIFT_STEPS + 1))
    # A step far off says nothing about ordinary noise; the median has already set it aside.
    deviation = min(abs(units[-1] / middle - 1.0), DRIFT_RATIO)
    steady = replace(
        pace,
        per_micro_s=pace.per_micro_s + weight * (middle - pace.per_micro_s),
        noise_ratio=pace.noise_ratio + weight * (deviation - pace.noise_ratio),
    )
    return _at_best(_with_fixed_part(steady))


def probed(pace: Pace, num_micro_batches: int, seconds: float) -> Pace:
    """Returns the pace after a trial step of a device that is left out.

    Odd steps are slow, never fast, so a fast one is believed at once; if it was wrong, the drift rule soon says so.
    """
    unit_s = pace.unit_s(num_micro_batches, seconds)
    old_s = unit_s if pace.per_micro_s is None else pace.per_micro_s
    believed_s = unit_s if unit_s <= old_s else (unit_s + old_s) / 2
    return replace(
        pace,
        recent=((num_micro_batches, seconds),),
        points=(),
        per_micro_s=believed_s,
        num_steps=pace.num_steps + 1,
        num_observed=1,
    )


def _has_drifted(old_s: float, noise_ratio: float, units: list[float]) -> bool:
    band = max(DRIFT_RATIO, 4.0 * noise_ratio)
    last = units[-DRIFT_STEPS:]
    return min(last) > old_s * (1.0 + band) or max(last) < old_s / (1.0 + band)


def _afresh(pace: Pace, units: list[float]) -> Pace:
    """Returns the pace with nothing but the last steps remembered."""
    kept = pace.recent[-DRIFT_STEPS:]
    now_s = median(units[-DRIFT_STEPS:])
    return _at_best(replace(pace, recent=kept, points=(), num_observed=DRIFT_STEPS, per_micro_s=now_s))


def _explained_by_size(pace: Pace) -> Pace | None:
    """Returns the pace with a new fixed part where the share has just changed and that explains the new times."""
    now = pace.recent[-1][0]
    if any(p.num_micro_batches == now for p in pace.points):
        return None
    points = _with_points(pace)
    ratio = _fixed_ratio(points, pace.noise_ratio, pace.fixed_ratio)
    return None if ratio == pace.fixed_ratio else _reshaped(pace, points, ratio)


def _at_best(pace: Pace) -> Pace:
    now_s = pace.per_micro_s
    if now_s is None or (pace.best_s is not None and pace.best_s <= now_s):
        return pace
    return replace(pace, best_s=now_s)


def _with_fixed_part(pace: Pace) -> Pace:
    """Returns the pace with its table of points and the fixed part brought up to date."""
    points = _with_points(pace)
    ratio = _fixed_ratio(points, pace.noise_ratio, pace.fixed_ratio)
    if abs(ratio - pace.fixed_ratio) <= 0.1 * pace.fixed_ratio:
        return replace(pace, points=points)
    return _reshaped(pace, points, ratio)


def _with_points(pace: Pace) -> tuple[Point, ...]:
    """Returns the points with those of the recent steps renewed; a single step makes none."""
    times: dict[int, list[float]] = {}
    for n, seconds in pace.recent:
        times.setdefault(n, []).append(seconds)
    fresh = [
        Point(n, median(same) if len(same) >= DRIFT_STEPS else min(same), pace.num_steps)
        for n, same in times.items()
        if len(same) > 1
    ]
    since = pace.num_steps - _FRESH_STEPS
    replaced = {p.num_micro_batches for p in fresh}
    others = [p for p in pace.points if p.num_micro_batches not in replaced and p.at_step >= since]
    return tuple([*others, *fresh][-_KEPT_POINTS:])


def _reshaped(pace: Pace, points: tuple[Point, ...], ratio: float) -> Pace:
    shaped = replace(pace, points=points, fixed_ratio=ratio)
    return replace(shaped, per_micro_s=median(shaped.unit_s(n, t) for n, t in pace.recent), best_s=None)


def _fixed_ratio(points: tuple[Point, ...], noise_ratio: float, old_ratio: float) -> float:
    """Returns the fixed part of ``a + b n`` as a / b: 0 where the points speak against one, the old where they do not.

    It takes more to begin with a fixed part than to keep one, so that noise does not switch it on and off.
    """
    if len(points) < 2:
        return old_ratio
    low = min(points, key=lambda p: p.num_micro_batches)
    high = max(points, key=lambda p: p.num_micro_batches)
    if high.num_micro_batches < _MIN_SPREAD * low.num_micro_batches or high.seconds <= low.seconds:
        return old_ratio
    spread = high.num_micro_batches - low.num_micro_batches
    slope_s = (high.seconds - low.seconds) / spread
    fixed_s = high.seconds - slope_s * high.num_micro_batches
    evident_ratio = (0.05 if old_ratio else 0.1) + noise_ratio * high.num_micro_batches / spread
    if fixed_s <= evident_ratio * high.seconds:
        return 0.0
    # Two noisy times can make the slope vanish; what was seen at the smaller share bounds what one may believe.
    return min(fixed_s / slope_s, float(low.num_micro_batches))
