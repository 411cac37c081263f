"""The agents' side of the controller: takes registrations, carries orders out, turns reports into events."""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from plait.agent.messages import (
    Acknowledge,
    CheckDevice,
    DeviceChecked,
    Heartbeat,
    InjectFault,
    LinkStall,
    Progress,
    Register,
    StopWorker,
    TellLost,
    Welcome,
    WorkerDown,
    WorkerUp,
)
from plait.controller.journal import Record
from plait.controller.ledger import Order
from plait.controller.link import LINE_BYTES, Link, read_message
from plait.controller.orders import run_directory, start_message
from plait.controller.progress import ProgressBoard
from plait.controller.proposals import (
    propose_exit_unknown,
    propose_joined,
    propose_lost,
    propose_lost_predecessor,
    propose_report,
    propose_step,
    propose_tested,
)
from plait.controller.writer import Writer
from plait.schedule.commands import AbortCollectives, ResizeTask, StartTask, StopTask, TestDevice
from plait.schedule.events import FaultInjected, NodeLost

log = logging.getLogger(__name__)

REGISTER_TIMEOUT_S: Final = 5.0
RESEND_S: Final = 5.0
"""An order that has not been acted on is sent again after this long; agents take it as a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time-outs between the controller and its agents, in seconds.

    Attributes:
        heartbeat_interval_s: Agents speak this often.
        heartbeat_timeout_s: A connection silent for longer is dropped.
        lease_s: An agent that the engine does not see, and that has had no answer for so long, stops what nobody else
            can fence off. See ``docs/design/decisions/controller-leases.md``.
        lease_margin_s: The controller waits this much longer than the lease before it gives a node up.
        fence_s: A silent agent that the engine sees is ended through the engine after this long.
    """

    heartbeat_interval_s: float = 0.5
    heartbeat_timeout_s: float = 5.0
    lease_s: float = 60.0
    lease_margin_s: float = 5.0
    fence_s: float = 10.0


class Switchboard:
    """Keeps one link a node and makes sure that each agent runs exactly what the ledger says."""

    def __init__(
        self, writer: Writer, board: ProgressBoard, *, token: str, state_directory: Path, timing: Timing
    ) -> None:
        self.links: dict[str, Link] = {}
        self.seen_nodes: frozenset[str] = frozenset()
        """Nodes whose agents' processes the engine sees: they need no lease."""
        self._writer = writer
        self._board = board
        self._token = token.encode()
        self._state_directory = state_directory
        self._timing = timing
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._last_answer_s: dict[str, float] = {}
        writer.listen(self._carry_out)

    async def open(self, host: str, port: int) -> int:
        """Listens for agents; returns the port."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=LINE_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stops listening and drops all links; the agents keep their workers."""
        if self._server is not None:
            self._server.close()
        for talk in tuple(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    def silent_s(self, node: str) -> float | None:
        """Returns how long ago the node's agent was heard, or None where it is not connected."""
        link = self.links.get(node)
        return None if link is None else max(0.0, asyncio.get_running_loop().time() - link.heard_s)

    def silent_nodes(self, now_s: float, started_s: float) -> dict[str, float]:
        """Returns for each node whose agent should be there how long it has been silent (event loop's clock)."""
        silent = {}
        for node, agent in self._writer.ledger.agents.items():
            if agent.is_present:
                link = self.links.get(node)
                last = link.heard_s if link is not None else self._last_answer_s.get(node, started_s)
                silent[node] = now_s - last
        return silent

    def forgive(self, gap_s: float) -> None:
        """Adds time that this process itself did not run for to every agent's account."""
        for link in self.links.values():
            link.heard_s += gap_s

    def drop_silent(self, now_s: float) -> None:
        """Closes connections that have been silent for too long; an agent that lives connects again."""
        for link in tuple(self.links.values()):
            if now_s - link.heard_s > self._timing.heartbeat_timeout_s:
                log.warning("node %s: silent for %.1fs, connection dropped", link.node.id, now_s - link.heard_s)
                self._forget(link)
                link.close()

    def resend(self, now_s: float) -> None:
        """Repeats orders that nobody acted on."""
        for known in self.links.values():
            known.sent_s = {key: at for key, at in known.sent_s.items() if self._writer.ledger.order(*key) is not None}
        for order in self._writer.ledger.all_orders():
            link = self.links.get(order.worker.node)
            patience_s = RESEND_S + (order.stop.grace_s if order.stop else 0.0)
            is_owed = order.stop is not None or not order.is_up
            if link is not None and is_owed and now_s - link.sent_s.get(order.key, now_s) > patience_s:
                self._send(link, order)

    async def lose(self, node: str, reason: str, *, is_certain: bool = True) -> None:
        """Writes that the node's agent and its workers are gone: for sure, or because its lease ran out."""
        await self._writer.put(partial(propose_lost, node, reason, is_certain=is_certain))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        link: Link | None = None
        try:
            link = await self._register(reader, writer)
            while link is not None and (message := await read_message(reader)) is not None:
                link.heard_s = asyncio.get_running_loop().time()
                self._hear(link, message)
        except asyncio.CancelledError:
            pass  # the controller closes; the server's own task must not end as an error
        finally:
            if link is not None:
                self._forget(link)
            writer.close()
            self._talks.discard(talk)

    async def _register(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Link | None:
        try:
            register = await asyncio.wait_for(read_message(reader), REGISTER_TIMEOUT_S)
        except TimeoutError:
            return None
        if register is None:
            return None  # it hung up, or its words were not understood
        if not isinstance(register, Register) or not hmac.compare_digest(register.token.encode(), self._token):
            log.warning("a connection was refused: it did not present the token")
            return None
        node = register.node.id
        if not self._is_successor(register):
            log.warning("node %s: another agent is refused as long as the one before it may have workers", node)
            return None
        await self._writer.put(partial(propose_lost_predecessor, register))
        await self._writer.put(partial(propose_joined, register))
        link = Link(register, writer, asyncio.get_running_loop().time())
        previous = self.links.pop(node, None)
        if previous is not None:
            previous.close()
        self.links[node] = link
        lease_s = None if node in self.seen_nodes else self._timing.lease_s
        link.send(Welcome(heartbeat_interval_s=self._timing.heartbeat_interval_s, lease_s=lease_s))
        self._reconcile(link)
        return link

    def _is_successor(self, register: Register) -> bool:
        """Returns whether this agent may have the node: no other agent process of it can still run workers."""
        node = register.node.id
        agent = self._writer.ledger.agents.get(node)
        if agent is None or not agent.is_present or agent.incarnation == register.incarnation:
            return True
        # The engine starts a second agent only once the first is dead; elsewhere the lease has to run out.
        return node in self.seen_nodes and node not in self.links

    def _reconcile(self, link: Link) -> None:
        """Compares what the agent runs with what it is owed; runs at one go, so no order can come in between."""
        orders = {order.key: order for order in self._writer.ledger.of_node(link.node.id)}
        for key, order in orders.items():
            if key in link.known:
                if order.stop is not None:
                    self._send(link, order)
            elif order.is_up or order.stop is not None:
                detail = "the agent does not know this worker" if order.is_up else "stopped before it was started"
                self._writer.put(partial(propose_exit_unknown, key, detail))
            else:
                self._send(link, order)
        for key, worker in link.known.items():
            if worker.alive and key not in orders:
                self._send_stop(link, key, grace_s=0.0, reason="nobody wants this worker any more")
        self._ask_for_tests(link)

    def _ask_for_tests(self, link: Link) -> None:
        """Repeats the tests that the agent may not have heard of; those that it has under way it does not repeat."""
        state = self._writer.state
        record = state.nodes.get(link.node.id)
        for device, trouble in record.troubles.items() if record is not None else ():
            if trouble.state == "probation" and trouble.test is not None:
                limit_s = state.config.quarantine.test_limit_s
                link.send(CheckDevice(device=device, test=trouble.test, limit_s=limit_s))

    def _hear(self, link: Link, message: object) -> None:
        match message:
            case Heartbeat(sent_s=sent_s):
                agent = self._writer.ledger.agents.get(link.node.id)
                link.answered_s = asyncio.get_running_loop().time()
                self._last_answer_s[link.node.id] = link.answered_s
                number = agent.number if agent is not None else 0
                link.send(Acknowledge(number=number, heartbeat_sent_s=sent_s))
            case WorkerUp() | WorkerDown() | LinkStall():
                future = self._writer.put(partial(propose_report, link.incarnation, message))
                future.add_done_callback(partial(self._acknowledge, link, message))
            case DeviceChecked():
                future = self._writer.put(partial(propose_tested, link.node.id, link.incarnation, message))
                future.add_done_callback(partial(self._acknowledge, link, message))
            case Progress():
                self._take_progress(message)
            case _:
                log.warning("node %s: unexpected message %s", link.node.id, type(message).__name__)

    def _acknowledge(
        self,
        link: Link,
        message: WorkerUp | WorkerDown | LinkStall | DeviceChecked,
        written: "asyncio.Future[Record | None]",
    ) -> None:
        if written.cancelled() or written.exception() is not None:
            log.error("node %s: report %d could not be written", link.node.id, message.number)
            return  # it stays with the agent, which sends it again when it registers next
        link.send(Acknowledge(number=message.number))
        if isinstance(message, WorkerUp) and self._writer.ledger.order(message.attempt_id, message.worker_id) is None:
            key = (message.attempt_id, message.worker_id)
            self._send_stop(link, key, grace_s=0.0, reason="nobody wants this worker any more")

    def _take_progress(self, line: Progress) -> None:
        news = self._board.take(line, self._writer.now_s())
        if news is not None:
            self._writer.put(partial(propose_step, news))

    def _carry_out(self, record: Record) -> None:
        """Acts on durable decisions; where an agent is away, its next registration makes up for it."""
        if isinstance(record.event, FaultInjected):
            self._inject(record.event)
        for command in record.commands:
            match command:
                case StartTask(attempt_id=attempt_id) | StopTask(attempt_id=attempt_id):
                    self._send_all(attempt_id)
                case ResizeTask(attempt_id=attempt_id, add=add, remove=remove):
                    self._send_all(attempt_id, {worker.worker_id for worker in add} | set(remove))
                case TestDevice(node=node, device=device, limit_s=limit_s) if node in self.links:
                    self.links[node].send(CheckDevice(device=device, test=command.cause, limit_s=limit_s))
                case AbortCollectives() if isinstance(record.event, NodeLost) and not record.event.is_certain:
                    pass  # they may live: told that they are dead, a minority could take itself for the whole group
                case AbortCollectives(attempt_id=attempt_id, lost=lost):
                    orders = self._writer.ledger.of_attempt(attempt_id).values()
                    for node in {order.worker.node for order in orders}:
                        if node in self.links:
                            self.links[node].send(TellLost(attempt_id=attempt_id, lost=lost))

    def _inject(self, event: FaultInjected) -> None:
        order = self._writer.ledger.order(event.attempt_id, event.worker_id)
        link = self.links.get(order.worker.node) if order is not None else None
        if link is not None:
            link.send(InjectFault(attempt_id=event.attempt_id, worker_id=event.worker_id, deed=event.deed))

    def _send_all(self, attempt_id: str, only: AbstractSet[str] | None = None) -> None:
        for worker_id, order in self._writer.ledger.of_attempt(attempt_id).items():
            link = self.links.get(order.worker.node)
            if link is not None and (only is None or worker_id in only):
                self._send(link, order)

    def _send(self, link: Link, order: Order) -> None:
        if order.stop is not None:
            self._send_stop(link, order.key, grace_s=order.stop.grace_s, reason=order.stop.reason)
            return
        job = self._writer.state.jobs[order.task.job_id].job
        copies = {node: other.copies for node, other in self.links.items() if other.copies}
        message = start_message(order, job, self._writer.ledger, self._state_directory, self._token, copies=copies)
        with contextlib.suppress(OSError):  # a worker that needs it says so better than the controller could
            run_directory(self._state_directory, order.task.job_id).mkdir(parents=True, exist_ok=True)
        link.sent_s[order.key] = asyncio.get_running_loop().time()
        link.send(message)

    def _send_stop(self, link: Link, key: tuple[str, str], *, grace_s: float, reason: str) -> None:
        link.sent_s[key] = asyncio.get_running_loop().time()
        link.send(StopWorker(attempt_id=key[0], worker_id=key[1], grace_s=grace_s, reason=reason))

    def _forget(self, link: Link) -> None:
        if self.links.get(link.node.id) is link:
            del self.links[link.node.id]
            self._last_answer_s[link.node.id] = link.answered_s
