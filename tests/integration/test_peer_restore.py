"""A job goes on from the memory of another node after its own is gone: controller, agents, saver, holder."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.train.checkpoint.copies import copies_of
from plait.train.checkpoint.peers import peers_from_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
DEADLINE_S = 120.0
PROGRAM = """
import torch, plait
from torch.utils.data import TensorDataset
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with plait.session(global_batch_size=8) as run:
    model, optimizer, loader = run.prepare(
        model, optimizer, TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), steps=1_000_000
    )
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""
CLUSTER = (
    "apiVersion: v1\nengine: local\nnodes:\n  - {name: fast, accelerator: A100}\n  - {name: slow, accelerator: T4}\n"
)


def until(is_so: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        if found := is_so():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not so after {DEADLINE_S:.0f}s: {what}")


def environment_of(pid: str) -> dict[str, str]:
    try:
        parts = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return {}
    return dict(part.partition("=")[::2] for part in parts if part)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def worker(place: Path) -> tuple[int, dict[str, str]] | None:
    """Returns the process that trains, and its environment."""
    for entry in Path("/proc").iterdir():
        told = environment_of(entry.name) if entry.name.isdigit() else {}
        if told.get("PLAIT_RUN_DIR", "").startswith(str(place)) and "PLAIT_PEERS" in told:
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"-c" in words:
                return int(entry.name), told
    return None


def plait(*words: object) -> list[str]:
    return [sys.executable, "-m", "plait.cli.main", *map(str, words)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    cluster, job, state = tmp_path / "cluster.yaml", tmp_path / "job.yaml", tmp_path / "state"
    cluster.write_text(CLUSTER, encoding="utf-8")
    command = json.dumps([sys.executable, "-c", PROGRAM])
    job.write_text(
        f"apiVersion: v1\nname: one\ntasks:\n  - name: main\n    command: {command}\n"
        "    resources:\n      any_of: [{accelerator: A100}, {accelerator: T4}]\n"
        f"checkpoint:\n  url: {tmp_path}/store\n  interval: 1h\n  peer: {{interval: 200ms}}\n",
        encoding="utf-8",
    )
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    serving = subprocess.Popen(
        plait("serve", "--cluster", cluster, "--state", state, "--die-with", os.getpid()), **silent
    )

    def has_both() -> bool:
        assert serving.poll() is None, "the controller ended"
        answer = subprocess.run(plait("nodes", "--state", state, "--json"), capture_output=True, check=False)
        return not answer.returncode and sum(node["is_connected"] for node in json.loads(answer.stdout)) == 2

    running = None
    try:
        until(has_both, "both nodes have joined")
        running = subprocess.Popen(plait("run", job, "--state", state), **silent)
        yield running
    finally:
        for process in filter(None, (running, serving)):
            process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE_S)


def restored(place: Path) -> dict[str, Any] | None:
    for path in place.glob("state/jobs/*/run/timeline/*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.endswith("}") and (row := json.loads(line))["kind"] == "restored":
                return dict(row)
    return None


def test_a_job_goes_on_from_its_copy_after_its_node_is_gone(tmp_path: Path, run: subprocess.Popen[bytes]) -> None:
    pid, told = until(lambda: worker(tmp_path), "a worker runs")
    peers = peers_from_environment(told)
    assert peers is not None
    assert len(peers.others) == 1
    url = f"{tmp_path}/store"
    kept = until(lambda: [copy for copy in copies_of(peers, url) if copy.step > 0], "another node holds a copy")
    assert kept[0].node != peers.node
    agent = parent_of(pid)
    for victim in (parent_of(agent), agent):
        os.kill(victim, signal.SIGKILL)
    row = until(lambda: restored(tmp_path), "the job goes on")
    assert run.poll() is None
    assert row["step"] >= kept[0].step
    assert row["where"] == f"the copy on {kept[0].node}"
