"""One worker: its process, its log, its end."""

import asyncio
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from plait.agent.logs import Stream, WorkerLog, open_pipe, read_available
from plait.agent.messages import StartWorker
from plait.agent.processes import die_with_parent, read_state, send, send_group
from plait.agent.stopping import StopAction, StopStep, stop_steps
from plait.schedule.domain import Deed

WorkerKey = tuple[str, str]

_MOST_READS_AT_END = 1024


class Worker:
    """A worker's process. It is made by ``start`` and tells ``on_exit`` once, when its process has ended."""

    def __init__(self, order: StartWorker, mark: str, frozen_limit_s: float) -> None:
        self.order = order
        self.mark = mark
        self.frozen_limit_s = frozen_limit_s
        self.key: WorkerKey = (order.attempt_id, order.worker_id)
        self.log = WorkerLog(Path(order.log_directory) / f"{order.worker_id}.log")
        self.send_line: Callable[[bytes], None] | None = None
        """Writes to the worker's channel; None until it has said hello."""
        self.members: frozenset[str] = frozenset()
        """The group as the worker last told it."""
        self.stop_reason: str | None = None
        self.given_up: str | None = None
        """Why the agent killed the worker of its own accord."""
        self.started_at_s = time.monotonic()
        self.stalled_at_s = -math.inf
        """When a stall of it was last told."""
        self.drill: Deed | None = None
        """The fault that was done to it last, as a drill."""
        self.process: subprocess.Popen[bytes] | None = None
        self._pipes: dict[Stream, int] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._kill_at: float | None = None
        self._stopped_for_s = 0.0
        self._has_ended = False

    @property
    def pid(self) -> int:
        """Process id, which is also that of its process group and session."""
        assert self.process is not None
        return self.process.pid

    def start(self, environment: dict[str, str], on_exit: Callable[["Worker"], None]) -> None:
        """Starts the process in a session of its own, bound to the life of this agent.

        Raises:
            OSError: The command or the working directory cannot be used.
        """
        loop = asyncio.get_running_loop()
        out_read, out_write = open_pipe()
        err_read, err_write = open_pipe()
        try:
            self.process = subprocess.Popen(
                self.order.command,
                cwd=self.order.working_directory or None,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                start_new_session=True,
                # The agent has one thread, so code between fork and exec is safe; and the death signal is bound to
                # the thread that forks, which here lives as long as the agent.
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509
            )
        except BaseException:
            os.close(out_read)
            os.close(err_read)
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        self._pipes = {"out": out_read, "err": err_read}
        for stream, end in self._pipes.items():
            loop.add_reader(end, self._read, stream)
        handle = os.pidfd_open(self.process.pid)

        def ended() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            on_exit(self)

        loop.add_reader(handle, ended)

    def _read(self, stream: Stream) -> None:
        data = read_available(self._pipes[stream])
        if data is None:
            self._close_pipe(stream)
        elif data:
            self.log.write(stream, data)

    def _close_pipe(self, stream: Stream) -> None:
        end = self._pipes.pop(stream)
        asyncio.get_running_loop().remove_reader(end)
        os.close(end)

    def take_end(self) -> tuple[int | None, int | None]:
        """Kills what is left of the process group, then reaps; returns (exit code, signal), one of them None."""
        assert self.process is not None
        # Until it is reaped, the dead leader keeps its number, so this group can be nobody else's.
        send_group(self.pid, signal.SIGKILL)
        code = self.process.wait()
        self._has_ended = True
        for timer in self._timers:
            timer.cancel()
        return (code, None) if code >= 0 else (None, -code)

    def drain_log(self) -> None:
        """Takes over what is left in the pipes; a stray that holds a pipe cannot delay this."""
        for stream in tuple(self._pipes):
            for _ in range(_MOST_READS_AT_END):
                data = read_available(self._pipes[stream])
                if not data:
                    break
                self.log.write(stream, data)
            self._close_pipe(stream)

    def close_log(self, note: str) -> None:
        """Takes over what is left in the pipes and closes the log."""
        self.drain_log()
        self.log.note(note)
        self.log.close()

    def stop(self, grace_s: float, reason: str) -> None:
        """Asks the worker to end; a later order with less grace shortens the wait, one with more changes nothing."""
        kill_at = time.monotonic() + grace_s
        if self._has_ended or (self._kill_at is not None and self._kill_at <= kill_at):
            return
        self._kill_at = kill_at
        self.stop_reason = self.stop_reason or reason or "asked to stop"
        for timer in self._timers:
            timer.cancel()
        loop = asyncio.get_running_loop()
        steps = stop_steps(is_elastic=self.send_line is not None, grace_s=grace_s)
        self._timers = [loop.call_later(step.delay_s, self._do, step) for step in steps[1:]]
        self._do(steps[0])

    def _do(self, step: StopStep) -> None:
        actions: dict[StopAction, Callable[[], None]] = {
            "leave": self._leave,
            "terminate": partial(send_group, self.pid, signal.SIGTERM),
            "kill": partial(send_group, self.pid, signal.SIGKILL),
        }
        actions[step.action]()

    def _leave(self) -> None:
        if self.send_line is not None:
            self.send_line(b'{"kind":"leave"}')

    def look_whether_frozen(self, since_last_look_s: float) -> None:
        """Adds up for how long the process has been stopped and kills it beyond the limit."""
        state = None if self._has_ended else read_state(self.pid)
        if state is None or state.state != "T":
            self._stopped_for_s = 0.0
            return
        self._stopped_for_s += since_last_look_s
        if self._stopped_for_s >= self.frozen_limit_s:
            self.give_up(f"frozen for {self._stopped_for_s:.1f} s")

    def inject(self, deed: Deed) -> None:
        """Does a fault to the worker, as a drill."""
        if self._has_ended:
            return
        self.drill = deed
        if deed == "notice":
            send(self.pid, signal.SIGTERM)
        else:
            send_group(self.pid, signal.SIGSTOP if deed == "freeze" else signal.SIGKILL)

    def give_up(self, reason: str) -> None:
        """Kills the worker; it counts as lost."""
        if self.given_up is None and not self._has_ended:
            self.given_up = reason
            send_group(self.pid, signal.SIGKILL)
