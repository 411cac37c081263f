"""How often snapshots are taken, and the saver that an agent runs for its node."""

import asyncio
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.agent.holder import NodeHolder
from plait.agent.saver import SAVER_VARIABLE, NodeSaver, wants_saver
from plait.train.checkpoint.arena import Arena
from plait.train.checkpoint.copies import copies_of, send_copy
from plait.train.checkpoint.pace import SnapshotPace
from plait.train.checkpoint.peers import Peers, run_key
from plait.train.checkpoint.saver import receive, send, socket_address
from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings

WITH = {"PLAIT_JOB": '{"checkpoint": {"url": "x"}}'}


@given(st.floats(0.001, 10.0), st.floats(1e-6, 5.0), st.integers(30, 120))
def test_snapshots_take_no_more_than_their_share_of_the_time(step_s: float, stall_s: float, steps: int) -> None:
    pace, now_s, spent_s, taken = SnapshotPace(), 0.0, 0.0, []
    for step in range(steps):
        now_s += step_s
        pace.committed(now_s)
        if pace.is_due(step):
            now_s, spent_s = now_s + stall_s, spent_s + stall_s
            pace.snapped(step, stall_s)
            taken.append(step)
    assert taken[0] == 0
    every = pace.every_steps
    assert every is not None
    assert stall_s / (every * step_s) <= 0.01 * (1 + 1e-6)
    assert every == 1 or stall_s / ((every - 1) * step_s) > 0.01 * (1 - 1e-6)  # and no less often than that
    assert all(later - former >= every for former, later in pairwise(taken[1:]))


def test_before_anything_was_measured_a_snapshot_is_due() -> None:
    pace = SnapshotPace()
    assert pace.every_steps is None
    assert pace.is_due(0)
    pace.snapped(0, 0.1)
    assert pace.is_due(1)


def test_only_jobs_with_checkpoints_want_a_saver() -> None:
    assert wants_saver(WITH)
    for text in ("{}", '{"checkpoint": null}', "no json", "[]"):
        assert not wants_saver({"PLAIT_JOB": text})
    assert not wants_saver({})


def test_the_saver_of_a_node_starts_once_and_ends_with_it(tmp_path: Path) -> None:
    saver = NodeSaver(tmp_path)
    assert saver.prepared({"A": "1"}) == {"A": "1"}
    assert saver.pids == frozenset()
    environment = {**os.environ, **WITH}
    try:
        told = saver.prepared(environment)
        assert told[SAVER_VARIABLE] == saver.name
        first = saver.pids
        assert len(first) == 1
        saver.prepared(environment)
        assert saver.pids == first
        os.kill(next(iter(first)), 9)
        os.waitid(os.P_PID, next(iter(first)), os.WEXITED | os.WNOWAIT)
        saver.prepared(environment)  # a dead one is replaced
        assert len(saver.pids) == 1
        assert saver.pids != first
    finally:
        asyncio.run(saver.stop())
    assert saver.pids == frozenset()
    asyncio.run(saver.stop())


def test_workers_of_a_node_share_its_saver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeSaver(tmp_path / "agent")
    told = node.prepared({**os.environ, **WITH})
    monkeypatch.setenv(SAVER_VARIABLE, told[SAVER_VARIABLE])
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            until_listening(probe, told[SAVER_VARIABLE])
            send(probe, {"kind": "nonsense"})
            answer = receive(probe)
            assert answer is not None
            assert "not understood" in answer[0]["error"]
            send(probe, {"kind": "bye"})
        checkpointers = [
            SnapshotCheckpointer(SnapshotSettings(url=str(tmp_path / name)), member=name) for name in ("w0", "w1")
        ]
        for step, checkpointer in enumerate(checkpointers):
            checkpointer.save({"x": torch.full((3,), float(step))}, step)
            checkpointer.wait()
            assert checkpointer.durable_step == step
        assert {checkpointer.saver_pid for checkpointer in checkpointers} == node.pids
        for checkpointer in checkpointers:
            checkpointer.close()
    finally:
        asyncio.run(node.stop())


def until_listening(probe: socket.socket, name: str) -> None:
    deadline_s = time.monotonic() + 30.0
    while True:
        try:
            probe.connect(socket_address(name))
        except OSError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        else:
            return


def test_the_holder_of_a_node_starts_when_somebody_knocks(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n", encoding="utf-8")
    node = NodeHolder("127.0.0.1", token, tmp_path)
    peers = Peers(run="j", key=run_key(b"secret", "j"), node="a", addresses=(("b", node.address),))
    arena = Arena({"x": torch.ones(1000)})
    arena.snapshot({"x": torch.ones(1000)}, step=7, generation=1)
    with ThreadPoolExecutor(max_workers=1) as sender:
        try:
            node.look()
            assert node.pids == frozenset()
            sending = sender.submit(send_copy, peers, node.address, arena.segment, 0, url="u", member="w0")
            while not sending.done():
                node.look()
                wait([sending], timeout=0.05)
            assert sending.result().step == 7
            first = node.pids
            assert len(first) == 1
            assert [copy.step for copy in copies_of(peers, "u")] == [7]
        finally:
            asyncio.run(node.stop())
    assert node.pids == frozenset()
    assert copies_of(peers, "u") == []
    arena.close()


def test_a_node_without_a_token_takes_no_copies(tmp_path: Path) -> None:
    assert NodeHolder("127.0.0.1", None, tmp_path).address == ""
    elsewhere = NodeHolder("192.0.2.1", tmp_path / "token", tmp_path)  # no address of this machine
    elsewhere.look()
    assert (elsewhere.address, elsewhere.pids) == ("", frozenset())
