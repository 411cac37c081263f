"""What agents' words become: each function makes the event once its turn has come, or finds that there is none."""

from plait.agent.messages import DeviceChecked, LinkStall, Progress, Register, WorkerDown, WorkerUp
from plait.controller.journal import Registration, Report
from plait.controller.writer import Proposal, View
from plait.schedule.events import (
    DeviceTested,
    LinkStalled,
    NodeJoined,
    NodeLost,
    StepReported,
    WorkerExited,
    WorkerStarted,
)
from plait.spec.job import FailureCause


def propose_lost(node: str, reason: str, view: View, *, is_certain: bool = True) -> Proposal | None:
    """The node's agent is gone, and its workers: for sure, or because its lease ran out."""
    agent = view.ledger.agents.get(node)
    if agent is None or not agent.is_present:
        return None
    event = NodeLost(id=view.id, at_s=view.at_s, node=node, reason=reason, is_certain=is_certain)
    return Proposal(event=event)


def propose_step(line: Progress, view: View) -> Proposal | None:
    """An attempt made progress; one that has ended by now is of no interest."""
    if not view.ledger.of_attempt(line.attempt_id):
        return None
    event = StepReported(
        id=view.id,
        at_s=view.at_s,
        attempt_id=line.attempt_id,
        step=line.step,
        total_steps=line.total_steps,
        samples_per_s=line.samples_per_s,
        elastic=line.elastic,
        split=line.split,
        reason=line.reason,
    )
    return Proposal(event=event)


def propose_lost_predecessor(register: Register, view: View) -> Proposal | None:
    """A new agent process has the node, so the workers of the one before it are dead."""
    agent = view.ledger.agents.get(register.node.id)
    if agent is None or not agent.is_present or agent.incarnation == register.incarnation:
        return None
    return propose_lost(register.node.id, "its agent was started anew", view)


def propose_joined(register: Register, view: View) -> Proposal | None:
    """The agent's node takes part; nothing is new where the same process only connected again."""
    agent = view.ledger.agents.get(register.node.id)
    is_same = agent is not None and agent.is_present and agent.incarnation == register.incarnation
    record = view.state.nodes.get(register.node.id)
    if is_same and record is not None and record.node == register.node:
        return None
    return Proposal(
        event=NodeJoined(id=view.id, at_s=view.at_s, node=register.node),
        note=Registration(incarnation=register.incarnation),
    )


def propose_report(incarnation: str, message: WorkerUp | WorkerDown | LinkStall, view: View) -> Proposal | None:
    """A report counts once: where its number was seen, or nobody asked for the worker, nothing is written."""
    order = view.ledger.order(message.attempt_id, message.worker_id)
    agent = None if order is None else view.ledger.agents.get(order.worker.node)
    if order is None or agent is None or agent.incarnation != incarnation or message.number <= agent.number:
        return None
    note = Report(incarnation=incarnation, number=message.number)
    if isinstance(message, WorkerUp):
        if order.is_up:
            return None
        started = WorkerStarted(id=view.id, at_s=view.at_s, attempt_id=message.attempt_id, worker_id=message.worker_id)
        return Proposal(event=started, note=note)
    if isinstance(message, LinkStall):
        stalled = LinkStalled(
            id=view.id,
            at_s=view.at_s,
            attempt_id=message.attempt_id,
            worker_id=message.worker_id,
            is_transient=message.is_transient,
            reason=message.reason,
        )
        return Proposal(event=stalled, note=note)
    event = WorkerExited(
        id=view.id,
        at_s=view.at_s,
        attempt_id=message.attempt_id,
        worker_id=message.worker_id,
        exit_code=message.exit_code,
        signal=message.signal,
        failure=message.failure,
        detail=message.detail,
        is_transient=message.is_transient,
        faulty_devices=message.faulty_devices,
    )
    return Proposal(event=event, note=note)


def propose_tested(node: str, incarnation: str, message: DeviceChecked, view: View) -> Proposal | None:
    """A test counts once, and only that of the agent's own device."""
    agent, record = view.ledger.agents.get(node), view.state.nodes.get(node)
    if agent is None or agent.incarnation != incarnation or message.number <= agent.number:
        return None
    if record is None or all(device.id != message.device for device in record.node.devices):
        return None
    event = DeviceTested(
        id=view.id,
        at_s=view.at_s,
        cause=message.test,
        device=message.device,
        test=message.test,
        passed=message.passed,
        detail=message.detail,
    )
    return Proposal(event=event, note=Report(incarnation=incarnation, number=message.number))


def propose_exit_unknown(key: tuple[str, str], detail: str, view: View) -> Proposal | None:
    """The agent has no such worker and will not get it any more."""
    order = view.ledger.order(*key)
    if order is None:
        return None
    failure: FailureCause = "cancelled" if order.stop is not None else "lost"
    return Proposal(
        event=WorkerExited(
            id=view.id,
            at_s=view.at_s,
            attempt_id=key[0],
            worker_id=key[1],
            exit_code=None,
            failure=failure,
            detail=detail,
        )
    )
