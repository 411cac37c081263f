"""A member of a group that a real agent runs, under a controller of a few lines, so that the agent can be killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fleet import QUIET_THREADS, WORKERS, Worker, python_path, wait_for
from plait.agent.messages import Acknowledge, FromAgent, Register, StartWorker, ToAgent, Welcome, WorkerDown, WorkerUp
from plait.hardware.device import Device, Node
from plait.wire import Codec
from report import BenchmarkFailed

_FROM_AGENT: Codec[FromAgent] = Codec(FromAgent)
_TO_AGENT: Codec[ToAgent] = Codec(ToAgent)
ATTEMPT, NODE = "bench/train/0", "n0"


class AgentMember:
    """An agent with one worker. ``worker`` is the worker's process; it has ended once agent and worker have."""

    def __init__(self, name: str, script: str, environment: Mapping[str, str], directory: Path) -> None:
        self.worker = Worker(name, directory / "logs" / f"{name}.log")
        variables = {
            **QUIET_THREADS,
            **environment,
            "PYTHONPATH": python_path(),
            "PLAIT_ATTEMPT": ATTEMPT,
            "PLAIT_SECRET": "plait",
        }
        self._order = StartWorker(
            attempt_id=ATTEMPT,
            worker_id=name,
            rank=0,
            command=(sys.executable, str(WORKERS / script)),
            working_directory=str(directory),
            environment=tuple(variables.items()),
            device_ids=(f"{NODE}/0",),
            log_directory=str(directory / "logs"),
        )
        self._state = directory / "agent"
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        node = Node(
            id=NODE,
            address="127.0.0.1",
            devices=(Device(id=f"{NODE}/0", node=NODE, index=0, accelerator_type="CPU"),),
        )
        (directory / "node.json").write_bytes(Codec[Node](Node).encode(node))
        (directory / "token").write_text("bench\n", encoding="utf-8")
        command = [
            *(sys.executable, "-m", "plait.agent", "--state-dir", str(self._state)),
            *("--controller", f"127.0.0.1:{self._server.getsockname()[1]}"),
            *("--token-file", str(directory / "token"), "--node-file", str(directory / "node.json")),
        ]
        with (directory / "agent.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        threading.Thread(target=self._watch, daemon=True).start()
        if not wait_for(lambda: bool(self.worker.pid), 30.0):
            self.end()
            said = (directory / "agent.log").read_text(encoding="utf-8")
            raise BenchmarkFailed(f"the agent started no worker\n{said[-2000:]}")

    def kill_agent(self) -> None:
        """Kills the agent's own process; its guardian and its worker are left to end by themselves."""
        pid = int(json.loads((self._state / "agent.lock").read_text(encoding="utf-8"))["agent"])
        os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Ends everything that is left."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._server.close()

    def _watch(self) -> None:
        """Notes the end: that which the worker's agent told, or that of all, where the agent could tell nothing."""
        self._process.wait()
        wait_for(lambda: not Path(f"/proc/{self.worker.pid}").exists(), 10.0)
        self._ended(-signal.SIGKILL)

    def _ended(self, code: int | None) -> None:
        if not self.worker.exited.is_set():
            self.worker.exit_code, self.worker.exited_at_s = code, time.monotonic()
            self.worker.exited.set()

    def _serve(self) -> None:
        with suppress(OSError, ValueError):
            while True:
                connection, _ = self._server.accept()
                with connection, connection.makefile("rb") as lines:
                    for line in lines:
                        self._hear(connection, _FROM_AGENT.decode(line))

    def _hear(self, connection: socket.socket, message: FromAgent) -> None:
        def say(order: ToAgent) -> None:
            connection.sendall(_TO_AGENT.encode(order) + b"\n")

        match message:
            case Register():
                say(Welcome(heartbeat_interval_s=0.5))
                say(self._order)
            case WorkerUp():
                self.worker.pid = message.pid
                self.worker.started.set()
                say(Acknowledge(number=message.number))
            case WorkerDown():
                say(Acknowledge(number=message.number))
                self._ended(-message.signal if message.signal else message.exit_code)
            case _:
                pass
