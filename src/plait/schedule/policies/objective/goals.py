"""What the policy is asked to weigh, and the exponents that follow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from plait.errors import PlaitError
from plait.words import did_you_mean


class UnknownGoal(PlaitError):
    """A weight for something that the policy does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """Weights of what is wanted; only their ratios count.

    Attributes:
        fairness: How much the finish-time fairness rho of a task moves its claim.
        throughput: Counts against fairness: little means that shares even out, whatever that costs.
        cost: How much the price of devices counts.
        deadline: How much a deadline that comes near moves a claim.
    """

    fairness: float = 0.5
    throughput: float = 0.25
    cost: float = 0.25
    deadline: float = 0.0

    @property
    def rho_exponent(self) -> float:
        """``k``: claims grow with ``rho^k``; 0 without any fairness, ``MOST_RHO`` where it alone counts.

        It is small: a claim that grows takes devices from others in every round, also while nobody would be late.
        """
        return MOST_RHO * self._fair_share

    @property
    def late_exponent(self) -> float:
        """The same for what rho exceeds three quarters by: whoever nears its fair finish goes up steeply."""
        return 3.0 * self._fair_share

    @property
    def fair_exponent(self) -> float:
        """How much a configuration counts less that would make its task late: cheap must not mean late.

        Nobody else loses by that, so this may be stronger than the claims.
        """
        return 0.9 * self._fair_share

    @property
    def thrift_exponent(self) -> float:
        """``lambda``: a configuration counts by its progress per price, over the best, to this power."""
        return LITTLE_THRIFT + 1.2 * self._cost_share

    @property
    def price_weight(self) -> float:
        """``mu``: how much of a task's progress an hour of a device of average price is worth."""
        return 0.22 * self._cost_share

    @property
    def project_exponent(self) -> float:
        """How much the recent use of a project counts against the claims of its tasks."""
        return min(1.0, 1.2 * self._fair_share)

    @property
    def deadline_exponent(self) -> float:
        """Claims grow with this power of the pressure of a deadline."""
        total = self.fairness + self.throughput + self.cost + self.deadline
        return 1.0 + 4.0 * (self.deadline / total if total > 0 else 0.0)

    @property
    def _fair_share(self) -> float:
        against = self.fairness + self.throughput
        return self.fairness / against if against > 0 else 0.0

    @property
    def _cost_share(self) -> float:
        total = self.fairness + self.throughput + self.cost
        return self.cost / total if total > 0 else 0.0


MOST_RHO: Final = 0.15
LITTLE_THRIFT: Final = 0.05
"""Even where cost has no weight, the cheaper of two equals is taken."""

PRESETS: Final[Mapping[str, Goals]] = {
    "balanced": Goals(),
    "fair": Goals(fairness=0.7, throughput=0.3, cost=0.0),
    "fast": Goals(fairness=0.1, throughput=0.9, cost=0.0),
    "thrifty": Goals(fairness=0.3, throughput=0.2, cost=0.5),
    "on_time": Goals(fairness=0.3, throughput=0.2, cost=0.1, deadline=0.4),
}
"""Named weights, from the one that the policy takes by itself on."""


def goals_of(weights: Mapping[str, float]) -> Goals:
    """Returns goals with these weights, the others zero; without any, the balanced ones.

    Raises:
        UnknownGoal: One of the names is none of fairness, throughput, cost and deadline.
    """
    known = ("fairness", "throughput", "cost", "deadline")
    for name in weights:
        if name not in known:
            hint = did_you_mean(name, known) or f"; it weighs {', '.join(known)}"
            raise UnknownGoal(f"the policy multi_objective does not know the weight {name!r}{hint}")
    if not any(weights.values()):
        return Goals()
    return Goals(**{name: float(weights.get(name, 0.0)) for name in known})
