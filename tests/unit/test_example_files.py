"""The examples as files: what they name exists, and what they claim about text and model holds."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from plait.monitor.timeline import MembershipRow, MemberStep, StepRow, Timeline
from plait.spec.load import load_cluster, load_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOBS = sorted(EXAMPLES.glob("*/job.yaml"))


def load(path: Path, name: str) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]


@pytest.fixture(scope="module")
def train() -> Iterator[Any]:
    yield from load(EXAMPLES / "mixed" / "train.py", "example_mixed_train")


@pytest.fixture(scope="module")
def demo() -> Iterator[Any]:
    yield from load(EXAMPLES / "mixed" / "demo.py", "example_mixed_demo")


def test_there_are_the_examples_that_the_readme_describes() -> None:
    assert {path.parent.name for path in JOBS} == {"accelerate", "digits", "lightning", "mixed", "torchrun_unchanged"}
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in JOBS:
        assert f"## {path.parent.name}" in readme


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.parent.name)
def test_each_job_is_valid_and_runs_a_script_that_exists(path: Path) -> None:
    job = load_job(path, load_cluster(EXAMPLES / "mixed" / "cluster.yaml"))
    for task in job.tasks:
        assert task.command[0] == "python"
        assert (EXAMPLES.parent / task.command[1]).is_file()
    if job.batching is not None and job.batching.micro_batches is not None:
        assert job.batching.global_batch_size % job.batching.micro_batches == 0


def test_the_emulated_cluster_leaves_room_on_two_cores_and_is_unequal() -> None:
    quotas = [node.cpu_quota or 0.0 for node in load_cluster(EXAMPLES / "mixed" / "cluster.yaml").nodes]
    assert sum(quotas) <= 1.5
    assert max(quotas) >= 3 * min(quotas) > 0


def test_the_demo_loses_the_device_that_the_job_file_names(demo: Any) -> None:
    job = load_job(EXAMPLES / "mixed" / "job.yaml")
    (task,) = job.tasks
    assert dict(task.environment)["PLAIT_FAULTS"].startswith(f"kill {demo.LOST}@")
    assert task.command[-2:] == ("--steps", str(demo.STEPS))
    assert job.batching is not None
    assert job.batching.global_batch_size == demo.GLOBAL_BATCH_SIZE


def library(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_the_corpus_has_one_order_and_never_trains_on_what_is_held_out(train: Any, tmp_path: Path) -> None:
    files = {f"module_{index:02d}.py": f"# {index:02d}\n" for index in range(40)}
    root = library(tmp_path, {**files, "test/test_it.py": "no", "site-packages/other.py": "no", "data.txt": "no"})
    corpus = train.read_corpus(root)
    assert corpus.num_files == 40
    assert bytes(corpus.held_out.tolist()).decode() == "# 00\n# 20\n"
    text = bytes(corpus.training.tolist()).decode()
    assert text == "".join(f"# {index:02d}\n" for index in range(40) if index not in {0, 20})


def test_windows_cover_the_text_and_targets_follow_by_one_byte(train: Any) -> None:
    text = torch.arange(21, dtype=torch.uint8)
    windows = train.Windows(text, 5)
    assert len(windows) == 4
    pairs = [windows[index] for index in range(4)]
    assert torch.cat([window for window, _ in pairs]).tolist() == list(range(20))
    assert torch.cat([following for _, following in pairs]).tolist() == list(range(1, 21))


def test_the_model_never_sees_what_it_predicts(train: Any) -> None:
    torch.manual_seed(0)
    model = train.ByteTransformer(context=8, width=16, layers=2)
    window = torch.randint(256, (1, 8))
    changed = window.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    with torch.no_grad():
        before, after = model(window), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def good_run(demo: Any) -> Timeline:
    part = MemberStep(member="w0", micro_batches=24, samples=96, compute_s=0.1, accelerator_type="A100")
    steps = tuple(
        StepRow(
            at_s=float(index), step=index, loss=5.6 if index < 9 else 2.0, samples=96, step_s=1.0, generation="1",
            members=(part,),
        )
        for index in range(demo.STEPS)
    )  # fmt: skip
    lost = MembershipRow(
        at_s=60.0, step=60, generation="2", members=("w0",), lost=(demo.LOST,), joined=(), reason="closed", gap_s=0.1
    )
    return Timeline(steps=steps, memberships=(lost,), splits=())


def test_the_demo_finds_no_fault_in_a_good_run(demo: Any) -> None:
    assert list(demo.faults_of(good_run(demo))) == []


def test_the_demo_finds_a_missing_step(demo: Any) -> None:
    run = good_run(demo)
    (fault,) = demo.faults_of(replace(run, steps=run.steps[:100] + run.steps[101:]))
    assert "steps without a hole" in fault


def test_the_demo_finds_a_step_of_too_few_samples(demo: Any) -> None:
    run = good_run(demo)
    short = replace(run.steps[100], samples=92)
    (fault,) = demo.faults_of(replace(run, steps=(*run.steps[:100], short, *run.steps[101:])))
    assert "differs in steps [100]" in fault


def test_the_demo_finds_a_loss_that_does_not_fall(demo: Any) -> None:
    run = good_run(demo)
    (fault,) = demo.faults_of(replace(run, steps=tuple(replace(row, loss=5.5) for row in run.steps)))
    assert "from 5.500 to 5.500" in fault


def test_the_demo_finds_a_loss_that_is_no_number(demo: Any) -> None:
    run = good_run(demo)
    assert list(demo.faults_of(replace(run, steps=tuple(replace(row, loss=float("nan")) for row in run.steps))))


def test_the_demo_finds_that_no_device_was_lost(demo: Any) -> None:
    (fault,) = demo.faults_of(replace(good_run(demo), memberships=()))
    assert "was to be lost" in fault


def test_the_demo_finds_that_nothing_went_on_after_the_loss(demo: Any) -> None:
    run = good_run(demo)
    last = replace(run.memberships[0], step=demo.STEPS)
    (fault,) = demo.faults_of(replace(run, memberships=(last,)))
    assert "no step was committed after" in fault
