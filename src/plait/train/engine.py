"""One member's way through the global steps: its share, the exchange, the vote, the commit, and every regroup.

The loop of a step::

    plan (replicated) -> run chunks of the own share -> exchange -> vote -> apply, and on to the next step
                              ^                            |
                              +-- extra share re-dealt <- regroup (a member was lost, joined, or an exchange broke)
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch

from plait.train import balance, fusing
from plait.train.bitwise import Verdict
from plait.train.catch_up import CatchUp
from plait.train.collectives.exchange import Exchange
from plait.train.collectives.fixed import FixedExchange
from plait.train.collectives.travel import travel_of
from plait.train.collectives.wire_protocol import Group
from plait.train.faults import FaultInjector
from plait.train.fusing import Fusing
from plait.train.learning_rate import group_squares
from plait.train.membership.link import WardenLink, Warned
from plait.train.observers import Observers
from plait.train.optimizers import OneBitAdam
from plait.train.regroup import Regroup
from plait.train.replica import Extras, Planned, Replica
from plait.train.retreat import DoesNotFit
from plait.train.share import Share, shares_of_step, with_samples
from plait.train.stalls import StallWatch
from plait.train.sync_norm import StepSums
from plait.train.telling import EngineConfig, ballot_of, facts_of
from plait.train.transfer import StateServer
from plait.train.vote import Vote, cast, read
from plait.train.work import deal

_PATIENCE = timedelta(milliseconds=10)
"""How long a wait for peers goes on before the membership is looked at again."""


class StepEngine:
    """Drives one member. The session calls it from the loader and from the optimizer's step."""

    def __init__(  # noqa: PLR0917 - the parts of one member
        self,
        config: EngineConfig,
        replica: Replica,
        exchange: Exchange,
        link: WardenLink | None,
        server: StateServer | None,
        observers: Observers,
        faults: FaultInjector,
    ) -> None:
        self.config = config
        self.replica = replica
        self.exchange = exchange
        self.observers = observers
        self.faults = faults
        self.sums = replica.sums
        self.most = config.most
        self.fusing = Fusing()
        self.stalls = StallWatch(config.exchange_timeout_s, config.heartbeat_timeout_s)
        self.fits_at_once: int | None = None
        """The most micro-batches in one pass that memory was found to hold, None where it never ran out."""
        self.share: Share | None = None
        self.catch_up: CatchUp | None = None
        self.last_vote: Vote | None = None
        self.held = False
        self.redone = 0
        self.reason = ""
        self.extras = Extras()
        self.chunk: tuple[int, ...] = ()
        self.read_ahead: Callable[[int, tuple[int, ...]], None] | None = None
        self.begin_passes_anew: Callable[[], None] = lambda: None
        """Readies the model for a forward pass after one that broke."""
        self.wants_settled: Callable[[], bool] = lambda: False
        """Whether the next step should send what members owe, since this member is about to save the state."""
        self._sent_extras = Extras()
        self._extra_works: list[Any] = []
        self._chunk_s = 0.0
        self._chunk_samples = 0
        self._chunk_weight: int | None = None
        self._loss_before: float | None = None
        self.standing = Regroup(self, link, server)
        faults.reset = self.standing.break_a_connection
        if self.sums is not None:
            self.sums.bind(self)

    # The course of a step

    @property
    def step(self) -> int:
        """The global step that is running, or comes next."""
        return self.replica.step if self.catch_up is None else self.catch_up.step

    @property
    def is_finished(self) -> bool:
        """Whether all steps are committed here."""
        return self.step >= self.config.total_steps and not self.is_shadow

    @property
    def is_shadow(self) -> bool:
        """Whether this member is still waiting for its state."""
        return self.catch_up is not None

    def next_chunk(self) -> tuple[int, ...] | None:
        """Returns the micro-batches to run next, None when all steps are committed; carries out idle steps itself."""
        while not self.is_finished:
            self.settle()
            self.standing.heed()
            if self.is_finished:
                break
            if self.step >= self.config.total_steps and self.catch_up is not None:
                self.catch_up.fetch.wait(0.01)  # the others are done; only the final state is missing
                continue
            if self.share is None:
                if not self._measured():
                    continue
                self._begin_step()
            assert self.share is not None
            if self.share.pending:
                return self._take_chunk(self.share)
            self._close_step()
        return None

    def _measured(self) -> bool:
        """Measures the network where that was agreed on; False where the group changed meanwhile."""
        try:
            self.standing.measure_if_due()
        except (Warned, RuntimeError) as error:
            self.standing.change(None if isinstance(error, Warned) else error)
            return False
        return True

    def begin_given(self, share: Share) -> None:
        """Begins a step whose split the group has agreed on already."""
        self.exchange.begin_step()
        self.extras = Extras()
        self.held = False
        self.redone = 0
        self.replica.ghosts.discard()
        self.share = share

    def _begin_step(self) -> None:
        if self.is_shadow:
            self.begin_given(Share())
            return
        self.faults.reach(self.step, "start")
        able = sorted(m for m in self.standing.members if m not in self.standing.shadows)
        config = self.config
        shares, self.reason = shares_of_step(
            able,
            config.plan,
            self.replica,
            forced=config.forced_split,
            is_even=config.split == "even",
            caps=self.standing.caps,
        )
        self.observers.on_split(self.step, shares, self.reason)
        assigned = deal(config.plan.micro_batches, shares).as_dict()
        self.begin_given(Share(assigned=assigned, pending=self._own(assigned)))

    def _own(self, assigned: Mapping[str, tuple[int, ...]]) -> list[int]:
        """Returns the micro-batches of this member that hold samples."""
        return with_samples(self.config.plan, self.step, assigned.get(self.config.me, ()))

    def _take_chunk(self, share: Share) -> tuple[int, ...]:
        self.chunk = self._fused(share.pending)
        share.pending = share.pending[len(self.chunk) :]
        all_counts = self.config.plan.counts(self.step)
        counts = [all_counts[k] for k in self.chunk]
        self._chunk_samples = sum(counts)
        self._chunk_weight = None
        self._loss_before = share.loss_sum
        # A step that commits outside the loop (no own work, or after a regroup) leaves its gradients behind; the
        # loop's zero_grad() does not run for it, and the next backward would add to them.
        self.replica.optimizer.zero_grad(set_to_none=True)
        self._chunk_s = time.monotonic()
        tells = self.sums is None or self.active_ranks()[:1] == (self.standing.members.index(self.config.me),)
        self.replica.ghosts.enter(self.chunk, counts, tells=tells)
        if isinstance(self.exchange, FixedExchange):
            self.exchange.at(self.chunk[0])
        self._start_chunk(self._chunk_samples, is_last=not share.pending)
        self.standing.progress("computing")
        self.faults.reach(self.step, "compute")
        return self.chunk

    def _fused(self, pending: list[int]) -> tuple[int, ...]:
        """Returns the first of these micro-batches that run in one forward pass."""
        if isinstance(self.exchange, FixedExchange):
            most = 1
        elif self.sums is not None:
            most = len(pending)  # statistics over the whole step take the whole share at once
        else:
            most = self.config.max_fused or self.fusing.most(len(pending))
            most = min(most, self.fits_at_once or most)
        return tuple(pending[:most])

    def half_of_chunk(self) -> int | None:
        """Returns how many micro-batches to try at once after the running chunk did not fit, None for nothing less."""
        return None if len(self.chunk) < 2 or self.sums is not None else len(self.chunk) // 2

    def run_in_less(self, most: int) -> None:
        """Gives the running chunk back, of whose pass nothing counts, to be run with at most ``most`` at once.

        Where some of its gradients have left already, the exchange begins anew in another generation.
        """
        share = self.share
        assert share is not None
        self.fits_at_once = most
        share.pending = [*self.chunk, *share.pending]
        share.loss_sum = self._loss_before
        self.replica.ghosts.discard(self.chunk)
        self.replica.ghosts.leave()
        self.chunk = ()
        self.replica.optimizer.zero_grad(set_to_none=True)
        self.begin_passes_anew()
        if self.exchange.works:
            self.standing.change(DoesNotFit(f"{self.config.me} runs its part of step {self.step} in smaller passes"))

    def active_ranks(self) -> tuple[int, ...]:
        """Returns the ranks of the members that have samples in the running step, rising."""
        share = self.share
        assert share is not None
        counts = self.config.plan.counts(self.step)
        return tuple(
            rank
            for rank, member in enumerate(self.standing.members)
            if any(counts[k] for k in share.assigned.get(member, ()))
        )

    def weigh(self, count: int) -> None:
        """The running chunk counts for this many (valid tokens, say) instead of its samples; before backward."""
        share = self.share
        assert share is not None
        self._chunk_weight = count
        self._start_chunk(count, is_last=not share.pending)

    def _start_chunk(self, count: int, *, is_last: bool) -> None:
        expected = self.config.plan.step_size(self.step)
        overlaps = is_last and self.config.overlap and not self.standing.must_stop()
        group = self.standing.group if overlaps else None
        self.exchange.begin_chunk(count / expected / self._backward_scale(), is_last=is_last, group=group)

    def _backward_scale(self) -> float:
        """What this device's gradients come multiplied by."""
        return self.replica.scale.scale if self.replica.uses_scale and self.config.scales_backward else 1.0

    def record(self, loss: float) -> None:
        """Adds a chunk's mean loss to what the step reports."""
        share = self.share
        assert share is not None
        share.loss_sum = (share.loss_sum or 0.0) + loss * self._chunk_count()

    def _chunk_count(self) -> int:
        return self._chunk_samples if self._chunk_weight is None else self._chunk_weight

    def end_chunk(self) -> bool:
        """Closes the chunk that just ran backward; returns whether its step is committed and applied."""
        share = self.share
        assert share is not None
        if self.sums is not None and self.sums.void is not None:
            return self._run_again(self.sums)
        elapsed_s = time.monotonic() - self._chunk_s
        if self.config.duty_ratio < 1.0:
            time.sleep(elapsed_s * (1.0 / self.config.duty_ratio - 1.0))
            elapsed_s /= self.config.duty_ratio
        share.compute_us += max(1, round(elapsed_s * 1e6))
        share.count += self._chunk_count()
        share.run += self.chunk
        self._add_squares()
        self.chunk = ()
        self.replica.ghosts.leave()
        self.exchange.check_untouched()
        if share.pending:
            self.exchange.keep_chunk()
            return False
        return self._close_step()

    def _run_again(self, sums: StepSums) -> bool:
        """Throws away a pass whose statistics did not come through; the step begins anew in the next generation."""
        error, sums.void = sums.void, None
        self.chunk = ()
        self.replica.ghosts.leave()
        self.standing.change(None if isinstance(error, Warned) else error)
        return False

    def _add_squares(self) -> None:
        if self.replica.adascale is None:
            return
        count = self._chunk_count()
        squares = group_squares(self.replica.optimizer.param_groups) * (count / self._backward_scale() ** 2)
        row = torch.cat([squares, torch.tensor([1.0, float(count)], dtype=torch.float64)])
        self.extras.squares = row if self.extras.squares is None else self.extras.squares + row

    # Exchange and commit

    def _close_step(self) -> bool:
        """Exchanges and votes until the step commits, or work was re-dealt to this member (False)."""
        step = self.step
        while self.step == step:
            share = self.share
            if share is None:
                return False  # the step begins anew
            if share.pending:
                self.exchange.keep_chunk()
                return False
            try:
                vote = self._exchange_and_vote(share)
            except (Warned, RuntimeError) as error:
                self.standing.change(None if isinstance(error, Warned) else error)
                continue
            if vote is not None:
                self.commit(vote)
        return True

    def _exchange_and_vote(self, share: Share) -> Vote | None:
        group = self.standing.group
        if group is None or self.standing.must_stop():
            raise Warned
        self.standing.progress("exchanging")
        self.exchange.send_all(group)
        self._send_extras(group)
        self.faults.reach(self.step, "exchange")
        self._look_ahead(share)
        self.wait_for(self.exchange.works + self._extra_works, "gradients")
        verdict = self.exchange.verdict()
        if verdict is Verdict.MISFIT:
            self.exchange.restart_step()
            self.redone += 1
            self.run_share_again(share)
            return None
        self.held = True
        self.faults.reach(self.step, "commit")
        return self._vote(share, found_inf=verdict is Verdict.NOT_FINITE)

    def run_share_again(self, share: Share) -> None:
        """Starts this member's part of the step over; what it holds already was dropped."""
        self.replica.ghosts.discard()
        self.extras = Extras()
        self.share = Share(assigned=share.assigned, pending=self._own(share.assigned))

    def _look_ahead(self, share: Share) -> None:
        """Has the next step's first batch read while the exchange is under way; a changed split makes it useless."""
        step = self.step + 1
        if self.read_ahead is None or self.is_shadow or step >= self.config.total_steps:
            return
        mine = with_samples(self.config.plan, step, share.assigned.get(self.config.me, ()))
        if mine:
            self.read_ahead(step, self._fused(mine))

    def _send_extras(self, group: Group) -> None:
        ghosts, num = self.replica.ghosts, self.config.plan.micro_batches
        own = self.extras.squares
        if own is None and self.replica.adascale is not None:
            own = torch.zeros(len(self.replica.optimizer.param_groups) + 2, dtype=torch.float64)
        sent = Extras(table=ghosts.table(num) if ghosts.layers else None, squares=None if own is None else own.clone())
        self._sent_extras = sent
        self._extra_works = [group.all_reduce(t) for t in sent.tensors()] if group.size > 1 else []

    def wait_for(self, works: list[Any], stage: str) -> None:
        """Waits for works, but no longer than the group and its connections last.

        A connection that gives no answer for far longer than the stage has ever taken is given up.

        Raises:
            Warned: the group is about to change.
            RuntimeError: a work has failed.
        """
        if (group := self.standing.group) is not None:
            group.rest()
        try:
            for work in works:
                while not work.is_completed():
                    if self.standing.must_stop():
                        raise Warned
                    self.stalls.waiting(stage=stage)
                    if self.stalls.is_too_long() and (stuck := self.standing.stuck_connection()) is not None:
                        raise stuck
                    # Blocking in the back end costs no CPU and wakes at once; its time-out leaves the work as it is.
                    with suppress(RuntimeError):
                        work.wait(_PATIENCE)
                work.wait()
        finally:
            self.observers.on_stall(self.stalls.over(self.step))

    def _vote(self, share: Share, *, found_inf: bool) -> Vote:
        found_inf = found_inf or (self.replica.uses_scale and self.exchange.has_bad_values())
        travel = travel_of(self.exchange.works)
        ballot = ballot_of(self, share, travel, found_inf=found_inf)
        members, group = self.standing.members, self.standing.group
        values = cast(ballot, members.index(self.config.me), len(members))
        if group is not None and group.size > 1:
            self.wait_for([group.all_reduce(values)], "vote")
        vote = read(values.tolist(), members, ballot)
        self.standing.observe(travel, vote)
        return vote

    def commit(self, vote: Vote) -> None:
        """Applies a committed step, or keeps it for when this member has its state."""
        self.last_vote = vote
        self.standing.on_commit(vote)
        share, self.share, self.held = self.share, None, False
        settles = self.exchange.settles
        self.exchange.commit()
        if settles and not self.exchange.settles:
            self.observers.on_settled(vote.step)
        if vote.freezes:
            self.exchange.freeze()
        if vote.settles:
            self.exchange.settle()
        self.standing.measures_next = vote.measures
        if self.catch_up is not None:
            self.catch_up.keep(self.exchange, self._sent_extras, vote)
            return
        self._apply(vote, self._sent_extras)
        assert share is not None
        if self.config.plan.is_full(vote.step):
            self.fusing = fusing.observe(self.fusing, len(share.run), share.compute_us / 1e6)
        self.observers.on_step(facts_of(self, vote, share))
        self.standing.on_resumed()

    def _apply(self, vote: Vote, extras: Extras) -> None:
        plan = self.config.plan
        expected = plan.step_size(self.replica.step)
        if plan.is_full(self.replica.step):
            samples = {m: (v.compute_us, v.micro_batches) for m, v in vote.members if v.micro_batches}
            self.replica.balancer = balance.observe(self.replica.balancer, samples)
        ratio = 1.0 if vote.count == expected else expected / max(vote.count, 1)
        self.replica.apply(self.exchange, extras, ratio=ratio, found_inf=vote.found_inf)
        if vote.freezes and isinstance(self.replica.optimizer, OneBitAdam):
            self.replica.optimizer.freeze()
        decision = balance.plan(self.replica.balancer, sorted(vote.ready), plan.micro_batches, vote.caps)
        self.replica.balancer = decision.state
        self.replica.planned = Planned(decision.split.as_dict(), decision.reason)

    def settle(self) -> None:
        """Takes over the state once it has arrived and catches up on what was committed meanwhile."""
        catch_up = self.catch_up
        if catch_up is not None and self.share is None and catch_up.is_ready():  # never inside a step
            self.catch_up = None
            catch_up.finish(self.replica, self.exchange, self._apply)
            self.share = None
