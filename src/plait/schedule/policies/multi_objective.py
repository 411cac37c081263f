"""Fair, fast, cheap and topology-aware at once: one configuration a task, chosen by one program a round.

The value of a configuration (``objective.worth``) is what the task's claim makes of its progress and price; the program
(``schedule.allocation``) maximises the sum within the devices of each type. Its dual prices are the explanation: what a
device of each type is worth to the last one who gets it, against what a task bids for it.

Tasks of higher priority choose first. Nobody waits for ever (``objective.waiting``).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from plait.schedule.allocation import Program, solve
from plait.schedule.allocation.program import NOTHING, Floats, Ints
from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.policies.objective.goals import Goals, goals_of
from plait.schedule.policies.objective.options import Options, options_of
from plait.schedule.policies.objective.standing import standing_of
from plait.schedule.policies.objective.telling import Telling
from plait.schedule.policies.objective.waiting import Patience, whose_turn
from plait.schedule.policies.objective.worth import worth_of
from plait.schedule.policies.rounds import Plan, in_rounds, may_run
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Memory, TaskView

EXACT_BELOW = 4096
"""Up to so many values the program is solved to optimality: small clusters gain most by it."""
TOLERANCE = 1e-3
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
        standing, ledgers = standing_of(cluster, options, memory)
        if not options.tasks:
            return Plan(targets={}, reasons={}, memory=ledgers)
        turns, waits = whose_turn(cluster, options.tasks, memory, self.patience)
        worth = worth_of(cluster, options, standing, self.goals)
        telling = Telling(options, worth.values)
        choice = np.full(len(options.tasks), NOTHING, dtype=np.intp)
        reasons: dict[TaskKey, str] = {}
        left = options.capacity.copy()
        priorities = np.array([task.priority for task in options.tasks], dtype=np.int64)
        for priority in sorted(set(priorities.tolist()), reverse=True):
            members = np.flatnonzero(priorities == priority)
            turn = turns.get(priority)
            if turn is not None:
                first = options.tasks.index(turn)
                choice[first] = _best_that_fits(worth.values[first], options.uses, left)
                if choice[first] != NOTHING:
                    members = members[members != first]
                    left -= options.uses[choice[first]]
                    hours = self.patience.most_wait_s / 3600.0
                    reasons[turn.key] = f"goes first: it had waited for more than {hours:g} h, longer than all others"
            prices = _choose(options, worth.values, members, left, choice)
            sentences = telling.level(members, choice[members], prices)
            reasons.update(
                (options.tasks[member].key, sentence)
                for member, sentence in zip(members.tolist(), sentences, strict=True)
            )
            chosen = choice[members]
            left = left - options.uses[chosen[chosen != NOTHING]].sum(axis=0)
        return Plan(targets=_targets(options, choice), reasons=reasons, memory={**ledgers, **waits})


def _choose(options: Options, values: Floats, members: Ints, left: Floats, choice: Ints) -> Floats:
    """Fills in the choice of some tasks and returns the prices of devices by type."""
    program = Program(values=values[members], uses=options.uses, capacity=np.maximum(left, 0.0))
    solution = solve(program, tolerance=EXACT if program.values.size <= EXACT_BELOW else TOLERANCE)
    choice[members] = solution.choice
    return solution.prices.resources


def _best_that_fits(values: Floats, uses: Floats, left: Floats) -> int:
    fits = (uses <= left).all(axis=1) & (values > 0)
    return int(np.where(fits, values, -np.inf).argmax()) if fits.any() else NOTHING


def _targets(options: Options, choice: Ints) -> dict[TaskKey, Allocation]:
    return {
        options.tasks[row].key: options.columns[column].configuration.allocation
        for row, column in enumerate(choice.tolist())
        if column != NOTHING
    }
