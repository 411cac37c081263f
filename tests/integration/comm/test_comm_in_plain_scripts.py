"""``plait.comm`` in scripts of plain PyTorch: four ranks run once, each test looks at a part of what they found."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RANKS = 4
CODECS = ("plain", "fp32", "bf16", "fp16", "int8", "sign1", "top_k", "low_rank")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("comm")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PLAIT_", "GLOO_"))},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    logs = [(folder / f"{n}.log").open("wb") for n in range(RANKS)]
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error::UserWarning",
                str(Path(__file__).with_name("rank.py")),
                str(folder / str(n)),
            ],
            env={**environment, "RANK": str(n), "LOCAL_RANK": str(n)},
            stdout=logs[n],
            stderr=subprocess.STDOUT,
        )
        for n in range(RANKS)
    ]
    try:
        codes = [rank.wait(250) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        for log in logs:
            log.close()
    assert codes == [0] * RANKS, "\n".join((folder / f"{n}.log").read_text(encoding="utf-8") for n in range(RANKS))
    return [json.loads((folder / str(n)).read_text(encoding="utf-8")) for n in range(RANKS)]


@pytest.mark.parametrize("codec", [*CODECS, "onebit", "auto"])
def test_replicas_stay_equal_under_each_codec(found: list[dict[str, Any]], codec: str) -> None:
    assert len({each[codec]["weights"] for each in found}) == 1


@pytest.mark.parametrize(
    ("codec", "close"),
    [("plain", 1e-4), ("fp32", 1e-4), ("bf16", 0.01), ("fp16", 0.01), ("int8", 0.03), ("auto", 0.01)],
)
def test_losses_are_those_of_ddp(found: list[dict[str, Any]], codec: str, close: float) -> None:
    assert found[0][codec]["losses"] == pytest.approx(found[0]["ddp"]["losses"], rel=close)


@pytest.mark.parametrize(("codec", "part"), [("sign1", 0.9), ("top_k", 0.97), ("low_rank", 0.97), ("onebit", 0.95)])
def test_what_loses_much_learns_all_the_same(found: list[dict[str, Any]], codec: str, part: float) -> None:
    """Top-k sends one value in a hundred, so little of what it holds back has arrived after a few steps."""
    losses = found[0][codec]["losses"]
    assert losses != pytest.approx(found[0]["ddp"]["losses"][: len(losses)], rel=1e-6)
    assert losses[-1] < part * losses[0]


def test_momenta_travel_only_after_the_warm_up(found: list[dict[str, Any]]) -> None:
    one_bit, adam = found[0]["onebit"]["losses"], found[0]["ddp"]["losses"]
    assert one_bit[:7] == pytest.approx(adam[:7], rel=0.01)
    assert one_bit[7:16] != pytest.approx(adam[7:16], rel=1e-4)


def test_updates_before_the_step_are_those_of_the_step(found: list[dict[str, Any]]) -> None:
    for each in found:
        assert each["onebit early"] == each["onebit"]


def test_sums_of_any_size_type_and_shape_are_right(found: list[dict[str, Any]]) -> None:
    for each in found:
        for name, off in each["sums"].items():
            assert off <= (0.1 if "bfloat16" in name else 1e-5), name


def test_all_members_measure_the_same_and_sum_by_it(found: list[dict[str, Any]]) -> None:
    assert all(each["tuned"] == found[0]["tuned"] for each in found)
    assert found[0]["tuned"]["off"] == 0.0
    assert found[0]["tuned"]["saved"] == 1


def test_errors_follow_parameters_into_other_buckets(found: list[dict[str, Any]]) -> None:
    for each in found:
        assert each["errors_follow"]["off"] < 1e-4
        assert each["errors_follow"]["owed"] > 0.1
        assert each["errors_follow"]["kept"] == 2


def test_what_is_owed_outlives_a_checkpoint_on_fewer_ranks(found: list[dict[str, Any]]) -> None:
    for each in found[:3]:
        assert each["owed_outlives"]["saved"] < 1e-6
        assert each["owed_outlives"]["paid"] < 1e-6
        assert each["owed_outlives"]["sent"] > 0.1


def test_an_infinity_of_one_member_is_everybodys(found: list[dict[str, Any]]) -> None:
    for each in found:
        told = each["bad_values"]
        assert [told[name] for name in ("int8", "low_rank", "fp32")] == [False] * 3
        assert told["momentum"] == [0.5, 0.5]
        assert told["refused"] == 1


@pytest.mark.parametrize(("codec", "close"), [("fp32", 1e-6), ("bf16", 0.01), ("int8", 0.03), ("sign1", 1.5)])
def test_fsdp_averages_over_islands(found: list[dict[str, Any]], codec: str, close: float) -> None:
    for each in found:
        assert each["sharded"]["modules"] == 4
        assert each["sharded"][codec] <= close
    assert found[0]["sharded"]["sign1"] > 1e-3


def test_a_member_that_gives_up_ends_the_wait_of_all(found: list[dict[str, Any]]) -> None:
    for rank, each in enumerate(found):
        assert all(each["gave_up"]["told"])
        if rank == 2:
            assert each["gave_up"]["told"] == ["the test wanted it"] * 2


def test_a_time_out_names_who_is_missing(found: list[dict[str, Any]]) -> None:
    told = [each["too_slow"]["told"] for each in found[:3]]
    assert any("0.2 s" in text and "[3]" in text for text in told)
    assert all(told)


def test_stages_are_timed_and_bytes_counted(found: list[dict[str, Any]]) -> None:
    for each in found:
        stages = each["times"]
        assert stages["exchanges"] == 1
        assert stages["wire_s"] >= stages["encode_s"] > 0.0
        assert stages["decode_s"] > 0.0
        assert stages["sent_bytes"] == pytest.approx(400_000 * 1.5 * (1 + 1 / 256), rel=0.02)
