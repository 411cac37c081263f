"""Verbs against a controller that keeps what it was asked and answers from fields."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer

from plait.cli import connection
from plait.cli.agent import describe_node
from plait.cli.follow import Follower, exit_code_of_job, follow, last_words
from plait.cli.main import VERBS, execute
from plait.cli.screen import PlainScreen
from plait.controller.client import LogChunk, RequestRefused


def worker(name: str = "w0", device: str = "a100/0", state: str = "running") -> dict[str, Any]:
    return {
        "worker_id": name,
        "rank": int(name[1:]),
        "node": device.partition("/")[0],
        "device_ids": [device],
        "accelerator_type": "A100",
        "state": state,
    }


def task(name: str = "train", **fields: Any) -> dict[str, Any]:
    made = {
        "task": name,
        "state": "running",
        "needs": [],
        "workers": {"min": 1, "max": 4},
        "attempt_id": f"mixed-1/{name}/1",
        "attempts": 1,
        "reason": "",
        "failure": None,
        "exit_code": None,
        "placement": [worker()],
    }
    return made | fields


def job(state: str = "running", **fields: Any) -> dict[str, Any]:
    made = {
        "job_id": "mixed-1",
        "name": "mixed",
        "project": "default",
        "priority": 0,
        "state": state,
        "submitted_at_s": 1000.0,
        "finished_at_s": 1012.0 if state in {"succeeded", "failed", "cancelled"} else None,
        "reason": "",
        "exit_code": None,
        "tasks": [task()],
    }
    return made | fields


def node(name: str = "a100", **fields: Any) -> dict[str, Any]:
    made = {
        "node": name,
        "address": "127.0.0.1",
        "state": "up",
        "is_connected": True,
        "silent_s": 0.1,
        "devices": [
            {
                "device": f"{name}/0",
                "accelerator_type": "A100",
                "memory_bytes": 40 * 2**30,
                "state": "healthy",
                "speed": 1.0,
                "worker": "mixed-1/train/1 w0",
                "reason": "",
                "tested_in_s": None,
            }
        ],
    }
    return made | fields


def progress(step: int = 3, **fields: Any) -> dict[str, Any]:
    made = {
        "attempt_id": "mixed-1/train/1",
        "task": "train",
        "step": step,
        "total_steps": 10,
        "samples_per_s": 90.0,
        "loss": 2.5,
        "generation": "g1",
        "split": {"w0": 8},
        "reason": "",
        "elastic": True,
        "device_speeds_sum": 1.0,
        "device_samples_per_s": 100.0,
        "at_s": 1001.0,
    }
    return made | fields


@dataclass
class FakeClient:
    """Answers ``jobs`` one after another, repeating the last; records every wish."""

    jobs: list[dict[str, Any]] = field(default_factory=lambda: [job()])
    records: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=lambda: [progress()])
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    log: bytes = b"2026-01-01T00:00:01.000000Z out hello\n"
    explanation: dict[str, Any] = field(default_factory=dict)
    planned: dict[str, Any] = field(default_factory=dict)

    def status(self) -> Any:
        about = {
            "pid": 1,
            "started_at_s": 0.0,
            "policy": "fifo_backfill",
            "engine": "local",
            "limitations": [],
            "last_event": 0,
        }
        return {"controller": about, "nodes": [node()], "jobs": [self.jobs[0]]}

    def submit(self, submitted: Any, directory: Path | str) -> Any:
        self.asked.append(("submit", submitted.name, str(directory)))
        return {"job_id": "mixed-1", "is_new": True}

    def job(self, job_id: str) -> Any:
        if job_id != "mixed-1":
            raise RequestRefused(404, f"there is no job {job_id!r}; did you mean 'mixed-1'?")
        return self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0]

    def cancel(self, job_id: str) -> Any:
        self.asked.append(("cancel", job_id))
        return self.job(job_id)

    def resize(self, job_id: str, name: str, fewest: int, most: int) -> Any:
        self.asked.append(("resize", job_id, name, fewest, most))
        return self.job(job_id)

    def inject(self, job_id: str, name: str, worker: str, deed: str) -> Any:
        self.asked.append(("inject", job_id, name, worker, deed))
        return self.job(job_id)

    def nodes(self) -> Any:
        return [node()]

    def drain(self, name: str) -> Any:
        self.asked.append(("drain", name))
        return node(name, state="drained")

    def resume(self, name: str) -> Any:
        self.asked.append(("resume", name))
        return node(name)

    def explain(self, job_id: str) -> Any:
        self.job(job_id)
        return self.explanation

    def progress(self, job_id: str) -> Any:
        self.job(job_id)
        return self.lines

    def plan(self, submitted: Any) -> Any:
        self.asked.append(("plan", submitted.name))
        return self.planned

    def events(self, after: int = 0) -> Any:
        fresh = [record for record in self.records if record["event"]["id"] > after]
        return {"events": fresh, "next": fresh[-1]["event"]["id"] if fresh else after}

    def logs(
        self, job_id: str, *, task: str, worker: str | None = None, attempt: int | None = None, offset: int = 0
    ) -> LogChunk:
        return LogChunk(text=self.log[offset:].decode(), next_offset=len(self.log))


Plait = Callable[..., tuple[int, str, str]]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(connection, "connect", lambda given, patience_s=0.0: fake)
    return fake


@pytest.fixture
def plait(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> Plait:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = execute(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_status_lists_jobs(plait: Plait) -> None:
    code, out, _ = plait("status")
    assert code == 0
    assert "1 of 1 nodes up, 1 of 1 devices at work, policy fifo_backfill" in out
    assert "mixed-1" in out


def test_status_of_a_job_shows_steps_workers_and_split(plait: Plait) -> None:
    _, out, _ = plait("status", "mixed-1")
    assert "3/10" in out
    row = next(line for line in out.splitlines() if "w0" in line)
    assert row.split() == ["train", "w0", "0", "a100/0", "A100", "running", "8"]


def test_the_cause_of_a_failure_is_shown(plait: Plait, client: FakeClient) -> None:
    failure = {"cause": "oom", "detail": "needs 50 GiB"}
    client.jobs = [job("failed", exit_code=75, tasks=[task(state="failed", failure=failure)])]
    _, out, _ = plait("status", "mixed-1")
    assert "exit code 75" in out
    assert "oom: needs 50 GiB" in out


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("cancel", "mixed-1"), ("cancel", "mixed-1")),
        (("drain", "a100"), ("drain", "a100")),
        (("resume", "a100"), ("resume", "a100")),
        (("inject", "mixed-1", "w1", "kill"), ("inject", "mixed-1", "train", "w1", "kill")),
        (("resize", "mixed-1", "--workers", "2:3"), ("resize", "mixed-1", "train", 2, 3)),
        (("resize", "mixed-1", "--workers", "2", "--task", "train"), ("resize", "mixed-1", "train", 2, 2)),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_wishes_reach_the_controller(
    plait: Plait, client: FakeClient, arguments: tuple[str, ...], asked: tuple[Any, ...], form: tuple[str, ...]
) -> None:
    code, out, err = plait(*arguments, *form)
    assert (code, err) == (0, "")
    assert client.asked == [asked]
    assert not form or json.loads(out)


def test_an_unknown_fault_is_a_usage_error(plait: Plait, client: FakeClient) -> None:
    code, _, err = plait("inject", "mixed-1", "w1", "frieze")
    assert code == 2
    assert "did you mean 'freeze'?" in err
    assert not client.asked


@pytest.mark.parametrize("workers", ["0:3", "5:4", "a:b", "4:", "-1"])
def test_a_wrong_range_is_a_usage_error(plait: Plait, workers: str) -> None:
    code, _, err = plait("resize", "mixed-1", f"--workers={workers}")
    assert code == 2
    assert repr(workers) in err


def test_resize_wants_a_task_where_there_are_several(plait: Plait, client: FakeClient) -> None:
    client.jobs = [job(tasks=[task("prepare"), task("train")])]
    code, _, err = plait("resize", "mixed-1", "--workers", "2:3")
    assert code == 2
    assert "--task prepare | train" in err
    code, _, err = plait("resize", "mixed-1", "--workers", "2:3", "--task", "trian")
    assert code == 4
    assert "did you mean 'train'?" in err


def test_an_unknown_job_ends_with_code_4_and_the_nearest_name(plait: Plait) -> None:
    for verb in ("status", "logs", "explain", "cancel"):
        code, out, err = plait(verb, "mixd-1")
        assert (code, out) == (4, "")
        assert err == "plait: there is no job 'mixd-1'; did you mean 'mixed-1'?\n"


def test_errors_are_one_document_with_json(plait: Plait) -> None:
    code, out, err = plait("status", "mixd-1", "--json")
    assert err == ""
    assert code == 4
    document = json.loads(out)
    assert document["exit_code"] == 4
    assert document["error"].startswith("there is no job 'mixd-1'")
    code, out, _ = plait("cancel", "--json")
    assert code == 2
    assert "JOB" in json.loads(out)["error"]


def test_wrong_words_on_the_command_line_get_the_right_ones(plait: Plait) -> None:
    code, _, err = plait("statsu")
    assert code == 2
    assert "status" in err
    assert "\n" not in err.strip()
    code, _, err = plait("status", "--jsno")
    assert code == 2
    assert "--json" in err


def test_no_controller_ends_with_code_3_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["status", "--state", str(tmp_path)]) == 3
    shown = capsys.readouterr().err
    assert str(tmp_path) in shown
    assert "plait serve" in shown


def test_an_agent_describes_its_node() -> None:
    described = json.loads(describe_node("box", "10.0.0.5", "T4:2"))
    assert [device["id"] for device in described["devices"]] == ["box/0", "box/1"]
    assert {device["accelerator_type"] for device in described["devices"]} == {"T4"}
    assert described["address"] == "10.0.0.5"


@pytest.mark.parametrize(("devices", "message"), [("T44", "did you mean 'T4'"), ("T4:0", "A100:2"), ("T4:x", "A100:2")])
def test_wrong_devices_of_an_agent_are_a_usage_error(devices: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        describe_node("box", "127.0.0.1", devices)


def test_explain_prints_every_reason(plait: Plait, client: FakeClient) -> None:
    told = {
        "task": "train",
        "state": "waiting",
        "waiting": "4 workers asked, 2 free",
        "constraint": "gang",
        "constraint_reason": "needs 4 workers at once",
        "starts": "expected to start in 90 s",
        "starts_in_s": 90.0,
        "placement": ["fastest first"],
        "split": "measured",
        "history": ["attempt 1 lost a node"],
    }
    client.explanation = {"job_id": "mixed-1", "state": "waiting", "tasks": [told]}
    _, out, _ = plait("explain", "mixed-1")
    for reason in (
        "4 workers asked, 2 free",
        "gang: needs 4",
        "in 90 s",
        "fastest first",
        "measured",
        "attempt 1 lost a node",
    ):
        assert reason in out


def test_logs_carry_the_worker_and_the_time(plait: Plait) -> None:
    assert plait("logs", "mixed-1") == (0, "w0 00:00:01 | hello\n", "")
    _, out, _ = plait("logs", "mixed-1", "--json")
    assert [(line["worker"], line["text"]) for line in json.loads(out)] == [("w0", "hello")]


def test_logs_follow_to_the_end_of_the_job(plait: Plait, client: FakeClient) -> None:
    client.jobs = [job(), job(), job("succeeded")]
    assert plait("logs", "mixed-1", "-f") == (0, "w0 00:00:01 | hello\n", "")
    assert len(client.jobs) == 1


def test_following_tells_events_and_progress_and_returns_the_end(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.jobs = [job(), job("succeeded", exit_code=0)]
    client.records = [{"event": {"kind": "job_submitted", "id": 7, "job_id": "mixed-1"}, "commands": []}]
    end = follow(Follower(client, "mixed-1", PlainScreen()), lambda: False)
    assert end["state"] == "succeeded"
    assert capsys.readouterr().out.splitlines() == [
        "job mixed-1 is accepted",
        "train: split w0:8",
        "train: step 3/10, 90 samples/s of 100 (90%), loss 2.5, world size 1, split w0:8",
    ]


def test_an_interrupt_cancels_once(client: FakeClient) -> None:
    client.jobs = [job(), job(), job(), job("cancelled")]
    follow(Follower(client, "mixed-1", PlainScreen()), lambda: True)
    assert client.asked == [("cancel", "mixed-1")]


@pytest.mark.parametrize(
    ("state", "exit_code", "was_interrupted", "code"),
    [
        ("succeeded", 0, False, 0),
        ("failed", 75, False, 75),
        ("failed", None, False, 1),
        ("failed", 0, False, 1),
        ("failed", -9, False, 1),
        ("cancelled", None, True, 130),
        ("cancelled", None, False, 1),
    ],
)
def test_run_ends_with_the_jobs_code(state: str, exit_code: int | None, was_interrupted: bool, code: int) -> None:
    assert exit_code_of_job(job(state, exit_code=exit_code), was_interrupted=was_interrupted) == code  # type: ignore[arg-type]


def test_the_log_of_the_worker_that_failed_is_shown(client: FakeClient) -> None:
    workers = [worker("w0", state="running"), worker("w1", "t4/0", state="lost")]
    failed = job("failed", tasks=[task(state="failed", placement=workers)])
    assert last_words(client, failed) == ["the end of the log of train/w1:", "  hello"]  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", [verb.__name__ for _, verb, _ in VERBS])
def test_every_verb_has_help_with_an_example_and_speaks_json(plait: Plait, verb: str) -> None:
    code, out, _ = plait(verb, "--help")
    assert code == 0
    assert f"Example: plait {verb}" in out
    assert "--json" in out


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "plait.cli.main", "schema"], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert ended.stderr == b""
    assert ended.returncode in {0, 1}
