"""Nodes and devices: they join, are lost, drained, taken back."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from plait.schedule import quarantine
from plait.schedule.domain import WorkerPlacement
from plait.schedule.draft import Draft
from plait.schedule.events import DeviceLost, DeviceReturned, NodeDrained, NodeJoined, NodeLost, NodeResumed
from plait.schedule.state import NodeRecord
from plait.schedule.workers import Loss, end_workers, lose_workers


def joined(draft: Draft, event: NodeJoined) -> None:
    """Takes a node in, for the first time or again.

    A node that was lost starts with the device states it brings; quarantines and drains stay, and tests that were under
    way are made again. A node that was not lost frees nothing that it runs; devices that it no longer has are lost.
    """
    node = event.node
    record = draft.state.nodes.get(node.id)
    if record is None or not record.is_alive:
        draft.set_state(replace(draft.state, joined_at_s=draft.now_s))
    if record is None:
        draft.put_node(NodeRecord(node=node))
        return
    ids = {device.id for device in node.devices if device.state == "healthy"}
    is_new_start = not record.is_alive
    troubles = {d: trouble for d, trouble in record.troubles.items() if not (is_new_start and trouble.state == "lost")}
    known = replace(record, node=node, is_alive=True, lost_reason="", troubles=troubles)
    draft.put_node(quarantine.seen_again(draft, known, is_new_start=is_new_start))
    missing = {device.id for device in record.node.devices} - ids
    _lose_devices(draft, missing, f"node {node.id} joined again without a healthy device")


def lost(draft: Draft, event: NodeLost) -> None:
    """Gives a node up: its workers are gone for sure, whoever feeds events says so only then."""
    record = draft.state.nodes.get(event.node)
    if record is None or not record.is_alive:
        return
    draft.put_node(replace(record, is_alive=False, lost_reason=event.reason))
    for attempt_id, worker_ids in _found(draft, lambda placement: placement.node == event.node):
        end_workers(draft, attempt_id, worker_ids, f"lost with node {event.node} ({event.reason})")


def drained(draft: Draft, event: NodeDrained) -> None:
    """Sends no new work to the node; what runs there is moved when work is dispatched."""
    record = draft.state.nodes.get(event.node)
    if record is not None:
        draft.put_node(replace(record, is_draining=True))


def resumed(draft: Draft, event: NodeResumed) -> None:
    """Takes a drained node back. A person vouches for it, so its quarantined devices are used again too."""
    record = draft.state.nodes.get(event.node)
    if record is not None:
        draft.put_node(replace(quarantine.vouched_for(record), is_draining=False))


def device_lost(draft: Draft, event: DeviceLost) -> None:
    """Gives a device up; the worker on it is a device fault to its job, whether or not it has noticed."""
    record = quarantine.node_of(draft.state, event.device)
    if record is None:
        return
    quarantine.lose(draft, record, event.device, event.reason)
    _lose_devices(draft, {event.device}, event.reason)


def device_returned(draft: Draft, event: DeviceReturned) -> None:
    """Uses a lost or quarantined device again."""
    record = quarantine.node_of(draft.state, event.device)
    if record is not None:
        draft.put_node(quarantine.used_again(record, event.device))


def _found(
    draft: Draft, is_meant: Callable[[WorkerPlacement], bool], *, in_gang: bool = False
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Goes over attempts with such workers; ``in_gang`` leaves out those that are on their way out anyway."""
    for attempt in tuple(draft.state.attempts.values()):
        if in_gang and attempt.phase == "stopping":
            continue
        worker_ids = tuple(
            worker_id
            for worker_id, worker in attempt.workers.items()
            if is_meant(worker.placement) and not (in_gang and worker.is_leaving)
        )
        if worker_ids:
            yield attempt.id, worker_ids


def _lose_devices(draft: Draft, device_ids: set[str], reason: str) -> None:
    if not device_ids:
        return
    for attempt_id, worker_ids in _found(draft, lambda p: not device_ids.isdisjoint(p.device_ids), in_gang=True):
        story = f"{', '.join(worker_ids)} lost a device of {', '.join(sorted(device_ids))} ({reason})"
        loss = Loss(worker_ids=worker_ids, cause="device_fault", reason=story, devices=tuple(sorted(device_ids)))
        lose_workers(draft, attempt_id, loss, still_there=True)
