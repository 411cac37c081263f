"""The configuration program and its answer, as arrays."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from plait.errors import PlaitError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

NOTHING = -1
"""The choice of a job that gets no configuration."""


class ProgramMalformed(PlaitError):
    """The arrays of a configuration program do not belong together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """max sum_i values[i, choice_i], at most one configuration a job, within the capacities of all resources.

    Attributes:
        values: (jobs, configurations). What a configuration is worth to a job; zero or less where it is not wanted.
        uses: (configurations, resources). What a configuration takes of each resource, not negative.
        capacity: (resources,). What there is.
        groups: (jobs,). Index of the group (project) of each job; empty where there are no groups.
        group_capacity: (groups, resources). What the jobs of a group may take together; infinite where that is not
            limited.
    """

    values: Floats
    uses: Floats
    capacity: Floats
    groups: Ints = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    group_capacity: Floats = field(default_factory=lambda: np.empty((0, 0)))

    def __post_init__(self) -> None:
        num_configurations, num_resources = self.uses.shape
        if self.values.ndim != 2 or self.values.shape[1] != num_configurations:
            raise ProgramMalformed(f"values of shape {self.values.shape} for {num_configurations} configurations")
        if self.capacity.shape != (num_resources,):
            raise ProgramMalformed(f"capacities of shape {self.capacity.shape} for {num_resources} resources")
        if not np.isfinite(self.capacity).all() or (self.capacity < 0).any() or (self.uses < 0).any():
            raise ProgramMalformed("capacities must be finite and, like uses, not negative")
        if np.isnan(self.values).any() or np.isposinf(self.values).any():
            raise ProgramMalformed("values must be numbers below infinity")
        if self.group_capacity.size:
            if self.group_capacity.shape[1] != num_resources or self.groups.shape != (self.num_jobs,):
                raise ProgramMalformed(
                    f"groups of shape {self.groups.shape} and their capacities of shape {self.group_capacity.shape} "
                    f"for {self.num_jobs} jobs and {num_resources} resources"
                )
            if self.num_jobs and not 0 <= self.groups.min() <= self.groups.max() < len(self.group_capacity):
                raise ProgramMalformed(f"a job is in a group outside 0 to {len(self.group_capacity) - 1}")

    @property
    def num_jobs(self) -> int:
        """How many jobs compete."""
        return len(self.values)

    @property
    def has_groups(self) -> bool:
        """Whether any group is limited in any resource."""
        return bool(np.isfinite(self.group_capacity).any())

    def value_of(self, choice: Ints) -> float:
        """Returns what a choice is worth."""
        chosen = np.flatnonzero(choice >= 0)
        return float(self.values[chosen, choice[chosen]].sum())

    def left_by(self, choice: Ints) -> tuple[Floats, Floats]:
        """Returns what a choice leaves of each resource, and to each group; below zero where it takes too much."""
        chosen = np.flatnonzero(choice >= 0)
        taken = self.uses[choice[chosen]]
        left = self.capacity - taken.sum(axis=0)
        group_left = self.group_capacity.copy()
        if self.group_capacity.size:
            np.subtract.at(group_left, self.groups[chosen], taken)
        return left, group_left

    def is_feasible(self, choice: Ints) -> bool:
        """Says whether a choice keeps within all capacities and takes nothing that is not wanted."""
        left, group_left = self.left_by(choice)
        chosen = np.flatnonzero(choice >= 0)
        is_wanted = bool((self.values[chosen, choice[chosen]] > 0).all())
        return is_wanted and bool((left >= -TINY).all()) and bool((group_left >= -TINY).all())


TINY = 1e-7
"""How far a sum of uses may exceed a capacity through rounding of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dual prices: what one more unit of a resource would be worth, and what one more unit of a group's limit would.

    Attributes:
        resources: (resources,), not negative.
        groups: (groups, resources); zero where the group is not limited.
        bound: No choice is worth more than this, whatever is tried (weak duality).
    """

    resources: Floats
    groups: Floats
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A choice for each job, its prices and how good it is for certain.

    Attributes:
        choice: (jobs,). Index of the configuration, or ``NOTHING``.
        value: What the choice is worth.
        prices: The dual prices, with the certified bound.
        method: How it was found, in words.
    """

    choice: Ints
    value: float
    prices: Prices
    method: str

    @property
    def gap_ratio(self) -> float:
        """At most this share of the best possible value is missing."""
        return max(0.0, 1.0 - self.value / self.prices.bound) if self.prices.bound > 0 else 0.0
