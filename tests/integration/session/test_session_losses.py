"""Real workers, some of which die or freeze: the others go on together, and the numbers are those of one process."""

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.session.conftest import Fleet

STEPS = 15
EVEN = "w0:4,w1:4,w2:4"
"""Everybody has work, and so comes to every point of a step; it holds while all three are there."""


def check_survivors(results: Sequence[dict[str, Any]], reference: dict[str, Any], world: Sequence[str]) -> None:
    """All are done, alike, and have seen the losses of one process: no sample was lost, none counted twice."""
    for found in results:
        assert found["step"] == STEPS
        assert found["world"] == list(world)
        assert found["weights"] == results[0]["weights"]
        assert [row["step"] for row in found["steps"]] == list(range(STEPS))
        losses = [row["loss"] for row in found["steps"]]
        assert losses == pytest.approx([row["loss"] for row in reference["steps"]], rel=1e-6, abs=1e-6)
        assert all(sum(row["work"].values()) >= 1 for row in found["steps"])


@pytest.mark.parametrize("point", ["start", "compute", "exchange", "commit"])
@pytest.mark.parametrize("victim", ["w0", "w2"])
def test_a_killed_member_leaves_the_numbers_as_they_are(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], victim: str, point: str
) -> None:
    fleet = fleet_of(steps=STEPS)
    fleet.start(["w0", "w1", "w2"], PLAIT_FAULTS=f"kill {victim}@6:{point}", PLAIT_SPLIT=EVEN)
    survivors = [m for m in ("w0", "w1", "w2") if m != victim]
    results = fleet.results(*survivors)
    assert fleet.workers[victim].code == -signal.SIGKILL
    check_survivors(results, alone(steps=STEPS), survivors)
    (change,) = (row for row in fleet.rows(survivors[0], "membership") if row["lost"])
    assert change["lost"] == [victim]
    assert change["gap_s"] is not None
    assert victim in change["reason"]


@pytest.mark.parametrize(
    ("faults", "lost"),
    [
        ("kill w1@5; kill w2@8:exchange", ["w1", "w2"]),
        ("kill w1@5:exchange; kill w2@5:compute", ["w1", "w2"]),
        ("kill w0@4:commit; kill w1@9:start", ["w0", "w1"]),
        ("kill w0@6:exchange; kill w1@7:exchange; kill w2@7:commit", ["w0", "w1", "w2"]),
    ],
)
def test_losses_in_a_row(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], faults: str, lost: list[str]
) -> None:
    fleet = fleet_of(steps=STEPS)
    everybody = ["w0", "w1", "w2", "w3"]
    fleet.start(everybody, PLAIT_FAULTS=faults, PLAIT_SPLIT="w0:3,w1:3,w2:3,w3:3")
    survivors = [m for m in everybody if m not in lost]
    results = fleet.results(*survivors)
    check_survivors(results, alone(steps=STEPS), survivors)
    changes = fleet.rows(survivors[0], "membership")
    assert {m for change in changes for m in change["lost"]} == set(lost)


@pytest.mark.parametrize("victim", ["w0", "w1"])
def test_a_frozen_member_is_given_up_and_killed(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], victim: str
) -> None:
    fleet = fleet_of(steps=STEPS, timeout_s=2.0)
    fleet.start(["w0", "w1", "w2"], PLAIT_FAULTS=f"freeze {victim}@5:exchange")
    survivors = [m for m in ("w0", "w1", "w2") if m != victim]
    results = fleet.results(*survivors)
    assert fleet.workers[victim].code == -signal.SIGKILL  # by its own warden, so that nobody need doubt its end
    check_survivors(results, alone(steps=STEPS), survivors)


@pytest.mark.parametrize("max_fused", [1, 2])
def test_a_kill_between_the_chunks_of_a_share(
    fleet_of: Callable[..., "Fleet"], alone: Callable[..., dict[str, Any]], max_fused: int
) -> None:
    fleet = fleet_of(steps=STEPS, max_fused=max_fused)
    fleet.start(["w0", "w1", "w2"], PLAIT_FAULTS="kill w1@6:compute", PLAIT_SPLIT=EVEN)
    check_survivors(fleet.results("w0", "w2"), alone(steps=STEPS), ["w0", "w2"])


def test_an_error_in_one_member_ends_that_one_alone(fleet_of: Callable[..., "Fleet"]) -> None:
    fleet = fleet_of(steps=STEPS)
    fleet.start(["w0", "w1", "w2"], PLAIT_FAULTS="error w1@3; exit w2@7")
    (found,) = fleet.results("w0")
    assert found["step"] == STEPS
    assert fleet.codes() == {"w0": 0, "w1": 1, "w2": 77}
    assert "RuntimeError: injected at step 3" in fleet.log("w1")


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ("exchange", {"dtype": "fp32"}),
        ("exchange", {"dtype": "fp32", "compression": "int8"}),
        ("compute", {"bitwise": True}),
        ("commit", {"bitwise": True}),
    ],
)
def test_a_connection_that_is_reset_is_made_anew_and_the_step_exchanged_again(
    fleet_of: Callable[..., "Fleet"], point: str, told: dict[str, Any]
) -> None:
    """Both ends live on: nobody leaves, nothing is lost, and the weights are those of an undisturbed group."""
    members, split = ["w0", "w1", "w2"], "w0:5,w1:4,w2:3"
    undisturbed = fleet_of(steps=20, max_fused=12, **told)
    undisturbed.start(members, PLAIT_SPLIT=split)
    expected = undisturbed.results(*members)[0]
    fleet = fleet_of(steps=20, max_fused=12, **told)
    fleet.start(members, PLAIT_SPLIT=split, PLAIT_FAULTS=f"reset w1@7:{point}; reset w0@12:{point}")
    results = fleet.results(*members)
    (weights,) = {found["weights"] for found in results}
    # Where some have committed when it breaks, they have begun the next step, which is dealt anew then: sums of
    # floats, added in another order, have other last bits.
    same_work = [row["work"] for row in results[0]["steps"]] == [row["work"] for row in expected["steps"]]
    if told.get("bitwise") or same_work:
        assert weights == expected["weights"]
    for found in results:
        assert [row["step"] for row in found["steps"]] == list(range(20))
        for row, reference in zip(found["steps"], expected["steps"], strict=True):
            assert sum(row["work"].values()) == sum(reference["work"].values())
            assert row["loss"] == pytest.approx(reference["loss"], rel=1e-4)
    rows = [(row["step"], {member, row["member"]}, row) for member in members for row in fleet.rows(member, "break")]
    assert any(ends == {"w1", "w2"} for _, ends, _ in rows)
    assert any(ends == {"w0", "w1"} for _, ends, _ in rows)
    assert {step for step, _, _ in rows} <= {6, 7, 8, 11, 12, 13}
    assert all(row["unsent_bytes"] >= 0 and "connection" in row["reason"] for _, _, row in rows)
    assert any("broke (the link to w" in fleet.log(member) for member in members)
    again = [row for row in fleet.rows("w1", "membership") if row["reason"] == "the exchange was begun again"]
    assert len(again) == 2
    assert all(row["members"] == members for row in again)
