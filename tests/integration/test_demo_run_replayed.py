"""A run as ``make demo`` does it, only shorter: the simulator plays its journal again, event by event."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from plait.cli.main import execute
from plait.schedule.policies import policy
from plait.sim.recorded import read_records, reproduce

ROOT = Path(__file__).resolve().parents[2]
MIXED = ROOT / "examples" / "mixed"
STEPS, LOST_AT = 60, 10
SMALL = ("--width", "32", "--layers", "1", "--context", "32")


def short_job(folder: Path) -> Path:
    """Writes the demo's job with fewer steps of a smaller model; w1 is lost on the way, and its device taken back."""
    job = yaml.safe_load((MIXED / "job.yaml").read_text(encoding="utf-8"))
    (task,) = job["tasks"]
    assert task["env"] == {"PLAIT_FAULTS": "kill w1@60"}
    assert task["command"][-2:] == ["--steps", "200"]
    task["command"] = [*task["command"][:-1], str(STEPS), *SMALL]
    task["env"] = {"PLAIT_FAULTS": f"kill w1@{LOST_AT}"}
    job["checkpoint"]["url"] = str(folder / "checkpoint")
    job["failure"]["heartbeat"]["timeout"] = "20s"  # a machine that is busy with other tests is no fault
    written = folder / "job.yaml"
    written.write_text(yaml.safe_dump(job), encoding="utf-8")
    return written


def run_recorded(folder: Path) -> Path:
    """Runs the job with a controller and agents of its own; returns their state directory."""
    state = folder / "state"
    command = [sys.executable, "-m", "plait.cli.main", "run", str(short_job(folder))]
    command += ["--cluster", str(MIXED / "cluster.yaml"), "--state", str(state)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAIT_")}
    with subprocess.Popen(
        command, cwd=ROOT, env={**environment, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            told, _ = process.communicate(timeout=400)
        except subprocess.TimeoutExpired:
            process.terminate()  # it takes its controller, agents and workers down with it
            raise
    assert process.returncode == 0, told
    return state


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_the_demo_played_again_has_the_same_events_in_the_same_order(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = run_recorded(tmp_path)
    records = read_records(state)
    kinds = [record.event.kind for record in records]
    assert kinds.count("node_joined") == 4
    assert kinds.count("worker_exited") >= 4, "the one that was lost, and those that were done"
    assert "step_reported" in kinds
    assert [command.kind for record in records for command in record.commands].count("resize_task") >= 1

    answer = reproduce(records)
    assert answer.differences == ()
    assert answer.num_events == len(records)
    assert execute(["simulate", str(state)]) == 0
    assert "the simulation has the same in the same order" in capfd.readouterr().out

    assert reproduce(records, policy("fifo")).differences, "another scheduler is told apart"
