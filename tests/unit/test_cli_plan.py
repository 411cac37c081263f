"""Plans on an idle cluster, made by the scheduler itself without a controller."""

import json
from pathlib import Path

import pytest

from plait.cli.main import execute
from plait.cli.plan import plan_idle
from plait.schedule.preview import precision_reasons
from plait.spec.cluster import Cluster, EmulatedNode
from plait.spec.job import (
    DevicePrecision,
    DeviceRequest,
    Job,
    PrecisionPlan,
    Resources,
    Task,
    WorkerRange,
)

CLUSTER = Cluster(
    nodes=(
        EmulatedNode(name="fast", accelerator="A100", cpu_quota=1.0),
        EmulatedNode(name="slow", accelerator="T4", cpu_quota=0.25),
    )
)
JOB_FILE = """\
apiVersion: v1
name: j
tasks:
  - name: train
    command: [python, t.py]
    resources: {any_of: [{accelerator: T4}]}
"""
ANY = Resources(any_of=(DeviceRequest(accelerator="A100"), DeviceRequest(accelerator="T4")))


def task(name: str, *needs: str, workers: WorkerRange | None = None, resources: Resources = ANY) -> Task:
    return Task(name=name, command=("true",), needs=needs, workers=workers or WorkerRange(), resources=resources)


def test_an_elastic_task_takes_all_devices() -> None:
    plan = plan_idle(Job(name="j", tasks=(task("train", workers=WorkerRange(min=1, max=4)),)), CLUSTER)
    (planned,) = plan["tasks"]
    assert planned["starts_now"]
    assert {worker["accelerator_type"] for worker in planned["workers"]} == {"A100", "T4"}
    assert planned["reasons"]
    assert plan["preempts"] == []


def test_later_tasks_are_planned_after_those_they_need() -> None:
    job = Job(name="j", tasks=(task("c", "b"), task("b", "a"), task("a")))
    planned = {one["task"]: one for one in plan_idle(job, CLUSTER)["tasks"]}
    assert planned["a"]["starts_now"]
    assert not planned["b"]["starts_now"]
    assert not planned["c"]["starts_now"]
    assert (planned["b"]["after"], planned["c"]["after"]) == (["a"], ["b"])
    assert all(one["workers"] for one in planned.values())


def test_what_cannot_run_waits_with_a_reason_and_so_does_what_needs_it() -> None:
    absent = Resources(any_of=(DeviceRequest(accelerator="MI250"),))
    job = Job(name="j", tasks=(task("a", resources=absent), task("b", "a")))
    first, second = plan_idle(job, CLUSTER)["tasks"]
    assert first["workers"] == []
    assert "MI250" in " ".join(first["reasons"])
    assert second["workers"] == []
    assert "a" in " ".join(second["reasons"])


def test_precision_is_checked_against_the_devices() -> None:
    plan = PrecisionPlan(
        global_precision="bf16", device_specific=(DevicePrecision(accelerator_type="V100", precision="fp16"),)
    )
    job = Job(name="j", tasks=(task("a"),), precision=plan)
    told = precision_reasons(job, {"A100", "V100", "T4", "Mystery"})
    assert told[0] == "computes: A100 in bf16; V100 in fp16; gradients meet in fp32"
    assert told[1].startswith("Mystery is not in the catalogue")
    assert told[2].startswith("T4 does not compute in bf16")


def test_plan_needs_no_controller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, cluster = tmp_path / "job.yaml", tmp_path / "cluster.yaml"
    job.write_text(JOB_FILE, encoding="utf-8")
    cluster.write_text("apiVersion: v1\nengine: local\nnodes:\n  - {name: slow, accelerator: T4}\n", encoding="utf-8")
    assert execute(["plan", str(job), "--cluster", str(cluster)]) == 0
    assert "train: would start now with 1 worker\n" in capsys.readouterr().out
    assert execute(["plan", str(job), "--cluster", str(cluster), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"][0]["workers"][0]["device_ids"] == ["slow/0"]
    assert set(tmp_path.iterdir()) == {job, cluster}


def test_other_engines_need_a_controller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, cluster = tmp_path / "job.yaml", tmp_path / "cluster.yaml"
    job.write_text(JOB_FILE, encoding="utf-8")
    cluster.write_text("apiVersion: v1\nengine: slurm\n", encoding="utf-8")
    assert execute(["plan", str(job), "--cluster", str(cluster)]) == 1
    assert "slurm" in capsys.readouterr().err
