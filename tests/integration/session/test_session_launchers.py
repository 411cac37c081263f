"""A script as users write it, under torchrun: real interpreters that start and end as they do for users."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 90.0
SCRIPT = """
import hashlib
import json
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import plait

torch.manual_seed(len(sys.argv))
source = torch.Generator().manual_seed(1)
x = torch.randn(50, 4, generator=source)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with plait.session(global_batch_size=16, micro_batches=8, heartbeat_timeout_s=10.0) as run:
    model, optimizer, loader = run.prepare(model, optimizer, data, epochs=2)
    for a, b in loader:
        loss = (model(a) - b).square().mean()
        run.record(loss=loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    found = {"member": run.member, "world": run.world, "step": run.step, "hash": hashlib.sha256(weights).hexdigest()}
    with open(sys.argv[1] + "/" + run.member + ".json", "w") as book:
        json.dump(found, book)
"""


def environment() -> dict[str, str]:
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("PLAIT_", "TORCHELASTIC_", "MASTER_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        mine.pop(name, None)
    return {**mine, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a launcher in a process group of its own, so that its workers end with it where it takes too long."""
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


@pytest.mark.slow
def test_torchrun_starts_a_session_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*torchrun, str(script), str(tmp_path)])
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"w{rank}.json").read_text()) for rank in (0, 1))
    assert first["world"] == second["world"] == ["w0", "w1"]
    assert first["step"] == second["step"] == 8
    assert first["hash"] == second["hash"]


@pytest.mark.slow
def test_the_same_script_runs_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run([sys.executable, str(script), str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads((tmp_path / "w0.json").read_text())
    assert (found["world"], found["step"]) == (["w0"], 8)
