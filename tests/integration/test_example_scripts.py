"""The examples as programs: alone, as two processes in torchrun's environment, and as a job of Plait."""

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from plait.monitor.timeline import read_timeline

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100


def environment(**more: str) -> dict[str, str]:
    """The environment without variables of a job that may surround the tests; one thread a process."""
    ours = ("PLAIT_", "TORCHELASTIC_", "GLOO_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(name, None)
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def run_alone(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_as_two(script: str) -> str:
    """Runs two ranks as two nodes of one device each, as Plait places them, and returns what rank 0 printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, script],
            cwd=ROOT,
            env=environment(
                RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="1",
                GROUP_RANK=str(rank),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                TORCHELASTIC_RESTART_COUNT="0",
                TORCHELASTIC_RUN_ID="example",
                GLOO_SOCKET_IFNAME="lo",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        told = [process.communicate(timeout=TIMEOUT_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0, 0], told[0][1] + told[1][1]
    return told[0][0]


def loss_in(text: str) -> float:
    found = re.search(r"2 ranks, loss ([0-9.]+) after", text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.slow
def test_an_unchanged_torchrun_script_trains_on_two_ranks() -> None:
    assert loss_in(run_as_two("examples/torchrun_unchanged/train.py")) < 0.05


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("lightning") is None, reason="lightning is not installed: pip install 'plait[frameworks]'"
)
def test_a_lightning_trainer_trains_on_two_ranks() -> None:
    assert loss_in(run_as_two("examples/lightning/train.py")) < 0.05


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate is not installed: pip install 'plait[frameworks]'"
)
def test_an_accelerate_loop_trains_on_two_ranks() -> None:
    assert loss_in(run_as_two("examples/accelerate/train.py")) < 0.05


@pytest.mark.slow
def test_the_digits_are_learnt_by_one_process_alone() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'plait[dev]'")
    text = run_alone("examples/digits/train.py")
    found = re.search(r"120 steps, ([0-9.]+)% of the test digits right", text)
    assert found is not None, text
    assert float(found[1]) >= 95


@pytest.mark.slow
def test_the_language_model_learns_alone() -> None:
    text = run_alone("examples/mixed/train.py", "--steps", "30", "--width", "32", "--layers", "1", "--context", "32")
    losses = [float(loss) for loss in re.findall(r"held-out loss .*: ([0-9.]+) nats", text)]
    assert len(losses) == 2, text
    assert losses[1] < losses[0] - 1.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_digits_are_learnt_by_a_job_on_unequal_devices(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'plait[dev]'")
    command = [sys.executable, "-m", "plait.cli.main", "run", "examples/digits/job.yaml"]
    command += ["--cluster", "examples/mixed/cluster.yaml", "--state", str(tmp_path / "state")]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            told, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.terminate()  # it takes its controller, agents and workers down with it
            raise
    assert process.returncode == 0, told
    (run_dir,) = (tmp_path / "state" / "jobs").glob("*/run")
    steps = read_timeline(run_dir).steps
    assert [row.samples for row in steps] == [100] * 120
    assert {part.accelerator_type for row in steps for part in row.members} == {"A100", "V100"}
    logs = "".join(log.read_text(encoding="utf-8") for log in (tmp_path / "state" / "jobs").rglob("w*.log"))
    found = re.search(r"120 steps, ([0-9.]+)% of the test digits right", logs)
    assert found is not None, logs
    assert float(found[1]) >= 95
