"""The unit of work: logical micro-batches, who runs which, and which samples and random numbers belong to each.

A global step is always ``K`` micro-batches. What a micro-batch holds follows from (seed, step, k) alone, never from a
rank or a world size; a split only says which member runs which ``k``. So a change of membership can lose no sample,
repeat none, and leaves the gradient as it is. Everything here is pure: all members compute the same answer.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from plait.errors import PlaitError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STEP_DOMAIN = 0x506C6169745F4B31
_SAMPLE_DOMAIN = 0x506C6169745F5332
_EPOCH_DOMAIN = 0x506C6169745F4533

_KEPT_PERMUTATIONS = 3
"""The running epoch, the next one that a loader looks ahead into, and one before for a redo at the seam."""


class CapacityExceeded(PlaitError):
    """The members of the group together may not hold all micro-batches of a step."""


def _mix(word: int) -> int:
    """Returns the SplitMix64 finaliser of a 64-bit word, a bijection (Steele, Lea and Flood, OOPSLA 2014)."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def _absorb(state: int, value: int) -> int:
    return _mix((state + _GOLDEN + _mix(value & _MASK)) & _MASK)


def _key(domain: int, *words: int) -> int:
    state = domain
    for word in words:
        state = _absorb(state, word)
    return state


def rng_key(seed: int, step: int, k: int) -> int:
    """Returns the 64-bit seed of micro-batch ``k`` of global step ``step``.

    For one seed and step the keys of all ``k`` differ (each stage is a bijection of the last word); over steps two
    keys meet with the chance of two random 64-bit words.
    """
    return _key(_STEP_DOMAIN, seed, step, k)


def sample_key(seed: int, epoch: int, sample: int) -> int:
    """Returns the 64-bit seed of whatever is random about one sample in one epoch, such as augmentation."""
    return _key(_SAMPLE_DOMAIN, seed, epoch, sample)


_permutations: "OrderedDict[tuple[int, int, int], NDArray[np.int64]]" = OrderedDict()


def permutation(seed: int, epoch: int, num_samples: int) -> NDArray[np.int64]:
    """Returns the order of all samples in this epoch, read-only.

    It sorts the raw words of a counter-based Philox generator: NumPy promises the words of a bit generator for ever,
    but not the results of ``Generator.permutation``, and members may run different versions of NumPy.
    """
    key = (seed, epoch, num_samples)
    found = _permutations.get(key)
    if found is None:
        words = np.random.Philox(key=_key(_EPOCH_DOMAIN, seed, epoch)).random_raw(num_samples)
        found = _sorted_order(words)
        found.flags.writeable = False
        _permutations[key] = found
        while len(_permutations) > _KEPT_PERMUTATIONS:
            _permutations.popitem(last=False)
    return found


def _sorted_order(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the one stable order of the words; the faster sort gives the same wherever no two are equal."""
    order = np.argsort(words)
    ranked = words[order]
    if bool((ranked[1:] == ranked[:-1]).any()):
        order = np.argsort(words, kind="stable")
    return order.astype(np.int64, copy=False)


@lru_cache(maxsize=16)
def _ends(global_batch: int, micro_batches: int, total: int) -> tuple[int, ...]:
    """Returns where each micro-batch ends within a step of ``total`` samples; asked several times a micro-batch."""
    size, larger = divmod(global_batch, micro_batches)
    return tuple(min((k + 1) * size + min(k + 1, larger), total) for k in range(micro_batches))


@lru_cache(maxsize=16)
def _counts(global_batch: int, micro_batches: int, total: int) -> tuple[int, ...]:
    ends = _ends(global_batch, micro_batches, total)
    return tuple(end - first for first, end in zip((0, *ends), ends, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """Which samples each micro-batch of each global step holds.

    Steps count over all epochs. An epoch has ``ceil(num_samples / global_batch)`` steps, and every sample is in
    exactly one of them. In a full step the samples are dealt to the K micro-batches as evenly as possible, the first
    ``global_batch % K`` taking one more. The last step of an epoch may be smaller: its micro-batches are filled to
    their ordinary size in order of ``k``, so at most one has an unusual size and those after it are empty.

    Attributes:
        num_samples: Samples in the data set.
        global_batch: Samples in a full global step.
        micro_batches: K, the micro-batches in every global step.
        seed: Seed of the order.
        shuffle: Whether an epoch visits the samples in random order; otherwise in the order of the data set.
    """

    num_samples: int
    global_batch: int
    micro_batches: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        """Refuses a plan whose steps would be empty."""
        if self.num_samples < 1:
            raise ValueError(f"num_samples is {self.num_samples}; a data set needs at least 1 sample")
        if not 1 <= self.micro_batches <= self.global_batch:
            raise ValueError(
                f"micro_batches is {self.micro_batches}; it must lie between 1 and global_batch, {self.global_batch}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Global steps in one epoch, the smaller last one included."""
        return -(-self.num_samples // self.global_batch)

    def epoch_of(self, step: int) -> int:
        """Returns the epoch that a global step lies in."""
        return step // self.steps_per_epoch

    def prepare(self, epoch: int) -> None:
        """Makes the order of an epoch ahead of its first use, as from a thread: a million samples take about 0.2 s."""
        if self.shuffle:
            permutation(self.seed, epoch, self.num_samples)

    def step_size(self, step: int) -> int:
        """Returns the number of samples in a global step."""
        first = step % self.steps_per_epoch * self.global_batch
        return min(self.global_batch, self.num_samples - first)

    def is_full(self, step: int) -> bool:
        """Returns whether the step has all its samples; times measured in another step say little."""
        return self.step_size(step) == self.global_batch

    def _bounds(self, step: int, k: int) -> tuple[int, int]:
        if not 0 <= k < self.micro_batches:
            raise IndexError(f"micro-batch {k} does not exist; a step has {self.micro_batches}, counted from 0")
        ends = _ends(self.global_batch, self.micro_batches, self.step_size(step))
        return ends[k - 1] if k else 0, ends[k]

    def count(self, step: int, k: int) -> int:
        """Returns the number of samples in micro-batch ``k`` of a step; 0 is possible in the last step of an epoch."""
        first, end = self._bounds(step, k)
        return end - first

    def counts(self, step: int) -> tuple[int, ...]:
        """Returns the number of samples in each micro-batch of a step."""
        return _counts(self.global_batch, self.micro_batches, self.step_size(step))

    def indices(self, step: int, k: int) -> NDArray[np.int64]:
        """Returns the sample numbers in micro-batch ``k`` of a step, in order."""
        first, end = self._bounds(step, k)
        offset = step % self.steps_per_epoch * self.global_batch
        if not self.shuffle:
            return np.arange(offset + first, offset + end, dtype=np.int64)
        return permutation(self.seed, self.epoch_of(step), self.num_samples)[offset + first : offset + end]

    def samples(self, step: int, ks: Iterable[int]) -> NDArray[np.int64]:
        """Returns the sample numbers of several micro-batches of a step, fused in the order given."""
        parts = [self.indices(step, k) for k in ks]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who runs which micro-batches of a step; members in sorted order, micro-batches rising."""

    parts: tuple[tuple[str, tuple[int, ...]], ...]

    def of(self, member: str) -> tuple[int, ...]:
        """Returns the micro-batches of a member; a member that is not in the assignment has none."""
        return next((ks for name, ks in self.parts if name == member), ())

    @property
    def members(self) -> tuple[str, ...]:
        """The members in sorted order, those without work included."""
        return tuple(name for name, _ in self.parts)

    def as_dict(self) -> dict[str, tuple[int, ...]]:
        """Returns the assignment as a new dictionary."""
        return dict(self.parts)

    def held(self) -> dict[str, frozenset[int]]:
        """Returns the micro-batches of each member as sets, the form that :func:`redeal` takes."""
        return {name: frozenset(ks) for name, ks in self.parts}


def deal(num_micro_batches: int, shares: Mapping[str, int]) -> Assignment:
    """Deals all micro-batches of a step in contiguous runs, in sorted order of the members."""
    members = sorted(shares)
    ends = list(accumulate(shares[member] for member in members))
    if not members or ends[-1] != num_micro_batches or min(shares.values()) < 0:
        raise ValueError(f"shares {dict(shares)} do not add up to {num_micro_batches} micro-batches")
    starts = [0, *ends[:-1]]
    runs = (tuple(range(start, end)) for start, end in zip(starts, ends, strict=True))
    return Assignment(tuple(zip(members, runs, strict=True)))


def redeal(
    held: Mapping[str, frozenset[int]],
    survivors: Iterable[str],
    *,
    num_micro_batches: int,
    speeds: Mapping[str, float] | None = None,
    caps: Mapping[str, int | None] | None = None,
    remaining: Mapping[str, int] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Deals the micro-batches that no survivor holds so that the step ends soonest.

    Each missing micro-batch goes to the survivor that would finish it first, which is optimal for equal units of work.

    Args:
        held: The micro-batches of each member, run or still to run; members that are gone may be listed.
        survivors: The members to deal to.
        num_micro_batches: K; all of ``range(K)`` that no survivor holds is missing.
        speeds: Micro-batches per second up to a common factor; a member without one gets the mean of the others.
        caps: The most micro-batches a member may hold in a step, those it already holds included; ``None`` is no limit.
        remaining: Micro-batches each survivor holds but has not run yet; 0 where not given.

    Returns:
        The additional micro-batches of every survivor, rising; in contiguous runs where the missing ones are.

    Raises:
        CapacityExceeded: The caps leave some micro-batches without a member.
    """
    members = sorted(set(survivors))
    kept = frozenset[int]().union(*(held.get(member, frozenset()) for member in members))
    missing = [k for k in range(num_micro_batches) if k not in kept]
    limits = {name: (caps or {}).get(name) for name in members}
    room = {
        name: len(missing) if limit is None else max(0, limit - len(held.get(name, ())))
        for name, limit in limits.items()
    }
    gains = _soonest(len(missing), members, _known_speeds(members, speeds or {}), room, remaining or {})
    ends = list(accumulate(gains[name] for name in members))
    return {name: tuple(missing[end - gains[name] : end]) for name, end in zip(members, ends, strict=True)}


def _known_speeds(members: list[str], speeds: Mapping[str, float]) -> dict[str, float]:
    known = [speeds[name] for name in members if speeds.get(name, 0.0) > 0.0]
    usual = sum(known) / len(known) if known else 1.0
    return {name: speeds[name] if speeds.get(name, 0.0) > 0.0 else usual for name in members}


def _soonest(
    num_units: int,
    members: list[str],
    speeds: Mapping[str, float],
    room: Mapping[str, int],
    remaining: Mapping[str, int],
) -> dict[str, int]:
    """Returns how many units each member takes so that the last of them ends as soon as possible."""
    given = dict.fromkeys(members, 0)
    short = num_units - sum(room[name] for name in members)
    if short > 0:
        names = ", ".join(members) or "nobody"
        raise CapacityExceeded(f"{num_units} micro-batches must be dealt again, {short} more than {names} may hold")
    heap = [((remaining.get(name, 0) + 1) / speeds[name], name) for name in members if room[name] > 0]
    heapify(heap)
    for _ in range(num_units):
        _, name = heap[0]
        given[name] += 1
        full = given[name] == room[name]
        ends = (remaining.get(name, 0) + given[name] + 1) / speeds[name]
        heapreplace(heap, (float("inf") if full else ends, name))
    return given
