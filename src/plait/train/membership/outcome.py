"""What a new generation has to do first, derived by every member alike from the reports that installed it."""

from collections.abc import Mapping
from dataclasses import dataclass

from plait.train.membership.speech import Report


@dataclass(frozen=True, slots=True)
class Outcome:
    """The step at which the generation goes on, and how each member gets there.

    Attributes:
        step: number of committed steps; work goes on with the step of this index.
        apply: members that hold the reduced gradient of step ``step - 1`` and must apply it now, because somebody has.
        fetch: members that must fetch the state from ``donor``.
        donor: the lowest member that has the state, or None where nobody needs it.
    """

    step: int
    apply: tuple[str, ...]
    fetch: tuple[str, ...]
    donor: str | None


def decide(members: tuple[str, ...], reports: Mapping[str, Report], fresh: frozenset[str] = frozenset()) -> Outcome:
    """Derives the outcome; a pure function, so all members agree without another word.

    Args:
        members: members of the new generation, sorted.
        reports: the report of each member, and of leavers.
        fresh: members whose state was made by themselves and never synchronised (at the first generation); they fetch
            from the donor even where their step matches.

    Raises:
        ValueError: where no member has any state.
    """
    applied = {m: r.applied for m, r in reports.items() if r.applied is not None}
    if not applied:
        raise ValueError(f"none of {', '.join(members)} has any state to go on from")
    step = max(applied.values())
    current = [m for m in members if applied.get(m) == step]
    apply = tuple(m for m in members if applied.get(m) == step - 1 and reports[m].held)
    able = [m for m in (*current, *apply) if m not in fresh] or current
    if not able:
        raise ValueError(f"no member of {', '.join(members)} can reach step {step}")
    donor = min(able)
    ready = {m for m in (*current, *apply) if m not in fresh} | {donor}
    fetch = tuple(m for m in members if m not in ready)
    return Outcome(step=step, apply=apply, fetch=fetch, donor=donor if fetch else None)
