"""Who gains by what a task loses, and by what rule: the answer to every preemption."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plait.schedule.domain import Decision, TaskKey
from plait.schedule.policy import TaskView
from plait.spec.cluster import Project

GAINERS_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gainer:
    """A task that gets devices of types that another one loses, and the rule that puts it first."""

    task: TaskKey
    rule: str


def gainers(
    victim: TaskView,
    loses: frozenset[str],
    decisions: Sequence[Decision],
    views: Mapping[TaskKey, TaskView],
    projects: Sequence[Project],
) -> tuple[Gainer, ...]:
    """Returns the waiting or growing tasks that the same round gives devices of the lost types to."""
    return tuple(_found(victim, loses, decisions, views, projects))[:GAINERS_TOLD]


def told(found: Sequence[Gainer]) -> str:
    """Returns ``devices go to A (rule priority: 5 over 0)``, or nothing where nobody gains."""
    if not found:
        return ""
    return "devices go to " + ", ".join(f"{one.task} ({one.rule})" for one in found)


def _found(
    victim: TaskView,
    loses: frozenset[str],
    decisions: Sequence[Decision],
    views: Mapping[TaskKey, TaskView],
    projects: Sequence[Project],
) -> Iterator[Gainer]:
    quotas = {project.name: dict(project.quota) for project in projects}
    for decision in decisions:
        view = views.get(decision.task)
        gets = decision.next or decision.allocation
        if view is None or view.key == victim.key or gets is None:
            continue
        have = dict(view.allocation.counts) if view.allocation is not None else {}
        gained = {name for name, number in gets.counts if number > have.get(name, 0)} & loses
        if gained:
            yield Gainer(task=view.key, rule=_rule(victim, view, gained, quotas))


def _rule(victim: TaskView, gainer: TaskView, types: set[str], quotas: Mapping[str, Mapping[str, int]]) -> str:
    if gainer.project != victim.project and any(quotas.get(gainer.project, {}).get(name, 0) for name in types):
        names = ", ".join(sorted(types))
        return f"rule quota: {names} of project {gainer.project} that were lent are given back"
    if gainer.priority > victim.priority:
        return f"rule priority: {gainer.priority} over {victim.priority}"
    return f"rule value: priority {gainer.priority} alike, and it makes more of the devices in this round"
