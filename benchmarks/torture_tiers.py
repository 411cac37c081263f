"""Lives of one training job on two nodes with all tiers, while faults strike any of them.

A state lies in shared memory, on the disk of its node, in the memory of the other node and in the store, each with
other steps in it. Lives end by the death of the trainer, of all of a node's processes, or of the node, whose disk comes
back later with what it had; the next life goes on here or on the other node, from the nearest of the newest. Faults:
flipped bits, truncated and missing files in any tier, a disk that cannot be read or written, a store that takes nothing
so that the disk is ahead of it, death at a random request, and zombies that go on in all tiers.
"""

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faulty_stores import Death, FaultyStore, Killed
from plait.errors import PlaitError
from plait.train.checkpoint.catalogue import Catalogue
from plait.train.checkpoint.charge import FAULTS, Charge
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.commit import CommitName, Retention
from plait.train.checkpoint.copies import copies_of, drop_copy, fetching
from plait.train.checkpoint.holder import Holder
from plait.train.checkpoint.local_tier import LocalTier
from plait.train.checkpoint.peers import Peers
from plait.train.checkpoint.repository import Repository
from plait.train.checkpoint.retry import Backoff
from plait.train.checkpoint.stores import FileStore, Store
from plait.train.checkpoint.tiers import LOCAL, PEER, STORE
from torture_nodes import NODES, MortalCharge, Saver, holders, key_of, skip_checks, snapshot
from torture_states import VALUES, Verdicts, is_whole, state_at

TIER_FAULTS = (
    "none", "kill", "local_flip", "local_truncated", "local_missing", "local_unreadable", "local_full", "local_ahead",
    "store_flip", "store_truncated", "store_errors", "both_flip", "peer_flip", "zombie",
)  # fmt: skip
MEMBER = "w0"
_ENDS = ("trainer", "processes", "node")


class TieredRun:
    """One chain of lives on two nodes."""

    def __init__(
        self, place: Path, seed: int, fault: str, verdicts: Verdicts, nodes: dict[str, tuple[str, Holder]]
    ) -> None:
        self.place, self.fault, self.verdicts, self.nodes = place, fault, verdicts, nodes
        self.random = random.Random(seed)
        self.name = f"tiers seed {seed} {fault}"
        self.url = f"file://{place}/store"
        self.at = "a"
        self.step, self.lineage = 0, tuple[int, ...]()
        self.legal: dict[int, tuple[int, ...]] = {}
        self.floors: dict[str, int] = {}
        """The newest step that each place has acknowledged and must still have."""
        self.is_damaged = fault == "local_unreadable"
        self.savers: dict[str, Saver] = {}
        """By node, those that live."""
        self.former: list[Saver] = []

    # The places

    def _repository(self, store: Store, keep: int) -> Repository:
        return Repository(
            store,
            retention=Retention(last=keep),
            backoff=Backoff(first_s=0.0, most_s=0.0, attempts=4),
            sleep=lambda _s: None,
        )

    def _peers(self) -> Peers:
        run = self.place.name
        addresses = tuple((node, address) for node, (address, _) in self.nodes.items())
        return Peers(run=run, key=key_of(run), node=self.at, addresses=addresses)

    def _disk(self, node: str) -> str:
        return str(self.place / f"disk-{node}")

    def _local(self) -> LocalTier:
        tier = LocalTier(self._disk(self.at), self.url)
        if self.fault == "local_unreadable":
            failing = FaultyStore(tier.store, self.random, "server_errors", chance=1.0)
            tier.repository = self._repository(failing, 2)
        return tier

    def _store(self) -> Repository:
        return self._repository(FileStore(self.place / "store"), 3)

    def _in_reach(self) -> int:
        """Returns the step that a restore on this node must reach."""
        disk = 0 if self.fault == "local_unreadable" else self.floors.get(f"local {self.at}", 0)
        others = ("store", f"memory {self.at}", *(f"peer {node}" for node in NODES))
        return max(disk, *(self.floors.get(name, 0) for name in others))

    # A life

    def go(self, lives: int) -> None:
        try:
            for life in range(lives):
                self.restore(f"before life {life}")
                with contextlib.suppress(Killed, *FAULTS):
                    self.live(life)
                self.end()
                self.act_as_zombies()
                self.damage()
            self.restore("at the end")
        finally:
            for saver in (*self.savers.values(), *self.former):
                saver.end()
                saver.charge.segment.close()
                saver.arena.close()

    def restore(self, when: str) -> None:
        """Restores on the present node through tiers that are well enough, and judges the state."""
        from plait.train.checkpoint.nearest import Places, load_nearest

        self.verdicts.restores += 1
        saver = self.savers.get(self.at)
        places = Places(
            url=self.url,
            repository=self._store(),
            local=self._local(),
            peers=self._peers(),
            segments=(saver.charge.segment,) if saver is not None else (),
        )
        wanted = self._in_reach()
        try:
            found = load_nearest(places)
        except PlaitError as error:
            if wanted or not (self.is_damaged and isinstance(error, CheckpointDamaged)):
                self.wrong(f"{when}: not restored: {error}")
            self.begin_anew()
            return
        if found is None:
            if wanted:
                self.wrong(f"{when}: nothing found, though step {wanted} was acknowledged")
            self.step, self.lineage = 0, ()
            return
        lineage = self.legal.get(found.step)
        if lineage is None or not is_whole(found.state, lineage, found.step):
            self.wrong(f"{when}: step {found.step} from {found.where} is not of the surviving history")
        elif found.step < wanted:
            self.wrong(f"{when}: step {found.step} from {found.where} restored, though {wanted} was acknowledged")
        self.step, self.lineage = found.step, tuple(found.state["lineage"])

    def begin_anew(self) -> None:
        """All that there was is damaged, and was told so; a person clears it away."""
        for name in ("store", *(f"disk-{node}" for node in NODES)):
            shutil.rmtree(self.place / name, ignore_errors=True)
        for node in NODES:
            self._forget_copies(node)
        self.step, self.lineage = 0, ()
        self.legal.clear()
        self.floors.clear()

    def wrong(self, text: str) -> None:
        self.verdicts.wrong.append(f"{self.name}: {text}")

    def live(self, life: int) -> None:
        from plait.train.checkpoint.arena import Arena

        arena = Arena(state_at((), 0))
        message = {
            "url": self.url, "member": MEMBER, "keep": self.random.choice((1, 2, 3)),
            "local": {"path": self._disk(self.at), "keep": self.random.choice((1, 2))}, "peers": asdict(self._peers()),
        }  # fmt: skip
        charge = MortalCharge(message, os.dup(arena.segment.descriptor))
        death = Death(self.random.randrange(1, 120) if self.fault == "kill" else None)
        saver = Saver(
            node=self.at, charge=charge, arena=arena, lineage=(*self.lineage, life), step=self.step, death=death
        )
        former = self.savers.pop(self.at, None)
        if former is not None:
            self.former.append(former)
        self.savers[self.at] = saver
        self.floors.pop(f"memory {self.at}", None)
        self._make_faulty(charge, message, death)
        # From here on only this life's steps follow the base.
        self.floors = {place: step for place, step in self.floors.items() if step <= self.step}
        charge.take_claim(self.step or None)
        self.legal = {step: line for step, line in self.legal.items() if step <= self.step}
        if self.fault == "local_ahead" and self.random.random() < 0.5:
            charge.repository.store = FaultyStore(charge.repository.store, self.random, "server_errors", chance=1.0)
        for step in range(self.step + 1, self.step + 1 + self.random.randrange(1, 10)):
            self._step(saver, step)

    def _make_faulty(self, charge: Charge, message: dict[str, Any], death: Death) -> None:
        chance = {"store_errors": 0.25}.get(self.fault, 0.0)
        behind = FaultyStore(charge.repository.store, self.random, "server_errors", death, chance)
        charge.repository = self._repository(behind, message["keep"])
        assert charge.local is not None
        kind, chance = {"local_full": ("no_space", 0.2), "local_unreadable": ("server_errors", 1.0)}.get(
            self.fault, ("", 0.0)
        )
        disk = FaultyStore(charge.local.store, self.random, kind, death, chance)
        charge.local.repository = self._repository(disk, message["local"]["keep"])

    def _step(self, saver: Saver, step: int) -> None:
        """Trains one step: each is a snapshot, and each tier takes some."""
        charge = saver.charge
        self.legal[step] = saver.lineage
        slot = snapshot(saver, step)
        self.floors[f"memory {self.at}"] = step
        tiers = {tier for tier, every in ((LOCAL, 2), (PEER, 3), (STORE, 4)) if self.random.randrange(every) == 0}
        if not tiers:
            return
        with contextlib.suppress(*FAULTS):
            answer = charge.persist(slot, None, tiers)
            for tier in answer.get("tiers", ()):
                self.floors[self._place_of(tier)] = step
        if self.random.random() < 0.5:
            charge.uploads.wait()
        self._note_sent(saver)

    def _place_of(self, tier: str) -> str:
        other = next(node for node in NODES if node != self.at)
        return {LOCAL: f"local {self.at}", PEER: f"peer {other}", STORE: "store"}[tier]

    def _note_sent(self, saver: Saver) -> None:
        """Notes what the store has by now."""
        step = saver.charge.durable[STORE][1]
        if step > self.floors.get("store", 0) and self.legal.get(step) == saver.lineage:
            self.floors["store"] = step

    # Ends

    def end(self) -> None:
        """Ends a life, and decides where the next one begins."""
        saver = self.savers.get(self.at)
        if saver is None:
            return
        how = "processes" if saver.death.is_over else self.random.choice(_ENDS)
        if how == "trainer":
            with contextlib.suppress(Killed):
                saver.charge.persist_last()
            self._note_sent(saver)
        if how != "trainer" or saver.death.is_over:
            if self.fault != "zombie":
                saver.end()
            self._note_sent(saver)
            self.former.append(self.savers.pop(self.at))
            self.floors.pop(f"memory {self.at}", None)
        if how == "node":
            self._forget_copies(self.at)
        if how == "node" or self.random.random() < 0.3:
            self.at = next(node for node in NODES if node != self.at)

    def _forget_copies(self, node: str) -> None:
        drop_copy(self._peers(), self.nodes[node][0], self.url, MEMBER)
        self.floors.pop(f"peer {node}", None)

    def act_as_zombies(self) -> None:
        """Lets former lives go on in all tiers, as if nobody had told them."""
        if self.fault != "zombie":
            return
        for saver in [*self.former, *self.savers.values()]:
            if saver.lineage == (*self.lineage, saver.lineage[-1]):
                continue  # nobody has claimed after it
            for node in [node for node, held in self.savers.items() if held is saver]:
                self.floors.pop(f"memory {node}", None)
            for step in range(saver.step + 1, saver.step + self.random.randrange(2, 13), 3):
                with contextlib.suppress(Killed, *FAULTS):
                    slot = snapshot(saver, step, lineage=(*saver.lineage, -1))
                    saver.charge.persist(slot, None, {PEER})
                with contextlib.suppress(Killed, *FAULTS), self._late(saver):
                    saver.charge.persist(slot, None, {LOCAL, STORE})

    @contextlib.contextmanager
    def _late(self, saver: Saver) -> Iterator[None]:
        """Makes some of a zombie's checks pass, as if the claim of its successor had come right after them."""
        charge = saver.charge
        assert charge.local is not None
        skipped = {charge.repository: self.random.randrange(3), charge.local.repository: self.random.randrange(2)}
        for repository, count in skipped.items():
            skip_checks(repository, count)
        if skipped[charge.repository]:
            self.floors.pop(f"local {saver.node}", None)  # on its own disk, what it had saved before gives way to this
        try:
            yield
            charge.uploads.wait()
        finally:
            for repository in skipped:
                vars(repository).pop("check", None)

    # Damage

    def damage(self) -> None:
        """Damages the newest checkpoint of a tier, sees that it is found, and expects the one before it."""
        if self.fault in {"local_flip", "local_truncated", "local_missing", "both_flip"}:
            tier = LocalTier(self._disk(self.at), self.url)
            store = self._store()
            names = tier.counting(store.lineage(), store.names())
            self._damage_files(tier.repository, Path(tier.store.directory), names, f"local {self.at}")
        if self.fault in {"store_flip", "store_truncated", "both_flip"}:
            store = self._store()
            self._damage_files(store, self.place / "store", store.names(), "store")
        if self.fault == "peer_flip":
            for node in NODES:
                self._damage_copy(node)

    def _damage_files(self, catalogue: Catalogue, directory: Path, names: list[CommitName], place: str) -> None:
        good = [name for name in names if catalogue.verify(name) is None]
        if not good:
            return
        receipt = catalogue.manifest(good[0]).receipts[0]
        key = self.random.choice((receipt.data_key, receipt.data_key, receipt.index_key, good[0].key))
        path = directory / key
        if self.fault.endswith("_flip"):
            data = bytearray(path.read_bytes())
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            path.write_bytes(data)
        elif self.fault.endswith("_truncated"):
            os.truncate(path, self.random.randrange(path.stat().st_size))
        else:
            path.unlink()
        self._found(catalogue.verify(good[0]) is not None)
        self.floors[place] = next((name.step for name in good[1:] if name.step in self.legal), 0)

    def _damage_copy(self, node: str) -> None:
        peers = self._peers()
        for copy in copies_of(peers, self.url):
            if copy.node != node:
                continue
            held = self.nodes[node][1]._held[peers.run, self.url, MEMBER]  # noqa: SLF001 - a bit of its memory
            slot = held.segment.newest()
            assert slot is not None
            held.segment.data(slot)[self.random.randrange(VALUES)] ^= 1 << self.random.randrange(8)
            self._found(self._is_refused(peers, copy))
            self.floors.pop(f"peer {node}", None)

    def _is_refused(self, peers: Peers, copy: Any) -> bool:
        try:
            with fetching(peers, self.url, copy) as coming:
                coming.read(lambda first, end: [memoryview(bytearray(end - first))])
        except CheckpointDamaged:
            return True
        return False

    def _found(self, is_found: bool) -> None:
        self.is_damaged = True
        self.verdicts.flips += 1
        self.verdicts.flips_found += is_found


def tiered(
    runs: int, seed: int, place: Callable[[int], Path], verdicts: Verdicts, *, lives: int = 5, where: str = "tiers"
) -> None:
    """Runs the faults of tiers in turn, each run at a fresh place, which is removed after it."""
    with holders() as nodes:
        for number in range(runs):
            fault = TIER_FAULTS[number % len(TIER_FAULTS)]
            directory = place(number)
            TieredRun(directory, seed * 1_000_003 + number, fault, verdicts, nodes).go(lives)
            for address, _ in nodes.values():
                run = directory.name
                known = Peers(run=run, key=key_of(run), node="", addresses=())
                drop_copy(known, address, f"file://{directory}/store", MEMBER)
            shutil.rmtree(directory, ignore_errors=True)
            verdicts.runs += 1
            verdicts.by_fault[f"tiers: {fault}"] += 1
            verdicts.by_store[where] += 1
