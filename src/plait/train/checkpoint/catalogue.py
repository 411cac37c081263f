"""The checkpoints of one run as readers see them: which ones count, and all that is read is verified."""

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import xxhash

from plait.train.checkpoint import commit as rules
from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.commit import Ancestor, CommitName, Lineage, SealName, Writer
from plait.train.checkpoint.index import Index, decoded
from plait.train.checkpoint.manifest import Manifest, Receipt, manifest_from, opened
from plait.train.checkpoint.reading import Place, Take, read_into, read_verified
from plait.train.checkpoint.retry import Backoff
from plait.train.checkpoint.stores import Buffer, ObjectMissing, Store, StoreFailed, Streams

_log = logging.getLogger(__name__)
T = TypeVar("T")

UNREADABLE = (CheckpointDamaged, ObjectMissing)
"""What makes a reader go to an older checkpoint; a store that fails does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint in a listing; ``fault`` says what is wrong with its manifest, None where nothing is."""

    name: CommitName
    manifest: Manifest | None
    fault: str | None = None


class Catalogue:
    """The checkpoints under the root of a store, to be read."""

    def __init__(
        self, store: Store, *, backoff: Backoff | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Asks the store nothing yet.

        Args:
            store: Where from.
            backoff: How often a failing store is asked again.
            sleep: Waits.
        """
        self.store = store
        self._backoff = backoff or Backoff()
        self._sleep = sleep
        self._random = random.Random()

    # Asking the store

    def again(self, ask: Callable[[], T]) -> T:
        """Returns what ``ask`` returns, asking again with growing waits while the store fails."""
        failures = 0
        while True:
            try:
                return ask()
            except StoreFailed as error:
                failures += 1
                wait_s = self._backoff.wait_s(failures, self._random.random())
                if wait_s is None:
                    raise
                _log.warning("%s; asking again in %.1f s", error, wait_s)
                self._sleep(wait_s)

    def _keys(self, prefix: str) -> list[str]:
        return [entry.key for entry in self.again(lambda: self.store.list(prefix))]

    # Which checkpoints there are

    def _seal_lists(self, seals: Sequence[SealName], commits: Sequence[CommitName]) -> dict[SealName, list[str] | None]:
        """Reads seals from the highest down to the first that can be read."""
        lists: dict[SealName, list[str] | None] = {}
        for seal in reversed(seals):
            lists[seal] = self._seal_list(seal, commits)
            if lists[seal] is not None:
                break
        return lists

    def _seal_list(self, seal: SealName, commits: Sequence[CommitName]) -> list[str] | None:
        try:
            return [str(key) for key in opened(self.again(lambda: self.store.get(seal.key)), seal.key)["seen"]]
        except UNREADABLE as error:
            _log.warning("%s; the commits of its writer carry a copy", error)
        for commit in commits:
            if commit.writer == seal.writer:
                try:
                    return list(self.manifest(commit).seen)
                except UNREADABLE:
                    continue
        return None

    def names(self) -> list[CommitName]:
        """Returns the checkpoints that count, newest first."""
        commits = rules.commits_in(self._keys("commits/"))
        seals = rules.seals_in(self._keys("seals/"))
        return rules.trusted(commits, seals, self._seal_lists(seals, commits))

    def commits(self) -> list[CommitName]:
        """Returns all checkpoints that lie here, whether they count or not."""
        return rules.commits_in(self._keys("commits/"))

    def lineage(self) -> Lineage | None:
        """Returns who writes and who wrote before, None where nobody has written yet."""
        seals = rules.seals_in(self._keys("seals/"))
        if not seals:
            return None
        newest = seals[-1]
        try:
            body = opened(self.again(lambda: self.store.get(newest.key)), newest.key)
            before = tuple(
                Ancestor(Writer(int(generation), str(owner)), int(last[0]))
                for generation, owner, *last in body.get("before", ())
                if last  # a seal of an earlier version does not tell how far each of them counts
            )
        except UNREADABLE as error:
            _log.warning("%s; of former writers only what is in the store counts", error)
            before = ()
        return Lineage(writer=newest.writer, before=before)

    def manifest(self, name: CommitName) -> Manifest:
        """Returns the manifest of a checkpoint.

        Raises:
            CheckpointDamaged: It is not as it was written.
            ObjectMissing: It has been removed.
        """
        found = manifest_from(self.again(lambda: self.store.get(name.key)), name.key)
        if (found.writer, found.step) != (name.writer, name.step):
            raise CheckpointDamaged(f"{name.key} is of step {found.step} and generation {found.writer.generation}")
        return found

    def found(self) -> Iterator[Found]:
        """Yields the checkpoints that count, newest first, with their manifests."""
        for name in self.names():
            try:
                yield Found(name=name, manifest=self.manifest(name))
            except UNREADABLE as error:
                yield Found(name=name, manifest=None, fault=str(error))

    # Reading

    def index(self, receipt: Receipt) -> Index:
        """Returns the verified index of a rank's file.

        Raises:
            CheckpointDamaged: It is not as it was written.
        """
        data = self.again(lambda: self.store.get(receipt.index_key))
        if xxhash.xxh3_128_hexdigest(data) != receipt.index_hash:
            raise CheckpointDamaged(f"{receipt.index_key} does not have the hash of the manifest")
        index = decoded(data)
        if index.blocks is None or index.blocks.file_bytes != receipt.data_bytes:
            raise CheckpointDamaged(f"{receipt.index_key} tells of another file than the manifest")
        return index

    def read(self, receipt: Receipt, index: Index, ranges: Sequence[tuple[int, int]], take: Take) -> int:
        """Reads ranges of a rank's data, block-aligned and joined where they meet; returns the bytes read.

        Args:
            receipt: The file.
            index: Its index.
            ranges: Bytes wanted, ``[first, end)``.
            take: Is given verified stretches by their offset, from several threads and in any order; no two overlap,
                and together they cover all ranges.

        Raises:
            CheckpointDamaged: Some block is not as it was written, or missing.
        """
        assert index.blocks is not None
        return read_verified(
            index.blocks, ranges, lambda batch: self._ranges(receipt.data_key, batch), take, receipt.data_key
        )

    def read_whole(self, receipt: Receipt, index: Index, place: Place, take: Take) -> int:
        """Reads all of a rank's data into memory that is there; returns the bytes read.

        Args:
            receipt: The file.
            index: Its index.
            place: Returns where bytes ``[first, end)`` go, in consecutive pieces; after an error they hold anything.
            take: As in :meth:`read`, for stores that cannot put bytes where they are wanted.

        Raises:
            CheckpointDamaged: Some block is not as it was written, or missing.
        """
        store, key = self.store, receipt.data_key
        if not isinstance(store, Streams):
            return self.read(receipt, index, [(0, receipt.data_bytes)], take)
        assert index.blocks is not None
        return read_into(index.blocks, place, lambda first, end: store.stream(key, first, end), self.again, key)

    def _ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        return self.again(lambda: self.store.get_ranges(key, ranges))

    def complete(self, name: CommitName) -> Manifest:
        """Returns the manifest of a checkpoint whose files are all there in full size.

        Raises:
            CheckpointDamaged: One is not, or the manifest is not as it was written.
            ObjectMissing: The checkpoint has been removed.
        """
        manifest = self.manifest(name)
        sizes = {entry.key: entry.num_bytes for entry in self.again(lambda: self.store.list(manifest.prefix))}
        for receipt in manifest.receipts:
            for key, wanted in ((receipt.data_key, receipt.data_bytes), (receipt.index_key, receipt.index_bytes)):
                if sizes.get(key) != wanted:
                    raise CheckpointDamaged(f"{key} has {sizes.get(key, 'no')} bytes instead of {wanted}")
        return manifest

    def verify(self, name: CommitName) -> str | None:
        """Reads a whole checkpoint; returns what is wrong with it, None where nothing is."""
        try:
            for receipt in self.complete(name).receipts:
                index = self.index(receipt)
                self.read(receipt, index, [(0, receipt.data_bytes)], lambda _first, _part: None)
        except UNREADABLE as error:
            return str(error)
        return None
