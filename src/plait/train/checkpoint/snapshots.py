"""The checkpointer of a session: snapshots into shared memory, made durable by a saver process beside training."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Self

from plait.errors import PlaitError
from plait.spec.job import Checkpoint
from plait.train.checkpoint.arena import Arena, LayoutChanged
from plait.train.checkpoint.checkpointer import LoadedCheckpoint
from plait.train.checkpoint.commit import Retention
from plait.train.checkpoint.finding import SaverUnreachable, connect, left_segments
from plait.train.checkpoint.local_tier import LocalTier
from plait.train.checkpoint.nearest import Places, load_nearest
from plait.train.checkpoint.peers import Peers, peers_from_environment
from plait.train.checkpoint.repository import CheckpointFenced, Repository
from plait.train.checkpoint.saver import receive, send
from plait.train.checkpoint.segment import Segment, SegmentUnusable
from plait.train.checkpoint.stores import open_store
from plait.train.checkpoint.tiers import LOCAL, PEER, STORE

_log = logging.getLogger("plait")

_HELLO_ATTEMPTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """How snapshots become checkpoints."""

    url: str
    keep: int = 3
    keep_every_steps: int | None = None
    keep_best: int = 0
    bytes_per_s: float | None = None
    num_slots: int = 2
    local_path: str | None = None
    """Directory of the local tier, None for none."""
    local_keep: int = 2
    has_peer: bool = False
    """Whether copies go to the memory of other nodes, those that the environment names."""

    @classmethod
    def of(cls, wanted: Checkpoint) -> Self:
        """Returns the settings of a job's checkpoints."""
        local = wanted.local
        return cls(
            url=wanted.url,
            keep=wanted.keep,
            keep_every_steps=wanted.keep_every_steps,
            keep_best=wanted.keep_best,
            bytes_per_s=wanted.bytes_per_s,
            local_path=local.path if local is not None else None,
            local_keep=local.keep if local is not None else 2,
            has_peer=wanted.peer_interval_s is not None,
        )


class SnapshotCheckpointer:
    """A :class:`~plait.train.checkpoint.checkpointer.Checkpointer` whose saves cost the trainer one copy in memory."""

    def __init__(self, settings: SnapshotSettings, *, member: str = "w0") -> None:
        """Opens nothing yet."""
        self.settings = settings
        self.member = member
        self._arena: Arena | None = None
        self._saver: socket.socket | None = None
        self._base_step: int | None = None
        self._has_claim = False
        self._may_list_newer = False
        self._durable: int | None = None
        self._took_s: float | None = None
        self._asked: list[str] = []
        """Tiers of the last save."""
        self._generation = 0
        self._waiting: threading.Thread | None = None
        self._preparing: threading.Thread | None = None
        self._answer: dict[str, Any] | None = None
        self._told: set[str] = set()
        self._saver_pid: int | None = None
        self._is_known = False
        """Whether the saver holds the arena."""

    # What a checkpointer does

    def load(self, step: int | None = None, *, into: Any = None) -> LoadedCheckpoint | None:
        """Returns the nearest newest state: the snapshot in shared memory of a trainer that died here, or a checkpoint.

        ``into`` is a state whose tensors may be filled in place, see
        :func:`~plait.train.checkpoint.restore.read_state`.

        Raises:
            CheckpointDamaged: There are checkpoints, but all (or that of ``step``) are damaged.
        """
        self.wait()
        segments = left_segments(_absolute(self.settings.url)) if step is None else []
        try:
            found = load_nearest(self._places(segments), step, into=into)
        finally:
            for segment in segments:
                segment.close()
        self._base_step = found.step if found is not None else None
        return found

    def latest(self) -> int | None:
        """Returns the step of the newest checkpoint whose files are all there in full size."""
        self.wait()
        repository = self.repository()
        for name in repository.names():
            with contextlib.suppress(PlaitError):
                repository.complete(name)
                return name.step
        return None

    def save(
        self, state: Any, step: int, *, metric: float | None = None, tiers: Collection[str] = frozenset({STORE})
    ) -> None:
        """Copies the state and has it made durable; a state counts once :attr:`durable_step` says so.

        Waits for the save before it. A save that fails is told and does not end the run. With a local tier, what goes
        to the store is durable on this node's disk first, and sent on by itself.

        Raises:
            CheckpointFenced: Another run has taken this place over.
        """
        self.wait()
        try:
            slot = self.snapshot(state, step)
        except (SaverUnreachable, SegmentUnusable) as error:
            _log.error("a checkpoint could not be saved, the run goes on: %s", error)
            return
        if slot is None or self._arena is None:
            return
        self._arena.busy.add(slot)
        self._waiting = threading.Thread(
            target=self._persist, args=(slot, metric, sorted(tiers)), name="plait-persist", daemon=True
        )
        self._waiting.start()

    def prepare(self, state: Any) -> None:
        """Makes the shared memory and the connection to the saver, in a thread; best called before the first batch."""
        self._preparing = threading.Thread(target=self._prepare, args=(state,), name="plait-arena", daemon=True)
        self._preparing.start()

    def _prepare(self, state: Any) -> None:
        try:
            self._arena_of(state)
        except (PlaitError, OSError) as error:  # the first save meets the same and tells it
            _log.debug("preparing for snapshots: %s", error)

    def snapshot(self, state: Any, step: int) -> int | None:
        """Copies the state into shared memory, where it outlives this process; returns the slot."""
        if step < 0:
            raise ValueError(f"the step of a checkpoint is {step}; steps count from 0")
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        for _ in range(2):
            try:
                done = self._arena_of(state).snapshot(state, step=step, generation=self._generation)
            except LayoutChanged:
                _log.info("the state has another layout now: its shared memory is made anew")
                self._drop_arena()
                continue
            return done[0] if done is not None else None
        raise AssertionError("a new arena does not fit the state that it was made for")

    @property
    def is_prepared(self) -> bool | None:
        """Whether shared memory and saver are there; None where :meth:`prepare` was not called yet."""
        if self._preparing is not None and self._preparing.is_alive():
            return False
        return True if self._is_known else None

    def release(self) -> None:
        """Gives the right to commit away, as when another member of the group leads; the next save claims again."""
        self._has_claim = False
        self._may_list_newer = True

    @property
    def durable_step(self) -> int | None:
        """The last step that this object has made durable."""
        return self._durable

    @property
    def took_s(self) -> float | None:
        """How long the last save took behind the back of training, in seconds."""
        return self._took_s

    @property
    def is_saving(self) -> bool:
        """Whether a state is being made durable at this moment."""
        return self._waiting is not None and self._waiting.is_alive()

    @property
    def saver_pid(self) -> int | None:
        """The saver's process, None before the first snapshot."""
        return self._saver_pid

    def wait(self) -> None:
        """Returns once nothing is being written.

        Raises:
            CheckpointFenced: Another run has taken this place over.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        waiting.join()
        if self._arena is not None:
            self._arena.busy.clear()
        answer, self._answer = self._answer or {}, None
        for note in answer.get("notes", ()):
            if note not in self._told:
                self._told.add(note)
                _log.warning("%s", note)
        self._tell_behind(answer.get("behind"))
        if answer.get("kind") == "saved":
            if {LOCAL, STORE} & set(answer["tiers"]):
                self._durable = int(answer["step"])
            self._took_s = float(answer["seconds"])
        elif answer.get("is_fenced"):
            raise CheckpointFenced(answer["error"])
        else:
            self._tell_failed(str(answer.get("error")))

    def _tell_failed(self, error: str) -> None:
        """Tells of a save that failed; of copies that no other node takes only once, as they are tried often."""
        if self._asked != [PEER]:
            _log.error("a checkpoint could not be saved, the run goes on: %s", error)
        elif PEER not in self._told:
            self._told.add(PEER)
            _log.warning("no copies for now: %s", error)

    @staticmethod
    def _tell_behind(fault: dict[str, Any] | None) -> None:
        """Tells what went wrong on the way from the local tier to the store."""
        if fault is None:
            return
        if fault["is_fenced"]:
            raise CheckpointFenced(fault["error"])
        _log.error("the run goes on: %s", fault["error"])

    def close(self) -> None:
        """Waits for what is being written, and tells the saver that nothing of this trainer is left to do."""
        try:
            if self._preparing is not None:
                self._preparing.join()
            self.wait()
        finally:
            if self._saver is not None:
                with contextlib.suppress(OSError):
                    send(self._saver, {"kind": "bye"})
                    got = receive(self._saver)  # from now on nobody can fetch this arena
                    if got is not None and (fault := got[0].get("behind")) is not None:
                        _log.error("%s", fault["error"])
                self._saver.close()
                self._saver = None
            if self._arena is not None:
                self._arena.close()
                self._arena = None

    # The parts

    def repository(self) -> Repository:
        """Returns the checkpoints of this place."""
        return Repository(open_store(self.settings.url), retention=Retention(last=self.settings.keep))

    def _places(self, segments: list[Segment]) -> Places:
        wanted, url = self.settings, _absolute(self.settings.url)
        local = LocalTier(wanted.local_path, url, keep=wanted.local_keep) if wanted.local_path is not None else None
        return Places(url=url, repository=self.repository(), local=local, peers=self._peers(), segments=tuple(segments))

    def _peers(self) -> Peers | None:
        return peers_from_environment() if self.settings.has_peer else None

    def _arena_of(self, state: Any) -> Arena:
        if self._arena is None:
            self._arena = Arena(state, num_slots=self.settings.num_slots)
            self._is_known = False
        if not self._is_known:
            self._hello()
            self._is_known = True
        return self._arena

    def _drop_arena(self) -> None:
        self.wait()
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _hello(self) -> None:
        """Gives the saver the arena; it keeps the memory when this process dies."""
        assert self._arena is not None
        wanted = self.settings
        message = {
            "kind": "hello",
            "member": self.member,
            "url": _absolute(wanted.url),
            "keep": wanted.keep,
            "keep_every_steps": wanted.keep_every_steps,
            "keep_best": wanted.keep_best,
            "bytes_per_s": wanted.bytes_per_s,
            "local": {"path": wanted.local_path, "keep": wanted.local_keep} if wanted.local_path is not None else None,
            "peers": asdict(peers) if (peers := self._peers()) is not None else None,
        }
        self._has_claim = False
        answer = None
        for _ in range(_HELLO_ATTEMPTS):  # one that is just ending takes connections and drops them
            with contextlib.suppress(OSError):
                self._saver = self._saver or connect(_absolute(wanted.url), starts=True)
                send(self._saver, message, (self._arena.segment.descriptor,))
                if (answer := receive(self._saver)) is not None:
                    break
            if self._saver is not None:
                self._saver.close()
                self._saver = None
            time.sleep(0.05)
        if answer is None or answer[0]["kind"] != "welcome":
            raise SaverUnreachable(f"the saver of {wanted.url} refuses: {answer}")
        self._saver_pid = int(answer[0]["pid"])
        claim = self._claim()
        if claim["kind"] == "failed" and claim["is_fenced"]:
            raise CheckpointFenced(claim["error"])

    def _claim(self) -> dict[str, Any]:
        assert self._saver is not None, "the saver is asked only once it has been found"
        send(
            self._saver,
            {"kind": "claim", "base_step": self._base_step, "lists_newer": self._may_list_newer},
        )
        got = receive(self._saver)
        gone: dict[str, Any] = {"kind": "failed", "error": "the saver has ended", "is_fenced": False}
        answer = got[0] if got is not None else gone
        if answer["kind"] == "claimed":
            self._has_claim = True
            self._may_list_newer = True  # what this member has saved itself counts from now on
            self._generation = int(answer["generation"])
            for note in answer["notes"]:
                if note not in self._told:
                    self._told.add(note)
                    _log.warning("%s", note)
        return answer

    def _persist(self, slot: int, metric: float | None, tiers: list[str]) -> None:
        self._asked = tiers
        try:
            assert self._saver is not None
            if not self._has_claim and (claim := self._claim())["kind"] == "failed":
                self._answer = claim
                return
            send(self._saver, {"kind": "persist", "slot": slot, "metric": metric, "tiers": tiers})
            got = receive(self._saver)
            self._answer = got[0] if got is not None else {"kind": "failed", "error": "the saver has ended"}
            if got is not None:
                return
        except OSError as error:
            self._answer = {"kind": "failed", "error": f"the saver does not answer: {error}"}
        # It has died: the next save starts another one.
        self._is_known = False
        if self._saver is not None:
            self._saver.close()
            self._saver = None


def _absolute(url: str) -> str:
    return url if "://" in url else os.path.abspath(url)  # noqa: PTH100 - must not follow links
