"""A process that the agent keeps for all workers of its node, such as the one that holds their snapshots."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from plait.agent.environment import MARK
from plait.agent.processes import die_with_parent

_LOOK_S = 0.02


class Companion:
    """One program, started when it is needed and ended with the agent."""

    def __init__(self, module: str, mark: str, state_directory: Path) -> None:
        """Starts nothing yet; ``mark`` tells an agent that comes after a killed one what this process was."""
        self._module = module
        # Not that of any worker, so that only an agent that comes after a killed one ends it.
        self._mark = f"{state_directory}:{mark}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> frozenset[int]:
        """The process that is not a stray, if there is one."""
        process = self._process
        return frozenset({process.pid}) if process is not None and process.poll() is None else frozenset()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        """Starts the program anew."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, *arguments],
            env={**environment, MARK: self._mark},
            stdin=subprocess.DEVNULL,
            pass_fds=pass_fds,
            start_new_session=True,
            # As for workers: the agent has one thread, and its companions must not outlive it.
            preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509
        )

    async def stop(self, patience_s: float) -> None:
        """Lets the program end what it is doing for so long, then ends it."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        for _ in range(round(patience_s / _LOOK_S)):
            if process.poll() is not None:
                return
            await asyncio.sleep(_LOOK_S)
        process.kill()
        process.wait()
