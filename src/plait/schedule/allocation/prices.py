"""Prices by cutting planes: the dual is convex and piecewise linear in few unknowns, so few cuts find its bottom.

Each pass over the values gives one cut: the bound at some prices, and as its slope the capacity that is left over.
The next prices lie halfway between the lowest point of all cuts and the best prices so far, which steadies the method
(plain subgradient steps leave 0.1 to 3 %). Of many jobs, a sample says where the prices must be looked for.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import linprog

from plait.schedule.allocation.dual import Earnings, earnings
from plait.schedule.allocation.program import Floats, Prices, Program

SAMPLE_JOBS = 1024
MOST_CUTS = 60
STEADY_AFTER = 3
AROUND = 1.25
"""Prices of all jobs are looked for within this factor of the sample's, further only if they lie at the edge."""


def cutting_planes(program: Program, tolerance: float) -> tuple[Prices, Earnings]:
    """Returns prices whose bound is within ``tolerance`` (a ratio) of the lowest one, and what jobs earn at them."""
    search = _Search(program)
    highest = np.full(search.size, max(float(program.values.max(initial=0.0)), 1e-12) / _least_use(program))
    if program.num_jobs >= 4 * SAMPLE_JOBS:
        step = program.num_jobs // SAMPLE_JOBS
        sample = replace(
            program,
            values=program.values[::step],
            groups=program.groups[::step],
            capacity=program.capacity / step,
            group_capacity=program.group_capacity / step,
        )
        of_sample = _Search(sample)
        of_sample.run(np.zeros(search.size), highest, 5.0 * tolerance)
        around = of_sample.best
        spread = 1e-3 * float(around.max(initial=0.0))
        search.run(np.maximum(around / AROUND - spread, 0.0), np.minimum(around * AROUND + spread, highest), tolerance)
    search.run(np.zeros(search.size), highest, tolerance)
    assert search.at_best is not None
    resources, groups = search.split(search.best)
    return Prices(resources=resources, groups=groups, bound=search.at_best.bound), search.at_best


def _least_use(program: Program) -> float:
    used = program.uses[program.uses > 0]
    return float(used.min()) if used.size else 1.0


class _Search:
    """The cuts found so far of one program, and the best prices among them, in one vector: resources, then limits."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._limited = np.isfinite(program.group_capacity)
        self._slopes: list[Floats] = []
        self._heights: list[float] = []
        self.size = len(program.capacity) + int(self._limited.sum())
        self.best: Floats = np.zeros(self.size)
        self.at_best: Earnings | None = None

    def split(self, prices: Floats) -> tuple[Floats, Floats]:
        """Returns prices of resources and of the groups' limits."""
        groups = np.zeros_like(self._program.group_capacity)
        groups[self._limited] = prices[len(self._program.capacity) :]
        return prices[: len(self._program.capacity)], groups

    def run(self, lowest: Floats, highest: Floats, tolerance: float) -> None:
        """Adds cuts between two corners until the best prices are as good as any there."""
        if self.at_best is None:
            self._cut(0.5 * (lowest + highest) if lowest.any() else lowest)
        for cut in range(MOST_CUTS):
            found = self._bottom(lowest, highest)
            assert self.at_best is not None
            if found is None or self.at_best.bound - found[0] <= tolerance * self.at_best.bound:
                return
            self._cut(0.5 * (found[1] + self.best) if cut >= STEADY_AFTER else found[1])

    def _cut(self, prices: Floats) -> None:
        now = earnings(self._program, *self.split(prices))
        left, group_left = self._program.left_by(now.choice)
        slope = np.concatenate([left, group_left[self._limited]])
        self._slopes.append(slope)
        self._heights.append(now.bound - float(slope @ prices))
        if self.at_best is None or now.bound < self.at_best.bound:
            self.best, self.at_best = prices, now

    def _bottom(self, lowest: Floats, highest: Floats) -> tuple[float, Floats] | None:
        """Returns the lowest value that all cuts allow in the box, and where it is; None where numbers spoil that."""
        result = linprog(
            np.append(np.zeros(self.size), 1.0),
            A_ub=np.column_stack([np.array(self._slopes), -np.ones(len(self._slopes))]),
            b_ub=-np.array(self._heights),
            bounds=[*zip(lowest.tolist(), highest.tolist(), strict=True), (0.0, None)],
            method="highs",
        )
        return None if result.x is None else (float(result.x[-1]), result.x[:-1])
