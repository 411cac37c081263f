"""What ends a worker reaches its agent as an exit code."""

import pytest
import torch

from plait.agent import causes
from plait.errors import ContractMismatch, MembershipLost
from plait.train.exits import EXIT_NETWORK, EXIT_OOM, exit_codes
from plait.train.retreat import DoesNotFit

ENDS = [
    (MembershipLost("w1 was cut off"), EXIT_NETWORK),
    (MemoryError("no more"), EXIT_OOM),
    (torch.OutOfMemoryError("no more on the device"), EXIT_OOM),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), EXIT_OOM),
    (DoesNotFit("nothing smaller can be tried"), EXIT_OOM),
]


def test_agents_know_the_codes() -> None:
    assert (EXIT_OOM, EXIT_NETWORK) == (causes.EXIT_OOM, causes.EXIT_NETWORK)


@pytest.mark.parametrize(("error", "code"), ENDS)
def test_under_an_agent_the_process_ends_with_the_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PLAIT_AGENT", "/nowhere.sock")
    with pytest.raises(SystemExit) as ended, exit_codes():
        raise error
    assert ended.value.code == code
    assert str(error) in caplog.text


@pytest.mark.parametrize(("error", "code"), ENDS)
def test_without_an_agent_the_error_stays(error: Exception, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAIT_AGENT", raising=False)
    with pytest.raises(type(error), match=str(error)), exit_codes():
        raise error


def test_a_mistake_of_the_users_stays_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_AGENT", "/nowhere.sock")
    with pytest.raises(ContractMismatch), exit_codes():
        raise ContractMismatch("w1 differs from w0 in seed: 1 here, 0 there")
    with pytest.raises(RuntimeError, match="shapes"), exit_codes():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
