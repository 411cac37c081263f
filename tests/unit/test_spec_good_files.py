import subprocess
import sys
from pathlib import Path

import pytest

from plait.errors import SpecError
from plait.spec.cluster import Cluster, EmulatedNode, PolicyChoice, PriceWindow, Project
from plait.spec.job import (
    Batching,
    CacheTier,
    Checkpoint,
    Communication,
    DataSpec,
    DevicePrecision,
    DeviceRequest,
    FailureRules,
    Job,
    LocalTier,
    PrecisionPlan,
    Resources,
    Task,
    WorkerRange,
)
from plait.spec.load import load_cluster, load_job, parse_cluster, parse_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GIB = 2**30

SMALL = "apiVersion: v1\nname: j\ntasks: [{name: t, command: [python, t.py]}]\n"
SMALL_JOB = Job(name="j", tasks=(Task(name="t", command=("python", "t.py")),))


def test_the_complete_job_example() -> None:
    assert load_job(EXAMPLES / "job.yaml", load_cluster(EXAMPLES / "cluster.yaml")) == Job(
        name="resnet50-mixed",
        project="vision",
        priority=0,
        tasks=(
            Task(
                name="preprocess",
                command=("python", "preprocess.py"),
                resources=Resources(any_of=(DeviceRequest(accelerator="T4", count=2),)),
                run_during="day",
            ),
            Task(
                name="train",
                needs=("preprocess",),
                command=("python", "train.py", "--epochs", "90"),
                environment=(("OMP_NUM_THREADS", "4"),),
                working_directory="training",
                workers=WorkerRange(min=4, max=12),
                resources=Resources(
                    any_of=(
                        DeviceRequest(accelerator="A100", memory_bytes=40 * GIB),
                        DeviceRequest(accelerator="V100", memory_bytes=16 * GIB),
                        DeviceRequest(accelerator="MI250"),
                        DeviceRequest(accelerator="Ascend910B"),
                    ),
                    mix=True,
                ),
                run_during="night",
            ),
        ),
        precision=PrecisionPlan(
            global_precision="fp32",
            device_specific=(
                DevicePrecision(accelerator_type="A100", precision="tf32", custom_ops=("flash_attention",)),
                DevicePrecision(accelerator_type="V100", precision="fp16"),
                DevicePrecision(accelerator_type="Ascend910B", precision="fp16"),
            ),
            reduce="fp32",
        ),
        communication=Communication(
            compression="onebit_adam", warmup_steps=1000, overlap=True, bucket_bytes=25 * 2**20, timeout_s=60.0
        ),
        batching=Batching(global_batch_size=1024, micro_batches=64, split="by_throughput"),
        checkpoint=Checkpoint(
            url="s3://checkpoints/resnet50",
            interval_s=300.0,
            asynchronous=True,
            keep=3,
            local=LocalTier(path="/var/cache/plait", interval_s=60.0, keep=2),
            peer_interval_s=30.0,
        ),
        failure=FailureRules(max_restarts=10, heartbeat_interval_s=1.0, heartbeat_timeout_s=5.0),
        data=DataSpec(
            source="s3://datasets/imagenet",
            cache=(
                CacheTier(tier="device", size_bytes=2 * GIB),
                CacheTier(tier="nvme", path="/var/cache/train", size_bytes=500 * GIB),
                CacheTier(tier="shared", path="/mnt/lustre/cache"),
            ),
            predictor="lstm",
            depth=64,
            workers="auto",
        ),
    )


def test_the_complete_cluster_example() -> None:
    assert load_cluster(EXAMPLES / "cluster.yaml") == Cluster(
        engine="local",
        nodes=(
            EmulatedNode(
                name="fast",
                accelerator="A100",
                slots=2,
                cpu_quota=1.0,
                uplink_bytes_per_s=1.25e9,
                downlink_bytes_per_s=1.25e9,
            ),
            EmulatedNode(
                name="older",
                accelerator="V100",
                cpu_quota=0.5,
                uplink_bytes_per_s=125e6,
                downlink_bytes_per_s=125e6,
            ),
            EmulatedNode(
                name="small",
                accelerator="T4",
                cpu_quota=0.25,
                uplink_bytes_per_s=12.5e6,
                downlink_bytes_per_s=12.5e6,
            ),
            EmulatedNode(name="plain", accelerator="CPU"),
        ),
        policy=PolicyChoice(name="fifo_backfill", round_s=60.0),
        price_windows=(
            PriceWindow(name="day", from_s=28800, to_s=79200, price_per_hour=(("T4", 0.35), ("A100", 3.2))),
            PriceWindow(name="night", from_s=79200, to_s=28800, price_per_hour=(("T4", 0.3), ("A100", 1.7))),
        ),
        store="sqlite:///var/lib/plait/state.db",
        listen="127.0.0.1:9400",
        sample_interval_s=5.0,
    )


def test_what_is_left_out_has_the_domain_defaults() -> None:
    assert parse_job(SMALL, "j.yaml") == SMALL_JOB
    assert parse_cluster("apiVersion: v1\n", "c.yaml") == Cluster()


def test_sections_left_empty_have_the_domain_defaults() -> None:
    text = SMALL + "precision: {}\ncommunication: {compression: {}}\nfailure: {heartbeat: {}}\n"
    assert parse_job(text, "j.yaml") == SMALL_JOB
    sections = "batching: {global_batch_size: 8}\ncheckpoint: {url: /ckpt}\ndata: {source: /d, prefetch: {}}\n"
    job = parse_job(SMALL + sections, "j.yaml")
    assert job.batching == Batching(global_batch_size=8)
    assert job.checkpoint == Checkpoint(url="/ckpt")
    chosen = parse_job(
        "apiVersion: v1\nname: j\ntasks: [{name: t, command: [a]}]\n"
        "checkpoint: {url: /ckpt, interval: auto, local: {path: /x, interval: 1h}}\n",
        "j.yaml",
    )
    assert chosen.checkpoint == Checkpoint(
        url="/ckpt", is_automatic=True, local=LocalTier(path="/x", interval_s=3600.0)
    )
    kept = parse_job(
        "apiVersion: v1\nname: j\ntasks: [{name: t, command: [a]}]\n"
        "checkpoint: {url: /ckpt, keep: 1, keep_every: 1000, keep_best: 2, bandwidth: 100MB/s}\n",
        "j.yaml",
    )
    assert kept.checkpoint == Checkpoint(url="/ckpt", keep=1, keep_every_steps=1000, keep_best=2, bytes_per_s=100e6)
    assert job.data == DataSpec(source="/d")
    cluster = parse_cluster("apiVersion: v1\nmonitor: {}\npolicy: {}\n", "c.yaml")
    assert cluster == Cluster()


def test_the_most_workers_are_the_fewest_where_left_out() -> None:
    job = parse_job(SMALL.replace("command", "workers: {min: 3}, command"), "j.yaml")
    assert job.tasks[0].workers == WorkerRange(min=3, max=3)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + SMALL,
        SMALL.replace("\n", "\r\n"),
        "%YAML 1.2\n---\n" + SMALL + "...\n",
        "{apiVersion: v1, name: j, tasks: [{name: t, command: [python, t.py]}]}",
        SMALL.replace("command: [python, t.py]", '"command": ["python", \'t.py\']'),
        SMALL.encode(),
    ],
)
def test_ways_to_write_the_same_job(text: str | bytes) -> None:
    assert parse_job(text, "j.yaml") == SMALL_JOB


def test_anchors_and_merge_keys() -> None:
    text = """
apiVersion: v1
name: j
tasks:
  - &first
    name: a
    command: &run [python, t.py]
    workers: {min: 2, max: 4}
  - <<: *first
    name: b
    needs: [a]
  - <<: [{command: *run}, {command: [other], working_directory: w}]
    name: c
"""
    job = parse_job(text, "j.yaml")
    assert job.task("b") == Task(name="b", command=("python", "t.py"), needs=("a",), workers=WorkerRange(min=2, max=4))
    assert job.task("c") == Task(name="c", command=("python", "t.py"), working_directory="w")


def test_block_text_and_quoted_numbers_are_text() -> None:
    text = SMALL.replace("[python, t.py]", '["10", \'no\', "22:00"]')
    assert parse_job(text, "j.yaml").tasks[0].command == ("10", "no", "22:00")
    head = "apiVersion: v1\nname: j\ntasks:\n  - name: t\n"
    block = head + "    command:\n      - sh\n      - -c\n      - |\n        a\n        b\n"
    assert parse_job(block, "j.yaml").tasks[0].command == ("sh", "-c", "a\nb\n")


def test_custom_operators_have_one_name_each() -> None:
    text = SMALL + "precision: {device_specific: [{type: A100, precision: bf16, custom_ops: [LayerNorm, softmax]}]}\n"
    assert parse_job(text, "j.yaml").precision.of("A100").custom_ops == ("layer_norm", "softmax")


def test_a_whole_day_and_touching_windows_do_not_overlap() -> None:
    whole = 'apiVersion: v1\nprice_windows: [{name: all, from: "00:00", to: "24:00"}]\n'
    assert parse_cluster(whole, "c.yaml").price_windows == (PriceWindow(name="all", from_s=0, to_s=86400),)
    touching = (
        "apiVersion: v1\nprice_windows:\n"
        '  - {name: a, from: "00:00", to: "08:00"}\n  - {name: b, from: "08:00", to: "24:00"}\n'
    )
    assert len(parse_cluster(touching, "c.yaml").price_windows) == 2


def test_weights_of_a_policy_that_has_some() -> None:
    text = "apiVersion: v1\npolicy: {name: multi_objective, weights: {fairness: 0.7, throughput: 0.3}, round: 2m}\n"
    assert parse_cluster(text, "c.yaml").policy == PolicyChoice(
        name="multi_objective", weights=(("fairness", 0.7), ("throughput", 0.3)), round_s=120.0
    )


def test_projects_with_quotas_and_limits() -> None:
    text = (
        "apiVersion: v1\nprojects:\n"
        "  - {name: vision, weight: 2, quota: {A100: 8}, limit: {A100: 16, T4: 4}}\n  - {name: speech}\n"
    )
    assert parse_cluster(text, "c.yaml").projects == (
        Project(name="vision", weight=2.0, quota=(("A100", 8),), limit=(("A100", 16), ("T4", 4))),
        Project(name="speech"),
    )


def test_run_during_is_checked_only_with_a_cluster() -> None:
    text = SMALL.replace("command", "run_during: dusk, command")
    assert parse_job(text, "j.yaml").tasks[0].run_during == "dusk"
    with pytest.raises(SpecError, match="no price window 'dusk'; it has none"):
        parse_job(text, "j.yaml", Cluster())


@pytest.mark.parametrize("name", ["missing.yaml", ".", "a\0b"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="the file cannot be read") as caught:
        load_job(f"{tmp_path}/{name}")
    assert len(caught.value.problems) == 1


def test_a_huge_file_is_refused_unread() -> None:
    with pytest.raises(SpecError, match="at most 1048576 are read"):
        parse_job(b"#" * (2**20 + 1), "j.yaml")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_ends_at_once(opening: str) -> None:
    with pytest.raises(SpecError):
        parse_job(opening * 50_000, "j.yaml")


def test_the_error_holds_every_line() -> None:
    with pytest.raises(SpecError) as caught:
        parse_job("apiVersion: v1\nname: J\ntasks: []\n", "my job.yaml")
    assert len(caught.value.problems) == 2
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert caught.value.problems[1] == "my job.yaml:3:8: tasks: this list must not be empty"


def test_reading_specifications_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, plait.spec.load, plait.spec.schema as s; s.schema('job'); "
        "print(sorted({'torch', 'numpy', 'asyncio', 'sqlite3'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
