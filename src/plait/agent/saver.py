"""The node's saver: it holds the snapshots of the workers and makes them durable, also after a worker has died."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from plait.agent.environment import MARK
from plait.agent.processes import die_with_parent

SAVER_VARIABLE = "PLAIT_SAVER"
"""Tells a worker the name of its node's saver."""

PATIENCE_S = 4.0
_LOOK_S = 0.02
_LINGER_S = 3600.0


def wants_saver(environment: Mapping[str, str]) -> bool:
    """Returns whether a worker of this environment belongs to a job that keeps checkpoints."""
    try:
        return json.loads(environment.get("PLAIT_JOB", "{}")).get("checkpoint") is not None
    except (ValueError, AttributeError):
        return False


class NodeSaver:
    """Starts the saver when a worker needs it, and ends it after the last worker."""

    def __init__(self, state_directory: Path) -> None:
        """Starts nothing yet."""
        self._state_directory = state_directory
        self.name = f"agent-{hashlib.sha256(os.fsencode(state_directory)).hexdigest()[:16]}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> frozenset[int]:
        """The process that is not a stray, if there is one."""
        is_alive = self._process is not None and self._process.poll() is None
        return frozenset({self._process.pid}) if is_alive and self._process is not None else frozenset()

    def prepared(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns a worker's environment with the saver's name, and starts the saver where it does not run."""
        if not wants_saver(environment):
            return dict(environment)
        if not self.pids:
            self._start(environment)
        return {**environment, SAVER_VARIABLE: self.name}

    def _start(self, environment: Mapping[str, str]) -> None:
        # Its mark is not that of any worker, so that only an agent that comes after a killed one ends it.
        variables = {**environment, MARK: f"{self._state_directory}:saver"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "plait.train.checkpoint.saver", "--name", self.name, "--linger-s", str(_LINGER_S)],
            env=variables,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # As for workers: the agent has one thread, and the saver must not outlive it.
            preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509
        )

    async def stop(self) -> None:
        """Lets the saver end what it is writing, for a few seconds, then ends it."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        for _ in range(round(PATIENCE_S / _LOOK_S)):
            if process.poll() is not None:
                return
            await asyncio.sleep(_LOOK_S)
        process.kill()
        process.wait()
