"""Nodes as processes: what is left after a trainer, its saver, its disk or another run has come and gone."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from plait.spec.job import Checkpoint, LocalTier
from plait.train.checkpoint.checkpointer import LoadedCheckpoint
from plait.train.checkpoint.copies import copies_of
from plait.train.checkpoint.nearest import load
from plait.train.checkpoint.peers import peer_environment, peers_from_environment
from plait.train.checkpoint.repository import Repository
from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings
from plait.train.checkpoint.stores import open_store
from plait.train.checkpoint.tiers import PEER, STORE

TRAINER = Path(__file__).with_name("trainer.py")
RUN = "job-1"


class Nodes:
    """Node a trains, node b holds copies; both have processes and directories of their own."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self.local = str(place / "store"), str(place / "disk-of-a")
        self.name = f"test-{os.getpid()}-{place.name}"
        self.processes: list[subprocess.Popen[str]] = []
        token = place / "token"
        token.write_text("of this cluster", encoding="utf-8")
        self.holder = self.start(
            "-m", "plait.train.checkpoint.holder", "--token-file", token, "--listen", "127.0.0.1:0"
        )
        address = self.line(self.holder)
        told = peer_environment(RUN, "a", {"b": address}, b"of this cluster")
        for variable, value in {**told, "PLAIT_SAVER": self.name}.items():
            monkeypatch.setenv(variable, value)
        self.saver = self.start_saver()

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, *map(str, arguments)]
        self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return self.processes[-1]

    def start_saver(self) -> subprocess.Popen[str]:
        return self.start("-m", "plait.train.checkpoint.saver", "--name", self.name, "--linger-s", "300")

    @staticmethod
    def line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def train(self, steps: str, *, has_disk: bool = True) -> subprocess.Popen[str]:
        """Returns a trainer that has brought all steps to their tiers."""
        trainer = self.start(TRAINER, self.url, self.local if has_disk else "", steps)
        assert self.line(trainer).startswith("from")
        for part in steps.split(","):
            assert self.line(trainer) == part.partition(":")[0]
        return trainer

    def kill(self, *processes: subprocess.Popen[str]) -> None:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def load(self) -> LoadedCheckpoint:
        """Returns what a new trainer on node a goes on from."""
        wanted = Checkpoint(url=self.url, local=LocalTier(path=self.local), peer_interval_s=60.0)
        found = SnapshotCheckpointer(SnapshotSettings.of(wanted)).load()
        assert found is not None
        assert torch.equal(found.state["x"], torch.full((200_000,), float(found.step)))
        return found

    def stored(self) -> LoadedCheckpoint | None:
        return load(Repository(open_store(self.url)))

    def until_stored(self, trainer: subprocess.Popen[str]) -> None:
        """Returns once something has come from the local disk to the store, as it does by itself."""
        while self.stored() is None:
            assert trainer.poll() is None

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    made = Nodes(tmp_path, monkeypatch)
    yield made
    made.end()


def test_a_trainer_that_dies_alone_goes_on_from_memory_and_loses_no_step(nodes: Nodes) -> None:
    trainer = nodes.train("10:store,20:local,33:memory")
    nodes.kill(trainer)
    found = nodes.load()
    assert (found.step, found.where) == (33, "the snapshot in shared memory")


def test_without_saver_and_memory_the_disk_goes_before_an_older_store(nodes: Nodes) -> None:
    trainer = nodes.train("10:store,20:local,33:memory")
    nodes.until_stored(trainer)
    nodes.kill(nodes.saver, trainer)
    found = nodes.load()
    assert found.step == 20
    assert "of the local tier" in found.where
    assert found.reason == "the newest: the local tier has step 20, the store has step 10"


def test_a_node_that_is_gone_with_its_disk_goes_on_from_its_peer(nodes: Nodes) -> None:
    trainer = nodes.train("10:store,20:local,30:peer")
    nodes.kill(nodes.saver, trainer)
    shutil.rmtree(nodes.local)
    found = nodes.load()
    assert (found.step, found.where) == (30, "the copy on b")


def test_of_one_step_the_disk_goes_before_the_peer(nodes: Nodes) -> None:
    trainer = nodes.train("10:store,30:local+peer")
    nodes.kill(nodes.saver, trainer)
    found = nodes.load()
    assert found.step == 30
    assert "of the local tier" in found.where
    assert found.reason.startswith("the nearest of the newest")


def test_a_damaged_disk_is_passed_over_for_the_store(nodes: Nodes) -> None:
    trainer = nodes.train("10:store,20:local")
    nodes.until_stored(trainer)
    nodes.kill(nodes.saver, trainer)
    for path in Path(nodes.local).rglob("r00000.safetensors"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 8
        path.write_bytes(data)
    found = nodes.load()
    assert found.step == 10
    assert found.where.startswith("checkpoint commits/")
    assert len(found.skipped) == 2


def test_the_saver_sends_the_last_snapshot_of_a_dead_trainer_to_disk_and_store(nodes: Nodes) -> None:
    trainer = nodes.train("10:store,33:memory")
    nodes.kill(trainer)
    nodes.saver.terminate()  # it ends what it is writing before
    nodes.saver.wait()
    stored = nodes.stored()
    assert stored is not None
    assert stored.step == 33
    assert len(list(Path(nodes.local).rglob("r00000.safetensors"))) == 2


def test_a_run_that_ends_well_leaves_no_copy(nodes: Nodes) -> None:
    wanted = Checkpoint(url=nodes.url, local=LocalTier(path=nodes.local), peer_interval_s=60.0)
    checkpointer = SnapshotCheckpointer(SnapshotSettings.of(wanted))
    checkpointer.save({"x": torch.zeros(3)}, 1, tiers={STORE, PEER})
    checkpointer.wait()
    peers = peers_from_environment()
    assert peers is not None
    assert [copy.step for copy in copies_of(peers, nodes.url)] == [1]
    checkpointer.close()
    assert copies_of(peers, nodes.url) == []
    stored = nodes.stored()  # the end waits for what is on its way from the disk to the store
    assert stored is not None
    assert stored.step == 1
