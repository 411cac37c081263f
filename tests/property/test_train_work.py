import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.train.work import CapacityExceeded, DataPlan, _sorted_order, deal, permutation, redeal, rng_key, sample_key

plans = st.builds(
    lambda num_samples, batch, parts, seed: DataPlan(
        num_samples=num_samples, global_batch=batch, micro_batches=1 + parts % batch, seed=seed
    ),
    st.integers(1, 300),
    st.integers(1, 64),
    st.integers(0, 63),
    st.integers(-(2**63), 2**63),
)


@given(plans, st.integers(0, 3))
def test_every_epoch_visits_every_sample_once(plan: DataPlan, epoch: int) -> None:
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    seen = [int(i) for t in steps for k in range(plan.micro_batches) for i in plan.indices(t, k)]
    assert sorted(seen) == list(range(plan.num_samples))
    assert all(plan.epoch_of(t) == epoch for t in steps)


@given(plans, st.integers(0, 500))
def test_counts_agree_with_indices_and_full_steps_are_even(plan: DataPlan, step: int) -> None:
    counts = plan.counts(step)
    assert counts == tuple(len(plan.indices(step, k)) for k in range(plan.micro_batches))
    assert sum(counts) == plan.step_size(step) > 0
    if plan.is_full(step):
        assert max(counts) - min(counts) <= 1
        assert min(counts) >= 1
    else:
        assert list(counts) == sorted(counts, reverse=True)


@given(plans, st.integers(0, 50), st.data())
def test_any_split_draws_the_same_samples_as_one_device(plan: DataPlan, step: int, data: st.DataObject) -> None:
    members = [f"w{i}" for i in range(data.draw(st.integers(1, 6)))]
    cuts = sorted(data.draw(st.integers(0, plan.micro_batches)) for _ in members[1:])
    shares = dict(zip(members, np.diff([0, *cuts, plan.micro_batches]).tolist(), strict=True))
    split = deal(plan.micro_batches, shares)
    whole = plan.samples(step, range(plan.micro_batches))
    parts = [plan.samples(step, split.of(member)) for member in split.members]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_permutation_is_that_of_the_first_release() -> None:
    # A golden order: a change here silently changes which samples a resumed run sees.
    assert permutation(7, 3, 12).tolist() == GOLDEN_ORDER
    assert not np.array_equal(permutation(7, 4, 1000), permutation(7, 3, 1000))
    assert not np.array_equal(permutation(8, 3, 1000), permutation(7, 3, 1000))
    with pytest.raises(ValueError, match="read-only"):
        permutation(7, 3, 12)[0] = 5


@given(st.lists(st.integers(0, 5), max_size=60))
def test_equal_words_are_ordered_stably(words: list[int]) -> None:
    order = _sorted_order(np.array(words, dtype=np.uint64))
    assert order.tolist() == sorted(range(len(words)), key=words.__getitem__)


def test_an_epoch_can_be_prepared() -> None:
    plan = DataPlan(num_samples=50, global_batch=4, micro_batches=2, seed=11)
    plan.prepare(6)
    first = permutation(11, 6, 50)
    assert plan.indices(6 * plan.steps_per_epoch, 0).base is first


def test_unshuffled_plan_keeps_the_order() -> None:
    plan = DataPlan(num_samples=10, global_batch=4, micro_batches=2, shuffle=False)
    assert [plan.samples(t, range(2)).tolist() for t in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert plan.samples(3, [1]).tolist() == [2, 3]


def test_keys_do_not_collide_for_many_micro_batches() -> None:
    keys = {rng_key(seed, step, k) for seed in (0, 1) for step in range(40) for k in range(2500)}
    assert len(keys) == 2 * 40 * 2500
    assert rng_key(0, 1, 0) != rng_key(0, 0, 1000)
    samples = {sample_key(0, epoch, i) for epoch in range(5) for i in range(5000)}
    assert len(samples) == 25_000
    assert not samples & keys


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_keys_are_64_bits_and_spread_over_low_bits(seed: int, step: int) -> None:
    keys = [rng_key(seed, step, k) for k in range(1200)]
    assert len(set(keys)) == 1200
    assert all(0 <= key < 2**64 for key in keys)
    # Some generators read only the low 32 bits of a seed; a handful of them may coincide, not more.
    assert len({key & 0xFFFFFFFF for key in keys}) >= 1198


def test_deal_gives_contiguous_runs_in_sorted_order() -> None:
    split = deal(6, {"w2": 1, "w0": 3, "w1": 2})
    assert split.parts == (("w0", (0, 1, 2)), ("w1", (3, 4)), ("w2", (5,)))
    assert split.of("gone") == ()
    with pytest.raises(ValueError, match="do not add up to 6"):
        deal(6, {"w0": 3})
    with pytest.raises(ValueError, match="do not add up"):
        deal(6, {"w0": 7, "w1": -1})


@given(st.data())
@settings(max_examples=200)
def test_redeal_covers_all_once_under_caps_and_ends_soonest(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 9))
    members = [f"w{i}" for i in range(data.draw(st.integers(2, 4)))]
    owner = [data.draw(st.sampled_from(members)) for _ in range(total)]
    held = {m: frozenset(k for k in range(total) if owner[k] == m) for m in members}
    survivors = data.draw(st.lists(st.sampled_from(members), min_size=1, max_size=3, unique=True))
    speeds = {m: data.draw(st.integers(1, 8)) / 2 for m in survivors}
    remaining = {m: data.draw(st.integers(0, len(held[m]))) for m in survivors}
    caps = {m: data.draw(st.one_of(st.none(), st.integers(0, total))) for m in survivors}
    missing = sorted(set(range(total)) - {k for m in survivors for k in held[m]})
    room = {m: len(missing) if caps[m] is None else max(0, (caps[m] or 0) - len(held[m])) for m in survivors}
    again = partial(redeal, num_micro_batches=total, speeds=speeds, caps=caps, remaining=remaining)
    if sum(room.values()) < len(missing):
        with pytest.raises(CapacityExceeded):
            again(held, survivors)
        return
    extra = again(held, survivors)
    assert sorted(k for ks in extra.values() for k in ks) == missing
    assert all(len(extra[m]) <= room[m] for m in survivors)
    assert again(dict(reversed(held.items())), reversed(survivors)) == extra

    def ends(gains: tuple[int, ...]) -> float:
        return max((remaining[m] + n) / speeds[m] for m, n in zip(survivors, gains, strict=True) if n)

    choices = itertools.product(*(range(min(room[m], len(missing)) + 1) for m in survivors))
    if missing:
        best = min(ends(gains) for gains in choices if sum(gains) == len(missing))
        assert ends(tuple(len(extra[m]) for m in survivors)) == best


def test_redeal_gives_a_newcomer_the_usual_speed() -> None:
    held = {"a": frozenset({0, 1}), "gone": frozenset(range(2, 8))}
    extra = redeal(held, ["a", "new"], num_micro_batches=8, speeds={"a": 3.0}, remaining={"a": 0})
    assert extra == {"a": (2, 3, 4), "new": (5, 6, 7)}


def test_plan_refuses_impossible_numbers() -> None:
    with pytest.raises(ValueError, match="num_samples is 0"):
        DataPlan(num_samples=0, global_batch=4, micro_batches=2)
    with pytest.raises(ValueError, match="micro_batches is 5"):
        DataPlan(num_samples=9, global_batch=4, micro_batches=5)
    with pytest.raises(IndexError, match="micro-batch 2 does not exist"):
        DataPlan(num_samples=9, global_batch=4, micro_batches=2).count(0, 2)


GOLDEN_ORDER = [9, 6, 11, 8, 4, 7, 0, 1, 5, 10, 2, 3]
