"""Faults with coordinates: what is understood, what is refused, and that each strikes once."""

import pytest

from plait.errors import PlaitError
from plait.train.faults import Fault, FaultInjector, parse_faults


def test_faults_are_read() -> None:
    assert parse_faults("kill w1@40; freeze w2@60:exchange;exit w10@0:commit ; ") == (
        Fault("kill", "w1", 40),
        Fault("freeze", "w2", 60, "exchange"),
        Fault("exit", "w10", 0, "commit"),
    )
    assert parse_faults("") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kil w1@4", "'kil'; did you mean 'kill'"),
        ("kill w1@4:comit", "'comit'; did you mean 'commit'"),
        ("kill w1@4; frieze w2@5", "'frieze'; did you mean 'freeze'"),
        ("zzzzzz w1@4", "'zzzzzz'; known are kill, freeze"),
        ("kill w1", "'kill w1'; expected a form such as"),
        ("kill w1@soon", "'kill w1@soon'; expected a form such as"),
        ("kill w1@-1", "'kill w1@-1'; expected a form such as"),
        ("w1@4", "'w1@4'; expected a form such as"),
    ],
)
def test_what_is_wrong_is_named_with_the_nearest_word(text: str, message: str) -> None:
    with pytest.raises(PlaitError) as caught:
        parse_faults(text)
    assert message in str(caught.value)


def test_each_fault_of_this_member_strikes_once_at_its_point() -> None:
    faults = FaultInjector("w1", "oom w1@3:compute; error w1@4; oom w2@5; error w10@6")
    faults.reach(3, "start")
    faults.reach(2, "compute")
    with pytest.raises(MemoryError, match="injected at step 3"):
        faults.reach(3, "compute")
    faults.reach(3, "compute")  # the same step again, after a retreat
    with pytest.raises(RuntimeError, match="injected at step 4"):
        faults.reach(4, "start")
    faults.reach(5, "start")
    faults.reach(6, "start")


def test_a_reset_is_left_to_whoever_has_connections() -> None:
    faults, struck = FaultInjector("w1", "reset w1@3:exchange"), []
    faults.reset = lambda: struck.append("reset")
    faults.reach(3, "compute")
    assert not struck
    faults.reach(3, "exchange")
    faults.reach(3, "exchange")
    assert struck == ["reset"]
