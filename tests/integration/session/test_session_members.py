"""Members that come and go while the others train on, and one that does not fit."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.session.conftest import Fleet

STEPS = 40
EVEN = "w0:4,w1:4,w2:4"
"""Everybody has work, and so comes to the end of each step in its own loop."""
JOINING = {"steps": STEPS, "expects": ["w2"], "patient_steps": 30}


@pytest.mark.parametrize("extra", [{}, {"model": "normed", "schedules": True}, {"bitwise": True}])
def test_a_joiner_gets_the_state_and_the_same_bits(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], extra: dict[str, Any]
) -> None:
    fleet = fleet_of(**JOINING, **extra)
    fleet.start(["w0", "w1"])
    fleet.wait_for_step("w0", 3)
    assert len(fleet.wardens()) == 2  # whose end is looked for at the end of each test
    fleet.join("w2")
    first, second, joiner = fleet.results("w0", "w1", "w2")
    for found in (second, joiner):
        assert found["step"] == STEPS
        assert found["weights"] == first["weights"]
        assert found["buffers"] == first["buffers"]
        assert found["world"] == ["w0", "w1", "w2"]
    assert any(row["work"].get("w2") for row in first["steps"])
    assert [row["step"] for row in first["steps"]] == list(range(STEPS))
    assert first["steps"][-1]["rate"] == joiner["steps"][-1]["rate"]
    assert joiner["steps"][0]["step"] > 0  # it did not run what was committed before it came
    single = alone(steps=STEPS, **extra)
    losses = [row["loss"] for row in first["steps"]]
    assert losses == pytest.approx([row["loss"] for row in single["steps"]], rel=1e-6, abs=1e-6)
    joined = [row for row in fleet.rows("w0", "membership") if row["joined"] == ["w2"]]
    assert len(joined) == 1
    if extra.get("bitwise"):
        assert first["weights"] == single["weights"]


def test_a_joiner_takes_the_place_of_one_that_was_killed(fleet_of: Callable[..., "Fleet"]) -> None:
    fleet = fleet_of(**JOINING)
    fleet.start(["w0", "w1"], PLAIT_FAULTS="kill w0@5:exchange")
    fleet.wait_for_step("w1", 8)
    fleet.join("w2")
    first, joiner = fleet.results("w1", "w2")
    assert first["weights"] == joiner["weights"]
    assert joiner["world"] == ["w1", "w2"]


def test_a_joiner_that_dies_at_its_first_work_is_given_up(fleet_of: Callable[..., "Fleet"]) -> None:
    """The run expects another joiner after it, and that one comes in."""
    fleet = fleet_of(steps=STEPS, expects=["w3"], patient_steps=30)
    fleet.start(["w0", "w1"])
    fleet.wait_for_step("w0", 3)
    kills = "; ".join(f"kill w2@{step}:exchange" for step in range(STEPS))
    fleet.join("w2", PLAIT_FAULTS=kills)
    fleet.join("w3")
    first, second, joiner = fleet.results("w0", "w1", "w3")
    assert first["weights"] == second["weights"] == joiner["weights"]
    assert joiner["world"] == ["w0", "w1", "w3"]


@pytest.mark.parametrize("leaver", ["w0", "w2"])
def test_one_that_breaks_out_of_its_loop_leaves_and_the_others_go_on(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], leaver: str
) -> None:
    fleet = fleet_of(steps=15, leaves={leaver: 6})
    fleet.start(["w0", "w1", "w2"], PLAIT_SPLIT=EVEN)
    staying = [m for m in ("w0", "w1", "w2") if m != leaver]
    *others, left = fleet.results(*staying, leaver)
    assert left["step"] == 6
    for found in others:
        assert found["step"] == 15
        assert found["world"] == staying
        assert found["weights"] == others[0]["weights"]
        losses = [row["loss"] for row in found["steps"]]
        assert losses == pytest.approx([row["loss"] for row in alone(steps=15)["steps"]], rel=1e-6, abs=1e-6)


def test_all_but_one_leave(fleet_of: Callable[..., "Fleet"]) -> None:
    fleet = fleet_of(steps=15, leaves={"w0": 4, "w1": 4})
    fleet.start(["w0", "w1", "w2"], PLAIT_SPLIT=EVEN)
    _, _, last = fleet.results("w0", "w1", "w2")
    assert last["world"] == ["w2"]
    assert last["step"] == 15


def test_a_worker_with_another_model_is_refused_alone(fleet_of: Callable[..., "Fleet"]) -> None:
    fleet = fleet_of(steps=15, models={"w2": "wider"})
    fleet.start(["w0", "w1", "w2"])
    first, second = fleet.results("w0", "w1")
    assert first["world"] == second["world"] == ["w0", "w1"]
    assert first["weights"] == second["weights"]
    assert fleet.workers["w2"].code == 1
    assert "ContractMismatch: w2 differs from w0 in parameters: " in fleet.log("w2")


def test_a_schedule_of_a_loop_of_its_own_is_refused_before_weights_differ(fleet_of: Callable[..., "Fleet"]) -> None:
    fleet = fleet_of(steps=15, own_rates=["w1"])
    fleet.start(["w0", "w1", "w2"])
    assert set(fleet.codes().values()) == {1}
    for member in ("w0", "w1", "w2"):
        assert "ContractMismatch: in step 1 w0, w2 and w1 have different learning rates" in fleet.log(member)


def test_a_joiner_with_another_model_is_refused_and_the_run_goes_on(fleet_of: Callable[..., "Fleet"]) -> None:
    fleet = fleet_of(steps=STEPS, expects=["w3"], patient_steps=30, models={"w2": "wider"})
    fleet.start(["w0", "w1"])
    fleet.wait_for_step("w0", 3)
    fleet.join("w2")
    fleet.join("w3")
    first, second, joiner = fleet.results("w0", "w1", "w3")
    assert first["weights"] == second["weights"] == joiner["weights"]
    assert fleet.workers["w2"].code == 1
    assert "ContractMismatch: w2 differs from w0 in parameters: " in fleet.log("w2")


def test_a_device_takes_no_more_than_its_limit(fleet_of: Callable[..., "Fleet"]) -> None:
    """Before and after another member is lost; a limit of 0 leaves it out."""
    fleet = fleet_of(steps=25, max_share={"w1": 2, "w3": 0})
    fleet.start(["w0", "w1", "w2", "w3"], PLAIT_FAULTS="kill w2@12:compute")
    results = fleet.results("w0", "w1", "w3")
    for row in results[0]["steps"]:
        assert row["work"]["w1"] <= 2
        assert row["work"]["w3"] == 0
    last = results[0]["steps"][-2]["work"]
    assert last["w0"] + last["w1"] == 12
    assert len({found["weights"] for found in results}) == 1


def test_limits_that_leave_no_room_for_a_step_are_refused(fleet_of: Callable[..., "Fleet"]) -> None:
    fleet = fleet_of(steps=5, max_share={"w0": 4, "w1": 5})
    fleet.start(["w0", "w1"])
    assert 0 not in fleet.codes().values()
    assert "12" in fleet.log("w0")
    assert "CapacityExceeded" in fleet.log("w0")
