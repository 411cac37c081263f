import random
from typing import Any

import pytest

from plait.train.rehearsal import Rehearsal, rehearse
from plait.train.work import DataPlan, redeal

SEQUENCES = 200


def one(seed: int) -> Rehearsal:
    dice = random.Random(seed)
    micro_batches = dice.choice([1, 5, 12, 16])
    batch = micro_batches * dice.randint(1, 6) + dice.choice([0, 0, 1])
    plan = DataPlan(
        num_samples=dice.randint(batch // 2 + 1, 1000),
        global_batch=batch,
        micro_batches=micro_batches,
        seed=seed,
        shuffle=dice.random() < 0.9,
    )
    return rehearse(plan, num_steps=min(3 * plan.steps_per_epoch - dice.randint(0, 1), 60), seed=seed)


def test_two_hundred_random_sequences_lose_and_repeat_nothing() -> None:
    total = Rehearsal()
    for seed in range(SEQUENCES):
        told = one(seed)
        assert (told.samples_lost, told.samples_repeated) == (0, 0), f"seed {seed}"
        for name in Rehearsal.__slots__:
            setattr(total, name, getattr(total, name) + getattr(told, name))
    # The faults really happened, in every kind.
    assert total.steps > 3000
    assert total.kills > 1000
    assert total.redealt > 2000
    assert min(total.joins, total.leaves) > 300
    assert total.restarts > 20
    assert total.unequal_steps > 1000


def test_it_repeats_exactly() -> None:
    assert one(7) == one(7)


@pytest.mark.parametrize("fault", ["lost", "repeated"])
def test_the_count_sees_a_wrong_redeal(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def wrong(*args: Any, **kwargs: Any) -> dict[str, tuple[int, ...]]:
        extra = redeal(*args, **kwargs)
        first = min(extra)
        held = args[0][first]
        changed = extra[first][1:] if fault == "lost" else (*extra[first], *(k for ks in extra.values() for k in ks))
        return {**extra, first: changed if fault == "lost" else tuple(k for k in changed if k not in held)}

    monkeypatch.setattr("plait.train.rehearsal.redeal", wrong)
    results = [one(seed) for seed in range(12)]
    assert sum(r.samples_lost if fault == "lost" else r.samples_repeated for r in results) > 0
