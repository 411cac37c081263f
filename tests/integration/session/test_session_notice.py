"""SIGTERM, as clouds and schedulers send it some time before they take a machine away."""

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.session.conftest import Fleet

STEPS = 60


@pytest.mark.parametrize("victim", ["w0", "w1"])
def test_a_member_that_is_told_to_end_leaves_and_the_others_go_on(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], victim: str
) -> None:
    fleet = fleet_of(steps=STEPS)
    fleet.start(["w0", "w1", "w2"])
    fleet.wait_for_step(victim, 4)
    os.kill(fleet.workers[victim].pid, signal.SIGTERM)
    staying = [member for member in ("w0", "w1", "w2") if member != victim]
    results = fleet.results(*staying)
    assert fleet.workers[victim].code == 0
    assert "was told to end" in fleet.log(victim)
    reference = [row["loss"] for row in alone(steps=STEPS)["steps"]]
    for found in results:
        assert found["step"] == STEPS
        assert [row["loss"] for row in found["steps"]] == pytest.approx(reference, rel=1e-6, abs=1e-6)


def test_one_that_trains_alone_saves_what_it_has_and_goes_on_from_there(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], tmp_path: Any
) -> None:
    scenario = {"steps": STEPS, "save": str(tmp_path / "saved"), "save_interval_s": 1000.0, "bitwise": True}
    first = fleet_of(**scenario)
    first.start(["w0"])
    first.wait_for_step("w0", 3)
    os.kill(first.workers["w0"].pid, signal.SIGTERM)
    assert first.codes() == {"w0": 0}
    done = [row["step"] for row in first.rows("w0", "step")]
    assert done[-1] < STEPS - 1
    again = fleet_of(**scenario)
    again.start(["w0"])
    (found,) = again.results("w0")
    assert found["step"] == STEPS
    assert found["steps"][0]["step"] >= done[-1]  # no committed step is run again; the last may lack its row
    assert found["weights"] == alone(steps=STEPS, bitwise=True)["weights"]
