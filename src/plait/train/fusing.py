"""How many micro-batches a device runs in one forward pass: all of its share, unless fewer are measurably faster.

Fusing spares launches and fills a device; beyond what fills it, larger batches fall out of caches. So a device first
runs its whole share in one pass, then tries halves, quarters and so on for two steps each, as long as that pays. It is
a matter of one device alone: what is computed does not depend on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

WARM_UP_STEPS = 2
"""Steps that are not looked at after a start."""

TRIAL_STEPS = 2
LEAST_GAIN_RATIO = 0.05
"""What fewer at a time must gain to be kept."""

RETRY_RATIO = 1.5
"""A share that has changed by this factor since the last trial is worth another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusing:
    """What a device knows of its passes.

    Attributes:
        limit: The most micro-batches in one pass, ``None`` for the whole share.
        trial: The limit that is being tried.
        settled_share: The share at which the present limit was found, ``None`` while that is open.
        times_s: Seconds for each micro-batch by limit (0 stands for the whole share), of the steps that count.
        num_steps: Steps seen.
        reason: Why the limit is what it is.
    """

    limit: int | None = None
    trial: int | None = None
    settled_share: int | None = None
    times_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    num_steps: int = 0
    reason: str = "the whole share in one pass, until fewer have been tried"

    def most(self, share: int) -> int:
        """Returns the most micro-batches in one pass of a share of this size."""
        wanted = self.trial or self.limit
        return max(1, share if wanted is None else min(wanted, share))


def observe(state: Fusing, share: int, compute_s: float) -> Fusing:
    """Returns the state after a step that took ``compute_s`` for a share of ``share`` micro-batches."""
    state = replace(state, num_steps=state.num_steps + 1)
    if share < 1 or state.num_steps <= WARM_UP_STEPS:
        return state
    if state.settled_share is not None:
        factor = max(share, state.settled_share) / min(share, state.settled_share)
        if factor < RETRY_RATIO:
            return state
        return Fusing(num_steps=state.num_steps, reason=f"the share has changed to {share} micro-batches")
    key = state.trial or state.limit or 0
    times = {**state.times_s, key: (*state.times_s.get(key, ()), compute_s / share)}
    state = replace(state, times_s=times)
    if len(times[key]) < TRIAL_STEPS:
        return state
    return _decide(state, share)


def _decide(state: Fusing, share: int) -> Fusing:
    """Keeps the limit on trial or goes back, and names the next one."""
    now = state.limit or 0
    if state.trial is None:
        return _next_trial(state, share)
    before_s, tried_s = min(state.times_s[now]), min(state.times_s[state.trial])
    gain_ratio = 1.0 - tried_s / before_s
    if gain_ratio < LEAST_GAIN_RATIO:
        what = f"{state.limit} at a time" if state.limit else "the whole share in one pass"
        reason = f"{what}: {state.trial} at a time would change a micro-batch by {-gain_ratio:+.0%}"
        return replace(state, trial=None, settled_share=share, reason=reason)
    reason = f"{state.trial} at a time make a micro-batch {gain_ratio:.0%} shorter"
    return _next_trial(replace(state, limit=state.trial, trial=None, reason=reason), share)


def _next_trial(state: Fusing, share: int) -> Fusing:
    smaller = -(-min(state.limit or share, share) // 2)
    if smaller >= (state.limit or share):
        return replace(state, trial=None, settled_share=share)
    return replace(state, trial=smaller)
