"""The tiers behind shared memory, one by one: schedule, local disk, the memory of another node."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.errors import PlaitError
from plait.spec.job import Checkpoint
from plait.spec.job import LocalTier as LocalTierSpec
from plait.train.checkpoint.arena import Arena
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.commit import Ancestor, Lineage, Writer
from plait.train.checkpoint.copies import (
    PeerHasNewer,
    PeerRefused,
    copies_of,
    drop_copy,
    fetching,
    send_copy,
)
from plait.train.checkpoint.holder import Holder
from plait.train.checkpoint.index import decoded
from plait.train.checkpoint.local_tier import LocalTier
from plait.train.checkpoint.nearest import Places, load_nearest
from plait.train.checkpoint.peers import Peers, peer_environment, peers_from_environment, preferred, run_key
from plait.train.checkpoint.repository import CheckpointFenced, Claim, Repository
from plait.train.checkpoint.restore import Filling, state_of
from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings
from plait.train.checkpoint.stores import FileStore
from plait.train.checkpoint.tiers import LOCAL, PEER, STORE, FaultRate, SaveCost, SaveSchedule, best_interval_s

TOKEN = b"the cluster's token"
URL = "s3://bucket/run"


# When


def test_the_interval_of_young_and_daly_within_its_bounds() -> None:
    assert best_interval_s(0.1, 86400.0) == pytest.approx((2 * 0.1 * 86400.0) ** 0.5 - 0.1)
    assert best_interval_s(0.1, 1e9) == 3600.0
    assert best_interval_s(20.0, 1000.0) == pytest.approx(20.0 / 0.03)  # the budget goes before the optimum
    assert best_interval_s(0.001, 86400.0, took_s=60.0) == 120.0
    assert best_interval_s(0.0, 86400.0) == 5.0


def test_what_a_save_costs_is_its_stall_and_the_slower_steps_after_it() -> None:
    cost, now_s = SaveCost(), 0.0
    for _ in range(5):
        cost.committed(now_s, is_saving=False)
        now_s += 1.0
    assert cost.cost_s is None
    cost.began(0.25)
    now_s += 0.25
    for step_s, is_saving in ((1.5, True), (1.5, True), (1.25, False)):
        cost.committed(now_s, is_saving=is_saving)
        now_s += step_s
    cost.committed(now_s, is_saving=False)
    assert cost.cost_s == pytest.approx(0.25 + 0.5 + 0.5)


def test_faults_are_believed_to_be_daily_until_they_are_seen() -> None:
    rate = FaultRate(1000.0)
    assert rate.between_s(1000.0) == 86400.0
    rate.faults = 3
    assert rate.between_s(1000.0 + 3 * 86400.0) == 86400.0


def test_each_tier_has_its_own_time() -> None:
    wanted = Checkpoint(
        url=URL, interval_s=300.0, local=LocalTierSpec(path="/x", interval_s=60.0), peer_interval_s=100.0
    )
    schedule = SaveSchedule(wanted, 0.0)
    assert schedule.due(59.0) == set()
    assert schedule.due(61.0) == {LOCAL}
    schedule.saved(schedule.due(61.0), 61.0)
    assert schedule.due(110.0) == {PEER}
    assert schedule.due(300.0) == {LOCAL, PEER, STORE}
    schedule.saved({STORE}, 300.0)
    assert schedule.due(301.0) == {PEER}  # what goes to the store is on the local disk first
    assert SaveSchedule(replace(wanted, local=None, peer_interval_s=None), 0.0).due(1e6) == {STORE}


def test_an_automatic_interval_follows_what_was_measured() -> None:
    schedule = SaveSchedule(Checkpoint(url=URL, is_automatic=True), 0.0)
    assert schedule.interval_s(STORE, 0.0) == 60.0
    schedule.cost.cost_s = 0.5
    quiet = schedule.interval_s(STORE, 0.0)
    schedule.rate.faults = 9
    often = schedule.interval_s(STORE, 0.0)
    assert quiet == pytest.approx((86400.0) ** 0.5 - 0.5)
    assert often == pytest.approx((8640.0) ** 0.5 - 0.5)


# Whose states count


def test_what_was_before_counts_up_to_the_step_that_was_gone_on_from() -> None:
    one, two, three = Writer(1, "a"), Writer(2, "b"), Writer(3, "c")
    lineage = Lineage(writer=three, before=Lineage(writer=two, before=(Ancestor(one, 50),)).heirs(50))
    assert lineage.counts(three, 99)
    assert lineage.counts(two, 50)
    assert not lineage.counts(two, 51)
    assert not lineage.counts(Writer(2, "zombie"), 10)
    assert lineage.counts_by_generation(1, 50)
    assert not lineage.counts_by_generation(4, 1)
    assert lineage.heirs(None) == ()
    long = Lineage(writer=three, before=tuple(Ancestor(Writer(n, ""), 1) for n in range(40)))
    assert long.heirs(7)[:2] == (Ancestor(three, 7), Ancestor(Writer(0, ""), 1))
    assert len(long.heirs(7)) == 16


def test_what_a_writer_saved_beyond_its_successor_never_counts_again() -> None:
    """Its successor went on from 10; that later ones have come as far as 30 does not bring back what it had of 20."""
    one, two, three = Writer(1, "a"), Writer(2, "b"), Writer(3, "c")
    second = Lineage(writer=two, before=Lineage(writer=one).heirs(10))
    third = Lineage(writer=three, before=second.heirs(30))
    assert third.counts(one, 10)
    assert third.counts(two, 30)
    assert not third.counts(one, 20)
    assert not third.counts_by_generation(1, 20)


# The local tier


def state_of_step(step: int) -> dict[str, Any]:
    return {"x": torch.full((40_000,), float(step)), "step": step}


def save(repository: Repository, claim: Claim, step: int) -> None:
    arena = Arena(state_of_step(step), num_slots=1)
    taken = arena.snapshot(state_of_step(step), step=step)
    assert taken is not None
    slot, record = taken
    prefix = repository.prefix(claim, step)
    index = decoded(arena.segment.index(slot, record.index_bytes))
    receipt = repository.write(prefix, 0, index, arena.segment.data(slot), record.data_bytes)
    repository.commit(claim, step, prefix, [receipt])
    arena.close()


class Node:
    """A store, and the local tier of a node in front of it."""

    def __init__(self, place: Path) -> None:
        self.store = Repository(FileStore(place / "store"))
        self.local = LocalTier(str(place / "local"), self.store.store.url)
        self.claim: Claim | None = None

    def begin(self, base_step: int | None) -> None:
        self.claim = self.store.claim(base_step)
        self.local.adopt(self.claim, self.store)

    def save_here(self, step: int) -> None:
        assert self.local.claim is not None
        save(self.local.repository, self.local.claim, step)
        self.local.repository.retain(self.local.claim)

    def send_on(self, step: int) -> None:
        assert self.claim is not None
        self.local.upload(step, self.store, self.claim, None)

    def load(self) -> tuple[int, str]:
        found = load_nearest(Places(url=URL, repository=self.store, local=self.local))
        assert found is not None
        assert found.state["x"].tolist() == [float(found.step)] * 40_000
        return found.step, found.where


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_newest_is_taken_and_of_one_step_the_nearest(node: Node) -> None:
    node.begin(None)
    node.save_here(10)
    node.send_on(10)
    assert [name.step for name in node.store.names()] == [10]
    assert "local tier" in node.load()[1]  # of step 10 there are two
    node.save_here(20)
    assert node.load()[0] == 20
    for step in (30, 40):
        node.save_here(step)
    assert [name.step for name in node.local.counting(node.store.lineage(), node.store.names())] == [40, 30]
    assert node.store.verify(node.store.names()[0]) is None


def test_a_damaged_local_checkpoint_is_passed_over_for_the_store(node: Node) -> None:
    node.begin(None)
    node.save_here(10)
    node.send_on(10)
    node.save_here(20)
    for path in node.local.store.directory.glob("data/*/r00000.safetensors"):
        data = bytearray(path.read_bytes())
        data[-9] ^= 1
        path.write_bytes(data)
    found = load_nearest(Places(url=URL, repository=node.store, local=node.local))
    assert found is not None
    assert found.step == 10
    assert found.where.startswith("checkpoint commits/")
    assert [text.split(" of the local tier")[0].split("-")[-1] for text in found.skipped] == [
        "000000000020.json",
        "000000000010.json",
    ]


def test_a_damaged_local_checkpoint_is_not_sent_on(node: Node) -> None:
    node.begin(None)
    node.save_here(10)
    path = next(node.local.store.directory.glob("data/*/r00000.safetensors"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(CheckpointDamaged, match="does not have the bytes"):
        node.send_on(10)
    assert node.store.names() == []


def test_a_run_that_goes_on_from_the_local_disk_keeps_it_until_it_has_something_newer(node: Node) -> None:
    node.begin(None)
    node.save_here(10)
    node.send_on(10)
    node.save_here(20)
    for _ in range(3):  # it dies each time before it has saved anything
        assert node.load()[0] == 20
        node.begin(20)
    assert node.load()[0] == 20
    node.save_here(30)
    assert node.load()[0] == 30


def test_an_old_disk_never_wins_over_what_went_on_elsewhere(node: Node, tmp_path: Path) -> None:
    node.begin(None)
    node.save_here(10)
    node.send_on(10)
    node.save_here(50)  # and the node dies
    other = Repository(FileStore(tmp_path / "store"))
    claim = other.claim(10)
    save(other, claim, 20)
    assert node.load() == (20, f"checkpoint {other.names()[0].key} of {other.store.url}")
    with pytest.raises(CheckpointFenced):
        node.send_on(50)
    node.begin(20)
    assert [name.step for name in node.local.repository.commits()] == [10]


# The memory of another node


@pytest.fixture
def holder() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    made = Holder(listener, lambda run: run_key(TOKEN, run))
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    made.ending.set()
    thread.join()
    listener.close()


def peers(address: str, run: str = "job-1", key: str | None = None) -> Peers:
    return Peers(run=run, key=key or run_key(TOKEN, run), node="a", addresses=(("b", address),))


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(state_of_step(0))
    yield made
    made.close()


def sent(arena: Arena, known: Peers, step: int, generation: int = 1, **options: bool) -> None:
    taken = arena.snapshot(state_of_step(step), step=step, generation=generation)
    assert taken is not None
    send_copy(known, known.addresses[0][1], arena.segment, taken[0], url=URL, member="w0", **options)


def test_a_copy_comes_back_as_it_went(holder: str, arena: Arena) -> None:
    known = peers(holder)
    for step in (1, 2, 3):
        sent(arena, known, step)
    (copy,) = copies_of(known, URL)
    assert (copy.node, copy.member, copy.generation, copy.step) == ("b", "w0", 1, 3)
    into: dict[str, Any] = {"x": torch.zeros(40_000), "step": 0}
    with fetching(known, URL, copy) as coming:
        target = Filling(coming.index, into)
        coming.read(target.place)
        state = state_of(coming.index, target.tensors)
    assert state["step"] == 3
    assert state["x"].data_ptr() == into["x"].data_ptr()
    assert into["x"].tolist() == [3.0] * 40_000
    assert copies_of(known, "s3://bucket/other") == []
    drop_copy(known, holder, URL, "w0")
    assert copies_of(known, URL) == []


def test_a_zombie_does_not_replace_a_newer_copy(holder: str, arena: Arena) -> None:
    known = peers(holder)
    sent(arena, known, 5, generation=2)
    with pytest.raises(PeerHasNewer, match="generation 2"):
        sent(arena, known, 90, generation=1)
    assert [(c.generation, c.step) for c in copies_of(known, URL)] == [(2, 5)]
    sent(arena, known, 90, generation=1, insists=True)  # whose claim was found to stand: the store is another one
    assert [(c.generation, c.step) for c in copies_of(known, URL)] == [(1, 90)]


def test_who_does_not_know_the_key_gets_and_leaves_nothing(holder: str, arena: Arena) -> None:
    sent(arena, peers(holder), 5)
    stranger = peers(holder, key=run_key(b"another token", "job-1"))
    assert copies_of(stranger, URL) == []
    with pytest.raises(PeerRefused):
        sent(arena, stranger, 9)
    assert copies_of(peers(holder, run="job-2"), URL) == []  # another run has another key
    assert [c.step for c in copies_of(peers(holder), URL)] == [5]


def test_a_snapshot_that_is_written_while_it_is_sent_does_not_count(
    holder: str, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = peers(holder)
    sent(arena, known, 1)
    whole = arena.segment.record
    seen: list[int] = []

    def record(slot: int) -> Any:
        seen.append(slot)
        if len(seen) == 2:  # the first is before the data is sent, the second after
            arena.segment.begin(slot)
        return whole(slot)

    taken = arena.snapshot(state_of_step(2), step=2, generation=1)
    assert taken is not None
    monkeypatch.setattr(arena.segment, "record", record)
    with pytest.raises(PeerRefused, match="written while it was sent"):
        send_copy(known, holder, arena.segment, taken[0], url=URL, member="w0")
    assert [c.step for c in copies_of(known, URL)] == [1]


def test_a_node_without_memory_to_spare_takes_no_copy(arena: Arena) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    made = Holder(listener, lambda run: run_key(TOKEN, run), linger_s=0.0, memory=lambda: (2**20, 2**30))
    thread = threading.Thread(target=made.serve)
    thread.start()
    with pytest.raises(PeerRefused, match="too little"):
        sent(arena, peers(f"127.0.0.1:{listener.getsockname()[1]}"), 1)
    thread.join()  # nobody, no copy: it ends by itself
    listener.close()


def test_a_copy_is_taken_where_it_is_newer_than_the_store(tmp_path: Path, holder: str, arena: Arena) -> None:
    known = peers(holder)
    repository = Repository(FileStore(tmp_path))
    claim = repository.claim(None)
    save(repository, claim, 10)
    sent(arena, known, 30, generation=claim.writer.generation)
    places = Places(url=URL, repository=repository, peers=known)
    found = load_nearest(places)
    assert found is not None
    assert (found.step, found.where) == (30, "the copy on b")
    assert found.reason == "the newest: the copy on b has step 30, the store has step 10"
    assert found.state["x"].tolist() == [30.0] * 40_000
    save(repository, repository.claim(10), 20)  # another run: the copy is of one that was taken over from
    after = load_nearest(places)
    assert after is not None
    assert after.step == 20


def test_peers_of_the_environment() -> None:
    assert peers_from_environment({}) is None
    found = peers_from_environment(
        {
            "PLAIT_PEERS": "a@10.0.0.1:4000,b@[::1]:5",
            "PLAIT_PEERS_KEY": "k",
            "PLAIT_NODE": "a",
            "TORCHELASTIC_RUN_ID": "j",
        }
    )
    assert found == Peers(run="j", key="k", node="a", addresses=(("a", "10.0.0.1:4000"), ("b", "[::1]:5")))
    assert found.others == (("b", "[::1]:5"),)
    with pytest.raises(PlaitError, match="expected node@host:port"):
        peers_from_environment({"PLAIT_PEERS": "10.0.0.1:4000"})


def test_all_workers_of_a_run_prefer_the_same_nodes() -> None:
    addresses = {f"node{n}": f"10.0.0.{n}:4000" for n in range(20)}
    assert preferred("job-1", addresses) == preferred("job-1", dict(reversed(addresses.items())))
    assert len(preferred("job-1", addresses)) == 8
    assert preferred("job-1", addresses) != preferred("job-2", addresses)
    found = peers_from_environment(peer_environment("job-1", "node3", addresses, TOKEN))
    assert found is not None
    assert found.addresses == tuple(preferred("job-1", addresses))
    assert (found.node, found.run, found.key) == ("node3", "job-1", run_key(TOKEN, "job-1"))


def test_copies_that_nobody_takes_are_told_once_and_do_not_count_as_durable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLAIT_PEERS", raising=False)
    checkpointer = SnapshotCheckpointer(SnapshotSettings(url=str(tmp_path), has_peer=True))
    for step in (1, 2):
        checkpointer.save({"x": torch.ones(3)}, step, tiers={PEER})
        checkpointer.wait()
    assert checkpointer.durable_step is None
    assert caplog.text.count("no copies for now") == 1
    checkpointer.save({"x": torch.ones(3)}, 3, tiers={PEER, STORE})
    checkpointer.wait()
    assert checkpointer.durable_step == 3
    checkpointer.close()
