"""Checkpoints on a disk of this node, in front of the store: saved more often, and read before it.

The same commit protocol in a directory of its own for each store's URL. Who may write and what counts is the store's
word alone: a checkpoint here counts if it is of the past that the store's present writer goes on from, or if the same
commit counts there. So a node that comes back with an old disk can never win over what went on elsewhere.
"""

import hashlib
import mmap
import os
import time
from collections.abc import Collection
from pathlib import Path

from plait.train.checkpoint.catalogue import UNREADABLE, Catalogue
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.commit import CommitName, Lineage, Retention
from plait.train.checkpoint.index import Index
from plait.train.checkpoint.manifest import Receipt
from plait.train.checkpoint.repository import Claim, Repository
from plait.train.checkpoint.stores import FileStore, ObjectMissing


def tier_directory(path: str, url: str) -> Path:
    """Returns where checkpoints of a store lie under the path of a local tier."""
    return Path(path) / hashlib.sha256(url.encode()).hexdigest()[:16]


class LocalTier:
    """The checkpoints of one store that lie on this node too."""

    def __init__(self, path: str, url: str, *, keep: int = 2) -> None:
        """Opens nothing yet.

        Args:
            path: Directory of the tier, which several runs may share.
            url: Of the store behind it.
            keep: How many are kept.
        """
        self.store = FileStore(tier_directory(path, url))
        self.repository = Repository(self.store, retention=Retention(last=keep))
        self.claim: Claim | None = None

    def counting(self, lineage: Lineage | None, names: Collection[CommitName]) -> list[CommitName]:
        """Returns the checkpoints here that count, newest first.

        Args:
            lineage: Of the store behind.
            names: What counts there.

        Raises:
            StoreFailed, StoreRefused: This disk cannot be read.
        """
        known = set(names)
        mine = [
            name
            for name in self.repository.commits()
            if name in known or (lineage is not None and lineage.counts(name.writer, name.step))
        ]
        return sorted(mine, key=lambda name: (name.step, name.writer), reverse=True)

    def adopt(self, claim: Claim, behind: Catalogue) -> None:
        """Begins to write under the store's claim; what does not count is removed."""
        counting = []
        for name in self.counting(behind.lineage(), behind.names()):
            try:
                self.repository.complete(name)
            except UNREADABLE:
                continue
            counting.append(name)
        self.claim = self.repository.adopt(claim, counting)

    def upload(self, step: int, behind: Repository, claim: Claim, metric: float | None) -> int:
        """Sends a checkpoint that lies here to the store behind; returns the step that was sent.

        All is verified before anything is sent, and once more on the way. Where the store is slower than this disk and
        the step is gone meanwhile, the newest of this writer is sent instead.

        Raises:
            CheckpointDamaged: It is not as it was written; nothing is committed.
            CheckpointFenced: Another writer has claimed.
        """
        assert self.claim is not None
        own = [name.step for name in self.repository.commits() if name.writer == self.claim.writer]
        if step not in own and own and max(own) > step:
            step, metric = max(own), None
        name = CommitName(self.claim.writer, step)
        manifest = self.repository.complete(name)
        if fault := self.repository.verify(name):
            raise CheckpointDamaged(fault)
        prefix = behind.prefix(claim, step)
        receipts = [
            self._sent(receipt, self.repository.index(receipt), behind, prefix) for receipt in manifest.receipts
        ]
        behind.commit(claim, step, prefix, receipts, metric=metric, written_s=time.time())
        behind.retain(claim)
        return step

    def _sent(self, receipt: Receipt, index: Index, behind: Repository, prefix: str) -> Receipt:
        try:
            descriptor = os.open(self.store.directory / receipt.data_key, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ObjectMissing(f"{receipt.data_key} was removed") from error
        try:
            with mmap.mmap(descriptor, receipt.data_bytes, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
                sent = behind.write(prefix, receipt.rank, index, view, receipt.data_bytes)
        finally:
            os.close(descriptor)
        if sent.index_hash != receipt.index_hash:  # which covers the hashes of all blocks
            raise CheckpointDamaged(f"{receipt.data_key} changed on this node's disk while it was sent")
        return sent
