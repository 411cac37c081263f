"""Checkpoints of a session: a later group, of another size, goes on at the step with the same order of the data."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plait.train.work import DataPlan

if TYPE_CHECKING:
    from tests.integration.session.conftest import Fleet


@pytest.mark.parametrize("bitwise", [False, True])
def test_a_later_group_goes_on_where_the_first_one_stopped(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], tmp_path: Path, bitwise: bool
) -> None:
    told: dict[str, Any] = {
        "steps": 20,
        "model": "normed",
        "schedules": True,
        "bitwise": bitwise,
        "save": str(tmp_path / "saved"),
        "save_interval_s": 0.0,
    }
    first = fleet_of(**told)
    first.start(["w0", "w1"], PLAIT_FAULTS="kill w0@9:compute; kill w1@9:commit")
    first.codes()
    second = fleet_of(**told)
    second.start(["w0", "w1", "w2"])
    results = second.results("w0", "w1", "w2")
    begun = results[0]["steps"][0]["step"]
    assert 1 <= begun <= 9
    plan = DataPlan(num_samples=100, global_batch=24, micro_batches=12, seed=0)
    for step in range(begun, 20):
        seen = [i for found in results for at, numbers in found["batches"] if at == step for i in numbers]
        assert sorted(seen) == sorted(plan.samples(step, range(12)).tolist())
    single = alone(steps=20, model="normed", schedules=True, bitwise=bitwise)
    for found in results:
        assert [row["step"] for row in found["steps"]] == list(range(begun, 20))
        assert [row["rate"] for row in found["steps"]] == [row["rate"] for row in single["steps"]][begun:]
        assert found["weights"] == results[0]["weights"]
        losses = [row["loss"] for row in found["steps"]]
        assert losses == pytest.approx([row["loss"] for row in single["steps"]][begun:], rel=1e-6, abs=1e-6)
    if bitwise:
        assert results[0]["weights"] == single["weights"]


def test_a_finished_run_is_not_run_again(fleet_of: Callable[..., "Fleet"], tmp_path: Path) -> None:
    told: dict[str, Any] = {"steps": 6, "save": str(tmp_path / "saved")}
    first = fleet_of(**told)
    first.start(["w0", "w1"])
    before, _ = first.results("w0", "w1")
    second = fleet_of(**told)
    second.start(["w0", "w1"])
    after, other = second.results("w0", "w1")
    assert after["batches"] == other["batches"] == []
    assert after["step"] == 6
    assert after["weights"] == other["weights"] == before["weights"]
