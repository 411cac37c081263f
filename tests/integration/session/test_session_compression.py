"""What travels in fewer bits: replicas stay equal, losses stay close, whoever comes and goes."""

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from plait.cli.explain_comm import explain_comm

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


ISLANDS = {"w0": "rack 1", "w1": "rack 2", "w2": "rack 2", "w3": "rack 1", "w4": "rack 2"}


@pytest.mark.parametrize("told", [ONE_BIT, {"steps": 30, "dtype": "fp32", "model": "huge", "bucket_bytes": 2**30}])
def test_islands_of_unequal_size_keep_replicas_equal_through_a_loss(
    fleet_of: Callable[..., "Fleet"], alone: Alone, told: dict[str, Any]
) -> None:
    """Of 1-bit momenta, and of 1.4 MB of gradients as they are; the loss leaves one member a rack."""
    fleet = fleet_of(**told, islands=ISLANDS)
    fleet.start(["w0", "w1", "w2", "w3", "w4"], PLAIT_FAULTS="kill w2@12:exchange; kill w3@20:compute")
    results = fleet.results("w0", "w1", "w4")
    assert len({found["weights"] for found in results}) == 1
    single = losses(alone(**told))
    assert losses(results[0])[:8] == pytest.approx(single[:8], rel=0.02, abs=0.02)
    assert sum(losses(results[0])[-8:]) < 1.5 * sum(single[-8:])


def test_members_measure_their_network_and_go_by_it_through_a_loss_and_a_join(
    fleet_of: Callable[..., "Fleet"], capsys: pytest.CaptureFixture[str]
) -> None:
    """After the loss, those who are left go by what all have measured; the joiner is told."""
    fleet = fleet_of(steps=80, dtype="fp32", freeze=6, islands=ISLANDS, expects=["w4"], patient_steps=40)
    fleet.start(["w0", "w1", "w2", "w3"], PLAIT_MEASURE="now", PLAIT_FAULTS="kill w3@20:exchange")
    fleet.wait_for_leave("w0", "w3")
    fleet.join("w4", PLAIT_MEASURE="now")
    results = fleet.results("w0", "w1", "w2", "w4")
    assert len({found["weights"] for found in results}) == 1
    first = momenta(results[0])
    assert all(momenta(found).items() <= first.items() for found in results)
    plans = fleet.rows("w0", "plan")
    assert [row["step"] for row in plans] == [*sorted(row["step"] for row in plans)]
    assert len(plans) == 3, "once it is measured, then for those who are left, then with the joiner"
    assert 5 <= plans[0]["step"] < 20
    assert {way.split()[-1] for row in plans for _, way, _ in row["choices"]} == {"sign1"}
    assert not fleet.rows("w1", "plan"), "the first member tells"
    assert explain_comm(str(fleet.folder / "comm"), None, as_json=False) == 0
    assert "sign1 sends" in capsys.readouterr().out


def momenta(found: dict[str, Any]) -> dict[int, str]:
    return {row["step"]: row["momentum"] for row in found["steps"]}


def settled(fleet: "Fleet", member: str) -> list[int]:
    return [row["step"] for row in fleet.rows(member, "settled")]


def test_what_a_member_owes_is_sent_before_it_leaves_and_a_joiner_owes_nothing(
    fleet_of: Callable[..., "Fleet"], alone: Alone
) -> None:
    """4 -> 3 -> 4 members in the compressed phase."""
    told = {"steps": 120, "dtype": "fp32", "freeze": 10}
    fleet = fleet_of(**told, expects=["w4"], patient_steps=60)
    fleet.start(["w0", "w1", "w2", "w3"])
    fleet.wait_for_step("w2", 25)
    os.kill(fleet.workers["w2"].pid, signal.SIGTERM)
    fleet.wait_for_leave("w0", "w2")
    fleet.join("w4")
    results = fleet.results("w0", "w1", "w3", "w4")
    assert fleet.workers["w2"].code == 0
    assert any(row["work"].get("w4") for row in results[0]["steps"])
    assert len({found["weights"] for found in results}) == 1
    first = momenta(results[0])
    assert sorted(first) == list(range(120))
    for found in results[1:]:
        assert momenta(found).items() <= first.items()
    last_of_leaver = max(row["step"] for row in fleet.rows("w2", "step"))
    assert settled(fleet, "w2") == settled(fleet, "w0") == [last_of_leaver]
    assert sum(losses(results[0])[-8:]) < 1.5 * sum(losses(alone(**told))[-8:])


def test_a_checkpoint_of_the_compressed_phase_leaves_nothing_owed_behind(
    fleet_of: Callable[..., "Fleet"], alone: Alone, tmp_path: Any
) -> None:
    """What others than the one that saves owe goes into the momentum before; another number of members goes on."""
    told = {"dtype": "fp32", "freeze": 10, "save": str(tmp_path / "saved")}
    first = fleet_of(**told, steps=40)
    first.start(["w0", "w1", "w2", "w3"])
    before = first.results("w0", "w1", "w2", "w3")
    assert settled(first, "w3") == [39]
    again = fleet_of(**told, steps=80)
    again.start(["w0", "w1", "w2"])
    results = again.results("w0", "w1", "w2")
    assert results[0]["steps"][0]["step"] == 40
    assert len({found["weights"] for found in results}) == 1
    assert all(momenta(found) == momenta(results[0]) for found in results)
    assert settled(again, "w1") == [79]
    whole = losses(before[0]) + losses(results[0])
    undisturbed = losses(alone(steps=80, dtype="fp32", freeze=10))
    assert sum(whole[38:48]) < 1.5 * sum(undisturbed[38:48])
    assert sum(whole[-8:]) < 1.5 * sum(undisturbed[-8:])


def test_a_checkpoint_that_is_due_waits_for_a_settled_step(fleet_of: Callable[..., "Fleet"], tmp_path: Any) -> None:
    fleet = fleet_of(steps=24, dtype="fp32", freeze=4, save=str(tmp_path / "saved"), save_interval_s=0.0)
    fleet.start(["w0", "w1"])
    results = fleet.results("w0", "w1")
    assert len({found["weights"] for found in results}) == 1
    assert settled(fleet, "w0") == settled(fleet, "w1")
    assert len(settled(fleet, "w0")) > 1  # how many: as many as the disk takes
    assert settled(fleet, "w0")[-1] == 23


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
