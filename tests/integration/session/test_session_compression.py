"""What travels in fewer bits: replicas stay equal, losses stay close, whoever comes and goes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.session.conftest import Fleet

Alone = Callable[..., dict[str, Any]]
ONE_BIT: dict[str, Any] = {"steps": 30, "dtype": "fp32", "freeze": 10}


def losses(found: dict[str, Any]) -> list[float]:
    return [row["loss"] for row in found["steps"]]


def flat(found: dict[str, Any]) -> list[float]:
    return [value for tensor in found["values"] for value in tensor]


@pytest.mark.parametrize(("codec", "close"), [("bf16", 0.02), ("fp16", 0.01), ("int8", 0.02)])
def test_a_codec_keeps_replicas_equal_and_the_loss_close(
    fleet_of: Callable[..., "Fleet"], alone: Alone, codec: str, close: float
) -> None:
    told: dict[str, Any] = {"steps": 20, "dtype": "fp32"}
    fleet = fleet_of(**told, compression=codec)
    fleet.start(["w0", "w1", "w2"], PLAIT_SPLIT="w0:7,w1:4,w2:1")
    results = fleet.results("w0", "w1", "w2")
    assert len({found["weights"] for found in results}) == 1
    single = alone(**told)
    assert losses(results[0]) != losses(single)
    assert losses(results[0]) == pytest.approx(losses(single), rel=close, abs=close)


def test_one_bit_adam_alone_is_adam_until_the_freeze_and_exact_after_it(alone: Alone) -> None:
    """With nobody to exchange with, nothing is lost; only the variance stays."""
    adam, one_bit = losses(alone(steps=30, dtype="fp32")), losses(alone(**ONE_BIT))
    assert one_bit[:10] == pytest.approx(adam[:10], rel=1e-4)
    assert one_bit[11:] != pytest.approx(adam[11:], rel=1e-6)
    assert one_bit == pytest.approx(adam, rel=0.2, abs=0.05)


@pytest.mark.parametrize(
    ("faults", "survivors"),
    [
        ("", ["w0", "w1", "w2"]),
        ("kill w1@20:exchange", ["w0", "w2"]),
        ("kill w0@10:commit", ["w1", "w2"]),
        ("kill w0@5:compute; kill w1@22:compute", ["w2"]),
    ],
)
def test_one_bit_adam_keeps_replicas_equal_through_losses(
    fleet_of: Callable[..., "Fleet"], alone: Alone, faults: str, survivors: list[str]
) -> None:
    fleet = fleet_of(**ONE_BIT)
    fleet.start(["w0", "w1", "w2"], PLAIT_FAULTS=faults)
    results = fleet.results(*survivors)
    assert len({found["weights"] for found in results}) == 1
    single = losses(alone(**ONE_BIT))
    assert losses(results[0])[:8] == pytest.approx(single[:8], rel=0.02, abs=0.02)
    # Of 129 values under one scale little survives in one bit; what was lost must come back all the same.
    assert sum(losses(results[0])[-8:]) < 1.5 * sum(single[-8:])
    assert sum(losses(results[0])[-8:]) < 0.8 * sum(losses(results[0])[:8])


@pytest.mark.parametrize("kind", ["lamb", "zero_one"])
def test_the_kin_of_one_bit_adam_keeps_replicas_equal_through_a_loss(
    fleet_of: Callable[..., "Fleet"], alone: Alone, kind: str
) -> None:
    told = {**ONE_BIT, "kind": kind}
    fleet = fleet_of(**told)
    fleet.start(["w0", "w1", "w2"], PLAIT_FAULTS="kill w1@20:exchange")
    results = fleet.results("w0", "w2")
    assert len({found["weights"] for found in results}) == 1
    assert sum(losses(results[0])[-8:]) < 1.5 * sum(losses(alone(**told))[-8:])
    assert sum(losses(results[0])[-8:]) < 0.8 * sum(losses(results[0])[:8])


def test_a_joiner_takes_part_in_the_compressed_phase(fleet_of: Callable[..., "Fleet"]) -> None:
    fleet = fleet_of(steps=80, dtype="fp32", freeze=6, expects=["w2"], patient_steps=30)
    fleet.start(["w0", "w1"])
    fleet.wait_for_step("w0", 12)
    fleet.join("w2")
    results = fleet.results("w0", "w1", "w2")
    assert any(row["work"].get("w2") for row in results[0]["steps"])
    assert len({found["weights"] for found in results}) == 1


def test_a_run_of_one_bit_adam_resumes_in_its_phase(fleet_of: Callable[..., "Fleet"], tmp_path: Any) -> None:
    told = {**ONE_BIT, "save": str(tmp_path / "saved"), "save_interval_s": 0.0}
    first = fleet_of(**{**told, "steps": 16})
    first.start(["w0", "w1"])
    first.results("w0", "w1")
    again = fleet_of(**told)
    again.start(["w0", "w1"])
    results = again.results("w0", "w1")
    assert len({found["weights"] for found in results}) == 1
    assert results[0]["steps"][0]["step"] >= 15
    assert sum(losses(results[0])[-5:]) < sum(losses(first.results("w0")[0])[:5])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"freeze": 5, "clip": 1.0}, "clip_grad_norm=1 does not go with OneBitAdam"),
        ({"freeze": 5, "bitwise": True}, "bitwise"),
        ({"freeze": 5, "compression": "int8"}, "compresses by itself"),
        ({"compression": "onebit_adam"}, "the optimizer is Adam: use plait.OneBitAdam"),
        ({"compression": "int9"}, "did you mean"),
    ],
)
def test_what_does_not_go_together_is_refused(
    fleet_of: Callable[..., "Fleet"], wrong: dict[str, Any], told: str
) -> None:
    fleet = fleet_of(steps=3, dtype="fp32", **wrong)
    fleet.start(["w0"])
    assert fleet.codes()["w0"] != 0
    assert told in fleet.log("w0")
