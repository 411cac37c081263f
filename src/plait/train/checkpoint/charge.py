"""What the saver does for one trainer: its last snapshot goes to a local disk, another node's memory, and the store."""

import logging
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from plait.errors import PlaitError
from plait.train.checkpoint.commit import Retention
from plait.train.checkpoint.copies import PeerHasNewer, PeerRefused, drop_copy, send_copy
from plait.train.checkpoint.index import decoded
from plait.train.checkpoint.local_tier import LocalTier
from plait.train.checkpoint.peers import Peers
from plait.train.checkpoint.repository import CheckpointFenced, Claim, Repository
from plait.train.checkpoint.segment import Segment, SlotRecord
from plait.train.checkpoint.stores import StoreFailed, StoreRefused, open_store
from plait.train.checkpoint.tiers import LOCAL, PEER, STORE

_log = logging.getLogger(__name__)

FAULTS = (PlaitError, OSError, MemoryError)
_NEVER = (-1, -1)
_AWAY_S = 120.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong behind a trainer's back."""

    error: str
    is_fenced: bool


class Uploads:
    """Sends checkpoints of the local tier on to the store, the newest asked for, in a thread."""

    def __init__(self, charge: "Charge") -> None:
        self._charge = charge
        self._wanted: tuple[int, float | None] | None = None
        self._is_busy = False
        self._changed = threading.Condition()
        self.fault: Fault | None = None
        self.took_s = 0.0
        """How long the last one took."""

    def ask(self, step: int, metric: float | None) -> None:
        """Has a step sent as soon as the one before it is."""
        with self._changed:
            self._wanted = (step, metric)
            if not self._is_busy:
                self._is_busy = True
                threading.Thread(target=self._work, name="plait-upload", daemon=True).start()

    def wait(self) -> None:
        """Returns once nothing is being sent."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy)

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._wanted is None:
                    self._is_busy = False
                    self._changed.notify_all()
                    return
                (step, metric), self._wanted = self._wanted, None
            try:
                started_s = time.monotonic()
                self._charge.upload(step, metric)
                self.fault, self.took_s = None, time.monotonic() - started_s
            except CheckpointFenced as error:
                self.fault = Fault(str(error), is_fenced=True)
            except FAULTS as error:
                self.fault = Fault(f"step {step} was not sent on to the store: {error}", is_fenced=False)
                _log.warning("%s", self.fault.error)


class Charge:
    """What the saver knows of one trainer."""

    def __init__(self, message: dict[str, Any], descriptor: int) -> None:
        """Takes a trainer's first word and its segment.

        Raises:
            SegmentUnusable: The memory is no segment.
            StoreRefused: The URL is none.
        """
        self.url: str = message["url"]
        self.member: str = message["member"]
        self.segment = Segment.attach(descriptor)
        retention = Retention(
            last=message["keep"], every_steps=message.get("keep_every_steps"), best=message.get("keep_best", 0)
        )
        store = open_store(self.url, message.get("options"))
        self.repository = Repository(store, retention=retention, bytes_per_s=message.get("bytes_per_s"))
        local, peers = message.get("local"), message.get("peers")
        self.local = LocalTier(local["path"], self.url, keep=local["keep"]) if local else None
        self.peers = _peers(peers) if peers else None
        self.claim: Claim | None = None
        self.base_step: int | None = None
        self.durable = dict.fromkeys((LOCAL, PEER, STORE), _NEVER)
        """(generation, step) of the newest snapshot in each tier."""
        self.uploads = Uploads(self)
        self.lock = threading.Lock()
        self._ask_claims_s = 0.0
        """A store that did not answer is not waited for again before this moment."""
        self._keepers: dict[str, str] = {}
        """Address by node of those that hold a copy."""

    @property
    def key(self) -> tuple[str, str]:
        """Whose it is."""
        return self.url, self.member

    def take_claim(self, base_step: int | None, *, lists_newer: bool = False) -> dict[str, Any]:
        """Claims the store; returns the answer to the trainer."""
        with self.lock:
            self.uploads.wait()  # they use the claim that there was
            self.claim, self.base_step = None, base_step
            claim = self._claimed(lists_newer=lists_newer)
            self.repository.sweep()
            return {"kind": "claimed", "generation": claim.writer.generation, "notes": self._notes()}

    def _claimed(self, *, lists_newer: bool = False) -> Claim:
        self.claim = self.repository.claim(self.base_step, lists_newer=lists_newer)
        if self.local is not None:
            try:
                self.local.adopt(self.claim, self.repository)
            except FAULTS as error:
                self.local.claim = None
                _log.warning("the local tier cannot be used: %s", error)
        return self.claim

    def _notes(self) -> list[str]:
        local = self.local.store.notes if self.local is not None else ()
        return [*self.repository.notes, *self.repository.store.notes, *local]

    def persist(self, slot: int, metric: float | None, tiers: Collection[str]) -> dict[str, Any]:
        """Brings the snapshot in a slot to these tiers, nearest first; returns the answer to the trainer.

        With a local tier, what goes to the store is on the local disk first and sent on from there by itself.

        Raises:
            CheckpointFenced: Another run has taken over.
            PlaitError: It reached none of the tiers.
        """
        with self.lock:
            record, tiers = self.segment.record(slot), set(tiers)
            if record is None:
                return {"kind": "failed", "error": f"slot {slot} holds no whole snapshot", "is_fenced": False}
            claim = self.claim or self._claimed()
            if self.local is not None or tiers != {STORE}:
                self._look_at_claims(claim)
            started_s, cpu_s = time.monotonic(), time.process_time()
            reached, faults = self._brought(claim, slot, record, metric, tiers)
            if faults and not reached:
                raise faults[0]
            fault, self.uploads.fault = self.uploads.fault, None
            return {
                "kind": "saved",
                "step": record.step,
                "tiers": reached,
                "bytes": record.data_bytes,
                "seconds": max(time.monotonic() - started_s, self.uploads.took_s),
                "cpu_s": time.process_time() - cpu_s,
                "notes": [*self._notes(), *map(str, faults)],
                "behind": {"error": fault.error, "is_fenced": fault.is_fenced} if fault is not None else None,
            }

    def _look_at_claims(self, claim: Claim) -> None:
        """Ends a zombie: what others may go on from must not give way to its own, though disks and peers let it.

        Raises:
            CheckpointFenced: Another run has taken over.
        """
        now_s = time.monotonic()
        if now_s >= self._ask_claims_s and not self.repository.check(claim, insists=False):
            self._ask_claims_s = now_s + _AWAY_S

    def _brought(
        self, claim: Claim, slot: int, record: SlotRecord, metric: float | None, tiers: set[str]
    ) -> tuple[list[str], list[PlaitError]]:
        """Returns the tiers that were reached, and what kept it from others; a tier that has it already is reached."""
        here = (record.generation, record.step)
        reached: list[str] = []
        faults: list[PlaitError] = []
        if self.local is not None and self.local.claim is not None and tiers & {LOCAL, STORE}:
            try:
                if self.durable[LOCAL] != here:
                    _save(self.local.repository, self.local.claim, self.segment, slot, metric)
                reached.append(LOCAL)
            except (StoreRefused, StoreFailed) as error:
                faults.append(StoreRefused(f"the local tier does not take step {record.step}: {error}"))
        if PEER in tiers:
            try:
                self._send_copy(claim, slot)
                reached.append(PEER)
            except PeerRefused as error:
                faults.append(error)
        if STORE in tiers:
            if self.durable[STORE] == here:
                reached.append(STORE)
            elif LOCAL in reached:
                self.uploads.ask(record.step, metric)
            else:
                _save(self.repository, claim, self.segment, slot, metric)
                reached.append(STORE)
        for tier in reached:
            self.durable[tier] = here
        return reached, faults

    def upload(self, step: int, metric: float | None) -> None:
        """Sends a checkpoint from the local tier on to the store."""
        local, claim = self.local, self.claim
        assert local is not None
        assert claim is not None
        if self.durable[STORE] == (claim.writer.generation, step):
            return  # asked for twice, as for the last step of a run
        sent = local.upload(step, self.repository, claim, metric)
        self.durable[STORE] = (claim.writer.generation, sent)

    def _send_copy(self, claim: Claim, slot: int) -> None:
        """Sends a snapshot to the first peer that takes it.

        Raises:
            PeerRefused: None does; the message has each one's reason.
        """
        if self.peers is None:
            raise PeerRefused("no other node takes a copy: no agent of one was known when this worker was started")
        reasons = []
        for node, address in self.peers.others:
            try:
                try:
                    send_copy(self.peers, address, self.segment, slot, url=self.url, member=self.member)
                except PeerHasNewer:
                    self.repository.check(claim)  # a zombie ends here; after it, what the peer holds is of another past
                    send_copy(self.peers, address, self.segment, slot, url=self.url, member=self.member, insists=True)
            except (OSError, ValueError, KeyError, PeerRefused) as error:
                reasons.append(f"{node}: {error}")
            else:
                self._keepers[node] = address
                return
        raise PeerRefused(f"no other node takes a copy ({'; '.join(reasons) or 'there is none'})")

    def persist_last(self) -> None:
        """Makes the last whole snapshot of a trainer durable that has died."""
        with self.lock:
            slot = self.segment.newest()
            record = self.segment.record(slot) if slot is not None else None
        if slot is None or record is None:
            return
        self.uploads.wait()
        wanted = (record.generation, record.step)
        if wanted <= self.durable[STORE]:
            return
        try:
            if wanted == self.durable[LOCAL]:
                self.uploads.ask(record.step, None)
            else:
                self.persist(slot, None, {STORE})
            self.uploads.wait()
            if self.uploads.fault is not None and not self.uploads.fault.is_fenced and self.claim is not None:
                # What came from the disk did not arrive; the memory is still whole.
                _save(self.repository, self.claim, self.segment, slot, None)
                self.durable[STORE], self.uploads.fault = wanted, None
        except FAULTS as error:
            _log.warning("the last snapshot of %s, of step %d, was not saved: %s", self.member, record.step, error)
            return
        if self.uploads.fault is None:
            _log.info("%s has died; its snapshot of step %d is saved", self.member, record.step)

    def let_go(self) -> Fault | None:
        """Ends what is being sent, has peers forget what is not needed any more, and frees the memory."""
        self.uploads.wait()
        fault = self.uploads.fault
        if fault is None and self.peers is not None:
            for node, address in self._keepers.items():
                try:
                    drop_copy(self.peers, address, self.url, self.member)
                except (OSError, ValueError, KeyError, PeerRefused) as error:
                    _log.info("%s keeps a copy of %s that nobody needs: %s", node, self.member, error)
        self.segment.close()
        return fault


def _peers(message: dict[str, Any]) -> Peers:
    return Peers(
        run=str(message["run"]),
        key=str(message["key"]),
        node=str(message["node"]),
        addresses=tuple((str(node), str(address)) for node, address in message["addresses"]),
    )


def _save(repository: Repository, claim: Claim, segment: Segment, slot: int, metric: float | None) -> None:
    """Writes the snapshot in a slot as a checkpoint; where the place is full, clears it away and tries once more."""
    try:
        _save_once(repository, claim, segment, slot, metric)
    except StoreRefused:
        if not repository.sweep():
            raise
        _save_once(repository, claim, segment, slot, metric)


def _save_once(repository: Repository, claim: Claim, segment: Segment, slot: int, metric: float | None) -> None:
    record = segment.record(slot)
    if record is None:
        raise StoreRefused(f"slot {slot} holds no whole snapshot")
    prefix = repository.prefix(claim, record.step)
    index = decoded(segment.index(slot, record.index_bytes))
    receipt = repository.write(prefix, 0, index, segment.data(slot), record.data_bytes)
    if segment.record(slot) != record:
        raise StoreRefused(f"slot {slot} was written while it was read; nothing is committed")
    repository.commit(claim, record.step, prefix, [receipt], metric=metric, written_s=time.time())
    repository.retain(claim)
