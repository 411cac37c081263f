"""The scheduler: a pure function from state and event to the next state and the commands that follow.

Whatever comes in, late, twice, or of things that nobody knows, changes at most what it says and never raises.
"""

from collections.abc import Iterable
from dataclasses import replace

from plait.hardware.device import Node
from plait.schedule import jobs, nodes, quarantine, workers
from plait.schedule.commands import Command
from plait.schedule.dispatch import dispatch
from plait.schedule.draft import Draft
from plait.schedule.events import (
    ClusterConfigured,
    DeviceLost,
    DeviceReturned,
    DeviceTested,
    Event,
    FaultInjected,
    JobCancelled,
    JobSubmitted,
    LinkStalled,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeResumed,
    PriceChanged,
    ResizeRequested,
    StepReported,
    Tick,
    WorkerExited,
    WorkerStarted,
)
from plait.schedule.knowledge import Knowledge
from plait.schedule.policies import policy_or_default
from plait.schedule.policy import Policy
from plait.schedule.state import ClusterState, MachineConfig
from plait.spec.cluster import Cluster
from plait.spec.job import Job

State = ClusterState


def initial(cluster: Cluster | None = None) -> ClusterState:
    """Returns the state of a cluster where nothing has happened yet."""
    return ClusterState(config=_config(MachineConfig(), cluster or Cluster()))


def apply(
    state: ClusterState,
    event: Event,
    policy: Policy | None = None,
    knowledge: Knowledge | None = None,
    *,
    decides: bool = True,
) -> tuple[ClusterState, tuple[Command, ...]]:
    """Returns the state after the event and what has to be done now, in order.

    An event whose id is not above that of the last one has been applied before and changes nothing.

    Args:
        state: The state before.
        event: What happened.
        policy: Who decides; None takes the one that the cluster's file names, or the default where that one is not
            installed.
        knowledge: What is known of tasks beyond their files; None: nothing.
        decides: False takes note of the event and leaves it to a later one (a tick) to start, resize and move work.
    """
    if event.id <= state.last_event_id:
        return state, ()
    now_s = max(state.now_s, event.at_s)
    draft = Draft(replace(state, now_s=now_s, last_event_id=event.id), event.id)
    _take(draft, event)
    if _may_move(state, draft.state, event):
        jobs.settle(draft)
        if decides:
            choice = draft.state.config.policy
            dispatch(draft, policy or policy_or_default(choice.name, choice.weights)[0], knowledge)
            jobs.settle(draft)
    return draft.state, tuple(draft.commands)


def replay(events: Iterable[Event], policy: Policy | None = None, state: ClusterState | None = None) -> ClusterState:
    """Returns the state after all events, from ``state`` or from the beginning."""
    state = state or initial()
    for event in events:
        state, _ = apply(state, event, policy)
    return state


def forget_ended(state: ClusterState) -> ClusterState:
    """Returns the state without the jobs that have ended: a long simulation books them elsewhere."""
    open_jobs = {job_id: state.jobs[job_id] for job_id in state.open_jobs}
    return state if len(open_jobs) == len(state.jobs) else replace(state, jobs=open_jobs)


def is_same_but_for_time(one: ClusterState, other: ClusterState) -> bool:
    """Says whether two states differ in nothing but the time and the number of events."""
    return replace(
        one,
        last_event_id=other.last_event_id,
        now_s=other.now_s,
        tick_at_s=other.tick_at_s,
        tick_day_s=other.tick_day_s,
        round_at_s=other.round_at_s,
    ) == other and (one.tick_day_s is None) == (other.tick_day_s is None)


def job_of(state: ClusterState, job_id: str) -> Job:
    """Returns what was submitted as this job; raises ``KeyError`` where there is none."""
    return state.jobs[job_id].job


def node_of(state: ClusterState, node_id: str) -> Node | None:
    """Returns the node as it joined last, or None where it never did."""
    record = state.nodes.get(node_id)
    return record.node if record is not None else None


def holder_of(state: ClusterState, device_id: str) -> tuple[str, str] | None:
    """Returns (attempt, worker) that holds this device, or None where it is free."""
    for attempt in state.attempts.values():
        for worker_id, worker in attempt.workers.items():
            if device_id in worker.placement.device_ids:
                return attempt.id, worker_id
    return None


def _may_move(before: ClusterState, after: ClusterState, event: Event) -> bool:
    """Progress and starts are frequent and change nothing that scheduling looks at, but for a gang turning elastic."""
    if not isinstance(event, FaultInjected | LinkStalled | StepReported | WorkerStarted):
        return True
    old, new = before.attempts.get(event.attempt_id), after.attempts.get(event.attempt_id)
    return old is not None and new is not None and (old.can_resize != new.can_resize)


def _take(draft: Draft, event: Event) -> None:
    match event:
        case JobSubmitted():
            jobs.submitted(draft, event)
        case JobCancelled():
            jobs.cancelled(draft, event)
        case ResizeRequested():
            jobs.resized(draft, event)
        case WorkerStarted():
            workers.started(draft, event)
        case WorkerExited():
            workers.exited(draft, event)
        case FaultInjected():
            workers.injected(draft, event)
        case LinkStalled():
            workers.stalled(draft, event)
        case StepReported():
            workers.reported(draft, event)
        case _:
            _take_cluster(draft, event)


def _take_cluster(draft: Draft, event: Event) -> None:
    match event:
        case NodeJoined():
            nodes.joined(draft, event)
        case NodeLost():
            nodes.lost(draft, event)
        case NodeDrained():
            nodes.drained(draft, event)
        case NodeResumed():
            nodes.resumed(draft, event)
        case DeviceLost() | DeviceReturned() | DeviceTested():
            _take_device(draft, event)
        case PriceChanged(accelerator_type=name, price_per_hour=price):
            draft.set_state(replace(draft.state, prices_per_hour={**draft.state.prices_per_hour, name: price}))
        case ClusterConfigured(cluster=cluster):
            _configure(draft, cluster)
        case Tick(day_s=day_s):
            draft.set_state(replace(draft.state, tick_at_s=draft.now_s, tick_day_s=day_s))
            quarantine.begin_tests(draft)


def _take_device(draft: Draft, event: DeviceLost | DeviceReturned | DeviceTested) -> None:
    match event:
        case DeviceLost():
            nodes.device_lost(draft, event)
        case DeviceReturned():
            nodes.device_returned(draft, event)
        case DeviceTested():
            quarantine.tested(draft, event)


def _configure(draft: Draft, cluster: Cluster) -> None:
    """Takes the administrator's file; what one policy remembers means nothing to another."""
    before = draft.state.config
    draft.set_state(replace(draft.state, config=_config(before, cluster)))
    if cluster.policy.name != before.policy.name:
        draft.set_state(replace(draft.state, memory={}, round_at_s=None))


def _config(config: MachineConfig, cluster: Cluster) -> MachineConfig:
    return replace(
        config,
        policy=cluster.policy,
        windows=cluster.price_windows,
        projects=cluster.projects,
        reservations=cluster.reservations,
        quarantine=cluster.quarantine,
        racks={node: rack for rack, nodes in cluster.racks for node in nodes},
    )
