"""A low-rank all-reduce on its way: two sums behind one another under one key, so that buckets cannot mix them up.

A hook that starts the second sum when the first is done would have to start it in the same order on all members, and
members do not finish sums in the same order; here the order was settled when the bucket was handed in.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from plait.train.collectives.mesh import Key, Mesh, MeshWork
from plait.train.collectives.planned import Debt, PlanRun, Route, StageTimes
from plait.train.compression.codec import BadValues
from plait.train.compression.low_rank import LowRank


class LowRankSum(MeshWork):
    """Replaces ``values`` by the low-rank form of their sum over all members."""

    def __init__(
        self,
        mesh: Mesh,
        key: Key,
        ranks: Sequence[int],
        values: Tensor,
        state: LowRank,
        *,
        routes: tuple[Route, Route],
        debt: Debt,
        times: StageTimes,
    ) -> None:
        """``routes`` are exact ones for the state's two sums; ``debt`` is committed by its owner, unless poisoned."""
        super().__init__(mesh, key, ranks)
        self._ranks = tuple(ranks)
        self._values = values
        self._state = state
        self._routes = routes
        self._debt = debt
        self._times = times
        self._sum = torch.empty(0)
        self._run: PlanRun | None = None
        self._second_begins = 2 * len(routes[0].plan.trees)
        self._early: list[tuple[int, int, bytearray]] = []
        self._is_second = False
        self.is_poisoned = False

    def begin(self) -> None:
        """Sends the left factors; NaN in place of values that hold an infinity or NaN, for all to see."""
        try:
            self._sum = self._state.first(self._values, self._debt.owed)
        except BadValues:
            self._sum = self._values.new_full((self._routes[0].plan.count,), math.nan)
        self._start(self._routes[0], 0)

    def _start(self, route: Route, first_tag: int) -> None:
        self._run = PlanRun(self, self._ranks, self._sum, route, times=self._times, first_tag=first_tag)
        self._run.begin()
        self._go_on()

    def missing(self) -> frozenset[int]:
        """Returns the ranks from which messages are missing."""
        return frozenset() if self._run is None else self._run.missing()

    def take(self, rank: int, hop: int, data: bytearray) -> None:
        """Takes in a message; one of the second sum waits until this member is as far."""
        if hop >= self._second_begins and not self._is_second:
            self._early.append((rank, hop, data))
            return
        assert self._run is not None
        self._run.take(rank, hop, data)
        self._go_on()

    def _go_on(self) -> None:
        if self.is_over or self._run is None or not self._run.is_over:
            return
        if self._is_second:
            self._state.finish(self._sum, self._values, self._debt.next)
            self.is_over = True
            return
        if not bool(torch.isfinite(self._sum).all()):
            self.is_poisoned = self.is_over = True
            self._values.fill_(math.nan)
            return
        self._is_second = True
        self._sum = self._state.second(self._sum)
        self._start(self._routes[1], self._second_begins)
        for rank, hop, data in self._early:
            self.take(rank, hop, data)
        self._early = []
