"""Devices that failed: kept from work, tested after a while, used again, and watched.

A fault quarantines a device at once where evidence says that it is lasting, or while the device is watched; others do
once there were several within a while. After the cool-down its node tests the device: it passes, works again and is
watched for a while, or fails and waits twice as long. So no device that is healthy is lost for ever, and one that
fails again and again costs ever fewer workers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from plait.schedule.commands import TestDevice
from plait.schedule.draft import Draft
from plait.schedule.events import DeviceTested
from plait.schedule.phrases import span
from plait.schedule.state import ClusterState, DeviceFaults, DeviceTrouble, NodeRecord
from plait.spec.cluster import Quarantine

PATIENCE_TIMES = 2.0
"""So many times the limit of a test its answer may take: the order and the answer have their ways, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """What one more fault means: ``cool_down_s`` is None where the device goes on working."""

    faults: DeviceFaults
    cool_down_s: float | None
    reason: str


def judged(faults: DeviceFaults, rules: Quarantine, now_s: float, *, is_transient: bool) -> Sentence:
    """Returns what follows from one more fault of a device.

    Args:
        faults: What it has been through before.
        rules: As the administrator wants it.
        now_s: The time of the fault.
        is_transient: Whether the fault may have been one of a moment.
    """
    times = (*(at for at in faults.times_s if now_s - at < rules.window_s), now_s)
    is_watched = now_s < faults.watched_until_s
    if is_transient and not is_watched and len(times) < rules.faults:
        reason = f"forgiven as one of a moment: fault {len(times)} of {rules.faults} in {span(rules.window_s)}"
        return Sentence(faults=replace(faults, times_s=times), cool_down_s=None, reason=reason)
    cool_down_s = min(rules.longest_s, 2.0 * faults.cool_down_s if is_watched else rules.cool_down_s)
    why = "it failed again while it was watched, " if is_watched else ""
    if not why and is_transient:
        why = f"it failed {len(times)} times in {span(rules.window_s)}, "
    kept = replace(faults, times_s=times, cool_down_s=cool_down_s)
    reason = f"quarantined: {why}tested in {span(cool_down_s)}"
    return Sentence(faults=kept, cool_down_s=cool_down_s, reason=reason)


def blame(draft: Draft, devices: Iterable[str], reason: str, *, is_transient: bool) -> tuple[str, ...]:
    """Notes a fault of each device that takes work; returns what follows for each, in words."""
    told = []
    for device in devices:
        # A device that has vanished from its node is kept out as well, should it come back.
        record = node_of(draft.state, device) or draft.state.nodes.get(device.rpartition("/")[0])
        if record is None or device in record.troubles:
            continue
        sentence = judged(
            _faults(record, device), draft.state.config.quarantine, draft.now_s, is_transient=is_transient
        )
        record = replace(record, faults={**record.faults, device: sentence.faults})
        if sentence.cool_down_s is not None:
            record = _kept_out(draft, record, device, _quarantined(draft.now_s, reason, sentence.cool_down_s))
        draft.put_node(record)
        told.append(f"{device} is {sentence.reason}")
    return tuple(told)


def lose(draft: Draft, record: NodeRecord, device: str, reason: str) -> None:
    """Keeps a device out that its node says is lost; it is tested as one that failed, should it be there again."""
    before = record.troubles.get(device)
    if before is None:
        sentence = judged(_faults(record, device), draft.state.config.quarantine, draft.now_s, is_transient=False)
        record = replace(record, faults={**record.faults, device: sentence.faults})
        before = _quarantined(draft.now_s, reason, sentence.cool_down_s or 0.0)
    elif before.state == "probation":
        before = _quarantined(draft.now_s, reason, _faults(record, device).cool_down_s)
    draft.put_node(_kept_out(draft, record, device, replace(before, state="lost", reason=reason)))


def begin_tests(draft: Draft) -> None:
    """Asks for the tests that are due, and gives those up that were not answered; called when time has passed."""
    if draft.state.next_test_s is None or draft.now_s < draft.state.next_test_s:
        return
    due = [
        (record.node.id, device)
        for record in draft.state.nodes.values()
        if record.is_alive
        for device, trouble in record.troubles.items()
        if trouble.until_s is not None and trouble.until_s <= draft.now_s and _has(record, device)
    ]
    held = _held(draft.state) if due else frozenset()
    for node, device in due:
        record = draft.state.nodes[node]
        trouble = record.troubles[device]
        if trouble.state == "probation":
            limit = span(draft.state.config.quarantine.test_limit_s)
            _fail(draft, record, device, f"its test gave no answer (it may take {limit})")
        elif device not in held:
            _begin(draft, record, device, trouble)
    _note_next(draft)


def tested(draft: Draft, event: DeviceTested) -> None:
    """Uses a device again that passed its test, and watches it; another waits for the next one, twice as long."""
    record = node_of(draft.state, event.device)
    trouble = record.troubles.get(event.device) if record is not None else None
    if record is None or trouble is None or trouble.state != "probation" or trouble.test != event.test:
        return
    if not event.passed:
        _fail(draft, record, event.device, event.detail)
        return
    faults = _faults(record, event.device)
    watched_s = max(draft.state.config.quarantine.window_s, faults.cool_down_s)
    watched = replace(faults, times_s=(), watched_until_s=draft.now_s + watched_s)
    draft.put_node(replace(used_again(record, event.device), faults={**record.faults, event.device: watched}))


def seen_again(draft: Draft, record: NodeRecord, *, is_new_start: bool) -> NodeRecord:
    """Returns a node that has joined again; tests that ran on one that started anew are due again at once."""
    troubles = {
        device: _quarantined(trouble.since_s, trouble.reason, draft.now_s - trouble.since_s, trouble.last_test)
        if is_new_start and trouble.state == "probation"
        else trouble
        for device, trouble in record.troubles.items()
    }
    if troubles:
        draft.set_state(replace(draft.state, next_test_s=draft.now_s))
    return replace(record, troubles=troubles)


def vouched_for(record: NodeRecord) -> NodeRecord:
    """Returns a node for whose devices a person vouches: none is quarantined, and past faults are forgotten."""
    kept = {device: trouble for device, trouble in record.troubles.items() if trouble.state == "lost"}
    faults = {device: faults for device, faults in record.faults.items() if device in kept}
    return replace(record, troubles=kept, faults=faults)


def used_again(record: NodeRecord, device: str) -> NodeRecord:
    """Returns the node with this device at work again."""
    devices = tuple(replace(d, state="healthy") if d.id == device else d for d in record.node.devices)
    troubles = {other: trouble for other, trouble in record.troubles.items() if other != device}
    return replace(record, node=replace(record.node, devices=devices), troubles=troubles)


def node_of(state: ClusterState, device: str) -> NodeRecord | None:
    """Returns the node that has this device, or None where there is none."""
    node = state.nodes.get(device.rpartition("/")[0])
    if node is not None and _has(node, device):
        return node
    return next((record for record in state.nodes.values() if _has(record, device)), None)


def trouble_told(device: str, trouble: DeviceTrouble, now_s: float) -> str:
    """Returns one sentence about a device that takes no work: its state, why, and when it will be tried again."""
    what = "is being tested, kept from work" if trouble.state == "probation" else f"is {trouble.state}"
    parts = [f"{device} {what} since {span(max(0.0, now_s - trouble.since_s))}: {trouble.reason}"]
    if trouble.last_test:
        parts.append(f"last test: {trouble.last_test}")
    parts.append(when(trouble, now_s))
    return "; ".join(part for part in parts if part)


def when(trouble: DeviceTrouble, now_s: float) -> str:
    """Returns when the device will be tried again, empty while it is."""
    if trouble.state == "probation":
        return ""
    if trouble.until_s is None:
        return "until its node or a person says that it is healthy"
    return f"tested in {span(trouble.until_s - now_s)}" if trouble.until_s > now_s else "tested as soon as it can be"


def _has(record: NodeRecord, device: str) -> bool:
    return any(one.id == device for one in record.node.devices)


def _faults(record: NodeRecord, device: str) -> DeviceFaults:
    return record.faults.get(device, DeviceFaults())


def _quarantined(at_s: float, reason: str, cool_down_s: float, last_test: str = "") -> DeviceTrouble:
    return DeviceTrouble(
        state="quarantined", reason=reason, since_s=at_s, until_s=at_s + cool_down_s, last_test=last_test
    )


def _kept_out(draft: Draft, record: NodeRecord, device: str, trouble: DeviceTrouble) -> NodeRecord:
    before = draft.state.next_test_s
    if trouble.until_s is not None and (before is None or trouble.until_s < before):
        draft.set_state(replace(draft.state, next_test_s=trouble.until_s))
    return replace(record, troubles={**record.troubles, device: trouble})


def _begin(draft: Draft, record: NodeRecord, device: str, trouble: DeviceTrouble) -> None:
    limit_s = draft.state.config.quarantine.test_limit_s
    testing = replace(trouble, state="probation", until_s=draft.now_s + PATIENCE_TIMES * limit_s, test=draft.cause)
    draft.put_node(_kept_out(draft, record, device, testing))
    draft.commands.append(
        TestDevice(cause=draft.cause, node=record.node.id, device=device, limit_s=limit_s, reason=trouble.reason)
    )


def _fail(draft: Draft, record: NodeRecord, device: str, detail: str) -> None:
    rules, faults, trouble = draft.state.config.quarantine, _faults(record, device), record.troubles[device]
    cool_down_s = min(rules.longest_s, 2.0 * faults.cool_down_s or rules.cool_down_s)
    again = replace(
        trouble, state="quarantined", until_s=draft.now_s + cool_down_s, test=None, last_test=f"failed, {detail}"
    )
    record = replace(record, faults={**record.faults, device: replace(faults, cool_down_s=cool_down_s)})
    draft.put_node(_kept_out(draft, record, device, again))


def _held(state: ClusterState) -> frozenset[str]:
    """Devices on which a worker may still be ending."""
    workers = (worker for attempt in state.attempts.values() for worker in attempt.workers.values())
    return frozenset(device for worker in workers for device in worker.placement.device_ids)


def _note_next(draft: Draft) -> None:
    """Finds when the next test is due; devices that are not there now are looked at again when their node joins."""
    times = [
        trouble.until_s
        for record in draft.state.nodes.values()
        if record.is_alive and record.troubles
        for device, trouble in record.troubles.items()
        if trouble.until_s is not None and _has(record, device)
    ]
    draft.set_state(replace(draft.state, next_test_s=min(times, default=None)))


def troubles_of(state: ClusterState, types: frozenset[str]) -> Mapping[str, DeviceTrouble]:
    """Returns the devices of these types (empty: of any) that take no work although their node is there."""
    return {
        device.id: record.troubles[device.id]
        for record in state.nodes.values()
        if record.is_alive and record.troubles
        for device in record.node.devices
        if device.id in record.troubles and (not types or device.accelerator_type in types)
    }
