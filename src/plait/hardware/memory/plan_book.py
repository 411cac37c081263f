"""Which plan is running, and what it says about the next allocation."""

from collections import OrderedDict
from dataclasses import dataclass

from plait.hardware.memory.steps import StepPlan, StepRecord, follow

LOOK_AHEAD = 64
"""How many allocations a step may leave out at once before its plan is lost."""

COVER_RATIO = 4
"""How much larger an entry of a plan may be to be taken for the same block in a larger step."""

MISSED_ENOUGH_RATIO = 0.01
"""A plan that leaves more of its step's bytes to best fit than this is made anew."""

REPLANS = 6
"""How often one step's plan is made anew: blocks that stay may have moved into its places meanwhile."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a plan puts an allocation; ``exact`` if it is the place of the same request, not of a larger one."""

    area: int
    offset: int
    exact: bool


class PlanBook:
    """The plans of the steps seen so far, and how far the present step has come in one of them."""

    def __init__(self, max_plans: int) -> None:
        self._max_plans = max_plans
        self._plans: OrderedDict[int, StepPlan] = OrderedDict()
        self._prefixes: dict[int, tuple[int, int]] = {}
        self._times_seen: dict[int, int] = {}
        self._times_planned: dict[int, int] = {}
        self._plan: StepPlan | None = None
        self._cursor = 0
        self._signature = 0
        self._position = 0

    def __len__(self) -> int:
        return len(self._plans)

    def __contains__(self, signature: int) -> bool:
        return signature in self._plans

    def begin_step(self) -> None:
        """Forgets how far the last step came."""
        self._plan = None
        self._cursor = self._signature = self._position = 0

    def next_place(self, size: int, stream: int) -> Place | None:
        """Returns where the plan in force puts the step's next allocation, ``None`` where it has no say."""
        self._signature = follow(self._signature, size, stream)
        position, self._position = self._position, self._position + 1
        known = self._prefixes.get(self._signature)
        if known is not None and (self._plan is None or not self._agrees(size)):
            # The step began as that one did.
            self._plan, self._cursor = self._plans[known[0]], known[1]
        elif self._plan is None:
            self._plan, self._cursor = self._least_above(size), position
        if self._plan is None or not self._align(size):
            self._cursor += 1
            return None
        plan, cursor = self._plan, self._cursor
        self._cursor += 1
        if plan.areas[cursor] < 0:
            return None
        return Place(plan.areas[cursor], plan.offsets[cursor], plan.sizes[cursor] == size)

    def finished(self, record: StepRecord) -> None:
        """Counts a step that ended."""
        self._times_seen[record.signature] = self._times_seen.get(record.signature, 0) + 1
        if record.signature in self._plans:
            self._plans.move_to_end(record.signature)

    def why_plan(self, record: StepRecord, peak_bytes: int) -> tuple[bool, str]:
        """Says whether a plan for this step is worth its making, and why (not)."""
        seen = self._times_seen.get(record.signature, 0)
        if record.signature in self._plans:
            return self._why_again(record)
        if not self._plans:
            return True, "it is the first"
        if seen > 1:
            return True, f"it came {seen} times"
        if peak_bytes > max(plan.height_bytes for plan in self._plans.values()):
            return True, "it needs more than any step planned before"
        return False, "it came once and is not the largest"

    def _why_again(self, record: StepRecord) -> tuple[bool, str]:
        if record.missed_ratio is None:
            return False, "its plan is newer than it"
        if record.missed_ratio <= MISSED_ENOUGH_RATIO:
            return False, f"its plan served all but {record.missed_ratio:.1%} of its bytes"
        if self._times_planned[record.signature] > REPLANS:
            return False, f"its plan missed {record.missed_ratio:.0%}, and {REPLANS} new ones did, too"
        return True, f"its plan missed {record.missed_ratio:.0%} of its bytes"

    def add(self, plan: StepPlan) -> None:
        """Puts a plan in force from the next step on; the one that was used the longest ago makes room."""
        old = self._plans.pop(plan.signature, None)
        if old is None and len(self._plans) >= self._max_plans:
            _, old = self._plans.popitem(last=False)
        if old is not None:
            self._prefixes = {key: place for key, place in self._prefixes.items() if place[0] != old.signature}
        self._plans[plan.signature] = plan
        self._times_planned[plan.signature] = self._times_planned.get(plan.signature, 0) + 1
        for position, prefix in enumerate(plan.prefixes):
            self._prefixes[prefix] = (plan.signature, position)

    def _agrees(self, size: int) -> bool:
        plan = self._plan
        return plan is not None and self._cursor < len(plan.sizes) and plan.sizes[self._cursor] == size

    def _least_above(self, size: int) -> StepPlan | None:
        """Returns the plan of the smallest step that begins with at least this size, else of the largest step.

        Steps that came once, such as the very first with its parameters, stand back behind those that come again.
        """

        def order(plan: StepPlan) -> tuple[bool, bool, int]:
            holds = plan.sizes[0] >= size
            came_once = self._times_seen.get(plan.signature, 0) < 2
            return not holds, came_once, plan.height_bytes if holds else -plan.height_bytes

        return min(self._plans.values(), key=order, default=None)

    def _align(self, size: int) -> bool:
        """Moves the cursor to an entry that can serve ``size``; says whether there is one near.

        A somewhat larger entry is taken for the same block in a larger step; the same size a little further on for the
        same block, allocations before it having been left out.
        """
        plan = self._plan
        assert plan is not None
        if self._cursor < len(plan.sizes) and size <= plan.sizes[self._cursor] <= COVER_RATIO * size:
            return True
        ahead = plan.sizes[self._cursor + 1 : self._cursor + LOOK_AHEAD]
        if size in ahead:
            self._cursor += 1 + ahead.index(size)
            return True
        return self._cursor < len(plan.sizes) and plan.sizes[self._cursor] >= size
