"""A real controller with real agents, killed and started again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plait.controller.client import Client
from plait.controller.endpoint import read_endpoint
from plait.errors import ControllerUnreachable
from plait.spec.job import Job, Task

DEADLINE_S = 60.0
SERVE = """
import sys
from pathlib import Path
from plait.controller.service import ServeOptions, serve
from plait.errors import PlaitError
from plait.spec.cluster import Cluster
try:
    sys.exit(serve(Cluster(), Path(sys.argv[1]), ServeOptions(ends_agents=True)))
except PlaitError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
WORKER = """
import os, sys, time
from pathlib import Path
with open(sys.argv[1] + "/starts", "a") as book:
    book.write(os.environ["PLAIT_ATTEMPT"] + " " + str(os.getpid()) + "\\n")
while not Path(sys.argv[1] + "/go").exists():
    time.sleep(0.02)
print("went on")
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Controllers:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", SERVE, str(self.state)], stderr=subprocess.PIPE)
        self.processes.append(process)
        return process

    def serves(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None
        try:
            return read_endpoint(self.state).pid == process.pid
        except ControllerUnreachable:
            return False


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    state = tmp_path / "state"
    state.mkdir()
    made = Controllers(state)
    yield made
    if all(process.poll() is not None for process in made.processes):
        last = made.start()  # so that no agent is left, whatever happened
        until(lambda: made.serves(last) or last.poll() is not None)
    for process in made.processes:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=DEADLINE_S)


def processes_with(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_work_goes_on_while_the_controller_is_dead_and_nothing_runs_twice(controllers: Controllers) -> None:
    state = controllers.state
    client = Client(state, patience_s=DEADLINE_S)
    first = controllers.start()
    until(lambda: controllers.serves(first))
    job = Job(name="wait", tasks=(Task(name="train", command=(sys.executable, "-S", "-c", WORKER, str(state))),))
    job_id = client.submit(job, state)["job_id"]
    until((state / "starts").exists)
    first.send_signal(signal.SIGKILL)
    first.wait()
    pid = int((state / "starts").read_text().split()[1])
    os.kill(pid, 0)  # the worker lives on without a controller

    second = controllers.start()
    until(lambda: controllers.serves(second))
    assert read_endpoint(state).pid == second.pid
    assert client.job(job_id)["tasks"][0]["attempts"] == 1
    os.kill(pid, 0)
    second.send_signal(signal.SIGKILL)
    second.wait()
    (state / "go").touch()  # the worker ends while nobody is there to hear of it

    third = controllers.start()
    until(lambda: client.job(job_id)["state"] == "succeeded")
    assert len((state / "starts").read_text().splitlines()) == 1
    assert "went on" in client.logs(job_id, task="train").text

    third.terminate()
    _, error = third.communicate(timeout=DEADLINE_S)
    assert third.returncode == 0, error.decode()
    assert processes_with(str(state)) == []


def test_a_second_controller_refuses_and_the_next_one_takes_the_same_ports(controllers: Controllers) -> None:
    first = controllers.start()
    until(lambda: controllers.serves(first))
    endpoint = read_endpoint(controllers.state)
    second = controllers.start()
    _, error = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 1
    assert f"a controller with pid {first.pid} already runs here".encode() in error
    assert read_endpoint(controllers.state) == endpoint
    first.send_signal(signal.SIGKILL)
    first.wait()
    third = controllers.start()
    until(lambda: controllers.serves(third))
    after = json.loads((controllers.state / "endpoint.json").read_text())
    assert (after["api"], after["agents"]) == (endpoint.api, endpoint.agents)
