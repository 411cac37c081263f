"""Starts an agent: ``python -m plait.agent`` and ``plait agent``."""

import argparse
import fcntl
import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from plait.agent.guardian import guarded
from plait.errors import PlaitError

LOCK_NAME = "agent.lock"
DEFAULT_LINGER_S = 60.0


def default_state_directory(node_id: str) -> Path:
    """Returns where an agent that was given no state directory keeps its lock and socket."""
    return Path(tempfile.gettempdir()) / f"plait-{os.getuid()}" / f"agent-{node_id}"


def _node_id(node_file: Path) -> str:
    try:
        return str(json.loads(node_file.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlaitError(f"{node_file} does not describe a node: {error!r}") from error


def take_lock(state_directory: Path) -> int:
    """Returns the descriptor of the node's lock; guardian and agent hold it as long as either lives.

    Raises:
        PlaitError: Another agent of this node holds it.
    """
    state_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(state_directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise PlaitError(f"an agent already runs with state directory {state_directory}") from None
    return descriptor


def run(
    controller: str,
    token_file: Path,
    node_file: Path,
    *,
    state_dir: Path | None = None,
    die_with: int | None = None,
    linger_s: float = DEFAULT_LINGER_S,
    frozen_limit_s: float | None = None,
) -> int:
    """Runs the agent of one node under its guardian until it ends; returns the exit code.

    Args:
        controller: ``host:port``; a file ``controller`` in the state directory with a newer address goes before.
        token_file: The file with the bearer token; read again at each connection.
        node_file: JSON of ``plait.hardware.device.Node``.
        state_dir: For the lock, the workers' socket and the controller's address; one for each node.
        die_with: The agent ends, workers first, when the process of this id has gone.
        linger_s: Without workers and without a controller the agent ends after this time.
        frozen_limit_s: A worker stopped by a signal for longer is killed; None takes the job's heartbeat time-out.
    """
    state = (state_dir or default_state_directory(_node_id(node_file))).absolute()
    lock = take_lock(state)

    def agent() -> int:
        # Imported only here: the guardian stays small.
        from plait.agent.life import AgentSetting, live

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        return live(
            AgentSetting(
                controller=controller,
                token_file=token_file.absolute(),
                node_file=node_file.absolute(),
                state_directory=state,
                linger_s=linger_s,
                frozen_limit_s=frozen_limit_s,
            )
        )

    def note_pids(guardian_pid: int, agent_pid: int) -> None:
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"guardian": guardian_pid, "agent": agent_pid}).encode(), 0)

    return guarded(agent, die_with=die_with, pid_file=note_pids)


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the command line and runs the agent."""
    parser = argparse.ArgumentParser(prog="plait agent", description="Runs the workers of this node.")
    parser.add_argument("--controller", required=True, metavar="HOST:PORT")
    parser.add_argument("--token-file", required=True, type=Path)
    parser.add_argument("--node-file", required=True, type=Path, help="JSON that describes this node")
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--die-with", type=int, metavar="PID", help="end when this process has gone")
    parser.add_argument("--linger-s", type=float, default=DEFAULT_LINGER_S, help="seconds without work and controller")
    parser.add_argument("--frozen-limit-s", type=float, help="kill a worker that is stopped for longer")
    options = parser.parse_args(arguments)
    try:
        return run(**vars(options))
    except PlaitError as error:
        sys.stderr.write(f"plait agent: {error}\n")
        return 2
