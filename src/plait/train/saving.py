"""When a session saves its state, and from what it goes on: the leader writes, anybody may read."""

import logging
import time
from typing import TYPE_CHECKING

from plait.spec.job import Checkpoint
from plait.train.checkpoint.checkpointer import LoadedCheckpoint
from plait.train.checkpoint.pace import SnapshotPace
from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings
from plait.train.checkpoint.tiers import STORE, SaveSchedule
from plait.train.collectives.exchange import Exchange
from plait.train.replica import Replica

if TYPE_CHECKING:
    from plait.train.engine import StepEngine

logger = logging.getLogger("plait")


class Saving:
    """The checkpoints of one member."""

    def __init__(self, wanted: Checkpoint, member: str) -> None:
        self._wanted = wanted
        self._member = member
        self._saver = SnapshotCheckpointer(SnapshotSettings.of(wanted), member=member)
        self._pace = SnapshotPace()
        self._schedule = SaveSchedule(wanted, time.monotonic())
        self._members: tuple[str, ...] = ()
        self.score: float | None = None
        """How good the weights are, lower is better; None where the program has not told."""

    def restore(self, replica: Replica, exchange: Exchange, *, joins: bool) -> LoadedCheckpoint | None:
        """Takes over the newest state, if there is one; one who joins gets the group's instead."""
        if joins:
            self._saver.release()  # the group's checkpoints go on to count
            return None
        found = self._saver.load(into=replica.state(exchange))
        if found is not None:
            for text in found.skipped:
                logger.warning("%s", text)
            replica.load(found.state, exchange)
            self._schedule.rate.faults = 1  # or this run would not begin with a state
            logger.info("resumed from step %d: %s, %s", found.step, found.where, found.reason)
        return found

    def wants_settled(self, engine: "StepEngine") -> bool:
        """Whether the next step should send what members owe: a checkpoint is due, or that step is the last one.

        See :class:`~plait.train.collectives.wires.ErrorLedger`.
        """
        exchange = engine.exchange
        if engine.is_shadow or not self._leads(engine):
            return False
        if engine.step + 2 == engine.config.total_steps:
            return exchange.owes or exchange.settles
        return self._is_due(time.monotonic()) and exchange.owes and not exchange.settles

    def _is_due(self, now_s: float) -> bool:
        return bool(self._schedule.due(now_s)) and not self._saver.is_saving

    def _leads(self, engine: "StepEngine") -> bool:
        return engine.standing.members[0] == self._member

    def save_if_due(self, engine: "StepEngine", *, force: bool) -> None:
        """Writes a checkpoint where one is due, or a snapshot into shared memory, or nothing."""
        if engine.is_shadow:
            return
        saver = self._saver
        if not self._leads(engine):
            saver.release()
            return
        now_s, step = time.monotonic(), engine.replica.step
        self._observe(engine, now_s)
        if force or (self._is_due(now_s) and not engine.exchange.owes):
            tiers = self._schedule.due(now_s) | ({STORE} if force else set())
            self._schedule.saved(tiers, now_s)
            saver.save(engine.replica.state(engine.exchange), step, metric=self.score, tiers=tiers)
            if not self._wanted.asynchronous:
                saver.wait()
            self._schedule.cost.began(time.monotonic() - now_s)
        elif saver.is_prepared is None:  # not before the first step: the optimizer's state begins with it
            saver.prepare(engine.replica.state(engine.exchange))
            return
        elif saver.is_prepared and self._pace.is_due(step):
            saver.snapshot(engine.replica.state(engine.exchange), step)
        else:
            return
        self._pace.snapped(step, time.monotonic() - now_s)

    def _observe(self, engine: "StepEngine", now_s: float) -> None:
        """Takes note of a committed step, of what saves cost, and of members that were lost."""
        self._pace.committed(now_s)
        self._schedule.cost.committed(now_s, is_saving=self._saver.is_saving)
        self._schedule.took_s = self._saver.took_s or 0.0
        members = tuple(engine.standing.members)
        self._schedule.rate.faults += len(set(self._members) - set(members))
        self._members = members

    def wait(self) -> None:
        """Returns once nothing is being written."""
        self._saver.wait()

    def close(self) -> None:
        """Waits for what is being written, and lets the saver go."""
        self._saver.close()
