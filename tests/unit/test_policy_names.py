"""Policies by name."""

import pytest

from plait.schedule.policies import UnknownPolicy, policy, policy_names, policy_or_default
from plait.schedule.policies.fifo_backfill import FifoBackfill


def test_a_built_in_policy_is_found_by_its_name() -> None:
    found = policy("fifo_backfill")
    assert isinstance(found, FifoBackfill)
    assert found.name in policy_names()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("fifo_backfil", "; did you mean 'fifo_backfill'?"), ("zzz", "; there are fifo, fifo_backfill, ")],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UnknownPolicy) as caught:
        policy(name)
    assert str(caught.value).startswith(f"there is no scheduling policy {name!r}{hint}")


def test_work_goes_on_under_the_default_where_a_policy_is_not_installed() -> None:
    found, notice = policy_or_default("fifo_backfil")
    assert isinstance(found, FifoBackfill)
    assert notice is not None
    assert notice.endswith("did you mean 'fifo_backfill'?; fifo_backfill decides instead")
    assert policy_or_default("fifo_backfill")[1] is None


def test_an_installed_policy_is_found_through_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from plait.schedule import policies

    point = EntryPoint(name="mine", value="plait.schedule.policies.fifo_backfill:FifoBackfill", group="plait.policies")
    monkeypatch.setattr(policies, "entry_points", lambda group: [point] if group == "plait.policies" else [])
    assert isinstance(policy("mine"), FifoBackfill)
    assert set(policy_names()) == {*policies.BUILT_IN, "mine"}
