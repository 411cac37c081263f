"""The balancer: which member runs how many of a step's K micro-batches, from measured times, with the reason.

All of it is pure and replicated: every member feeds the same samples to the same state and comes to the same split.
Only time spent computing is looked at; time inside a collective is somebody else's slowness.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from statistics import median
from typing import Any

from plait.train.pace import SLOW_RATIO, Pace, Point, observed, probed
from plait.train.split import Cost, Split, best_split, step_s

LEAST_GAIN_RATIO = 0.01
"""A new split must shorten the step by at least this, or by twice the noise of the measurements."""

MOST_GAIN_RATIO = 0.1
"""However noisy the steps are, so much is reason enough: else an early guess on a busy machine would stay for ever."""

EARLY_GAIN_RATIO = 0.05
"""What it must gain while some member has run fewer than ``SETTLED_STEPS`` steps."""

SETTLED_STEPS = 5
FEWEST_STEPS = 2
"""Steps a member must have run before its time may change the split: the first one warms up."""

PROBE_COST_RATIO = 0.01
"""Trial steps of members that are left out may lengthen training by this much."""

_LEAST_WAIT = 20
_SHOWN_MEMBERS = 8


@dataclass(frozen=True, slots=True)
class Trial:
    """When a member that is left out is tried again; counted in plans."""

    due: int
    wait: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerState:
    """All that the balancer remembers; replicated, and sent to those who join.

    Attributes:
        paces: What is known about each member.
        split: The split in force, trial steps aside.
        trials: When each member that is left out is tried again.
        num_plans: Plans made so far.
    """

    paces: Mapping[str, Pace] = field(default_factory=dict)
    split: Split | None = None
    trials: Mapping[str, Trial] = field(default_factory=dict)
    num_plans: int = 0

    def as_json(self) -> dict[str, Any]:
        """Returns the state as JSON values; floats keep every bit through ``json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "BalancerState":
        """Returns the state that :meth:`as_json` was taken of."""
        split = values["split"]
        return cls(
            paces={name: _pace_from_json(pace) for name, pace in values["paces"].items()},
            split=None if split is None else Split(tuple((name, n) for name, n in split["shares"])),
            trials={name: Trial(**trial) for name, trial in values["trials"].items()},
            num_plans=values["num_plans"],
        )

    def speed_of(self, member: str) -> float | None:
        """Returns micro-batches per second of a member, ``None`` before its first step."""
        per_micro_s = self.paces.get(member, Pace()).per_micro_s
        return None if per_micro_s is None else 1.0 / per_micro_s


def _pace_from_json(values: Mapping[str, Any]) -> Pace:
    recent = tuple((n, t) for n, t in values["recent"])
    return Pace(**{**values, "recent": recent, "points": tuple(Point(**point) for point in values["points"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The split of the next step.

    Attributes:
        split: Who runs how many micro-batches.
        reason: Why, in one sentence.
        state: The balancer's state from now on.
        changed: Whether the split in force is a new one; a trial step does not count.
        straggler: The member that runs slowest against its own best, where one is clearly slow.
    """

    split: Split
    reason: str
    state: BalancerState
    changed: bool = False
    straggler: str | None = None


def observe(state: BalancerState, samples: Mapping[str, tuple[int, int]]) -> BalancerState:
    """Returns the state after a step.

    Args:
        state: The state before.
        samples: Microseconds of computing before the collective and micro-batches run, of each member that ran any.
            Leave out steps whose micro-batches are not all of full size.
    """
    paces = dict(state.paces)
    for member in sorted(samples):
        compute_us, num_micro_batches = samples[member]
        if num_micro_batches < 1 or compute_us < 1:
            continue
        is_trial = state.split is not None and state.split.of(member) == 0 and member in state.split.members
        update = probed if is_trial else observed
        paces[member] = update(paces.get(member, Pace()), num_micro_batches, compute_us / 1e6)
    return replace(state, paces=paces)


def plan(
    state: BalancerState,
    members: Sequence[str],
    num_micro_batches: int,
    caps: Mapping[str, int | None] | None = None,
    *,
    priors: Mapping[str, float] | None = None,
    exchange_s: Mapping[str, float] | None = None,
) -> Decision:
    """Decides the split of the next step; to be called once before each step.

    Args:
        state: What is known.
        members: The members of the generation.
        num_micro_batches: K.
        caps: The most micro-batches of a member; ``None`` is no limit, 0 leaves it out for good.
        priors: Predicted relative speeds, for members that have not run yet.
        exchange_s: Seconds by which the exchange grows when a member has a share.

    Raises:
        plait.train.work.CapacityExceeded: The caps together are below K.
    """
    names = sorted(members)
    caps, exchange_s = caps or {}, exchange_s or {}
    paces = {name: pace for name, pace in state.paces.items() if name in names}
    state = replace(state, paces=paces, num_plans=state.num_plans + 1)
    costs = _costs(names, paces, priors or {})
    best = best_split(num_micro_batches, costs, caps, exchange_s)
    reason = _why_change(state, best, costs, caps, exchange_s)
    if reason is None:
        return _kept(state, best, costs, caps, exchange_s)
    state = replace(state, split=best, trials=_trials(state, best, costs, caps))
    text = f"{reason}: {_shares(best, costs, state)}"
    return Decision(split=best, reason=text, state=state, changed=True, straggler=_straggler(state))


def _costs(members: list[str], paces: Mapping[str, Pace], priors: Mapping[str, float]) -> dict[str, Cost]:
    """Returns the cost of each member; who has not run yet is scaled by its prior, or taken to be like the others."""
    known = {name: cost for name in members if (cost := paces.get(name, Pace()).cost) is not None}
    scale = [known[name].per_micro_s * priors[name] for name in known if priors.get(name, 0.0) > 0.0]
    unit = median(scale) if scale else None
    given = [priors[name] for name in members if priors.get(name, 0.0) > 0.0]
    usual_s = median(cost.per_micro_s for cost in known.values()) if known else 1.0 / (median(given) if given else 1.0)
    costs = {}
    for name in members:
        speed = priors.get(name, 0.0)
        guess_s = (unit or 1.0) / speed if speed > 0.0 and (unit or not known) else usual_s
        costs[name] = known.get(name, Cost(guess_s))
    return costs


def _why_change(
    state: BalancerState,
    best: Split,
    costs: Mapping[str, Cost],
    caps: Mapping[str, int | None],
    exchange_s: Mapping[str, float],
) -> str | None:
    """Returns why the best split replaces the one in force, or ``None`` where that one stays."""
    old = state.split
    if old is None:
        return "first split, by measured speed" if state.paces else "first split, by predicted speed"
    gone, new = sorted(set(old.members) - set(best.members)), sorted(set(best.members) - set(old.members))
    if gone or new:
        parts = [f"{', '.join(gone)} left"] if gone else []
        return " and ".join([*parts, f"{', '.join(new)} joined"] if new else parts)
    if old.total != best.total:
        return f"a step now has {best.total} micro-batches"
    for name, n in old.shares:
        cap = caps.get(name)
        if cap is not None and n > cap:
            return f"{name} may hold only {cap} micro-batches"
    old_s, best_s = step_s(old, costs, exchange_s), step_s(best, costs, exchange_s)
    gain_ratio = 1.0 - best_s / old_s
    if best == old or gain_ratio < _least_gain(state, old):
        return None
    slow = _straggler(state)
    cause = f"{slow} takes {state.paces[slow].slowdown:.1f} times longer than at its best, and " if slow else ""
    return f"{cause}the step gets {gain_ratio:.0%} shorter ({_duration(old_s)} to {_duration(best_s)})"


def _least_gain(state: BalancerState, split: Split) -> float:
    paces = [state.paces.get(name, Pace()) for name in split.active]
    if any(pace.num_steps < FEWEST_STEPS for pace in paces):
        return 2.0
    if any(pace.num_observed < SETTLED_STEPS for pace in paces):
        return EARLY_GAIN_RATIO
    return max(LEAST_GAIN_RATIO, min(MOST_GAIN_RATIO, 2.0 * max(pace.noise_ratio for pace in paces)))


def _trials(
    state: BalancerState, split: Split, costs: Mapping[str, Cost], caps: Mapping[str, int | None]
) -> dict[str, Trial]:
    """Returns when each member that is left out is tried again; those known from before keep their date."""
    trials = {}
    for name, n in split.shares:
        if n == 0 and caps.get(name) != 0:
            wait = _wait(name, split, costs)
            trials[name] = state.trials.get(name) or Trial(due=state.num_plans + wait, wait=wait)
    return trials


def _wait(member: str, split: Split, costs: Mapping[str, Cost]) -> int:
    """Returns the plans until the next trial, such that all trials together cost ``PROBE_COST_RATIO`` at most."""
    usual_s = step_s(split, costs, {})
    extra_s = max(0.0, costs[member].time_s(1) - usual_s)
    num_left_out = sum(1 for _, n in split.shares if n == 0)
    return max(_LEAST_WAIT, ceil(num_left_out * extra_s / usual_s / PROBE_COST_RATIO))


def _kept(
    state: BalancerState,
    best: Split,
    costs: Mapping[str, Cost],
    caps: Mapping[str, int | None],
    exchange_s: Mapping[str, float],
) -> Decision:
    """Returns the split in force, or a trial step of a member that is left out, when one is due."""
    split = state.split or best
    due = [name for name in split.members if name in state.trials and state.trials[name].due <= state.num_plans]
    if due and caps.get(due[0]) != 0:
        wait = _wait(due[0], split, costs)
        trials = {**state.trials, due[0]: Trial(due=state.num_plans + wait, wait=wait)}
        reason = f"{due[0]} is left out and runs one micro-batch to see whether it has become faster"
        return Decision(split=_trial_split(split, due[0]), reason=reason, state=replace(state, trials=trials))
    gain_ratio = 1.0 - step_s(best, costs, exchange_s) / step_s(split, costs, exchange_s)
    needed = _least_gain(state, split)
    if best == split:
        reason = "the split in force is the best one"
    elif needed > 1.0:
        reason = "the split stays until every member has run two steps"
    else:
        reason = f"the best split would gain {max(0.0, gain_ratio):.1%}, less than the {needed:.1%} worth a change"
    return Decision(split=split, reason=reason, state=state, straggler=_straggler(state))


def _trial_split(split: Split, member: str) -> Split:
    most = max(split.shares, key=lambda share: share[1])[0]
    change = {member: 1, most: -1}
    return Split(tuple((name, n + change.get(name, 0)) for name, n in split.shares))


def _straggler(state: BalancerState) -> str | None:
    slow = [(pace.slowdown, name) for name, pace in sorted(state.paces.items()) if pace.slowdown >= SLOW_RATIO]
    return max(slow)[1] if slow else None


def _shares(split: Split, costs: Mapping[str, Cost], state: BalancerState) -> str:
    def told(name: str, n: int) -> str:
        if n == 0:
            return f"{name} is left out, where one micro-batch would take {_duration(costs[name].time_s(1))}"
        measured = state.paces.get(name, Pace()).per_micro_s
        return f"{name} {n}" if measured is None else f"{name} {n} at {_duration(measured)} each"

    shown = ", ".join(told(name, n) for name, n in split.shares[:_SHOWN_MEMBERS])
    more = len(split.shares) - _SHOWN_MEMBERS
    return f"{shown} and {more} more" if more > 0 else shown


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{seconds * 1e3:.3g} ms"
