"""Exactly once: random resizes and kills over Plait's data plan, and the same over torch's elastic sampler.

Each sequence trains one or two epochs with unequal batches while members die in the middle of a step (after part of
their micro-batches; several may die in one step), leave at its end, and join. What counts is what entered the committed
updates: per step, the samples of the members that lived to the commit. Every sample of the data set must be in exactly
one of them per epoch.

Torch's ``ElasticDistributedSampler`` gets the same resizes, all at step boundaries and with equal batches, which is the
most it is made for, and is told how many samples are done, as its documentation asks.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch.distributed.elastic.utils.data import (  # type: ignore[attr-defined]
    ElasticDistributedSampler,
)
from torch.utils.data import Dataset

from plait.train.work import DataPlan, deal, redeal
from report import arguments, finish

SEQUENCES = 200
QUICK_SEQUENCES = 60
EVENT_CHANCE = 0.25


class Numbers(Dataset[int]):
    """A data set of which only the length matters."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return number


@dataclass(frozen=True)
class Sequence:
    """One random history: the plan, the first members, and what happens in which step."""

    plan: DataPlan
    members: tuple[str, ...]
    epochs: int
    events: dict[int, str]


def draw(chance: random.Random) -> Sequence:
    micro_batches = chance.randrange(4, 33)
    plan = DataPlan(
        num_samples=chance.randrange(200, 2000),
        global_batch=micro_batches * chance.randrange(1, 5) + chance.randrange(micro_batches),
        micro_batches=micro_batches,
        seed=chance.randrange(1 << 30),
    )
    epochs = chance.randrange(1, 3)
    steps = plan.steps_per_epoch * epochs
    kinds = ["kill", "kill", "kill two", "leave", "join"]
    events = {step: chance.choice(kinds) for step in range(steps) if chance.random() < EVENT_CHANCE}
    events[chance.randrange(steps)] = "kill"  # at least one in every history
    return Sequence(plan, tuple(f"w{index}" for index in range(chance.randrange(2, 7))), epochs, events)


def shares_of(members: list[str], micro_batches: int, chance: random.Random) -> dict[str, int]:
    """Cuts the micro-batches of a step into one random share for each member; some may get none."""
    cuts = sorted(chance.randrange(micro_batches + 1) for _ in members[1:])
    ends = [*cuts, micro_batches]
    return {member: end - start for member, start, end in zip(members, [0, *cuts], ends, strict=True)}


def committed_samples(sequence: Sequence, chance: random.Random) -> Iterator[tuple[int, list[int]]]:
    """Yields (epoch, samples in the update) of each committed step."""
    plan, members, born = sequence.plan, list(sequence.members), len(sequence.members)
    for step in range(plan.steps_per_epoch * sequence.epochs):
        assignment = deal(plan.micro_batches, shares_of(members, plan.micro_batches, chance))
        held = assignment.held()
        event = sequence.events.get(step, "")
        for _ in range({"kill": 1, "kill two": 2}.get(event, 0)):
            if len(members) == 1:
                break
            members.remove(chance.choice(members))
            # Survivors keep what they hold, run or not; only what no survivor holds is dealt again.
            speeds = {member: chance.uniform(0.1, 5.0) for member in members}
            more = redeal(held, members, num_micro_batches=plan.micro_batches, speeds=speeds)
            held = {member: held[member] | frozenset(more[member]) for member in members}
        samples = [int(number) for member in members for number in plan.samples(step, sorted(held[member]))]
        yield plan.epoch_of(step), samples
        if event == "leave" and len(members) > 1:
            members.remove(chance.choice(members))
        if event == "join":
            members.append(f"w{born}")
            born += 1


def lost_and_repeated(counts: Counter[int], num_samples: int) -> tuple[int, int]:
    return num_samples - len(counts), sum(times - 1 for times in counts.values())


def with_plait(sequence: Sequence, chance: random.Random) -> tuple[int, int]:
    seen: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(sequence.epochs)}
    for epoch, samples in committed_samples(sequence, chance):
        seen[epoch].update(samples)
    results = [lost_and_repeated(counts, sequence.plan.num_samples) for counts in seen.values()]
    return sum(lost for lost, _ in results), sum(again for _, again in results)


def torch_epoch(dataset: Numbers, batch: int, worlds: list[tuple[int, int]]) -> tuple[int, int]:
    """Runs one epoch of torch's elastic sampler; ``worlds`` holds (ranks, steps before the next resize)."""
    seen: Counter[int] = Counter()
    done = 0
    for turn, (world, steps) in enumerate(worlds):
        if done >= len(dataset):
            break
        size = max(1, batch // world)
        last = turn == len(worlds) - 1
        taken = 0
        for rank in range(world):
            try:
                numbers = list(ElasticDistributedSampler(dataset, world, rank, start_index=done))
            except AssertionError:  # it cannot pad a tail shorter than half the ranks: count that tail as well done
                seen.update(set(range(len(dataset))) - set(seen))
                return lost_and_repeated(seen, len(dataset))
            numbers = numbers if last else numbers[: steps * size]
            seen.update(numbers)
            taken += len(numbers)
        done += taken
    return lost_and_repeated(seen, len(dataset))


def with_torch(sequence: Sequence) -> tuple[int, int]:
    plan, world = sequence.plan, len(sequence.members)
    lost = again = 0
    changes = {"kill": -1, "kill two": -2, "leave": -1, "join": 1}
    for epoch in range(sequence.epochs):
        worlds, since = [], 0
        for step in range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch):
            since += 1
            if step in sequence.events:
                worlds.append((world, since))
                world, since = max(1, world + changes[sequence.events[step]]), 0
        worlds.append((world, since))
        missing, repeated = torch_epoch(Numbers(plan.num_samples), plan.global_batch, worlds)
        lost, again = lost + missing, again + repeated
    return lost, again


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    count = QUICK_SEQUENCES if options.quick else SEQUENCES
    totals = {"plait": [0, 0], "torch": [0, 0]}
    samples = 0
    for number in range(count):
        sequence = draw(random.Random(f"{options.seed} {number} sequence"))
        samples += sequence.plan.num_samples * sequence.epochs
        for name, found in (
            ("plait", with_plait(sequence, random.Random(f"{options.seed} {number} split"))),
            ("torch", with_torch(sequence)),
        ):
            totals[name][0] += found[0]
            totals[name][1] += found[1]
    once = torch_epoch(Numbers(1000), 32, [(4, 15), (3, 0)])
    print(f"{count} random sequences of resizes and kills, {samples} samples to visit")
    print(f"  Plait                                   lost {totals['plait'][0]:8d}   repeated {totals['plait'][1]:8d}")
    print(f"  torch ElasticDistributedSampler         lost {totals['torch'][0]:8d}   repeated {totals['torch'][1]:8d}")
    print(f"  torch, 1000 samples, one resize 4 -> 3  lost {once[0]:8d}   repeated {once[1]:8d}")
    figures: dict[str, float | None] = {
        "samples_lost": totals["plait"][0],
        "samples_repeated": totals["plait"][1],
        "torch_missing": totals["torch"][0],
        "torch_repeated": totals["torch"][1],
    }
    finish("exactly_once", options.quick, figures, None, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
