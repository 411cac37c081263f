"""A controller that ``plait run`` starts for itself and takes down again."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from plait.errors import ControllerUnreachable

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05
LOG_NAME = "serve.log"


class PrivateController:
    """A child process that runs ``plait serve`` on a state directory of its own; ends with the ``with`` block.

    It watches this process (``--die-with``), so it also ends, with its agents and workers, when this one is killed.
    """

    def __init__(self, *, state: Path | None, cluster: Path | None) -> None:
        self.is_temporary = state is None
        self.state = Path(tempfile.mkdtemp(prefix="plait-")) if state is None else state
        self.state.mkdir(parents=True, exist_ok=True)
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self.state / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Returns once ``is_ready`` says so; raises ControllerUnreachable where the child ended or took too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            if self._process is None or self._process.poll() is not None:
                raise ControllerUnreachable(f"the private controller ended while it started: {self._last_words()}")
            if time.monotonic() > deadline:
                raise ControllerUnreachable(
                    f"the private controller was not ready after {START_TIMEOUT_S:.0f}s; see {self.state / LOG_NAME}"
                )
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Asks the controller to end, with its agents, and waits for it; kills it where it does not."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def forget(self) -> None:
        """Removes the state directory where it is a temporary one."""
        if self.is_temporary:
            shutil.rmtree(self.state, ignore_errors=True)

    def _command(self) -> Sequence[str]:
        command = [sys.executable, "-m", "plait.cli.main", "serve", "--state", str(self.state)]
        command += ["--listen", "127.0.0.1:0", "--die-with", str(os.getpid())]
        return command if self._cluster is None else [*command, "--cluster", str(self._cluster)]

    def _last_words(self) -> str:
        lines = (self.state / LOG_NAME).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
