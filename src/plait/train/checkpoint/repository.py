"""Checkpoints in a store: no crash, race or late writer can make a wrong one count, and all is verified when read."""

import logging
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import xxhash

from plait.errors import PlaitError
from plait.train.checkpoint import commit as rules
from plait.train.checkpoint.blocks import BlockHasher
from plait.train.checkpoint.catalogue import UNREADABLE, Catalogue
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.commit import CommitName, Retention, SealName, Writer
from plait.train.checkpoint.index import Index
from plait.train.checkpoint.manifest import FORMAT, Manifest, Receipt, sealed
from plait.train.checkpoint.retry import Backoff, RateCap
from plait.train.checkpoint.stores import Buffer, ObjectExists, Store, StoreFailed, StoreRefused

_log = logging.getLogger(__name__)

LEASE_SETTLE_S = 2.0
_CLAIM_ATTEMPTS = 20


class CheckpointFenced(PlaitError):
    """Another run has begun to write checkpoints here; those of this one would never be loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to commit, until somebody claims a higher generation."""

    writer: Writer
    seen: tuple[str, ...]


def honours_create(store: Store) -> bool:
    """Returns whether the store refuses to create an object twice; rclone and JuiceFS accept and overwrite."""
    key = f"probe/{uuid.uuid4().hex}"
    store.create(key, b"1")
    try:
        store.create(key, b"2")
    except ObjectExists:
        return True
    else:
        return False
    finally:
        store.delete([key])


class Repository(Catalogue):
    """The checkpoints of one run, under the root of a store, to be written too."""

    def __init__(
        self,
        store: Store,
        *,
        retention: Retention | None = None,
        backoff: Backoff | None = None,
        bytes_per_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        lease_settle_s: float = LEASE_SETTLE_S,
    ) -> None:
        """Asks the store nothing yet.

        Args:
            store: Where to.
            retention: What is kept; the last three unless given.
            backoff: How often a failing store is asked again.
            bytes_per_s: The most that is sent on average.
            sleep: Waits.
            lease_settle_s: On a store that cannot create exclusively, how long a claim must stand before it counts.
        """
        super().__init__(store, backoff=backoff, sleep=sleep)
        self.retention = retention or Retention()
        self.notes: tuple[str, ...] = ()
        self._cap = RateCap(bytes_per_s) if bytes_per_s else None
        self._settle_s = lease_settle_s
        self._is_exclusive: bool | None = None

    # Writing

    def _create(self, key: str, data: bytes) -> None:
        """Creates an object; one that is there with these very bytes is ours, by a request whose answer was lost."""
        try:
            self.again(lambda: self.store.create(key, data))
        except ObjectExists:
            if self.again(lambda: self.store.get(key)) != data:
                raise

    @property
    def is_exclusive(self) -> bool:
        """Whether the store creates exclusively; probed once, and told loudly where it does not."""
        if self._is_exclusive is None:
            self._is_exclusive = self.again(lambda: honours_create(self.store))
            if not self._is_exclusive:
                note = (
                    f"{self.store.url} accepts If-None-Match and ignores it: two runs could both create one object; "
                    f"claims are settled by a lease of {self._settle_s:g} s instead"
                )
                self.notes = (*self.notes, note)
                _log.warning("%s", note)
        return self._is_exclusive

    def claim(self, base_step: int | None, *, lists_newer: bool = False) -> Claim:
        """Begins to write; from now on nothing that an older writer commits will count.

        Args:
            base_step: The step that this run goes on from, None for one that begins anew. Checkpoints of later steps
                no longer count.
            lists_newer: Whether later ones count all the same, as when another member of one living group takes over.

        Raises:
            CheckpointFenced: Others claim again and again.
        """
        for _ in range(_CLAIM_ATTEMPTS):
            claims = rules.claims_in(self._keys("claims/"))
            seals = rules.seals_in(self._keys("seals/"))
            writer = Writer(rules.next_generation(claims, seals), uuid.uuid4().hex[:12])
            body = sealed({"format": FORMAT, "owner": writer.owner})
            try:
                self._create(rules.claim_key(writer, exclusive=self.is_exclusive), body)
            except ObjectExists:
                continue
            if not self.is_exclusive:
                self._sleep(self._settle_s)
            if self._is_fenced(writer, self._keys("claims/")):
                continue
            return self._sealed(writer, base_step, lists_newer=lists_newer)
        raise CheckpointFenced(f"{_CLAIM_ATTEMPTS} claims on {self.store.url} were overtaken by others")

    def _sealed(self, writer: Writer, base_step: int | None, *, lists_newer: bool) -> Claim:
        counting = self.names()
        if lists_newer and counting:
            base_step = max(base_step if base_step is not None else 0, counting[0].step)
        seen = tuple(rules.sealed_list(counting, base_step))
        seal = SealName(writer, base_step)
        past = self.lineage()
        heirs = past.heirs(base_step) if past is not None else ()
        before = [[one.writer.generation, one.writer.owner, one.last_step] for one in heirs]
        self._create(seal.key, sealed({"format": FORMAT, "seen": list(seen), "before": before}))
        return Claim(writer=writer, seen=seen)

    def adopt(self, claim: Claim, counting: Collection[CommitName]) -> Claim:
        """Takes over what another store says: its claim holds here too, ``counting`` counts, and all else is removed.

        Returns:
            The claim to commit with here.
        """
        base_step = max((name.step for name in counting), default=None)
        seal, mine = SealName(claim.writer, base_step), rules.claim_key(claim.writer, exclusive=True)
        for name in set(self.commits()) - set(counting):
            self.remove(name)
        self._delete([key for kind in ("claims/", "seals/") for key in self._keys(kind) if key not in {mine, seal.key}])
        seen = tuple(sorted(name.key for name in counting))
        self._create(mine, sealed({"format": FORMAT, "owner": claim.writer.owner}))
        self._create(seal.key, sealed({"format": FORMAT, "seen": list(seen)}))
        referred = {self.manifest(name).prefix for name in counting}
        for prefix in rules.prefixes_in(self._keys("data/")) - referred:
            self._delete(self._keys(prefix))
            self._abandon(prefix)
        return Claim(writer=claim.writer, seen=seen)

    def _is_fenced(self, writer: Writer, keys: Sequence[str]) -> bool:
        mine = Writer(writer.generation, "") if self.is_exclusive else writer
        return rules.is_fenced(mine, rules.claims_in(keys))

    def check(self, claim: Claim, *, insists: bool = True) -> bool:
        """Raises :class:`CheckpointFenced` once another writer has claimed; returns whether the store has answered.

        Args:
            claim: Of this writer.
            insists: Whether a store that does not answer is asked again and fails; else it has nothing against it.
        """
        try:
            keys = self._keys("claims/") if insists else [entry.key for entry in self.store.list("claims/")]
        except (StoreFailed, StoreRefused):
            if insists:
                raise
            return False
        if self._is_fenced(claim.writer, keys):
            raise CheckpointFenced(
                f"another run has taken over {self.store.url}; checkpoints of generation {claim.writer.generation} "
                "no longer count"
            )
        return True

    def prefix(self, claim: Claim, step: int) -> str:
        """Returns a prefix that no other attempt has."""
        return rules.data_prefix(step, claim.writer, uuid.uuid4().hex[:8])

    def write(self, prefix: str, rank: int, index: Index, data: Buffer, num_bytes: int) -> Receipt:
        """Writes a rank's file and its index; every attempt has a key of its own, so nothing is ever overwritten."""
        attempt = 0

        def put() -> tuple[str, BlockHasher]:
            nonlocal attempt
            key = f"{prefix}r{rank:05d}{f'-{attempt}' if attempt else ''}.safetensors"
            attempt += 1
            hasher = BlockHasher(num_bytes)

            def each(part: Buffer) -> None:
                hasher.update(part)
                if self._cap is not None and (wait_s := self._cap.wait_s(len(part), time.monotonic())):
                    self._sleep(wait_s)

            self.store.put(key, data, num_bytes, each)
            return key, hasher

        data_key, hasher = self.again(put)
        text = Index(form=index.form, values=index.values, tensors=index.tensors, blocks=hasher.table()).encoded()
        count = 0

        def put_index() -> str:
            nonlocal count
            key = f"{prefix}r{rank:05d}{f'-{count}' if count else ''}.json"
            count += 1
            self.store.put(key, text, len(text))
            return key

        return Receipt(
            rank=rank,
            data_key=data_key,
            data_bytes=num_bytes,
            index_key=self.again(put_index),
            index_bytes=len(text),
            index_hash=xxhash.xxh3_128_hexdigest(text),
        )

    def commit(
        self,
        claim: Claim,
        step: int,
        prefix: str,
        receipts: Sequence[Receipt],
        *,
        metric: float | None = None,
        written_s: float | None = None,
    ) -> CommitName:
        """Makes a checkpoint count, in one object that is created exclusively.

        Raises:
            CheckpointFenced: Another writer has claimed; this checkpoint does not count.
            CheckpointDamaged: The store does not hold what was written.
        """
        self.check(claim)
        sizes = {entry.key: entry.num_bytes for entry in self.again(lambda: self.store.list(prefix))}
        for receipt in receipts:
            for key, wanted in ((receipt.data_key, receipt.data_bytes), (receipt.index_key, receipt.index_bytes)):
                if sizes.get(key) != wanted:
                    raise CheckpointDamaged(f"the store holds {sizes.get(key)} bytes of {key}, not the {wanted} sent")
        name = CommitName(claim.writer, step)
        manifest = Manifest(
            step=step,
            writer=claim.writer,
            prefix=prefix,
            receipts=tuple(receipts),
            seen=claim.seen,
            metric=metric,
            written_s=written_s,
        )
        self._create(name.key, manifest.encoded())
        self.check(claim)
        return name

    # Removing

    def retain(self, claim: Claim) -> list[CommitName]:
        """Removes what the retention rule lets go; returns what was removed.

        Raises:
            CheckpointFenced: Another writer has claimed, and nothing more is removed.
        """
        counting = self.names()
        metrics = self._metrics(counting) if self.retention.best else {}
        gone = rules.surplus(counting, self.retention, metrics)
        if gone:
            self.check(claim)
        for name in gone:
            self.remove(name)
        return gone

    def _metrics(self, names: Sequence[CommitName]) -> dict[str, float]:
        metrics = {}
        for name in names:
            try:
                value = self.manifest(name).metric
            except UNREADABLE:
                continue
            if value is not None:
                metrics[name.key] = value
        return metrics

    def remove(self, name: CommitName) -> None:
        """Removes a checkpoint: first the commit, then its data."""
        try:
            prefix = self.manifest(name).prefix
        except UNREADABLE:
            prefix = None
        self._delete([name.key])
        if prefix is not None:
            self._delete(self._keys(prefix))

    def sweep(self) -> int:
        """Removes commits that no longer count, data that no commit refers to and uploads that nobody will end.

        Returns:
            Objects and uploads removed.
        """
        prefixes = rules.prefixes_in(self._keys("data/"))
        commits = rules.commits_in(self._keys("commits/"))
        seals = rules.seals_in(self._keys("seals/"))
        if not seals:
            return 0
        lists = self._seal_lists(seals, commits)
        counting = rules.trusted(commits, seals, lists)
        newest = seals[-1].writer
        stale = [c for c in commits if c not in counting and c.writer < newest]
        referred, newest_step = set[str](), dict[Writer, int]()
        for commit in set(commits) - set(stale):
            newest_step[commit.writer] = max(commit.step, newest_step.get(commit.writer, -1))
            try:
                referred.add(self.manifest(commit).prefix)
            except UNREADABLE:  # its data may still be wanted by a person who mends the manifest
                referred |= {p for p in prefixes if p.startswith(f"data/{commit.step:012d}-")}
        count = 0
        for prefix in rules.orphans(prefixes, referred, newest, newest_step):
            count += self._delete(self._keys(prefix)) + self._abandon(prefix)
        if lists[seals[-1]] is not None:  # the older seals and claims are needed only where the newest is unreadable
            claims = self._keys("claims/")
            old = [
                key
                for key in claims
                if rules.claims_in([key]) and rules.claims_in([key])[0] < Writer(newest.generation, "")
            ]
            count += self._delete([*old, *(seal.key for seal in seals[:-1])])
        return count + self._delete([commit.key for commit in stale])

    def _delete(self, keys: Sequence[str]) -> int:
        self.again(lambda: self.store.delete(keys))
        return len(keys)

    def _abandon(self, prefix: str) -> int:
        return self.again(lambda: self.store.abandon_uploads(prefix))
