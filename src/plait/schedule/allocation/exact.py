"""The best choice among what prices leave in doubt: all combinations, merged where they take the same, cut by bound.

At any prices a choice is worth the bound less what each job loses against its best and less the price of what is left
over. So once that exceeds the gap between the bound and the best choice known, nothing that the other jobs do can
better it. Few combinations survive that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.schedule.allocation.program import TINY, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The ways that one job may go; the last one is to get nothing.

    Attributes:
        loss: (ways,). Against the job's best at the prices.
        value: (ways,).
        takes: (ways, dimensions). Of each limited thing.
    """

    loss: Floats
    value: Floats
    takes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What there is of each limited thing, and at which prices the losses were counted: (dimensions,) each."""

    capacity: Floats
    prices: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The way of each job in the most valuable combination found, None without any that loses less than the gap.

    ``is_certain``: no better one was cut off.
    """

    ways: tuple[int, ...] | None
    value: float
    is_certain: bool


@dataclass(slots=True, kw_only=True)
class _States:
    """Combinations of the jobs so far: what they lose, are worth and take, and from where each came by which way."""

    loss: Floats
    value: Floats
    taken: Floats
    parent: Ints
    way: Ints

    def only(self, kept: Ints) -> "_States":
        return _States(
            loss=self.loss[kept],
            value=self.value[kept],
            taken=self.taken[kept],
            parent=self.parent[kept],
            way=self.way[kept],
        )


def best_ways(jobs: Sequence[Ways], room: Room, gap: float, most_states: int) -> Best:
    """Returns the most valuable combination that loses less than ``gap``.

    Of more combinations than ``most_states`` only those that have lost least go on.
    """
    none = np.zeros(1, dtype=np.intp)
    now = _States(loss=np.zeros(1), value=np.zeros(1), taken=np.zeros((1, len(room.capacity))), parent=none, way=none)
    # What all jobs after each one can take at most; what is left beyond that is paid for in any case.
    most = np.array([ways.takes.max(axis=0) for ways in jobs])
    rest = np.cumsum(most[::-1], axis=0)[::-1] - most
    salt = np.random.default_rng(0).uniform(1.0, 2.0, len(room.capacity))
    history: list[_States] = []
    is_certain = True
    for ways, later in zip(jobs, rest, strict=True):
        now = _merged(_extended(now, ways, room, gap, later), salt)
        if len(now.loss) > most_states:
            is_certain = False
            unused = np.maximum(room.capacity - now.taken - later, 0.0) @ room.prices
            now = now.only(np.argpartition(now.loss + unused, most_states)[:most_states])
        if not len(now.loss):
            return Best(ways=None, value=-np.inf, is_certain=is_certain)
        history.append(now)
    at = int(now.value.argmax())
    value = float(now.value[at])
    chosen: list[int] = []
    for states in reversed(history):
        chosen.append(int(states.way[at]))
        at = int(states.parent[at])
    return Best(ways=tuple(chosen[::-1]), value=value, is_certain=is_certain)


def _extended(now: _States, ways: Ways, room: Room, gap: float, later: Floats) -> _States:
    loss = (now.loss[:, None] + ways.loss).ravel()
    taken = (now.taken[:, None, :] + ways.takes).reshape(len(loss), len(room.capacity))
    kept = np.flatnonzero((loss < gap) & (taken <= room.capacity + TINY).all(axis=1))
    unused = np.maximum(room.capacity - taken[kept] - later, 0.0) @ room.prices
    kept = kept[loss[kept] + unused < gap]
    num_ways = len(ways.loss)
    parent, way = kept // num_ways, kept % num_ways
    return _States(
        loss=loss[kept], value=now.value[parent] + ways.value[way], taken=taken[kept], parent=parent, way=way
    )


def _merged(states: _States, salt: Floats) -> _States:
    """Keeps of those that take the same the most valuable one."""
    code = np.round(
        states.taken @ salt, 6
    )  # equal where all that is taken is; else hardly ever, and then nothing breaks
    order = np.lexsort((-states.value, code))
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = code[order][1:] != code[order][:-1]
    return states.only(order[is_first])
