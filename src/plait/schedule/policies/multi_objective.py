"""Fair, fast, cheap and topology-aware at once: one configuration a task, chosen by one program a round.

The value of a configuration (``objective.worth``) is what the task's claim makes of its progress and price; the program
(``schedule.allocation``) maximises the sum within the devices of each type. Its dual prices are the explanation: what a
device of each type is worth to the last one who gets it, against what a task bids for it.

Tasks within their project's quota choose first, then those of higher priority (``objective.projects``). Nobody waits
for ever (``objective.waiting``).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from plait.schedule.allocation import Program, solve
from plait.schedule.allocation.program import NOTHING, Floats, Ints
from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.policies.objective.goals import Goals, goals_of
from plait.schedule.policies.objective.options import Options, options_of
from plait.schedule.policies.objective.projects import Projects, projects_of, within_quota
from plait.schedule.policies.objective.standing import standing_of
from plait.schedule.policies.objective.telling import Telling
from plait.schedule.policies.objective.waiting import Patience, whose_turn
from plait.schedule.policies.objective.worth import prices_of, worth_of
from plait.schedule.policies.rounds import Plan, in_rounds, may_run
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView

EXACT_BELOW = 4096
"""Up to so many values the program is solved to optimality: small clusters gain most by it."""
TOLERANCE = 3e-3
EXACT = 1e-6


class MultiObjective:
    """Weighs fairness, throughput, cost and deadlines; see the module.

    Args:
        weights: By goal: ``fairness``, ``throughput``, ``cost``, ``deadline``; None takes the balanced ones.
        patience: After how long a wait a task goes first.
    """

    name = "multi_objective"

    def __init__(self, weights: Mapping[str, float] | Goals | None = None, patience: Patience | None = None) -> None:
        self.goals = weights if isinstance(weights, Goals) else goals_of(weights or {})
        self.patience = patience or Patience()

    def decide(self, cluster: ClusterView, tasks: Sequence[TaskView]) -> Sequence[Decision]:
        """Returns one decision a task."""
        return self.decide_remembering(cluster, tasks, NOTHING_REMEMBERED)[0]

    def decide_remembering(
        self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory
    ) -> tuple[Sequence[Decision], Memory]:
        """Returns one decision a task, and what tasks have had so far."""
        return in_rounds(cluster, tasks, memory, self._plan)

    def _plan(self, cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory) -> Plan:
        options = options_of(cluster, [task for task in tasks if may_run(task, cluster)])
        standing, stood = standing_of(cluster, options, memory)
        if not options.tasks:
            return Plan(targets={}, reasons={}, memory=stood)
        prices = prices_of(cluster, options)
        projects, used = projects_of(cluster, options, prices, memory, self.goals.project_exponent)
        worth = worth_of(cluster, options, standing, self.goals, projects.factors[projects.of_task])
        within = within_quota(options, projects, worth.values)
        ranks = [(bool(inside), task.priority) for inside, task in zip(within, options.tasks, strict=True)]
        turns, waited = whose_turn(cluster, options.tasks, ranks, memory, self.patience)
        round_ = _Round(options, worth.values, projects)
        for rank in sorted(set(ranks), reverse=True):
            members = np.array([index for index, one in enumerate(ranks) if one[1] == rank[1]], dtype=np.intp)
            if rank[0]:
                members = members[within[members]]
            if rank in turns:
                round_.first(turns[rank], self.patience)
            round_.choose(members, within_quota=rank[0])
        return Plan(targets=round_.targets(), reasons=round_.reasons, memory={**stood, **used, **waited})


class _Round:
    """What is left while ranks choose one after another, and what they chose."""

    def __init__(self, options: Options, values: Floats, projects: Projects) -> None:
        self.options = options
        self.values = values
        self.projects = projects
        self.choice: Ints = np.full(len(options.tasks), NOTHING, dtype=np.intp)
        self.reasons: dict[TaskKey, str] = {}
        self._telling = Telling(options, values)
        self._left = options.capacity.copy()
        self._quota_left = np.minimum(projects.quota, projects.limit)
        self._limit_left = projects.limit.copy()

    def first(self, index: int, patience: Patience) -> None:
        """Gives the task that has the turn the best that there still is for it."""
        left = np.minimum(self._left, self._limit_left[self.projects.of_task[index]])
        fits = (self.options.uses <= left).all(axis=1) & (self.values[index] > 0)
        if not fits.any():
            return
        self._take(np.array([index]), np.array([np.where(fits, self.values[index], -np.inf).argmax()]))
        hours = patience.most_wait_s / 3600.0
        name = self.options.tasks[index].key
        self.reasons[name] = (
            f"has the turn: it had waited for more than {hours:g} h, longer than all others of its rank"
        )

    def choose(self, members: Ints, *, within_quota: bool) -> None:
        """Solves the program of some tasks that have nothing yet."""
        members = members[self.choice[members] == NOTHING]
        if not len(members):
            return
        limits = self._quota_left if within_quota else self._limit_left
        is_limited = np.isfinite(limits).any()
        program = Program(
            values=self.values[members],
            uses=self.options.uses,
            capacity=np.maximum(self._left, 0.0),
            groups=self.projects.of_task[members] if is_limited else np.empty(0, dtype=np.intp),
            group_capacity=np.maximum(limits, 0.0) if is_limited else np.empty((0, 0)),
        )
        solution = solve(program, tolerance=EXACT if program.values.size <= EXACT_BELOW else TOLERANCE)
        sentences = self._telling.level(members, solution, program)
        for member, sentence in zip(members.tolist(), sentences, strict=True):
            self.reasons[self.options.tasks[member].key] = sentence
        self._take(members, solution.choice)

    def _take(self, members: Ints, choice: Ints) -> None:
        got = choice != NOTHING
        self.choice[members] = choice
        uses = self.options.uses[choice[got]]
        self._left = self._left - uses.sum(axis=0)
        for limits in (self._quota_left, self._limit_left):
            np.subtract.at(limits, self.projects.of_task[members[got]], uses)

    def targets(self) -> dict[TaskKey, Allocation]:
        """Returns the allocations of those who got something."""
        return {
            self.options.tasks[row].key: self.options.columns[column].configuration.allocation
            for row, column in enumerate(self.choice.tolist())
            if column != NOTHING
        }
