"""Runs the measuring program as a child: one JSON line a task in, one a result out; it may hang or die alone."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from plait.errors import PlaitError
from plait.hardware.probes.plan import Task

PROGRAM = "plait.train.measure"
_START_S = 120.0
_LEAST_TASK_S = 20.0


class MeasuringFailed(PlaitError):
    """The measuring program could not start, hung or died; the message says at which task."""


class MeasuringProgram:
    """The child; use it as a context manager."""

    def __init__(self, command: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> None:
        """Starts it; ``command`` stands in for the usual one."""
        words = list(command or (sys.executable, "-m", PROGRAM))
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ if env is None else env),
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_results, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends the child and all that it started."""
        self.close()

    def devices(self) -> list[dict[str, Any]]:
        """Returns the devices that it can measure: ``name``, ``kind``, ``pci_address``, ``uuid``, ``model``.

        Raises:
            MeasuringFailed: it does not start.
        """
        hello = self._next(_START_S, "starting")
        return list(hello["devices"])

    def run(
        self, tasks: Sequence[Task], *, budget_s: float, on_result: Callable[[Task, dict[str, Any]], None]
    ) -> str | None:
        """Does tasks in order until the time is over.

        Returns:
            Why it stopped early, ``None`` where all was done.

        Raises:
            MeasuringFailed: the child hung or died.
        """
        end = time.monotonic() + budget_s
        for number, task in enumerate(tasks):
            left = end - time.monotonic()
            if left <= 0:
                return f"time was over after {number} of {len(tasks)} measurements"
            self._send(asdict(task))
            on_result(task, self._next(max(left, _LEAST_TASK_S), f"{task.do} {' to '.join(task.devices)}"))
        return None

    def close(self) -> None:
        """Ends the child and all that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join(5.0)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def _send(self, document: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(document) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            raise self._died("taking a task") from None

    def _next(self, seconds: float, doing: str) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise MeasuringFailed(
                    f"the measuring program gave no answer for {seconds:.0f} s while {doing}"
                ) from None
            if line is None:
                raise self._died(doing)
            if line.startswith("{"):  # libraries print to stdout too
                return dict(json.loads(line))

    def _died(self, doing: str) -> MeasuringFailed:
        code = self._process.wait()
        for reader in self._readers:
            reader.join(5.0)  # its last words may still be on their way
        last = next((line for line in reversed(self._errors) if line.strip()), f"exit code {code}")
        return MeasuringFailed(f"the measuring program ended while {doing}: {last.strip()}")

    def _read_results(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)
            del self._errors[:-50]
