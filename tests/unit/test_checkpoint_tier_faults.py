"""Tiers that fail: disks that cannot be read, senders that stand still, zombies, stores that are slower than disks."""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.train.checkpoint.arena import Arena
from plait.train.checkpoint.charge import Charge
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.copies import connected, copies_of, drop_copy, fetching, receive_line, send_copy, send_line
from plait.train.checkpoint.holder import Holder
from plait.train.checkpoint.local_tier import LocalTier
from plait.train.checkpoint.manifest import opened, sealed
from plait.train.checkpoint.nearest import Places, load_nearest
from plait.train.checkpoint.peers import Peers, run_key
from plait.train.checkpoint.repository import CheckpointFenced, Repository
from plait.train.checkpoint.stores import FileStore, StoreFailed, StoreRefused
from plait.train.checkpoint.tiers import LOCAL, PEER, STORE


def state_of(step: int) -> dict[str, Any]:
    return {"x": torch.full((40_000,), float(step)), "step": step}


class Life:
    """A trainer on a node, and what its saver knows of it."""

    def __init__(self, place: Path, *, disk: str = "disk", base_step: int | None = None, **more: Any) -> None:
        self.arena = Arena(state_of(0))
        message = {
            "url": f"file://{place}/store", "member": "w0", "keep": 3,
            "local": {"path": f"{place}/{disk}", "keep": 1}, **more,
        }  # fmt: skip
        self.charge = Charge(message, os.dup(self.arena.segment.descriptor))
        self.charge.take_claim(base_step)
        assert self.charge.local is not None
        self.local: LocalTier = self.charge.local

    def train(self, step: int, *tiers: str) -> None:
        claim = self.charge.claim
        assert claim is not None
        taken = self.arena.snapshot(state_of(step), step=step, generation=claim.writer.generation)
        assert taken is not None
        if tiers:
            self.charge.persist(taken[0], None, tiers)

    def places(self) -> Places:
        tier = LocalTier(str(self.local.store.directory.parent), self.charge.url)
        return Places(url=self.charge.url, repository=Repository(self.charge.repository.store), local=tier)

    def close(self) -> None:
        self.charge.uploads.wait()
        self.charge.segment.close()
        self.arena.close()


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path)
    yield made
    made.close()


def broken(*_: object) -> list[Any]:
    raise StoreFailed("a file: Input/output error")


def test_a_disk_that_cannot_be_read_is_passed_over_for_the_store(life: Life) -> None:
    life.train(4, STORE)
    life.charge.uploads.wait()
    life.train(5, LOCAL)
    places = life.places()
    assert places.local is not None
    places.local.repository.commits = broken  # type: ignore[method-assign]
    found = load_nearest(places)
    assert found is not None
    assert (found.step, found.skipped) == (4, ())
    assert found.reason == "the newest: the store has step 4, the local tier cannot be read"


def test_bytes_that_the_disk_does_not_give_are_damage_and_the_store_has_others(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.train(4, STORE)
    life.charge.uploads.wait()
    life.train(5, LOCAL)
    places = life.places()
    assert places.local is not None
    monkeypatch.setattr(places.local.repository, "index", broken)
    found = load_nearest(places)
    assert found is not None
    assert found.step == 4
    assert "Input/output error" in found.skipped[0]


def test_nobody_begins_anew_because_a_disk_cannot_be_read(life: Life) -> None:
    life.train(5, LOCAL)
    places = life.places()
    assert places.local is not None
    places.local.repository.commits = broken  # type: ignore[method-assign]
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        load_nearest(places)


def test_where_nobody_has_written_yet_a_bad_disk_stops_nobody(tmp_path: Path) -> None:
    tier = LocalTier(str(tmp_path / "disk"), "file:///store")
    tier.repository.commits = broken  # type: ignore[method-assign]
    places = Places(url="file:///store", repository=Repository(FileStore(tmp_path / "store")), local=tier)
    assert load_nearest(places) is None


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, StoreFailed), (errno.EACCES, StoreRefused)])
def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    store = FileStore(tmp_path)
    store.create("seals/one.json", b"1")
    assert FileStore(tmp_path / "missing").list("seals/") == []
    usual = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("seals"):
            raise OSError(code, os.strerror(code), str(path))
        return usual(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(kind, match="seals"):
        store.list("seals/")


def test_each_bit_of_a_document_is_verified() -> None:
    data = sealed({"format": 2, "seen": ["commits/x.json"]})
    assert opened(data, "it")["seen"] == ["commits/x.json"]
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 4
        with pytest.raises(CheckpointDamaged, match="its own hash"):
            opened(bytes(changed), "it")


def test_a_store_that_is_slower_than_the_disk_gets_the_newest_instead_of_what_is_gone(life: Life) -> None:
    for step in (1, 2):
        life.train(step, LOCAL)
    assert life.charge.claim is not None
    sent = life.local.upload(1, life.charge.repository, life.charge.claim, 0.5)  # asked for before step 2 came
    assert sent == 2
    (found,) = life.charge.repository.found()
    assert found.manifest is not None
    assert (found.name.step, found.manifest.metric) == (2, None)  # the metric was that of step 1


def test_the_last_snapshot_goes_to_the_store_from_memory_where_the_disk_has_damaged_it(life: Life) -> None:
    life.train(3, LOCAL)
    path = next(life.local.store.directory.glob("data/*/r00000.safetensors"))
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    life.charge.persist_last()
    (name,) = life.charge.repository.names()
    assert name.step == 3
    assert life.charge.repository.verify(name) is None
    assert life.charge.durable[STORE] == (1, 3)


def test_what_a_tier_has_already_is_not_saved_again(life: Life) -> None:
    life.train(3, LOCAL)
    slot = life.arena.segment.newest()
    assert slot is not None
    for _ in range(2):
        answer = life.charge.persist(slot, None, {LOCAL, STORE})
        assert answer["kind"] == "saved"
        assert answer["behind"] is None
        life.charge.uploads.wait()
    assert answer["tiers"] == [LOCAL, STORE]
    assert life.charge.uploads.fault is None
    assert [name.step for name in life.charge.repository.names()] == [3]


def test_a_zombie_is_told_so_before_it_writes_to_its_own_disk_or_to_a_peer(tmp_path: Path, life: Life) -> None:
    life.train(3, STORE)
    life.charge.uploads.wait()
    other = Life(tmp_path, disk="disk of another node", base_step=3)
    for tier in (LOCAL, PEER):
        with pytest.raises(CheckpointFenced):
            life.train(9, tier)
    assert [name.step for name in life.local.repository.commits()] == [3]  # on which others may go on
    other.close()


def test_a_store_that_is_away_keeps_nobody_from_the_disk(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def away(prefix: str) -> list[Any]:
        asked.append(prefix)
        raise StoreFailed("nobody answers")

    monkeypatch.setattr(life.charge.repository.store, "list", away)
    for step in (3, 4):
        life.train(step, LOCAL)
    assert [name.step for name in life.local.repository.commits()] == [4]
    assert asked == ["claims/"]  # whose time-out the second save does not wait for


# The memory of another node


@pytest.fixture
def peers() -> Iterator[Peers]:
    listener = socket.create_server(("127.0.0.1", 0))
    holder = Holder(listener, lambda run: run_key(b"token", run))
    thread = threading.Thread(target=holder.serve)
    thread.start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    yield Peers(run="job", key=run_key(b"token", "job"), node="a", addresses=(("b", address),))
    holder.ending.set()
    thread.join()
    listener.close()


@contextlib.contextmanager
def offering(peers: Peers, url: str, data_bytes: int) -> Iterator[socket.socket]:
    """The connection of a sender whose offer of a copy was taken, and which sends nothing yet."""
    with connected(peers, peers.addresses[0][1]) as connection:
        offer = {
            "kind": "keep", "url": url, "member": "w0", "generation": 1, "step": 2,
            "index_bytes": 100, "data_bytes": data_bytes, "insists": False,
        }  # fmt: skip
        send_line(connection, offer)
        assert receive_line(connection)["kind"] == "send"
        yield connection


def test_a_sender_that_stands_still_keeps_nobody_from_the_copy_before(tmp_path: Path, peers: Peers) -> None:
    """As when the cable of its node is pulled: those who restart elsewhere need that copy now."""
    life = Life(tmp_path, peers=asdict(peers))
    life.train(1, PEER)
    with offering(peers, life.charge.url, 100_000) as stalled:
        stalled.sendall(bytes(50_000))
        (copy,) = copies_of(peers, life.charge.url)
        assert copy.step == 1
        with fetching(peers, life.charge.url, copy) as coming:
            data = memoryview(bytearray(200_000))
            coming.read(lambda first, end: [data[first:end]])
    assert bytes(data).count(torch.ones(1).numpy().tobytes()) >= 40_000
    life.train(3, PEER)  # the stalled one has ended, and left nothing
    assert [copy.step for copy in copies_of(peers, life.charge.url)] == [3]
    life.close()


def test_while_a_copy_is_being_freed_the_others_are_served(tmp_path: Path, peers: Peers) -> None:
    life = Life(tmp_path, peers=asdict(peers))
    life.train(1, PEER)
    address = peers.addresses[0][1]
    with offering(peers, life.charge.url, 1000):
        dropping = threading.Thread(target=drop_copy, args=(peers, address, life.charge.url, "w0"))
        dropping.start()  # waits for the one that is coming
        send_copy(peers, address, life.arena.segment, 0, url="file:///another", member="w0")
        assert [copy.step for copy in copies_of(peers, "file:///another")] == [1]
    dropping.join()
    assert copies_of(peers, life.charge.url) == []
    life.close()
