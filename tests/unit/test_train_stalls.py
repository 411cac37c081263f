"""Stuck links are told from the kernel's table, and only when a wait is far beyond the usual."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.train import stalls
from plait.train.collectives.mesh import MeshBroken
from plait.train.engine import StepEngine
from plait.train.stalls import StallWatch, StuckLink, stuck_links

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ADDRESSES = {"w1": "10.0.0.2:7001", "w2": "10.0.0.3:7001", "w3": "10.0.0.3:7002"}


def row(remote: str, unsent: int, retries: int) -> str:
    return f"   0: 0100000A:1B58 {remote} 01 {unsent:08X}:00000000 01:00000014 {retries:08X}     0        0 4711 1\n"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tcp"
    path.write_text(HEADER, encoding="ascii")
    monkeypatch.setattr(stalls, "TABLES", (path,))
    monkeypatch.setattr(stalls, "stuck_links", lambda addresses: stuck_links(addresses, (path,)))
    return path


def test_connections_that_were_sent_again_name_their_members(table: Path) -> None:
    rows = [row("0200000A:1B59", 900, 3), row("0200000A:1B60", 100, 1), row("0300000A:1B59", 70, 0)]
    table.write_text(HEADER + "".join(rows), encoding="ascii")
    assert stuck_links(ADDRESSES, (table,)) == (StuckLink(members=("w1",), unsent_bytes=1000, retries=3),)


def test_members_at_one_address_are_named_together_and_strangers_never(table: Path) -> None:
    rows = [row("0300000A:1B59", 8, 2), row("0900000A:1B59", 8, 2)]
    table.write_text(HEADER + "".join(rows), encoding="ascii")
    assert stuck_links(ADDRESSES, (table,)) == (StuckLink(members=("w2", "w3"), unsent_bytes=8, retries=2),)


def test_addresses_of_the_sixth_version_are_understood(tmp_path: Path) -> None:
    table = tmp_path / "tcp6"
    mapped, local = "0000000000000000FFFF00000200000A:1B59", "00000000000000000000000001000000:1B59"
    table.write_text(HEADER + row(mapped, 5, 1) + row(local, 6, 2), encoding="ascii")
    found = stuck_links({"w1": "10.0.0.2:7001", "w9": "[::1]:7001"}, (table, tmp_path / "missing"))
    assert found == (
        StuckLink(members=("w1",), unsent_bytes=5, retries=1),
        StuckLink(members=("w9",), unsent_bytes=6, retries=2),
    )


def wait(watch: StallWatch, begin_s: float, length_s: float) -> stalls.Stall | None:
    for tenth in range(int(length_s * 10) + 1):
        watch.waiting(begin_s + tenth / 10)
    return watch.over(7, begin_s + length_s)


def test_a_long_wait_with_a_stuck_link_is_a_stall_that_says_where(table: Path) -> None:
    watch = StallWatch()
    watch.addresses = ADDRESSES
    for number in range(5):
        assert wait(watch, float(number), 0.1) is None
    table.write_text(HEADER + row("0200000A:1B59", 4096, 5), encoding="ascii")
    stall = wait(watch, 100.0, 2.0)
    assert stall is not None
    assert (stall.step, stall.waited_s, stall.links) == (
        7,
        2.0,
        (StuckLink(members=("w1",), unsent_bytes=4096, retries=5),),
    )
    assert str(stall) == (
        "step 7 waited 2.00 s for others (usually 0.100 s): "
        "the link to w1 (4096 bytes unconfirmed, sent again 5 times) gave no answer"
    )


def test_a_long_wait_without_a_stuck_link_is_no_stall_of_a_link(table: Path) -> None:
    watch = StallWatch()
    watch.addresses = ADDRESSES
    assert table.exists()
    assert wait(watch, 0.0, 3.0) is None


def test_what_counts_as_long_follows_what_is_usual(table: Path) -> None:
    watch = StallWatch()
    watch.addresses = ADDRESSES
    assert watch.limit_s == stalls.LEAST_S
    table.write_text(HEADER + row("0200000A:1B59", 4096, 5), encoding="ascii")
    for number in range(40):
        wait(watch, 10.0 * number, 1.0)
    assert watch.limit_s == pytest.approx(8.0)
    assert wait(watch, 1000.0, 5.0) is None
    assert wait(watch, 2000.0, 9.0) is not None


def test_nothing_is_told_where_nobody_waited() -> None:
    assert StallWatch().over(3) is None


def test_a_connection_is_given_up_far_beyond_the_usual_wait_of_its_stage(table: Path) -> None:
    watch = StallWatch(timeout_s=60.0, heartbeat_timeout_s=1.5)
    watch.waiting(0.0, stage="gradients")
    assert watch.give_up_s == 60.0, "nothing is known yet"
    assert not watch.is_too_long(59.0)
    assert watch.is_too_long(60.0)
    watch.over(0, 0.05)
    assert not watch.is_too_long(1000.0), "nobody waits"
    for number in range(1, 6):
        watch.waiting(float(number), stage="gradients")
        watch.over(number, number + 0.5)
        watch.waiting(number + 0.6, stage="vote")
        watch.over(number, number + 0.61)
    watch.waiting(10.0, stage="gradients")
    assert watch.give_up_s == pytest.approx(stalls.GIVE_UP_TIMES * stalls.USUAL_TIMES * 0.5)
    watch.over(6, 10.5)
    watch.waiting(11.0, stage="vote")
    assert watch.give_up_s == 3.0, "votes are quick, but a silent host is a member for 1.5 s"
    assert not watch.is_too_long(13.9)
    assert watch.is_too_long(14.0)


def test_no_exchange_is_given_more_time_than_its_time_out(table: Path) -> None:
    watch = StallWatch(timeout_s=2.0, heartbeat_timeout_s=30.0)
    for number in range(6):
        watch.waiting(10.0 * number, stage="gradients")
        watch.over(number, 10.0 * number + 9.0)
    assert watch.give_up_s == 2.0


class Endless:
    """A work that never comes to its end."""

    def is_completed(self) -> bool:
        return False

    def wait(self, _timeout: object = None) -> None:
        raise RuntimeError("the sum is not complete yet")


def test_a_wait_for_a_connection_without_answers_ends_with_its_name(table: Path) -> None:
    stuck = MeshBroken("the connection to member 2 gives no answer", 2, 7000)
    told: list[object] = []
    asked = iter([None, None, stuck])
    engine: Any = SimpleNamespace(
        stalls=StallWatch(timeout_s=0.0),
        standing=SimpleNamespace(group=None, must_stop=lambda: False, stuck_connection=lambda: next(asked)),
        observers=SimpleNamespace(on_stall=told.append),
        step=3,
    )
    with pytest.raises(MeshBroken) as caught:
        StepEngine.wait_for(engine, [Endless()], "gradients")
    assert caught.value is stuck
    assert len(told) == 1, "what the kernel says of the wait is told as of any other"
