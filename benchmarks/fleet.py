"""Starts, steers and surely ends the processes of a benchmark."""

import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from report import BenchmarkFailed

HERE = Path(__file__).resolve().parent
WORKERS = HERE / "workers"
TORCH_MODULES = ("torch", "torch.nn.parallel", "torch._dynamo")
"""What a worker would import anyway; the last one comes with the first optimizer and takes as long as torch itself."""

QUIET_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def python_path() -> str:
    """Returns the module path of workers: this directory before the caller's own."""
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


@dataclass
class Worker:
    """One worker process: ``exited_at_s`` and ``stopped_at_s`` are monotonic seconds, None while it runs."""

    name: str
    log: Path
    pid: int = 0
    exit_code: int | None = None
    exited_at_s: float | None = None
    stopped_at_s: float | None = None
    started: threading.Event = field(default_factory=threading.Event)
    exited: threading.Event = field(default_factory=threading.Event)

    def log_tail(self, lines: int = 40) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@contextmanager
def clean_end() -> Iterator[Path]:
    """Turns SIGTERM into an ordinary exit, so that every ``with`` block ends, and lends a scratch directory."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, stop)
    directory = Path(tempfile.mkdtemp(prefix="plaitbench"))
    try:
        yield directory
    finally:
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(directory, ignore_errors=True)


class Nursery:
    """A process with the heavy modules imported, from which workers are forked (see ``workers/nursery.py``)."""

    def __init__(self, preload: Sequence[str], python: str = sys.executable) -> None:
        self._workers: dict[int, Worker] = {}
        self._by_name: dict[str, Worker] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._is_over = False
        self._process = subprocess.Popen(
            [python, str(WORKERS / "nursery.py"), *preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **QUIET_THREADS, "PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore"},
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_until_ready(self, timeout_s: float = 120.0) -> None:
        if not self._ready.wait(timeout_s) or self._is_over:
            raise BenchmarkFailed("the nursery did not start; what it printed is above")

    def spawn(
        self, name: str, script: str, environment: Mapping[str, str], log: Path, namespace: str | None = None
    ) -> Worker:
        """Forks a worker that runs ``workers/<script>``; returns when it has a process id."""
        self.wait_until_ready()
        worker = Worker(name, log)
        with self._lock:
            self._by_name[name] = worker
        order = {
            "name": name,
            "script": str(WORKERS / script),
            "environment": {**QUIET_THREADS, **environment},
            "log": str(log),
            "namespace": namespace,
        }
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(order) + "\n").encode())
        self._process.stdin.flush()
        if not worker.started.wait(30.0):
            raise BenchmarkFailed(f"worker {name} was not started")
        return worker

    def end(self, workers: Sequence[Worker]) -> None:
        """Kills the sessions of ``workers``, also where they are stopped, and waits for their end."""
        for worker in workers:
            signal_session(worker, signal.SIGKILL)
        for worker in workers:
            if worker.pid and not worker.exited.wait(20.0):
                raise BenchmarkFailed(f"worker {worker.name} (process {worker.pid}) survives SIGKILL")

    def close(self) -> None:
        with self._lock:
            running = [worker for worker in self._workers.values() if not worker.exited.is_set()]
        for worker in running:
            signal_session(worker, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # an imported library printed something
            with self._lock:
                self._note(message)
        self._is_over = True
        self._ready.set()

    def _note(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "ready":
            self._ready.set()
        elif event == "started":
            worker = self._by_name[message["name"]]
            worker.pid = message["pid"]
            self._workers[worker.pid] = worker
            worker.started.set()
        elif event == "stopped":
            self._workers[message["pid"]].stopped_at_s = message["at_s"]
        else:
            worker = self._workers[message["pid"]]
            worker.exit_code, worker.exited_at_s = message["code"], message["at_s"]
            worker.exited.set()


def signal_session(worker: Worker, number: signal.Signals) -> None:
    """Sends a signal to a worker and to all it started."""
    if worker.pid and not worker.exited.is_set():
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, number)


def signal_worker(worker: Worker, number: signal.Signals) -> None:
    """Sends a signal to the worker's own process alone."""
    if worker.pid and not worker.exited.is_set():
        with suppress(ProcessLookupError):
            os.kill(worker.pid, number)


class Ports:
    """Hands out pairs of free neighbouring ports, below the range from which kernels choose; none twice."""

    def __init__(self) -> None:
        self._random = random.Random(os.getpid())
        self._given: set[int] = set()

    def pair(self) -> int:
        for _ in range(1000):
            port = self._random.randrange(20000, 31000, 2)
            if port not in self._given and _free(port) and _free(port + 1):
                self._given.add(port)
                return port
        raise BenchmarkFailed("no two neighbouring free ports between 20000 and 31000")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class Control:
    """A line of JSON to each worker and back, over a socket in the file system (it crosses network namespaces)."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.sock"
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self._server.listen(64)
        self._lines: dict[str, socket.socket] = {}
        self._buffers: dict[str, list[bytes]] = {}
        self._rests: dict[str, bytes] = {}

    def accept(self, names: Sequence[str], watched: Sequence[Worker], timeout_s: float = 90.0) -> None:
        """Waits until all ``names`` have said hello; fails at once when one of ``watched`` ends before."""
        deadline_s = time.monotonic() + timeout_s
        self._server.settimeout(0.2)
        while set(names) - set(self._lines):
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                fail_if_ended(watched)
                if time.monotonic() > deadline_s:
                    missing = sorted(set(names) - set(self._lines))
                    log = watched[0].log_tail() if watched else ""
                    raise BenchmarkFailed(f"no hello from {missing}\n{log}") from None
                continue
            connection.setblocking(True)
            data = b""
            while not data.endswith(b"\n"):
                byte = connection.recv(1)
                if not byte:
                    break
                data += byte
            name = json.loads(data)["name"]
            self._lines[name], self._buffers[name], self._rests[name] = connection, [], b""

    def tell(self, orders: Mapping[str, Mapping[str, object]]) -> None:
        """Sends each named worker its order; one that is gone gets none."""
        for name, order in orders.items():
            with suppress(OSError):
                self._lines[name].sendall((json.dumps(order) + "\n").encode())

    def hear(self, name: str, watched: Sequence[Worker], timeout_s: float = 120.0) -> dict[str, Any]:
        """Returns the next line of one worker; fails when any of ``watched`` ends before it comes."""
        deadline_s = time.monotonic() + timeout_s
        while not self._poll(name):
            fail_if_ended(watched)
            if time.monotonic() > deadline_s:
                raise BenchmarkFailed(f"worker {name} does not answer\n{tails(watched)}")
        line = self._buffers[name].pop(0)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(
        self, orders: Mapping[str, Mapping[str, object]], watched: Sequence[Worker], timeout_s: float = 120.0
    ) -> dict[str, dict[str, Any]]:
        """Sends each named worker its order, at the same moment, and returns their answers."""
        self.tell(orders)
        return {name: self.hear(name, watched, timeout_s) for name in orders}

    def _poll(self, name: str, wait_s: float = 0.2) -> bool:
        """Reads what has come from one worker; returns whether a whole line is there."""
        if self._buffers[name]:
            return True
        ready, _, _ = select.select([self._lines[name]], [], [], wait_s)
        if not ready:
            return False
        data = self._lines[name].recv(1 << 16)
        if not data:
            time.sleep(wait_s)  # its end is reported by the nursery a moment later
            return False
        *whole, rest = (self._rests[name] + data).split(b"\n")
        self._buffers[name].extend(whole)
        self._rests[name] = rest
        return bool(self._buffers[name])

    def close(self) -> None:
        for connection in self._lines.values():
            connection.close()
        self._server.close()


def tails(workers: Sequence[Worker]) -> str:
    """Returns the end of each worker's log, with the stacks of those that still run."""
    for worker in workers:
        signal_worker(worker, signal.SIGUSR1)
    time.sleep(0.3)
    return "\n".join(f"--- {worker.name}\n{worker.log_tail()}" for worker in workers)


def fail_if_ended(workers: Sequence[Worker]) -> None:
    ended = [worker for worker in workers if worker.exited.is_set()]
    if ended:
        raise BenchmarkFailed(f"worker {ended[0].name} ended with {ended[0].exit_code}\n{ended[0].log_tail()}")


def wait_for(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.01) -> bool:
    """Returns whether ``condition`` came true within ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(poll_s)
    return True


def plait_environment(
    member: str, listen: str, seeds: Mapping[str, str], run_directory: Path, joins: bool = False
) -> dict[str, str]:
    """Returns the environment from which ``plait.session`` of one worker finds its group."""
    environment = {
        "PLAIT_MEMBER": member,
        "PLAIT_LISTEN": listen,
        "PLAIT_SEEDS": ",".join(f"{name}@{address}" for name, address in seeds.items()),
        "PLAIT_RUN_DIR": str(run_directory),
        "RANK": member.removeprefix("w"),
        "WORLD_SIZE": str(len(seeds)),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if joins:
        environment["PLAIT_JOIN"] = "1"
    return environment
