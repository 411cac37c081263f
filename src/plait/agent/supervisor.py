"""The agent's heart: orders in, workers run, reports out."""

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from plait.agent.causes import describe_end, failure_of
from plait.agent.children import Children
from plait.agent.device_tests import DeviceTests
from plait.agent.environment import frozen_limit_s, interface_of, worker_environment
from plait.agent.evidence import Witness
from plait.agent.holder import NodeHolder
from plait.agent.judge import Verdict, judge
from plait.agent.messages import (
    CheckDevice,
    InjectFault,
    KnownWorker,
    Register,
    StartWorker,
    StopWorker,
    TellLost,
    ToAgent,
)
from plait.agent.oom import OomCounter
from plait.agent.reports import Reports
from plait.agent.saver import NodeSaver
from plait.agent.strays import kill_unowned, mark_of, sweep
from plait.agent.worker import Worker, WorkerKey
from plait.agent.worker_lines import Lost, ProgressLine, StalledLine, ToWorker
from plait.hardware.device import Node
from plait.wire import Codec

LOOK_EVERY_S = 0.2
STALLS_TOLD_EVERY_S = 5.0
_LOOKS_PER_OOM_SAMPLE = 5
_COMMAND_NOT_FOUND = 127
_COMMAND_NOT_USABLE = 126
_TO_WORKER: Codec[ToWorker] = Codec(ToWorker)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetting:
    """What one agent is and where it keeps its things."""

    node: Node
    state_directory: Path
    incarnation: str
    socket_path: Path
    frozen_limit_s: float | None = None
    token_file: Path | None = None


class Supervisor:
    """Runs the workers of one node."""

    def __init__(self, setting: NodeSetting, reports: Reports) -> None:
        self._setting = setting
        self._reports = reports
        self._interface = interface_of(setting.node.address)
        self._oom = OomCounter()
        self._saver = NodeSaver(setting.state_directory)
        self._holder = NodeHolder(setting.node.address, setting.token_file, setting.state_directory)
        self._workers: dict[WorkerKey, Worker] = {}
        self._children = Children()
        self._tests = DeviceTests(setting.node, setting.state_directory, self._children, reports)
        self._witness = Witness(self._interface, self._tests)
        self._lost: dict[str, list[str]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()

    @property
    def num_workers(self) -> int:
        """Workers whose process runs or whose remains are being cleared away."""
        return len(self._workers)

    def registration(self, token: str) -> Register:
        """Returns the agent's first word to a controller."""
        alive = (KnownWorker(attempt_id=attempt, worker_id=worker, alive=True) for attempt, worker in self._workers)
        return Register(
            token=token,
            node=self._setting.node,
            incarnation=self._setting.incarnation,
            copies=self._holder.address,
            workers=(*alive, *self._reports.ended()),
        )

    def obey(self, order: ToAgent) -> None:
        """Carries out one order of the controller."""
        match order:
            case StartWorker():
                self._start(order)
            case StopWorker():
                self._stop(order)
            case TellLost():
                self._tell_lost(order.attempt_id, order.lost)
            case InjectFault():
                self._inject(order)
            case CheckDevice():
                self._tests.begin(order)
            case _:
                logger.warning("the controller said %s out of turn", order.kind)

    def _start(self, order: StartWorker) -> None:
        key = (order.attempt_id, order.worker_id)
        if key in self._workers:
            self._reports.up(key, self._workers[key].pid)
            return
        if self._reports.repeat_down(key):
            return
        worker = None
        try:
            mark = mark_of(self._setting.state_directory, self._setting.incarnation, *key)
            worker = Worker(order, mark, frozen_limit_s(order, self._setting.frozen_limit_s))
            worker.start(self._environment(order, mark), self._on_exit)
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in an argument
            detail = f"could not be started: {error}"
            if worker is not None:
                worker.close_log(detail)
            code = _COMMAND_NOT_FOUND if isinstance(error, FileNotFoundError) else _COMMAND_NOT_USABLE
            self._reports.down(key, "user", detail, exit_code=code, signal=None)
        else:
            self._workers[key] = worker
            self._reports.up(key, worker.pid)

    def _environment(self, order: StartWorker, mark: str) -> dict[str, str]:
        environment = worker_environment(
            self._setting.node,
            order,
            inherited=os.environ,
            socket_path=self._setting.socket_path,
            interface=self._interface,
            mark=mark,
        )
        return self._saver.prepared(environment)

    def _stop(self, order: StopWorker) -> None:
        key = (order.attempt_id, order.worker_id)
        if key in self._workers:
            self._workers[key].stop(order.grace_s, order.reason)
        elif not self._reports.repeat_down(key):
            # From now on it counts as ended, so that a late order to start it changes nothing.
            self._reports.down(key, "lost", "it never ran under this agent", exit_code=None, signal=None)

    def _inject(self, order: InjectFault) -> None:
        worker = self._workers.get((order.attempt_id, order.worker_id))
        if worker is not None:
            logger.warning("%s of %s, as a drill", order.deed, order.worker_id)
            worker.inject(order.deed)

    def _tell_lost(self, attempt_id: str, lost: tuple[str, ...]) -> None:
        known = self._lost.setdefault(attempt_id, [])
        new = tuple(worker for worker in lost if worker not in known)
        known.extend(new)
        if new:
            line = _TO_WORKER.encode(Lost(lost=new))
            for (attempt, _), worker in self._workers.items():
                if attempt == attempt_id and worker.send_line is not None:
                    worker.send_line(line)

    def worker_said_hello(self, key: WorkerKey, writer: asyncio.StreamWriter) -> bool:
        """Opens the channel to a worker and tells it of the losses that it may have missed."""
        worker = self._workers.get(key)
        if worker is None:
            return False

        def send_line(line: bytes) -> None:
            if not writer.is_closing():
                writer.write(line + b"\n")

        worker.send_line = send_line
        if self._lost.get(key[0]):
            send_line(_TO_WORKER.encode(Lost(lost=tuple(self._lost[key[0]]))))
        return True

    def worker_progressed(self, key: WorkerKey, line: ProgressLine) -> None:
        """Takes the latest progress of a worker."""
        if key in self._workers:
            self._workers[key].members = frozenset(member for member, _ in line.split)
            self._reports.progress(key, line)

    def worker_stalled(self, key: WorkerKey, line: StalledLine) -> None:
        """Takes word of a link that gave no answer; where links flap, once in a while."""
        worker, now_s = self._workers.get(key), time.monotonic()
        if worker is not None and now_s - worker.stalled_at_s >= STALLS_TOLD_EVERY_S:
            worker.stalled_at_s = now_s
            verdict = judge(self._witness.of_stall(line.reason))
            self._reports.stalled(key, verdict.reason, is_transient=verdict.is_transient)

    def lease_ran_out(self) -> None:
        """Kills the workers that may by now be started elsewhere; a member of a group that lives on is expelled there.

        Other nodes fence a worker off only where it is elastic and its group has members that do not run here.
        """
        for worker in tuple(self._workers.values()):
            here = {name for attempt, name in self._workers if attempt == worker.key[0]}
            if worker.send_line is None or worker.members <= here:
                worker.give_up("the controller was silent for longer than the lease")

    def _on_exit(self, worker: Worker) -> None:
        task = asyncio.get_running_loop().create_task(self._end(worker))
        self._endings.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._endings.discard)

    async def _end(self, worker: Worker) -> None:
        exit_code, signal = worker.take_end()
        cause, detail = failure_of(
            exit_code,
            signal,
            stop_reason=worker.stop_reason,
            given_up=worker.given_up,
            kernel_killed_for_memory=self._oom.rose(),
        )
        attempt_id, worker_id = worker.key
        if cause is not None:
            # The shortest way: survivors on this node need no controller to hear of it.
            self._tell_lost(attempt_id, (worker_id,))
        if not await sweep(self._pids(without=worker), worker.mark, worker.pid):
            logger.warning("processes of %s of %s do not die", worker_id, attempt_id)
        worker.drain_log()
        verdict = Verdict(kind="other", reason="", cause=cause)
        if cause is not None and worker.drill == "device_fault":
            verdict = Verdict(kind="device_fault", reason="as a drill", cause="device_fault")
            detail = f"{detail}; {verdict.reason}"
        elif cause is not None:
            verdict = judge(await self._witness.of_end(worker, cause, detail))
            detail = "; ".join(filter(None, (detail, verdict.reason)))
        worker.close_log(detail or describe_end(exit_code, signal))
        del self._workers[worker.key]
        if not self._workers:
            self._idle.set()
        if not any(attempt == attempt_id for attempt, _ in self._workers):
            self._lost.pop(attempt_id, None)
        self._reports.down(
            worker.key,
            verdict.cause,
            detail,
            exit_code=exit_code,
            signal=signal,
            is_transient=verdict.is_transient,
            faulty_devices=verdict.devices,
        )

    def _pids(self, without: Worker | None = None) -> frozenset[int]:
        workers = frozenset(worker.pid for worker in self._workers.values() if worker is not without)
        return workers | self._saver.pids | self._holder.pids | self._children.pids

    async def watch(self) -> None:
        """Looks after frozen workers, memory kills, held-back progress, links and strays, for ever."""
        await self._witness.begin()
        looks, last = 0, time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            # An agent that was itself frozen must not charge that time to its workers.
            since_last_s, last = min(now - last, 2 * LOOK_EVERY_S), now
            for worker in tuple(self._workers.values()):
                worker.look_whether_frozen(since_last_s)
            self._reports.flush_progress()
            self._holder.look()
            looks += 1
            if looks % _LOOKS_PER_OOM_SAMPLE == 0:
                self._oom.sample()
                self._witness.look()
                if not self._workers:
                    kill_unowned(self._pids())

    async def stop_all(self, grace_s: float, reason: str) -> None:
        """Ends every worker and returns when all are gone."""
        for worker in tuple(self._workers.values()):
            worker.stop(grace_s, reason)
        while self._workers:
            self._idle.clear()
            await self._idle.wait()
        await self._saver.stop()
        await self._holder.stop()
        kill_unowned(frozenset())
