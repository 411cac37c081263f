"""Memory that runs out in a step, by a real limit of the process and by a layer that counts."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.session.conftest import Fleet

STEPS = 5
SCRIPT = Path(__file__).with_name("limited.py")


def limited(room_mb: int, where: str) -> dict[str, Any]:
    """Runs the loop under a limit on the address space, in a process of its own."""
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), str(room_mb), where], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return {**told, "log": ended.stderr}


@pytest.fixture(scope="module")
def unlimited() -> dict[str, Any]:
    return limited(0, "none")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_pass_that_does_not_fit_is_run_in_smaller_ones(unlimited: dict[str, Any], where: str) -> None:
    found = limited(60, where)
    assert found["steps"] == unlimited["steps"] == 6
    sizes = found["seen"]
    assert sizes[:2] == [256, 128]  # halved until it fits, and remembered
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes[4:]) <= 64
    assert found["losses"] == pytest.approx(unlimited["losses"], rel=1e-5)
    assert found["weights"] == pytest.approx(unlimited["weights"], abs=1e-6)
    assert "from now on at most 16 at once" in found["log"]


@pytest.mark.slow
def test_where_nothing_fits_the_report_says_what_was_needed_and_what_there_was() -> None:
    error = limited(1, "forward")["error"]
    for words in ("1 micro-batch of 8 samples", "4.19 MB more were asked for", "were free", "raise micro_batches"):
        assert words in error


@pytest.mark.parametrize("room", [8, 3, 2])
def test_one_member_of_three_with_little_room(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], room: int
) -> None:
    """Its gradients of the last layer have left when the pass breaks: the exchange begins anew, without a loss."""
    scenario = {"steps": STEPS, "model": "large", "bucket_bytes": 2**16}
    fleet = fleet_of(**scenario, room={"w1": room})
    fleet.start(["w0", "w1", "w2"], PLAIT_SPLIT="w0:4,w1:5,w2:3")
    results = fleet.results("w0", "w1", "w2")
    reference = alone(**scenario)
    assert len({found["weights"] for found in results}) == 1
    for found in results:
        assert found["step"] == STEPS
        assert found["world"] == ["w0", "w1", "w2"]
        losses = [row["loss"] for row in found["steps"]]
        assert losses == pytest.approx([row["loss"] for row in reference["steps"]], rel=1e-6, abs=1e-6)
    mine = [len(numbers) for step, numbers in results[1]["batches"] if step == 1]
    assert max(mine) <= room
    assert sum(mine) == 10
    assert "memory ran out in step 0" in fleet.log("w1")


def test_a_member_that_can_hold_nothing_leaves_its_share_to_the_others(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]]
) -> None:
    scenario = {"steps": STEPS, "model": "large"}
    fleet = fleet_of(**scenario, room={"w1": 1})
    fleet.start(["w0", "w1", "w2"], PLAIT_SPLIT="w0:4,w1:4,w2:4")
    results = fleet.results("w0", "w2")
    assert fleet.workers["w1"].code == 1  # 75 where an agent reads it
    reference = alone(**scenario)
    for found in results:
        losses = [row["loss"] for row in found["steps"]]
        assert losses == pytest.approx([row["loss"] for row in reference["steps"]], rel=1e-6, abs=1e-6)
    assert "nothing smaller can be tried" in fleet.log("w1")
