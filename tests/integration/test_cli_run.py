"""The command line against a real controller, agents and workers, each test in a state directory of its own."""

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

pytestmark = pytest.mark.slow
DEADLINE_S = 60.0
CLUSTER = """\
apiVersion: v1
engine: local
nodes:
  - {name: fast, accelerator: A100}
  - {name: slow, accelerator: T4}
"""


def job_file(directory: Path, program: str, name: str = "cli", workers: str = "{min: 1, max: 1}") -> Path:
    path = directory / f"{name}.yaml"
    command = json.dumps([sys.executable, "-c", program])
    path.write_text(
        f"apiVersion: v1\nname: {name}\ntasks:\n  - name: main\n    command: {command}\n    workers: {workers}\n"
        "    resources:\n      any_of: [{accelerator: A100}, {accelerator: T4}]\n",
        encoding="utf-8",
    )
    return path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "plait.cli.main", *arguments]


def plait(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=cwd, env=environment()
    )


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PLAIT_STATE"}


def until(is_so: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = is_so()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not so after {DEADLINE_S:.0f}s: {what}")


def processes_of(mark: str) -> list[int]:
    """Returns the processes whose command line or environment mentions ``mark``, apart from this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in text and state != "Z":
            found.append(int(entry.name))
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def controller(tmp_path: Path, cluster: Path, state: Path) -> Iterator[Path]:
    serving = subprocess.Popen(
        command("serve", "--cluster", str(cluster), "--state", str(state), "--die-with", str(os.getpid())),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )

    def is_ready() -> bool:
        assert serving.poll() is None, "the controller ended"
        answer = plait("nodes", "--state", str(state), "--json")
        return answer.returncode == 0 and sum(node["is_connected"] for node in json.loads(answer.stdout)) == 2

    try:
        until(is_ready, "both nodes have joined")
        yield state
    finally:
        serving.terminate()
        serving.wait(DEADLINE_S)
        until(lambda: not processes_of(str(tmp_path)), "nothing of this test runs any more")


@pytest.mark.parametrize(("program", "code"), [("print('hello')", 0), ("raise SystemExit(7)", 7)])
def test_run_ends_with_the_jobs_code_and_leaves_nothing_running(
    tmp_path: Path, cluster: Path, state: Path, program: str, code: int
) -> None:
    ended = plait("run", str(job_file(tmp_path, program)), "--cluster", str(cluster), "--state", str(state))
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "fast/0" in ended.stdout
    assert f"exit code {code}" in ended.stdout.splitlines()[-1]
    assert ended.stderr == ""
    until(lambda: not processes_of(str(tmp_path)), "nothing of this run runs any more")


def test_a_failed_run_shows_the_end_of_the_log(tmp_path: Path, cluster: Path, state: Path) -> None:
    job = job_file(tmp_path, "import sys; print('the last words'); sys.exit(3)")
    ended = plait("run", str(job), "--cluster", str(cluster), "--state", str(state))
    assert ended.returncode == 3
    assert "the last words" in ended.stdout


def test_run_with_json_prints_one_document(tmp_path: Path, cluster: Path, state: Path) -> None:
    job = job_file(tmp_path, "pass")
    ended = plait("run", str(job), "--cluster", str(cluster), "--state", str(state), "--json")
    assert json.loads(ended.stdout)["state"] == "succeeded"


def test_killing_run_ends_its_controller_agents_and_workers(tmp_path: Path, cluster: Path, state: Path) -> None:
    job = job_file(tmp_path, "import time\nwhile True: time.sleep(1)")
    with subprocess.Popen(
        command("run", str(job), "--cluster", str(cluster), "--state", str(state)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
    ) as running:
        until(lambda: _is_running(state), "the job runs")
        running.kill()
        # Not yet waited for: a process that has ended counts as ended even while it is a zombie.
        until(lambda: not _others(tmp_path, running.pid), "nothing of this run runs any more")
    until(lambda: not processes_of(str(tmp_path)), "nothing of this run runs any more")


def test_an_interrupt_cancels_the_job(tmp_path: Path, cluster: Path, state: Path) -> None:
    job = job_file(tmp_path, "import time\nwhile True: time.sleep(1)")
    with subprocess.Popen(
        command("run", str(job), "--cluster", str(cluster), "--state", str(state)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as running:
        until(lambda: _is_running(state), "the job runs")
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 130, out
    assert "cancelled" in out.splitlines()[-1]
    until(lambda: not processes_of(str(tmp_path)), "nothing of this run runs any more")


def test_verbs_against_a_running_controller(tmp_path: Path, controller: Path) -> None:
    where = ("--state", str(controller))
    job = job_file(tmp_path, "import time\nprint('at work', flush=True)\nwhile True: time.sleep(1)")
    planned = plait("plan", str(job), *where)
    assert "would start now" in planned.stdout, planned.stderr
    job_id = plait("submit", str(job), *where).stdout.strip()
    assert job_id == "cli-1"
    until(lambda: _is_running(controller, job_id), "the job runs")
    until(lambda: "at work" in plait("logs", job_id, *where).stdout, "the worker's log is there")
    assert job_id in plait("status", *where).stdout
    assert "main" in plait("explain", job_id, *where).stdout
    mistyped = plait("status", "cli-2", *where)
    assert (mistyped.returncode, mistyped.stdout) == (4, "")
    assert "did you mean 'cli-1'?" in mistyped.stderr
    assert plait("drain", "slwo", *where).returncode == 4
    drained = plait("drain", "slow", *where)
    assert "drained" in drained.stdout
    assert plait("resume", "slow", *where).stdout.startswith("slow: up")
    assert plait("resize", job_id, "--workers", "1:2", *where).returncode == 0
    assert plait("cancel", job_id, *where).returncode == 0
    until(lambda: _state_of(controller, job_id) == "cancelled", "the job is cancelled")


def test_logs_follow_a_job_to_its_end(tmp_path: Path, controller: Path) -> None:
    where = ("--state", str(controller))
    program = "import time\nfor line in range(5): print('line', line, flush=True); time.sleep(0.1)"
    job_id = plait("submit", str(job_file(tmp_path, program)), *where).stdout.strip()
    followed = plait("logs", job_id, "--follow", *where)
    lines = [line.partition(" | ")[2] for line in followed.stdout.splitlines()]
    assert [line for line in lines if line.startswith("line")] == [f"line {number}" for number in range(5)]


def _others(directory: Path, pid: int) -> list[int]:
    return [other for other in processes_of(str(directory)) if other != pid]


def _is_running(state: Path, job_id: str = "cli-1") -> bool:
    answer = plait("status", job_id, "--state", str(state), "--json")
    if answer.returncode != 0:
        return False
    return any(
        worker["state"] == "running" for task in json.loads(answer.stdout)["tasks"] for worker in task["placement"]
    )


def _state_of(state: Path, job_id: str) -> str:
    return str(json.loads(plait("status", job_id, "--state", str(state), "--json").stdout)["state"])


NOTICED = """\
import os, signal, torch, plait

model, data = torch.nn.Linear(4, 1), torch.utils.data.TensorDataset(torch.randn(512, 4), torch.randn(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with plait.session(global_batch_size=8, micro_batches=4) as run:
    run.save_every(1000.0, os.environ["PLACE"])
    model, optimizer, loader = run.prepare(model, optimizer, data, steps=40)
    for number, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        if number == 10 and not os.path.exists(os.environ["PLACE"] + ".told"):
            open(os.environ["PLACE"] + ".told", "w").close()
            os.kill(os.getpid(), signal.SIGTERM)
"""


def test_one_that_is_told_to_end_from_outside_has_not_finished_and_starts_again(
    tmp_path: Path, cluster: Path, state: Path
) -> None:
    job = job_file(tmp_path, f"import os\nos.environ['PLACE'] = {str(tmp_path / 'saved')!r}\n{NOTICED}")
    ended = plait("run", str(job), "--cluster", str(cluster), "--state", str(state))
    assert ended.returncode == 0, ended.stderr
    assert "was told to end (SIGTERM), and left in order" in ended.stdout + ended.stderr
    timelines = [path.read_text(encoding="utf-8") for path in state.glob("jobs/*/run/timeline/*.jsonl")]
    rows = [json.loads(line) for timeline in timelines for line in timeline.splitlines()]
    (restored,) = [row for row in rows if row["kind"] == "restored"]
    assert 0 < restored["step"] < 40
