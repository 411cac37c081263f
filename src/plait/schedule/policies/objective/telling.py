"""Why a task gets what it gets, in words: its bids against the prices of devices."""

import numpy as np

from plait.schedule.allocation.dual import costs
from plait.schedule.allocation.program import NOTHING, Floats, Ints, Program, Solution
from plait.schedule.policies.objective.options import Column, Options

CHEAP = 5e-3
"""Prices below this count as nothing: they would print as 0.00."""


class Telling:
    """The reasons of one round. Prices and bids are in units of the mean claim; a bid is for one device."""

    def __init__(self, options: Options, values: Floats) -> None:
        self._options = options
        self._values = values
        self._names = [_named(column) for column in options.columns]
        self._devices = options.uses.sum(axis=1)

    def level(self, members: Ints, solution: Solution, program: Program) -> list[str]:
        """Returns a sentence for each of some tasks, given what they got and what devices cost them."""
        choice, prices = solution.choice, solution.prices
        cost = np.broadcast_to(costs(program, prices.resources, prices.groups), program.values.shape)
        values = self._values[members]
        net = np.where(values > 0, values - cost, -np.inf)
        best = net.argmax(axis=1)
        rows = np.arange(len(members))
        others = net.copy()
        got = choice != NOTHING
        others[rows[got], choice[got]] = -np.inf
        second = others.argmax(axis=1)
        sentences = []
        for row, (member, chosen) in enumerate(zip(members.tolist(), choice.tolist(), strict=True)):
            if chosen == NOTHING:
                own = prices.groups[program.groups[row]] if prices.groups.any() else None
                sentences.append(self._waits(values[row], int(best[row]), cost[row], prices.resources, own))
                continue
            other = int(second[row]) if np.isfinite(others[row, second[row]]) else None
            stays = self._options.present[member] == chosen
            sentences.append(self._runs(values[row], chosen, other, cost[row], stays=bool(stays)))
        return sentences

    def _waits(self, values: Floats, wish: int, cost: Floats, prices: Floats, own: Floats | None) -> str:
        if values[wish] <= 0:
            return "nothing that it runs on is worth its price now"
        name, bid = self._names[wish], values[wish] / self._devices[wish]
        if cost[wish] <= CHEAP:
            return f"{name} would be its choice, but what is left does not hold it as a whole"
        bids = f"this task bids {bid:.2f} for each device of {name}, the best it could do"
        kinds = [name for name, _ in self._options.columns[wish].configuration.counts]
        at = [self._options.types.index(name) for name in kinds]
        if own is not None and own[at].max() > prices[at].max():
            return f"the limit of its project: its other tasks gain more by what that allows; {bids}"
        each = " and ".join(
            f"one {name} costs {prices[column]:.2f} now" for name, column in zip(kinds, at, strict=True)
        )
        return f"{each}; {bids}"

    def _runs(self, values: Floats, chosen: int, other: int | None, cost: Floats, *, stays: bool) -> str:
        verb = "stays on" if stays else "gets"
        text = f"{verb} {self._names[chosen]}: worth {values[chosen]:.2f} to it at a price of {cost[chosen]:.2f}"
        if other is None:
            return f"{text}; it runs on nothing else"
        return f"{text}; next best {self._names[other]}, worth {values[other]:.2f} at {cost[other]:.2f}"


def _named(column: Column) -> str:
    counts = " + ".join(f"{number} x {name}" for name, number in column.configuration.counts)
    return f"{counts}, spread" if column.configuration.is_spread else counts
