"""Which state a run goes on from: the newest that counts, and of one step the one that is nearest."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from plait.train.checkpoint.catalogue import UNREADABLE, Catalogue
from plait.train.checkpoint.checkpointer import CheckpointDamaged, LoadedCheckpoint
from plait.train.checkpoint.commit import CommitName, Lineage
from plait.train.checkpoint.copies import Copy, copies_of, fetching
from plait.train.checkpoint.local_tier import LocalTier
from plait.train.checkpoint.peers import Peers
from plait.train.checkpoint.restore import Filling, read_state, snapshot_state, state_of
from plait.train.checkpoint.segment import Segment
from plait.train.checkpoint.stores import StoreFailed, StoreRefused

_log = logging.getLogger("plait")

MEMORY, DISK, PEER, STORE = "shared memory", "the local tier", "the copy on", "the store"
_NO_STEP = -1
_NEARNESS = (MEMORY, DISK, PEER, STORE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A state that could be gone on from.

    ``read`` returns it, given a state whose tensors may be filled, and raises what :data:`UNREADABLE` names where it is
    not as it was written. ``key`` is the same for the same candidate in every listing.
    """

    step: int
    tier: str
    where: str
    key: tuple[Any, ...]
    read: Callable[[Any], Any]


def best_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns candidates by falling step, of one step the nearest first."""
    return sorted(candidates, key=lambda one: (-one.step, _NEARNESS.index(one.tier)))


def reason(chosen: Candidate, candidates: Sequence[Candidate]) -> str:
    """Returns why this one: what the newest step of each tier is."""
    newest: dict[str, int] = {}
    for one in best_first(candidates):
        newest.setdefault(one.where if one.tier == PEER else one.tier, one.step)
    told = ", ".join(
        f"{where} has step {step}" if step != _NO_STEP else f"{where} cannot be read" for where, step in newest.items()
    )
    equal = sum(one.step == chosen.step for one in candidates) > 1
    return f"the nearest of the newest: {told}" if equal else f"the newest: {told}"


def in_memory(segments: Sequence[Segment], lineage: Lineage | None) -> list[Candidate]:
    """Returns the snapshots that trainers have left with this node's saver, of those that count."""
    found = []
    for segment in segments:
        slot = segment.newest()
        record = segment.record(slot) if slot is not None else None
        if record is None or lineage is None or not lineage.counts_by_generation(record.generation, record.step):
            continue  # of a run that another one has taken over from

        def read(into: Any, segment: Segment = segment, step: int = record.step) -> Any:
            got = snapshot_state(segment, into=into)
            if got is None or got[1] != step:
                raise CheckpointDamaged(f"the snapshot of step {step} was written while it was read")
            return got[2]

        key = (MEMORY, segment.descriptor, record.sequence)
        found.append(Candidate(record.step, MEMORY, "the snapshot in shared memory", key, read))
    return found


def on_disk(tier: LocalTier | None, lineage: Lineage | None, names: Sequence[CommitName]) -> list[Candidate]:
    """Returns the checkpoints of a local tier that count; a disk that fails is one whose checkpoints are damaged."""
    if tier is None:
        return []

    def read(into: Any, name: CommitName) -> Any:
        try:
            return read_state(tier.repository, tier.repository.complete(name), into=into)
        except (StoreFailed, StoreRefused) as error:
            raise CheckpointDamaged(str(error)) from error

    try:
        counting = tier.counting(lineage, names)
    except (StoreFailed, StoreRefused) as error:
        if lineage is not None:  # somebody has written, perhaps here alone
            return [_unreadable(tier, error)]
        _log.warning("the local tier %s cannot be read: %s", tier.store.directory, error)
        return []
    return [
        Candidate(
            name.step, DISK, f"checkpoint {name.key} of the local tier {tier.store.directory}", (DISK, name),
            partial(read, name=name),
        )
        for name in counting
    ]  # fmt: skip


def _unreadable(tier: LocalTier, error: Exception) -> Candidate:
    """Returns what stands last: where nothing else can be gone on from, a run must not begin anew for that."""

    def read(into: Any) -> Any:
        del into
        raise CheckpointDamaged(f"it cannot be read: {error}")

    return Candidate(_NO_STEP, DISK, f"the local tier {tier.store.directory}", (DISK, "unreadable"), read)


def on_peers(peers: Peers | None, url: str, lineage: Lineage | None) -> list[Candidate]:
    """Returns the copies in the memory of other nodes that count."""
    if peers is None or lineage is None:
        return []

    def read(into: Any, copy: Copy) -> Any:
        assert peers is not None
        with fetching(peers, url, copy) as coming:
            target = Filling(coming.index, into)
            coming.read(target.place)
            return state_of(coming.index, target.tensors)

    return [
        Candidate(copy.step, PEER, f"the copy on {copy.node}", (PEER, copy), partial(read, copy=copy))
        for copy in copies_of(peers, url)
        if lineage.counts_by_generation(copy.generation, copy.step)
    ]


def in_store(repository: Catalogue, names: Sequence[CommitName]) -> list[Candidate]:
    """Returns the checkpoints of the store that count."""

    def read(into: Any, name: CommitName) -> Any:
        return read_state(repository, repository.complete(name), into=into)

    return [
        Candidate(
            name.step, STORE, f"checkpoint {name.key} of {repository.store.url}", (STORE, name),
            partial(read, name=name),
        )
        for name in names
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a run's states may lie. ``segments`` and ``peers`` are left out where a given step is wanted."""

    url: str
    repository: Catalogue
    local: LocalTier | None = None
    peers: Peers | None = None
    segments: Sequence[Segment] = ()

    def near(self) -> list[Candidate]:
        """Returns the states in memory, here and on other nodes."""
        if not self.segments and self.peers is None:
            return []
        lineage = self.repository.lineage()
        return [*in_memory(self.segments, lineage), *on_peers(self.peers, self.url, lineage)]

    def durable(self) -> list[Candidate]:
        """Returns the checkpoints on the local disk and in the store."""
        names = self.repository.names()
        lineage = self.repository.lineage() if self.local is not None else None
        return [*on_disk(self.local, lineage, names), *in_store(self.repository, names)]


def load_nearest(places: Places, step: int | None = None, *, into: Any = None) -> LoadedCheckpoint | None:
    """Returns the newest state that is as it was written, or the checkpoint of ``step``; None where there is nothing.

    ``into`` is a state whose tensors may be filled, as in :func:`~plait.train.checkpoint.restore.read_state`.

    Raises:
        CheckpointDamaged: There are states, but all (or those of ``step``) are damaged.
        StoreFailed: The store does not answer. Only it can say what counts, so nobody goes on without it.
    """
    skipped: list[str] = []
    tried: set[tuple[Any, ...]] = set()
    near = places.near() if step is None else []
    while True:
        # What was removed while we read is not listed again, and newer ones may be there instead.
        listed = [*near, *places.durable()]
        fresh = [c for c in listed if c.key not in tried and (step is None or c.step == step)]
        if not fresh:
            break
        chosen = best_first(fresh)[0]
        tried.add(chosen.key)
        try:
            state = chosen.read(into)
        except UNREADABLE as error:
            skipped.append(f"{chosen.where} is damaged: {error}")
            _log.warning("%s", skipped[-1])
            continue
        return LoadedCheckpoint(chosen.step, state, tuple(skipped), chosen.where, reason(chosen, fresh))
    if skipped or step is not None:
        raise CheckpointDamaged(
            "; ".join(skipped) or f"{places.repository.store.url} holds no checkpoint of step {step}"
        )
    return None


def load(repository: Catalogue, step: int | None = None, *, into: Any = None) -> LoadedCheckpoint | None:
    """Returns what :func:`load_nearest` does, of the store alone."""
    return load_nearest(Places(url=repository.store.url, repository=repository), step, into=into)
