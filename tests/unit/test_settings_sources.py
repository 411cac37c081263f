"""Where a session's settings and its place come from, and what is refused there."""

import pytest

from plait.errors import PlaitError
from plait.spec.job import Batching, Checkpoint, Communication, FailureRules, Job, PrecisionPlan
from plait.train.settings import Place, Settings, from_job, job_from_environment, place_from_environment, units_of
from plait.wire import Codec


def test_a_process_without_any_variables_is_alone() -> None:
    place = place_from_environment({})
    assert place == Place(me="w0")
    assert not place.seeds
    assert place.rendezvous is None


def test_plait_s_variables_win_over_torchrun_s() -> None:
    place = place_from_environment(
        {
            "PLAIT_MEMBER": "w7",
            "PLAIT_LISTEN": "10.0.0.1:900",
            "PLAIT_SEEDS": "w7@10.0.0.1:900,w8@10.0.0.2:900",
            "PLAIT_JOIN": "1",
            "PLAIT_SECRET": "word",
            "PLAIT_ACCELERATOR_TYPE": "A100",
            "PLAIT_DUTY_RATIO": "0.25",
            "PLAIT_SPLIT": "w7:3,w8:0",
            "PLAIT_ISLAND": "rack 3",
            "PLAIT_MEASURE": "now",
            "RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.9",
            "MASTER_PORT": "1",
        }
    )
    assert place == Place(
        me="w7",
        listen="10.0.0.1:900",
        seeds={"w7": "10.0.0.1:900", "w8": "10.0.0.2:900"},
        joins=True,
        world_size=2,
        rank=1,
        secret="word",
        accelerator_type="A100",
        duty_ratio=0.25,
        forced_split={"w7": 3, "w8": 0},
        island="rack 3",
        measures="now",
    )


def test_torchrun_s_variables_do_alone() -> None:
    place = place_from_environment({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500"})
    assert (place.me, place.rank, place.world_size, place.rendezvous) == ("w1", 1, 2, "h:29500")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PLAIT_SEEDS": "w0=10.0.0.1:5"}, "PLAIT_SEEDS has 'w0=10.0.0.1:5'; expected member@host:port"),
        ({"PLAIT_SEEDS": "w0@10.0.0.1"}, "PLAIT_SEEDS has 'w0@10.0.0.1'"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but MASTER_ADDR and MASTER_PORT are not both set"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "not both set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; expected a number"),
        ({"RANK": ""}, "RANK is ''; expected a number"),
        ({"PLAIT_DUTY_RATIO": "half"}, "PLAIT_DUTY_RATIO is 'half'; expected a number"),
        ({"PLAIT_SPLIT": "w0=3"}, "PLAIT_SPLIT has 'w0=3'; expected member:micro_batches"),
        ({"PLAIT_SPLIT": "w0:3,w1:"}, "PLAIT_SPLIT has 'w1:'"),
        ({"PLAIT_SPLIT": "w0:-1"}, "PLAIT_SPLIT has 'w0:-1'"),
        ({"PLAIT_MEASURE": "soon"}, "PLAIT_MEASURE is 'soon'; expected one of auto, now, never"),
    ],
)
def test_malformed_variables_are_named_with_their_value(environment: dict[str, str], message: str) -> None:
    with pytest.raises(PlaitError) as caught:
        place_from_environment(environment)
    assert message in str(caught.value)


OWN = Settings(global_batch_size=64, micro_batches=16, seed=9, max_fused=2)


def test_the_job_wins_over_the_script() -> None:
    job = Job(
        name="j",
        tasks=(),
        precision=PrecisionPlan(global_precision="bf16"),
        communication=Communication(bucket_bytes=123, timeout_s=4.0, overlap=False, measure="never"),
        batching=Batching(global_batch_size=96, micro_batches=24, split="even", learning_rate="sqrt", bitwise=True),
        checkpoint=Checkpoint(url="somewhere", interval_s=5.0),
        failure=FailureRules(heartbeat_interval_s=0.5, heartbeat_timeout_s=3.0),
    )
    got = from_job(OWN, job)
    assert (got.global_batch_size, got.micro_batches, got.base_batch_size) == (96, 24, 64)
    assert (got.split, got.learning_rate, got.bitwise) == ("even", "sqrt", True)
    assert (got.bucket_bytes, got.exchange_timeout_s, got.overlap, got.measures) == (123, 4.0, False, "never")
    assert (got.heartbeat_interval_s, got.heartbeat_timeout_s) == (0.5, 3.0)
    assert got.precision.global_precision == "bf16"
    assert got.checkpoint == job.checkpoint
    assert (got.seed, got.max_fused) == (9, 2)  # what a job does not say stays as it was


def test_a_job_without_batching_leaves_the_script_s() -> None:
    got = from_job(OWN, Job(name="j", tasks=()))
    assert (got.global_batch_size, got.micro_batches, got.bitwise) == (64, 16, False)


def test_a_job_may_leave_the_units_open() -> None:
    got = from_job(OWN, Job(name="j", tasks=(), batching=Batching(global_batch_size=90)))
    assert (got.global_batch_size, got.micro_batches) == (90, 30)


def test_compression_that_is_not_there_yet_is_refused_aloud() -> None:
    job = Job(name="j", tasks=(), communication=Communication(compression="powersgd"))
    with pytest.raises(PlaitError, match=r"communication\.compression is 'powersgd'"):
        from_job(OWN, job)


@pytest.mark.parametrize(("batch", "given", "units"), [(64, None, 32), (30, None, 30), (7, None, 7), (74, None, 2)])
def test_units_are_the_largest_divisor_up_to_32(batch: int, given: int | None, units: int) -> None:
    assert units_of(batch, given) == units


def test_units_that_are_given_stay() -> None:
    assert units_of(64, 5) == 5


def test_the_job_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAIT_JOB", raising=False)
    assert job_from_environment() is None
    job = Job(name="j", tasks=(), batching=Batching(global_batch_size=12))
    monkeypatch.setenv("PLAIT_JOB", Codec[Job](Job).encode(job).decode())
    assert job_from_environment() == job
