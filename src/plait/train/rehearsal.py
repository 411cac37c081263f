"""Training without computing: members that come, go and die over a data plan, to count which samples were used.

It drives the same pure pieces that a session does (:func:`plait.train.balance.plan`, :func:`~plait.train.work.deal`,
:func:`~plait.train.work.redeal`) through random faults and checks nothing but one thing: how often each sample went
into a committed update. Everything follows from the seed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plait.train.balance import BalancerState, observe, plan
from plait.train.split import Split
from plait.train.work import DataPlan, deal, redeal


@dataclass(slots=True)
class Rehearsal:
    """What happened.

    Attributes:
        steps: Committed steps.
        samples_lost: Samples that an epoch should have used and did not, over all epochs.
        samples_repeated: Times that a sample was used beyond the first in an epoch.
        kills: Members that died inside a step.
        redealt: Micro-batches that were dealt again.
        joins: Members that came.
        leaves: Members that left at a step boundary.
        restarts: Times that all members died and training went on from the last checkpoint.
        unequal_steps: Steps in which members had different numbers of samples.
    """

    steps: int = 0
    samples_lost: int = 0
    samples_repeated: int = 0
    kills: int = 0
    redealt: int = 0
    joins: int = 0
    leaves: int = 0
    restarts: int = 0
    unequal_steps: int = 0


@dataclass(slots=True)
class _Group:
    """The members, what they run at, and the state that is the same on all of them."""

    data: DataPlan
    dice: random.Random
    speeds: dict[str, float] = field(default_factory=dict)
    balancer: BalancerState = field(default_factory=BalancerState)
    cursor: int = 0
    born: int = 0

    def join(self) -> None:
        self.speeds[f"w{self.born}"] = self.dice.choice([1.0, 2.0, 4.0, 7.0])
        self.born += 1

    def split(self) -> Split:
        decision = plan(self.balancer, list(self.speeds), self.data.micro_batches)
        self.balancer = decision.state
        return decision.split

    def report(self, held: dict[str, frozenset[int]]) -> None:
        noise = {name: self.dice.uniform(0.95, 1.1) for name in sorted(held)}
        self.balancer = observe(
            self.balancer,
            {name: (round(1e5 * len(ks) / self.speeds[name] * noise[name]), len(ks)) for name, ks in held.items()},
        )


def rehearse(
    data: DataPlan, num_steps: int, seed: int, *, fault_ratio: float = 0.15, most_members: int = 6
) -> Rehearsal:
    """Runs a data plan through random faults and counts the samples of the committed updates.

    Args:
        data: The plan; whole epochs are counted, the last one as far as it got.
        num_steps: Steps to commit.
        seed: Seed of the faults and speeds.
        fault_ratio: Chance that a member dies in each part of a step, and that one joins or leaves between steps.
        most_members: Members at most.
    """
    group = _Group(data, random.Random(seed))
    told = Rehearsal()
    used = np.zeros((data.epoch_of(max(0, num_steps - 1)) + 1, data.num_samples), dtype=np.int64)
    saved = (0, used.copy())
    for _ in range(group.dice.randint(1, most_members)):
        group.join()
    while group.cursor < num_steps:
        _resize(group, told, fault_ratio, most_members)
        held = _run_step(group, told, fault_ratio)
        if held is None:  # nobody is left: new processes start from the last checkpoint, with all that it holds
            told.restarts += 1
            group.cursor, used = saved[0], saved[1].copy()
            group.join()
            continue
        _commit(group, told, held, used)
        if group.dice.random() < 0.3:
            saved = (group.cursor, used.copy())
    told.steps = group.cursor
    expected = _expected(data, num_steps, used.shape[0])
    told.samples_lost = int(np.maximum(expected - used, 0).sum())
    told.samples_repeated = int(np.maximum(used - expected, 0).sum())
    return told


def _resize(group: _Group, told: Rehearsal, fault_ratio: float, most_members: int) -> None:
    if group.dice.random() < fault_ratio and len(group.speeds) > 1:
        del group.speeds[group.dice.choice(sorted(group.speeds))]
        told.leaves += 1
    if group.dice.random() < fault_ratio and len(group.speeds) < most_members:
        group.join()
        told.joins += 1


def _run_step(group: _Group, told: Rehearsal, fault_ratio: float) -> dict[str, frozenset[int]] | None:
    """Returns the micro-batches that each survivor holds when all have been run, ``None`` where nobody survives."""
    assignment = deal(group.data.micro_batches, group.split().as_dict())
    left = {name: list(ks) for name, ks in assignment.parts}
    done: dict[str, frozenset[int]] = {name: frozenset() for name in left}
    for name in _turns(group.dice, left):
        if name in left and group.dice.random() < fault_ratio / 4:
            told.kills += 1
            _die(group, left, done, told)
            if not left:
                return None
        if left.get(name):
            done[name] |= {left[name].pop(0)}
    return done


def _turns(dice: random.Random, left: dict[str, list[int]]) -> Iterator[str]:
    """Yields members in random order until none has work left, then each once more: death inside the exchange."""
    while busy := sorted(name for name, ks in left.items() if ks):
        yield dice.choice(busy)
    for name in sorted(left):
        yield name
        if any(left.values()):
            yield from _turns(dice, left)


def _die(group: _Group, left: dict[str, list[int]], done: dict[str, frozenset[int]], told: Rehearsal) -> None:
    """Lets a random member die; the survivors deal its micro-batches, run or not, again."""
    victim = group.dice.choice(sorted(left))
    for record in (left, done, group.speeds):
        del record[victim]
    if not left:
        return
    held = {name: done[name] | frozenset(left[name]) for name in left}
    speeds = {name: speed for name in left if (speed := group.balancer.speed_of(name)) is not None}
    remaining = {name: len(ks) for name, ks in left.items()}
    extra = redeal(held, left, num_micro_batches=group.data.micro_batches, speeds=speeds, remaining=remaining)
    for name, ks in extra.items():
        left[name].extend(ks)
        told.redealt += len(ks)


def _commit(group: _Group, told: Rehearsal, held: dict[str, frozenset[int]], used: NDArray[np.int64]) -> None:
    step = group.cursor
    sizes = set()
    for ks in held.values():
        samples = group.data.samples(step, sorted(ks))
        np.add.at(used[group.data.epoch_of(step)], samples, 1)
        sizes.add(len(samples))
    told.unequal_steps += len(sizes) > 1
    if group.data.is_full(step):
        group.report(held)
    group.cursor += 1


def _expected(data: DataPlan, num_steps: int, num_epochs: int) -> NDArray[np.int64]:
    """Returns how often each sample of each epoch belongs into the first ``num_steps`` steps, from the order alone."""
    expected = np.ones((num_epochs, data.num_samples), dtype=np.int64)
    open_steps = num_steps - (num_epochs - 1) * data.steps_per_epoch
    num_seen = min(data.num_samples, open_steps * data.global_batch)
    whole = DataPlan(
        num_samples=data.num_samples,
        global_batch=data.num_samples,
        micro_batches=1,
        seed=data.seed,
        shuffle=data.shuffle,
    )
    order = whole.indices(num_epochs - 1, 0)
    expected[-1, order[num_seen:]] = 0
    return expected
