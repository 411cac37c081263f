"""What a run computes depends on its data alone, not on who runs it: uneven splits, BatchNorm, precision, clipping."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.session.conftest import Fleet

Alone = Callable[..., dict[str, Any]]


def flat(found: dict[str, Any]) -> list[float]:
    return [value for tensor in found["values"] for value in tensor]


def losses(found: dict[str, Any]) -> list[float]:
    return [row["loss"] for row in found["steps"]]


@pytest.mark.parametrize("split", ["w0:7,w1:4,w2:1", "w0:0,w1:12,w2:0"])
def test_the_loss_curve_of_an_uneven_run_is_that_of_one_process(
    fleet_of: Callable[..., "Fleet"], alone: Alone, split: str
) -> None:
    """The data set has 100 samples and a step 24, so every fifth step is a short one."""
    told: dict[str, Any] = {"steps": 25, "dtype": "fp32", "clip": 0.5, "schedules": True}
    fleet = fleet_of(**told)
    fleet.start(["w0", "w1", "w2"], PLAIT_SPLIT=split)
    results = fleet.results("w0", "w1", "w2")
    single = alone(**told)
    wanted = {member: int(num) for member, num in (part.split(":") for part in split.split(","))}
    for found in results:
        assert losses(found) == pytest.approx(losses(single), rel=1e-4, abs=1e-5)
        assert found["weights"] == results[0]["weights"]
        assert found["steps"][0]["work"] == wanted
    assert flat(results[0]) == pytest.approx(flat(single), rel=1e-3, abs=1e-5)


def test_ghost_batch_norm_is_the_same_for_any_split(fleet_of: Callable[..., "Fleet"], alone: Alone) -> None:
    told = {"steps": 15, "model": "normed"}
    single = alone(**told)
    for split in ("w0:6,w1:6", "w0:11,w1:1"):
        fleet = fleet_of(**told)
        fleet.start(["w0", "w1"], PLAIT_SPLIT=split)
        first, second = fleet.results("w0", "w1")
        assert first["buffers"] == second["buffers"]
        assert flat(first) == pytest.approx(flat(single), rel=1e-9, abs=1e-12)
        assert {*first["buffers"]} == {*single["buffers"]}
        for name, values in single["buffers"].items():
            assert first["buffers"][name] == pytest.approx(values, rel=1e-9, abs=1e-12)


def test_sync_batch_norm_is_that_of_the_whole_step_for_any_split(
    fleet_of: Callable[..., "Fleet"], alone: Alone
) -> None:
    """Also where a member has no share, and where one is lost inside a step and another joins."""
    told: dict[str, Any] = {"steps": 15, "model": "normed", "batch_norm": "sync"}
    single = alone(**told)
    assert flat(single) != pytest.approx(flat(alone(steps=15, model="normed")), rel=1e-3)
    sequences = [
        (["w0", "w1"], "w0:11,w1:1", "", ["w0", "w1"]),
        (["w0", "w1", "w2"], "w0:5,w1:0,w2:7", "", ["w0", "w1", "w2"]),
        (["w0", "w1", "w2"], "", "kill w1@4:compute; kill w0@9:exchange", ["w2"]),
        (["w0", "w1", "w2"], "", "kill w2@6:commit", ["w0", "w1"]),
    ]
    for members, split, faults, survivors in sequences:
        fleet = fleet_of(**told)
        fleet.start(members, PLAIT_SPLIT=split, PLAIT_FAULTS=faults)
        results = fleet.results(*survivors)
        for found in results:
            assert found["weights"] == results[0]["weights"]
            assert found["buffers"] == results[0]["buffers"]
            assert flat(found) == pytest.approx(flat(single), rel=1e-8, abs=1e-11)
            for name, values in single["buffers"].items():
                assert found["buffers"][name] == pytest.approx(values, rel=1e-8, abs=1e-11)


def test_a_joiner_has_the_statistics_of_sync_batch_norm(fleet_of: Callable[..., "Fleet"]) -> None:
    fleet = fleet_of(steps=60, model="normed", batch_norm="sync", expects=["w2"], patient_steps=20)
    fleet.start(["w0", "w1"])
    fleet.wait_for_step("w0", 3)
    fleet.join("w2")
    results = fleet.results("w0", "w1", "w2")
    assert any(row["work"].get("w2") for row in results[0]["steps"])
    for found in results:
        assert found["weights"] == results[0]["weights"]
        assert found["buffers"] == results[0]["buffers"]


def test_bitwise_mode_ends_in_one_hash_for_any_split_and_loss(fleet_of: Callable[..., "Fleet"], alone: Alone) -> None:
    told = {"steps": 20, "bitwise": True, "dtype": "fp32", "model": "random"}
    hashes = {alone(**told)["weights"]}
    sequences = [
        (["w0", "w1"], "w0:9,w1:3", "", ["w0", "w1"]),
        (["w0", "w1", "w2"], "w0:1,w1:0,w2:11", "", ["w0", "w1", "w2"]),
        (["w0", "w1", "w2"], "", "kill w1@4:exchange; kill w0@11:compute", ["w2"]),
        (["w0", "w1", "w2"], "", "kill w0@0:commit", ["w1", "w2"]),
    ]
    for members, split, faults, survivors in sequences:
        fleet = fleet_of(**told)
        fleet.start(members, PLAIT_SPLIT=split, PLAIT_FAULTS=faults)
        hashes |= {found["weights"] for found in fleet.results(*survivors)}
    assert len(hashes) == 1


def test_each_device_computes_in_its_own_precision_and_replicas_stay_equal(
    fleet_of: Callable[..., "Fleet"], alone: Alone
) -> None:
    told: dict[str, Any] = {"steps": 20, "dtype": "fp32"}
    precision = {"all": "fp32", "own": {"Old-CPU": "fp16", "New-CPU": "bf16"}}
    fleet = fleet_of(**told, precision=precision, kinds={"w0": "Old-CPU", "w1": "New-CPU"})
    fleet.start(["w0", "w1", "w2"], PLAIT_SPLIT="w0:4,w1:4,w2:4")
    results = fleet.results("w0", "w1", "w2")
    assert len({found["weights"] for found in results}) == 1
    single, mixed = losses(alone(**told)), losses(results[0])
    assert mixed[0] == pytest.approx(single[0], rel=1e-2)
    assert mixed[0] != single[0]
    applied = {len(found["norms"]) for found in results}
    assert len(applied) == 1  # one scale, one verdict: a step that overflowed on one device is passed over on all
    assert applied.pop() >= 15
    assert sum(mixed[15:19]) < sum(mixed[:4])  # the full steps of the last epoch and of the first


def test_one_narrow_precision_for_all_keeps_the_loss_curve(fleet_of: Callable[..., "Fleet"], alone: Alone) -> None:
    told: dict[str, Any] = {"steps": 20, "dtype": "fp32"}
    fleet = fleet_of(**told, precision={"all": "bf16"})
    fleet.start(["w0", "w1"])
    first, second = fleet.results("w0", "w1")
    assert first["weights"] == second["weights"]
    single = losses(alone(**told))
    assert losses(first) != single
    assert losses(first) == pytest.approx(single, rel=0.1, abs=0.02)


def test_gradients_may_meet_in_a_narrow_type(fleet_of: Callable[..., "Fleet"], alone: Alone) -> None:
    told: dict[str, Any] = {"steps": 20, "dtype": "fp32"}
    fleet = fleet_of(**told, precision={"reduce": "bf16"})
    fleet.start(["w0", "w1"])
    first, second = fleet.results("w0", "w1")
    assert first["weights"] == second["weights"]
    single = losses(alone(**told))
    assert losses(first) != single
    assert losses(first) == pytest.approx(single, rel=0.1, abs=0.02)


def test_the_schedule_is_stepped_once_a_commit_on_all(fleet_of: Callable[..., "Fleet"]) -> None:
    """Also on a member without any work, and across a loss."""
    fleet = fleet_of(steps=12, schedules=True)
    fleet.start(["w0", "w1", "w2"], PLAIT_FAULTS="kill w1@5:commit")
    for found in fleet.results("w0", "w2"):
        rates = [row["rate"] for row in found["steps"]]
        assert rates == pytest.approx([0.01 * 0.5 ** ((step + 1) // 3) for step in range(12)])


def test_clipping_sees_the_global_gradient_on_all_members(fleet_of: Callable[..., "Fleet"], alone: Alone) -> None:
    told: dict[str, Any] = {"steps": 12, "clip": 0.05}
    fleet = fleet_of(**told)
    fleet.start(["w0", "w1"], PLAIT_SPLIT="w0:12,w1:0")
    first, second = fleet.results("w0", "w1")
    single = alone(**told)
    assert max(single["norms"]) == pytest.approx(0.05, rel=1e-3)
    assert first["norms"] == second["norms"]
    assert first["norms"] == pytest.approx(single["norms"], rel=1e-9)
    assert first["weights"] == second["weights"]
