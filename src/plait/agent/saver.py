"""The node's saver: it holds the snapshots of the workers and makes them durable, also after a worker has died."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from plait.agent.companion import Companion

SAVER_VARIABLE = "PLAIT_SAVER"
"""Tells a worker the name of its node's saver."""

PATIENCE_S = 4.0
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
        self.name = f"agent-{hashlib.sha256(os.fsencode(state_directory)).hexdigest()[:16]}"
        self._process = Companion("plait.train.checkpoint.saver", "saver", state_directory)

    @property
    def pids(self) -> frozenset[int]:
        """The process that is not a stray, if there is one."""
        return self._process.pids

    def prepared(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns a worker's environment with the saver's name, and starts the saver where it does not run."""
        if not wants_saver(environment):
            return dict(environment)
        if not self.pids:
            self._process.start(["--name", self.name, "--linger-s", str(_LINGER_S)], environment)
        return {**environment, SAVER_VARIABLE: self.name}

    async def stop(self) -> None:
        """Lets the saver end what it is writing, for a few seconds, then ends it."""
        await self._process.stop(PATIENCE_S)
