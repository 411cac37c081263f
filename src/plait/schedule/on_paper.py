"""A scenario file played up to its moment, by the machine that a live controller runs, and what is said of it then."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plait.hardware.catalog import capability, predicted_speed
from plait.hardware.device import Device, Node
from plait.schedule import machine
from plait.schedule.domain import TaskKey
from plait.schedule.events import (
    Event,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeResumed,
    PriceChanged,
    Tick,
)
from plait.schedule.explain import Explanation, explain_job
from plait.schedule.rehearsal import Rehearsal, forecast, is_in_rounds
from plait.schedule.state import ClusterState
from plait.schedule.validate import validate
from plait.schedule.windows import DAY_S
from plait.spec.cluster import EmulatedNode
from plait.spec.scenario import Expectation, Happening, Scenario

SLACK_S = 90.0
SLACK_RATIO = 0.02
"""A start may be off by so much from what was expected: policies decide in rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is said of one task of a scenario."""

    job: str
    explanation: Explanation


def played(scenario: Scenario) -> ClusterState:
    """Returns the state at the moment of the scenario."""
    agos = [*(one.ago_s for one in scenario.jobs), *(one.ago_s for one in scenario.happenings)]
    ago_s = max((ago or 0.0 for ago in agos), default=0.0)
    # What was submitted just now has been looked at once: policies that decide in rounds have had theirs.
    round_s = scenario.cluster.policy.round_s if is_in_rounds(scenario.cluster.policy) else 0.0
    lasts_s = ago_s + round_s
    elastic = frozenset(TaskKey(job_id=one.job.name, task=name) for one in scenario.jobs for name in one.elastic)
    state = machine.initial(scenario.cluster)
    begins_day_s = round(scenario.time_s - lasts_s - state.config.settle_s) % DAY_S
    state, _ = machine.apply(state, Tick(id=0, at_s=0.0, day_s=begins_day_s))
    play = Rehearsal(state, elastic=elastic)
    for node in scenario.cluster.nodes:
        play.feed(NodeJoined(id=0, at_s=0.0, node=node_on_paper(node)))
    settle_s = play.state.config.settle_s
    # Nodes have been there for long when the first thing happens.
    play.play_until(settle_s)
    calendar = [(settle_s + ago_s - (job.ago_s or 0.0), _submission(job.job.name, job.job)) for job in scenario.jobs]
    what = [(settle_s + ago_s - (one.ago_s or 0.0), one) for one in scenario.happenings]
    for at_s, item in sorted([*calendar, *what], key=lambda pair: pair[0]):
        play.play_until(at_s)
        play.feed(*(_events(play, item) if isinstance(item, Happening) else (item,)))
    play.play_until(settle_s + lasts_s)
    validate(play.state)
    return play.state


def told(scenario: Scenario, state: ClusterState | None = None) -> tuple[Told, ...]:
    """Returns what is said of every task that has not ended, in the order of submission."""
    state = state or played(scenario)
    expected = forecast(state)
    return tuple(
        Told(job=job_id, explanation=one)
        for job_id in state.open_jobs
        for one in explain_job(state, state.jobs[job_id], expected=expected)
    )


def unmet(scenario: Scenario, all_told: Sequence[Told]) -> tuple[str, ...]:
    """Returns every expectation of the scenario that is not met, as a sentence."""
    return tuple(fault for one in scenario.expect for fault in _faults(one, all_told))


def _faults(one: Expectation, all_told: Sequence[Told]) -> Iterator[str]:
    found = [x.explanation for x in all_told if x.job == one.job and one.task in {None, x.explanation.task}]
    name = one.job if one.task is None else f"{one.job}/{one.task}"
    if not found or found[0].constraint is None:
        state = found[0].state if found else "over"
        yield f"{name} should wait for {one.constraint}, but is {state}"
        return
    kind, in_s = found[0].constraint.kind, found[0].starts_in_s
    if kind != one.constraint:
        yield f"{name} should wait for {one.constraint}, but waits for {kind}: {found[0].constraint.reason}"
    if one.starts_in_s is not None and not _is_near(in_s, one.starts_in_s):
        got = "it is not known when" if in_s is None else f"it does in {in_s:.0f} s"
        yield f"{name} should start in {one.starts_in_s:.0f} s, but {got}"


def _is_near(in_s: float | None, wanted_s: float) -> bool:
    return in_s is not None and abs(in_s - wanted_s) <= SLACK_S + SLACK_RATIO * wanted_s


def _submission(job_id: str, job: object) -> Event:
    return JobSubmitted(id=0, at_s=0.0, job_id=job_id, job=job)  # type: ignore[arg-type]


def node_on_paper(node: EmulatedNode) -> Node:
    """Returns the node as if an agent had registered it, with published speed and memory."""
    speed = predicted_speed(node.accelerator, "fp16")[0]
    memory_bytes = node.memory_bytes or capability(node.accelerator).memory_bytes
    devices = tuple(
        Device(
            id=f"{node.name}/{index}",
            node=node.name,
            index=index,
            accelerator_type=node.accelerator,
            memory_bytes=memory_bytes,
            speed=speed,
        )
        for index in range(node.slots)
    )
    return Node(id=node.name, address=f"{node.name}.example", devices=devices, num_ports=max(1000, 4 * node.slots))


def _events(play: Rehearsal, one: Happening) -> list[Event]:
    match one.what:
        case "drain":
            return [NodeDrained(id=0, at_s=0.0, node=one.about)]
        case "resume":
            return [NodeResumed(id=0, at_s=0.0, node=one.about)]
        case "lose":
            return [NodeLost(id=0, at_s=0.0, node=one.about, reason="lost in the scenario")]
        case "cancel":
            return [JobCancelled(id=0, at_s=0.0, job_id=one.about)]
        case "price":
            return [PriceChanged(id=0, at_s=0.0, accelerator_type=n, price_per_hour=price) for n, price in one.prices]
        case _:
            return list(_ended(play, one))


def _ended(play: Rehearsal, one: Happening) -> Iterator[Event]:
    job, _, task = one.about.partition("/")
    for attempt in tuple(play.state.attempts.values()):
        if attempt.task.job_id == job and task in {"", attempt.task.task}:
            yield from play.exits(attempt.id, exit_code=0 if one.what == "finish" else None)
