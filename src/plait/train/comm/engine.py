"""One ordered thread a process that carries out all-reduces while the process does something else.

Tasks are begun in the order in which they were handed in, the same on all members, and several may be on the wire at a
time. The thread waits for nothing but the sockets: what has arrived is added up and sent on at once, whichever task it
belongs to. Nobody has to wait inside a callback, which is how PyTorch's PowerSGD hook hangs over gloo.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from plait.errors import PlaitError
from plait.train.collectives.mesh import Mesh, MeshWork
from plait.train.collectives.plan import Plan, chunks_of, direct, islands, ring
from plait.train.collectives.planned import PlannedSum, Route, StageTimes
from plait.train.comm.meeting import meet
from plait.train.comm.planner import PLAIN, Candidate, Table, plan_of, topology_hash
from plait.train.comm.tuning import Tuning
from plait.train.compression import codec as codec_of
from plait.train.compression.message import MessageLayout, message_layout
from plait.words import did_you_mean

_GOODBYE_S = 10.0
SHAPES = ("direct", "islands", "ring")


class CommBroken(PlaitError):
    """An exchange came to no end: a member is gone, too slow, or the engine was given up."""


Begin = Callable[[Mesh, StageTimes], MeshWork]
"""Starts an exchange; called in the engine's thread."""

End = Callable[[MeshWork], Tensor]
"""Returns the result of an exchange that is over; called in the engine's thread."""


@dataclass(slots=True)
class _Task:
    begin: Begin
    end: End
    future: torch.futures.Future[Tensor]
    since_s: float
    ready: torch.Event | None
    work: MeshWork | None = None


class CommEngine:
    """All-reduces over direct connections between all members of a process group, in a thread of their own.

    Args:
        group: A process group of ``torch.distributed``; ``None``: the default one. All its members make their engine
            at the same time.
        island: The name of this member's island, within which links are fast. Unless given, members at the same
            address are one.
        timeout_s: How long an exchange may take before the engine gives up.

    Attributes:
        rank: This member's rank in the group.
        size: Number of members.
        island_of: For each member, the number of its island.
        names: For each member, the name of its island.
        tuning: What :meth:`tune` left.

    Raises:
        PlaitError: A member could not be reached.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, island: str | None = None, timeout_s: float = 300.0
    ) -> None:
        self.group = group
        mesh, names = meet(group, island, timeout_s)
        self._open(mesh, names, timeout_s)

    def _open(self, mesh: Mesh, names: Sequence[str], timeout_s: float) -> None:
        """Begins to work over connections to all members; ``names`` are those of their islands."""
        self.rank, self.size = mesh.rank, mesh.size
        self.mesh = mesh
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        several = len(numbers) > 1
        self.island_of = tuple(numbers[name] for name in names) if several else tuple(range(self.size))
        self.names = tuple(names)
        self.tuning: Tuning | None = None
        self._timeout_s = timeout_s
        self._times = StageTimes()
        self._queue: deque[_Task] = deque()
        self._running: list[_Task] = []
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_closing = False
        self._broken: CommBroken | None = None
        self._thread = threading.Thread(target=self._work, name="plait-comm", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close() if kind is None else self.abort()

    @property
    def times(self) -> StageTimes:
        """Where the time of all exchanges so far went."""
        return replace(self._times)

    def plan(self, count: int, shape: str | None = None, wire_bytes: int | None = None) -> Plan:
        """Returns the plan of an all-reduce.

        Args:
            count: Number of values.
            shape: ``"direct"``, ``"islands"`` or ``"ring"``; ``None``: islands where some have several members.
            wire_bytes: What the values take on slow links; it decides into how many chunks they are cut.

        Raises:
            PlaitError: There is no such shape.
        """
        has_islands = len(set(self.island_of)) < self.size
        wanted = shape or ("islands" if has_islands else "direct")
        chunks = chunks_of(4 * count if wire_bytes is None else wire_bytes)
        if wanted == "direct":
            return direct(self.size, count, None, chunks)
        if wanted == "islands":
            return islands(self.island_of, count, None, chunks)
        if wanted == "ring":
            order = sorted(range(self.size), key=lambda member: (self.island_of[member], member))
            return ring(tuple(order), count)
        raise PlaitError(f"unknown shape {wanted!r}{did_you_mean(wanted, SHAPES)}")

    def tune(self, codecs: Sequence[str] = (), saved: Path | None = None) -> Table:
        """Measures links, codecs and ways to do an all-reduce, in five to ten seconds; ``"auto"`` goes by it then.

        All members call it at the same time, with nothing else under way.

        Args:
            codecs: What may be used besides exact ways; what they lose has to be acceptable.
            saved: Folder in which rank 0 keeps tables by the hash of who takes part. A table from an earlier run saves
                the trials, if the links are as fast as they were. ``None``: ``comm`` in ``PLAIT_RUN_DIR``, if set.
        """
        from plait.train.comm.probe import measured

        folder = saved or (Path(os.environ["PLAIT_RUN_DIR"]) / "comm" if "PLAIT_RUN_DIR" in os.environ else None)
        path = None if folder is None else folder / f"{topology_hash(self.names, codecs)}.json"
        table = measured(self, codecs, path)
        self.tuning = Tuning(table, self.rank, lambda word: self.all_reduce(word, shape="direct"), path)
        self.tuning.save()
        return table

    def all_reduce(self, tensor: Tensor, codec: str = "fp32", shape: str | None = None) -> torch.futures.Future[Tensor]:
        """Starts to sum a tensor over all members, in place; all members call it in the same order.

        Args:
            tensor: Floating point, of any shape; leave it alone until the future is done.
            codec: What travels between islands; what it loses is lost, for only a training step has somewhere to keep
                it. ``"fp32"``: exact. ``"auto"``: whatever :meth:`tune` found to be fastest.
            shape: As for :meth:`plan`; not with ``"auto"``.

        Returns:
            A future with the tensor, or with :class:`CommBroken`.

        Raises:
            PlaitError: The tensor is not of floating point, or ``"auto"`` comes before :meth:`tune`.
        """
        if not tensor.is_floating_point():
            raise PlaitError(f"all_reduce takes floating-point tensors, and this one is {tensor.dtype}")
        if codec == "auto":
            tuning = self.tuned()
            candidate = tuning.choice(4 * tensor.numel()).candidate
            return self._observed(tensor, candidate, tuning)
        chosen = codec_of(codec)
        layout = message_layout([(tensor.numel(), 1)])
        return self._sum(tensor, Route(self.plan(tensor.numel(), shape, layout.payload_bytes(chosen)), layout, chosen))

    def tuned(self) -> Tuning:
        """Returns what :meth:`tune` left.

        Raises:
            PlaitError: It was not called.
        """
        if self.tuning is None:
            raise PlaitError("codec 'auto' goes by measurements: call tune() on all members first")
        return self.tuning

    def all_reduce_by(self, tensor: Tensor, candidate: Candidate, table: Table) -> torch.futures.Future[Tensor]:
        """Starts to sum a tensor in one particular way; see :meth:`all_reduce`."""
        if candidate.shape == PLAIN:
            return self.plain(tensor)
        layout = message_layout([(tensor.numel(), 1)])
        return self._sum(tensor, self.route(candidate, table, layout))

    def route(self, candidate: Candidate, table: Table, layout: MessageLayout) -> Route:
        """Returns the route of one particular way."""
        chosen = codec_of(candidate.codec)
        plan = plan_of(candidate, table.network, layout.count, chunks_of(layout.payload_bytes(chosen)))
        return Route(plan, layout, chosen)

    def plain(self, tensor: Tensor) -> torch.futures.Future[Tensor]:
        """Starts PyTorch's own all-reduce."""
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        assert work is not None
        reduced: torch.futures.Future[list[Tensor]] = work.get_future()
        return reduced.then(lambda done: done.value()[0])

    def _observed(self, tensor: Tensor, candidate: Candidate, tuning: Tuning) -> torch.futures.Future[Tensor]:
        start_s = time.monotonic()
        size_bytes = 4 * tensor.numel()

        def observe(done: torch.futures.Future[Tensor]) -> Tensor:
            result = done.value()
            tuning.observe(candidate, size_bytes, time.monotonic() - start_s)
            return result

        return self.all_reduce_by(tensor, candidate, tuning.table).then(observe)

    def _sum(self, tensor: Tensor, route: Route) -> torch.futures.Future[Tensor]:
        values = tensor

        def begin(mesh: Mesh, times: StageTimes) -> MeshWork:
            nonlocal values
            values = tensor.detach().to(torch.float32).contiguous().view(-1)
            return mesh.start(lambda key, ranks: PlannedSum(mesh, key, ranks, values, route, times=times))

        def end(_: MeshWork) -> Tensor:
            if values.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(values.view_as(tensor))
            return tensor

        return self.submit(begin, end, tensor.device)

    def submit(self, begin: Begin, end: End, device: torch.device) -> torch.futures.Future[Tensor]:
        """Hands in an exchange; all members hand in the same ones in the same order.

        Args:
            begin: Starts it.
            end: Makes its result.
            device: Where its values lie; what was given to that device before is waited for.
        """
        is_cpu = device.type == "cpu"
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=None if is_cpu else [device])
        ready = None
        if not is_cpu:
            ready = torch.Event(device)
            ready.record()
        with self._lock:
            if self._broken is None and not self._is_closing:
                self._queue.append(_Task(begin, end, future, time.monotonic(), ready))
                os.eventfd_write(self._bell, 1)
                return future
        _fail(future, self._broken or CommBroken("the engine is closed"))
        return future

    def abort(self, reason: str = "the engine was given up") -> None:
        """Ends all exchanges at once, here and at the other members; their futures get :class:`CommBroken`."""
        self._give_up(CommBroken(reason))

    def close(self) -> None:
        """Lets the exchanges that were handed in come to their end, then ends the connections and the thread."""
        with self._lock:
            self._is_closing = True
            if self._thread.is_alive():
                os.eventfd_write(self._bell, 1)
        self._thread.join()

    def _work(self) -> None:
        try:
            while self._go_on():
                pass
            self._wait_for_others()
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait have to know
            self._give_up(CommBroken(f"the exchange failed on member {self.rank}: {error}"), error)
        finally:
            self._give_up(CommBroken("the engine is closed"))
            self._end_all()
            with self._lock:
                os.close(self._bell)
                self._bell = -1

    def _go_on(self) -> bool:
        """Begins the next task if there is one, moves all on, and ends those that are over."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        if self._broken is not None:
            return False
        if self.mesh.broken is not None:
            raise CommBroken(f"the connections of member {self.rank} broke: {self.mesh.broken}")
        with self._lock:
            task = self._queue.popleft() if self._queue else None
            is_more = bool(self._queue)
            if task is None and not self._running and self._is_closing:
                return False
        if task is not None:
            self._begin(task)
        # What all others sent early may be over as soon as it has begun, and nobody would ring for it.
        is_done = any(running.work is not None and running.work.is_over for running in self._running)
        self.mesh.take(0.0 if is_more or is_done else 1.0, self._bell)
        self._end_those_over()
        return True

    def _wait_for_others(self) -> None:
        """Waits until all members have all results: who ends connections before breaks what others still wait for."""
        last = self.mesh.all_reduce(torch.zeros(1))
        until_s = time.monotonic() + _GOODBYE_S
        while self._broken is None and last.error is None and not last.is_over and time.monotonic() < until_s:
            self.mesh.take(1.0)
        while self._broken is None and self.mesh.owes() and time.monotonic() < until_s:
            self.mesh.take(1.0)

    def _begin(self, task: _Task) -> None:
        if task.ready is not None:
            task.ready.synchronize()
        self._running.append(task)
        now_s = time.monotonic()
        self._times.waiting_s += now_s - task.since_s
        task.since_s = now_s
        task.work = task.begin(self.mesh, self._times)

    def _end_those_over(self) -> None:
        for task in list(self._running):
            work = task.work
            assert work is not None
            if work.is_over:
                self._running.remove(task)
                self._times.exchanges += 1
                self._times.wire_s += time.monotonic() - task.since_s
                task.future.set_result(task.end(work))
        if self._running and time.monotonic() - self._running[0].since_s > self._timeout_s:
            first = self._running[0].work
            waits_for = sorted(first.missing()) if first is not None else []
            raise CommBroken(f"an exchange took more than {self._timeout_s:g} s: nothing came from members {waits_for}")

    def _give_up(self, broken: CommBroken, cause: Exception | None = None) -> None:
        with self._lock:
            if self._broken is None:
                self._broken = cause if isinstance(cause, CommBroken) else broken
                self._broken.__cause__ = None if self._broken is cause else cause
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)
        self.mesh.close()

    def _end_all(self) -> None:
        with self._lock:
            left = [*self._running, *self._queue]
            self._running, self._queue = [], deque()
        for task in left:
            assert self._broken is not None
            _fail(task.future, self._broken)


def _fail(future: torch.futures.Future[Tensor], error: CommBroken) -> None:
    future.set_exception(error)  # type: ignore[arg-type]  # annotated as if it took a result
