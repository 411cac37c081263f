"""How many micro-batches run in one pass, found by trial."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.train.fusing import TRIAL_STEPS, WARM_UP_STEPS, Fusing, observe


def run(steps: int, share: int, per_micro_s: Callable[[int], float], state: Fusing | None = None) -> Fusing:
    """A device that takes ``per_micro_s(n)`` for each of n micro-batches in one pass."""
    state = state or Fusing()
    for _ in range(steps):
        state = observe(state, share, share * per_micro_s(state.most(share)))
    return state


def test_a_device_that_large_passes_suit_keeps_its_share_whole_after_one_trial() -> None:
    state = run(WARM_UP_STEPS + 2 * TRIAL_STEPS, 16, lambda n: 1.0 + 4.0 / n)
    assert state.most(16) == 16
    assert state.settled_share == 16
    assert "8 at a time" in state.reason


def test_a_device_with_a_small_cache_goes_down_as_long_as_it_pays() -> None:
    state = run(40, 32, lambda n: 1.0 + 0.1 * max(0, n - 4) + 0.3 / n)
    assert state.most(32) == 4
    assert state.trial is None


@pytest.mark.parametrize("share", [1, 2, 3, 7])
def test_small_shares_come_to_an_end(share: int) -> None:
    state = run(40, share, float)
    assert state.most(share) == 1
    assert state.settled_share == share


def test_a_share_that_changes_much_is_tried_anew_and_one_that_changes_little_is_not() -> None:
    state = run(40, 16, lambda _n: 1.0)
    assert observe(state, 18, 18.0) == replace(state, num_steps=state.num_steps + 1)
    again = observe(state, 40, 40.0)
    assert again.settled_share is None
    assert run(40, 40, float, again).most(40) == 1


@given(
    times=st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=60),
    shares=st.lists(st.integers(0, 64), min_size=1, max_size=60),
)
def test_whatever_is_measured_a_pass_holds_one_at_least_and_the_share_at_most(
    times: list[float], shares: list[int]
) -> None:
    state = Fusing()
    for compute_s, share in zip(times, shares, strict=False):
        assert 1 <= state.most(share) <= max(1, share)
        state = observe(state, share, compute_s)
