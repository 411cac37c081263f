"""One member's way through the global steps: its share, the exchange, the vote, the commit, and every regroup.

The loop of a step::

    plan (replicated) -> run chunks of the own share -> exchange -> vote -> apply, and on to the next step
                              ^                            |
                              +-- extra share re-dealt <- regroup (a member was lost, joined, or an exchange broke)
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from plait.errors import ContractMismatch, MembershipLost
from plait.train import balance
from plait.train.bitwise import FixedPointScale, Verdict
from plait.train.collectives.exchange import Exchange, FixedExchange
from plait.train.collectives.gloo import POLL_S, GlooGroup
from plait.train.faults import FaultInjector
from plait.train.learning_rate import group_squares
from plait.train.membership.link import NewGeneration, Warned, WardenLink
from plait.train.membership.outcome import Outcome, decide
from plait.train.membership.speech import Report
from plait.train.observers import Observers, StepFacts
from plait.train.replica import Extras, Planned, Replica
from plait.train.transfer import Fetch, StateServer
from plait.train.vote import Ballot, Vote, cast, read
from plait.train.work import DataPlan, deal, redeal

FETCH_AGAIN_S = 30.0
"""How long a joiner whose fetch failed waits for the generation that gives it another donor."""

MOST_BREAKS = 20
"""Exchanges of one step that may break without a member being lost before the error is passed on."""

_QUICK_POLLS = 60
_QUICK_POLL_S = 0.00005


class Left(Exception):  # noqa: N818 - ends the loop of a member that was asked to leave
    """This member has left the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What does not change during a run."""

    me: str
    plan: DataPlan
    total_steps: int
    contract: tuple[tuple[str, str], ...]
    accelerator_type: str
    secret: str = ""
    split: str = "by_throughput"
    forced_split: Mapping[str, int] | None = None
    max_fused: int | None = None
    exchange_timeout_s: float = 60.0
    duty_ratio: float = 1.0


class SoloGroup:
    """The group of a member that is alone."""

    size = 1

    def all_reduce(self, tensor: Tensor, op: Any = None) -> Any:
        """Never called: nothing is exchanged in a group of one."""
        raise AssertionError(f"a group of one exchanged {tensor.numel()} values by {op}")

    def abort(self) -> None:
        """Nothing is pending."""


@dataclass(slots=True)
class Share:
    """This member's part of the running step."""

    assigned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    compute_us: int = 0
    count: int = 0
    loss_sum: float | None = None
    begun_s: float = field(default_factory=time.monotonic)


class StepEngine:
    """Drives one member. The session calls it from the loader and from the optimizer's step."""

    def __init__(
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
        self.link = link
        self.server = server
        self.observers = observers
        self.faults = faults
        self.generation = "0"
        self.members: tuple[str, ...] = (config.me,)
        self.group: GlooGroup | SoloGroup | None = SoloGroup()
        self.shadows: frozenset[str] = frozenset()
        self.types: dict[str, str] = {config.me: config.accelerator_type}
        self.share: Share | None = None
        self.reason = ""
        self.extras = Extras()
        self.sent_extras = Extras()
        self.extra_works: list[Any] = []
        self.redone = 0
        self.breaks = 0
        self.last_vote: Vote | None = None
        self.held = False
        self.fresh = link is not None
        self.fetch: Fetch | None = None
        self.backlog: list[tuple[list[Tensor], Extras, Vote]] = []
        self.backlog_steps = 0
        self.wants_to_leave = False
        self.chunk: tuple[int, ...] = ()
        self.chunk_s = 0.0
        self.chunk_weight: int | None = None
        self.break_s: float | None = None

    # The course of a step

    @property
    def step(self) -> int:
        """The global step that is running, or comes next."""
        return self.replica.step + self.backlog_steps

    @property
    def is_finished(self) -> bool:
        """Whether all steps are committed here."""
        return self.step >= self.config.total_steps and not self.is_shadow

    @property
    def is_shadow(self) -> bool:
        """Whether this member is still waiting for its state."""
        return self.fetch is not None

    def next_chunk(self) -> tuple[int, ...] | None:
        """Returns the micro-batches to run next, None when all steps are committed; carries out idle steps itself."""
        while not self.is_finished:
            self._settle()
            self._heed()
            if self.is_finished:
                break
            if self.step >= self.config.total_steps and self.fetch is not None:
                self.fetch.wait(0.01)  # the others are done; only the final state is missing
                continue
            if self.share is None:
                self._begin_step()
            assert self.share is not None
            if self.share.pending:
                return self._take_chunk(self.share)
            self._close_step()
        return None

    def _begin_step(self) -> None:
        self.exchange.begin_step()
        self.extras = Extras()
        self.held = False
        self.redone = 0
        self.replica.ghosts.discard()
        if self.is_shadow:
            self.share = Share()
            return
        self.faults.reach(self.step, "start")
        shares, self.reason = self._shares()
        self.observers.on_split(self.step, shares, self.reason)
        assigned = deal(self.config.plan.micro_batches, shares).as_dict()
        self.share = Share(assigned=assigned, pending=self._with_samples(assigned.get(self.config.me, ())))

    def _shares(self) -> tuple[dict[str, int], str]:
        """Returns how many micro-batches each member runs in the step that begins, and why; the same on all."""
        able = sorted(m for m in self.members if m not in self.shadows)
        forced = self.config.forced_split
        if forced is not None and set(forced) == set(able):
            return dict(forced), "the split was given"
        num = self.config.plan.micro_batches
        if self.config.split == "even":
            return {m: num // len(able) + (i < num % len(able)) for i, m in enumerate(able)}, "an even split was asked"
        planned = self.replica.planned
        if planned is not None and set(planned.shares) == set(able):
            return dict(planned.shares), planned.reason
        speeds = {m: s for m in able if (s := self.replica.balancer.speed_of(m)) is not None}
        dealt = redeal({}, able, num_micro_batches=num, speeds=speeds)
        why = "the group has changed: by the speeds measured so far" if speeds else "even: nothing is measured yet"
        return {m: len(ks) for m, ks in dealt.items()}, why

    def _with_samples(self, ks: tuple[int, ...]) -> list[int]:
        return [k for k in ks if self.config.plan.count(self.step, k) > 0]

    def _take_chunk(self, share: Share) -> tuple[int, ...]:
        most = 1 if isinstance(self.exchange, FixedExchange) else self.config.max_fused or len(share.pending)
        self.chunk = tuple(share.pending[:most])
        share.pending = share.pending[most:]
        counts = [self.config.plan.count(self.step, k) for k in self.chunk]
        self.chunk_weight = None
        # A step that commits outside the loop (no own work, or after a regroup) leaves its gradients behind; the
        # loop's zero_grad() does not run for it, and the next backward would add to them.
        self.replica.optimizer.zero_grad(set_to_none=True)
        self.chunk_s = time.monotonic()
        self.replica.ghosts.enter(self.chunk, counts)
        if isinstance(self.exchange, FixedExchange):
            self.exchange.at(self.chunk[0])
        self._start_chunk(sum(counts), is_last=not share.pending)
        if self.link is not None:
            self.link.progress(self.step, "computing")
        self.faults.reach(self.step, "compute")
        return self.chunk

    def weigh(self, count: int) -> None:
        """The running chunk counts for this many (valid tokens, say) instead of its samples; before backward."""
        share = self.share
        assert share is not None
        self.chunk_weight = count
        self._start_chunk(count, is_last=not share.pending)

    def _start_chunk(self, count: int, *, is_last: bool) -> None:
        expected = self.config.plan.step_size(self.step)
        scale = self.replica.scale.scale if self.replica.uses_scale and self.scales_backward else 1.0
        group = self.group if is_last and not self._must_stop() else None
        self.exchange.begin_chunk(count / expected / scale, is_last=is_last, group=group)

    scales_backward = False
    """Whether this device's gradients come multiplied by the global scale."""

    def _must_stop(self) -> bool:
        if self.link is None:
            return False
        self.link.pump()
        return self.link.stop_asked or self.wants_to_leave

    def record(self, loss: float) -> None:
        """Adds a chunk's mean loss to what the step reports."""
        share = self.share
        assert share is not None
        share.loss_sum = (share.loss_sum or 0.0) + loss * self._chunk_count()

    def _chunk_count(self) -> int:
        if self.chunk_weight is not None:
            return self.chunk_weight
        return sum(self.config.plan.count(self.step, k) for k in self.chunk)

    def end_chunk(self) -> bool:
        """Closes the chunk that just ran backward; returns whether its step is committed and applied."""
        share = self.share
        assert share is not None
        elapsed_s = time.monotonic() - self.chunk_s
        if self.config.duty_ratio < 1.0:
            time.sleep(elapsed_s * (1.0 / self.config.duty_ratio - 1.0))
            elapsed_s /= self.config.duty_ratio
        share.compute_us += max(1, round(elapsed_s * 1e6))
        share.count += self._chunk_count()
        share.run += self.chunk
        self._add_squares()
        self.chunk = ()
        self.replica.ghosts.leave()
        if share.pending:
            self.exchange.keep_chunk()
            return False
        self.exchange.check_untouched()
        return self._close_step()

    def _add_squares(self) -> None:
        if self.replica.adascale is None:
            return
        count = self._chunk_count()
        squares = group_squares(self.replica.optimizer.param_groups) * count
        row = torch.cat([squares, torch.tensor([1.0, float(count)], dtype=torch.float64)])
        self.extras.squares = row if self.extras.squares is None else self.extras.squares + row

    # Exchange and commit

    def _close_step(self) -> bool:
        """Exchanges and votes until the step commits, or work was re-dealt to this member (False)."""
        step = self.step
        while self.step == step:
            share = self.share
            assert share is not None
            if share.pending:
                self.exchange.keep_chunk()
                return False
            try:
                vote = self._exchange_and_vote(share)
            except (Warned, RuntimeError) as error:
                self._regroup(None if isinstance(error, Warned) else error)
                continue
            if vote is not None:
                self._commit(vote)
        return True

    def _exchange_and_vote(self, share: Share) -> Vote | None:
        if self.group is None or self._must_stop():
            raise Warned
        if self.link is not None:
            self.link.progress(self.step, "exchanging")
        self.exchange.send_all(self.group)
        self._send_extras(self.group)
        self.faults.reach(self.step, "exchange")
        self._finish(self.exchange.works + self.extra_works)
        verdict = self.exchange.verdict()
        if verdict is Verdict.MISFIT:
            self.exchange.restart_step()
            self.redone += 1
            self._run_share_again(share)
            return None
        self.held = True
        self.faults.reach(self.step, "commit")
        return self._vote(share, found_inf=verdict is Verdict.NOT_FINITE)

    def _run_share_again(self, share: Share) -> None:
        self.replica.ghosts.discard()
        self.extras = Extras()
        mine = self._with_samples(share.assigned.get(self.config.me, ()))
        self.share = Share(assigned=share.assigned, pending=mine)

    def _send_extras(self, group: GlooGroup | SoloGroup) -> None:
        ghosts, num = self.replica.ghosts, self.config.plan.micro_batches
        own = self.extras.squares
        if own is None and self.replica.adascale is not None:
            own = torch.zeros(len(self.replica.optimizer.param_groups) + 2, dtype=torch.float64)
        sent = Extras(table=ghosts.table(num) if ghosts.layers else None, squares=None if own is None else own.clone())
        self.sent_extras = sent
        self.extra_works = [group.all_reduce(t) for t in sent.tensors()] if group.size > 1 else []

    def _finish(self, works: list[Any]) -> None:
        """Waits for works, but no longer than the group lasts."""
        polls = 0
        for work in works:
            while not work.is_completed():
                if self._must_stop():
                    raise Warned
                time.sleep(_QUICK_POLL_S if polls < _QUICK_POLLS else POLL_S)
                polls += 1
            work.wait()

    def _vote(self, share: Share, *, found_inf: bool) -> Vote:
        found_inf = found_inf or (self.replica.uses_scale and self.exchange.has_bad_values())
        ballot = Ballot(
            step=self.step,
            plan_hash=self._plan_hash(),
            count=share.count,
            found_inf=found_inf,
            loss_sum=share.loss_sum if share.count else 0.0,
            compute_us=share.compute_us,
            micro_batches=len(share.run),
            is_ready=not self.is_shadow,
        )
        values = cast(ballot, self.members.index(self.config.me), len(self.members))
        if self.group is not None and self.group.size > 1:
            self._finish([self.group.all_reduce(values)])
        return read(values.tolist(), self.members, ballot)

    def _plan_hash(self) -> int:
        """A number that differs where members disagree on the generation."""
        text = f"{self.generation} {self.members}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def _commit(self, vote: Vote) -> None:
        """Applies a committed step, or keeps it for when this member has its state."""
        self.last_vote = vote
        self.breaks = 0
        self.shadows = frozenset(self.members) - vote.ready
        share, self.share, self.held = self.share, None, False
        if self.is_shadow:
            self.backlog.append((self.exchange.result(), self.sent_extras.clone(), vote))
            self.backlog_steps += 1
            return
        self._apply(vote, self.sent_extras)
        assert share is not None
        self._tell_step(vote, share)

    def _apply(self, vote: Vote, extras: Extras) -> None:
        plan = self.config.plan
        expected = plan.step_size(self.replica.step)
        if plan.is_full(self.replica.step):
            samples = {m: (v.compute_us, v.micro_batches) for m, v in vote.members if v.micro_batches}
            self.replica.balancer = balance.observe(self.replica.balancer, samples)
        ratio = 1.0 if vote.count == expected else expected / max(vote.count, 1)
        self.replica.apply(self.exchange, extras, ratio=ratio, found_inf=vote.found_inf)
        decision = balance.plan(self.replica.balancer, sorted(vote.ready), plan.micro_batches)
        self.replica.balancer = decision.state
        self.replica.planned = Planned(decision.split.as_dict(), decision.reason)

    def _tell_step(self, vote: Vote, share: Share) -> None:
        step = vote.step
        now_s = time.monotonic()
        facts = StepFacts(
            step=step,
            total_steps=self.config.total_steps,
            loss=vote.loss,
            samples=self.config.plan.step_size(step),
            step_s=now_s - share.begun_s,
            generation=self.generation,
            members=vote.members,
            counts={m: self._samples_of(step, ks) for m, ks in share.assigned.items()},
            types=self.types,
            reason=self.reason,
        )
        self.observers.on_step(facts)
        if self.break_s is not None:
            self.observers.on_resumed(now_s - self.break_s)
            self.break_s = None

    def _samples_of(self, step: int, ks: tuple[int, ...]) -> int:
        return sum(self.config.plan.count(step, k) for k in ks)

    # Membership

    def _settle(self) -> None:
        """Takes over the state that has arrived and catches up on what was committed meanwhile."""
        if self.fetch is None or not self.fetch.is_over:
            return
        fetch = self.fetch
        if fetch.error is not None:
            if time.monotonic() - fetch.started_s > FETCH_AGAIN_S:
                raise MembershipLost(fetch.error)
            return  # the donor's own end will make a new generation, with another donor
        self.replica.load(fetch.state, self.exchange)
        self.fetch = None
        backlog, self.backlog, self.backlog_steps = self.backlog, [], 0
        for result, extras, vote in backlog:
            if vote.step != self.replica.step:
                raise MembershipLost(f"the fetched state is of step {self.replica.step}, the next vote of {vote.step}")
            self.exchange.take_result(result)
            self._apply(vote, extras)
        self.share = None

    def _heed(self) -> None:
        """Between chunks: leaves when asked to, and stops for a change of the group."""
        if self.link is None:
            return
        self.link.pump()
        if self.wants_to_leave or self.link.stop_asked:
            self._regroup(None)

    def report(self) -> Report:
        """Returns what this member can say for itself while it is stopped."""
        share = self.share
        payload = {
            "fresh": self.fresh,
            "ks": list(share.assigned.get(self.config.me, ())) if share is not None else None,
            "left": len(share.pending) if share is not None else 0,
            "vote": _vote_to_json(self.last_vote),
            "contract": self.config.contract,
            "state": self.server.address if self.server is not None else "",
            "type": self.config.accelerator_type,
            "shadows": sorted(self.shadows),
            "redone": self.redone,
            "fixed": self.exchange.scale.max_abs if self.redone and isinstance(self.exchange, FixedExchange) else None,
        }
        applied = None if self.is_shadow else self.step
        return Report(applied, self.held and not self.is_shadow, json.dumps(payload))

    def form(self) -> None:
        """Enters the first generation, or a running group."""
        if self.link is None:
            self.fresh = False
            return
        report = self.report() if not self.joins else Report(None, payload=self.report().payload)
        self.link.ready(report)
        self._await_generation()

    joins = False
    """Whether this member joins a group that already runs."""

    def _regroup(self, error: Exception | None) -> None:
        """Stops, reports, and goes on in the next generation."""
        if self.link is None:
            raise error or MembershipLost("a session of one process cannot lose members")
        if self.break_s is None:
            self.break_s = time.monotonic()
        broke = self.group is not None and not self.link.stop_asked and not self.wants_to_leave
        self._abandon()
        if self.wants_to_leave:
            self.link.leave(self.report())
        elif broke:
            self.breaks += 1
            if self.breaks > MOST_BREAKS and error is not None:
                raise MembershipLost(f"the exchange of step {self.step} broke {self.breaks} times: {error}") from error
            self.link.failed(self.report())
        else:
            self.link.stopped(self.report())
        self._await_generation()

    def _abandon(self) -> None:
        if isinstance(self.group, GlooGroup):
            self.group.abort()
        self.group = None
        if not self.held:
            self.exchange.abandon()

    def _await_generation(self) -> None:
        assert self.link is not None
        while True:
            self.link.pump(0.02)
            if self.link.released:
                raise Left
            new = self.link.next_generation()
            if new is None:
                continue
            try:
                self._enter(new)
            except Warned:
                self.link.stopped(self.report())
            except RuntimeError:
                self.link.failed(self.report())
            else:
                if self.wants_to_leave:
                    self._abandon()
                    self.link.leave(self.report())
                    continue
                return

    def _enter(self, new: NewGeneration) -> None:
        payloads = {m: json.loads(r.payload) for m, r in new.reports.items()}
        fresh = frozenset(m for m, p in payloads.items() if p["fresh"])
        outcome = decide(new.members, new.reports, fresh)
        self._check_contract(new.members, payloads, fresh)
        before = self.members
        me = self.config.me
        if self.held and me not in outcome.apply:
            self.held = False
            self.exchange.abandon()
        if me in outcome.apply:
            vote = _vote_from_json(next(p["vote"] for p in payloads.values() if _vote_step(p) == outcome.step - 1))
            self._commit(vote)
        self.members, self.generation = new.members, str(new.ballot)
        self.types = {m: payloads[m]["type"] for m in new.members}
        shadows = set(outcome.fetch)
        for name, payload in payloads.items():
            if name not in fresh:
                shadows |= set(payload["shadows"])
        self.shadows = frozenset(shadows & set(new.members)) if not _is_first(fresh, new) else frozenset()
        if me in outcome.fetch:
            self._start_fetch(outcome, payloads)
        self._share_again(outcome, new, payloads)
        if outcome.donor == me and self.server is not None:
            self.server.publish(self.generation, self.replica.state(self.exchange))
        if self.step < self.config.total_steps or self.is_shadow:
            self._connect()
        if me in outcome.fetch and _is_first(fresh, new):
            self._await_state()
        self.fresh = False
        gone = {m: new.lost.get(m, "it left") for m in before if m not in new.members}
        joined = [m for m in new.members if m not in before]
        self.observers.on_membership(self.step, self.generation, new.members, gone, joined)

    def _connect(self) -> None:
        assert self.link is not None
        if len(self.members) == 1:
            self.group = SoloGroup()
        else:
            self.group = GlooGroup.build(self.link, self.generation, self.members, self.config.exchange_timeout_s)

    def _check_contract(self, members: tuple[str, ...], payloads: Mapping[str, Any], fresh: frozenset[str]) -> None:
        """Refuses a group in which gradients would not fit together, before anything is exchanged."""
        reference = min((m for m in members if m not in fresh), default=members[0])
        theirs = payloads[reference]["contract"]
        for (name, mine), (_, value) in zip(self.config.contract, theirs, strict=True):
            if mine != value:
                raise ContractMismatch(
                    f"{self.config.me} differs from {reference} in {name}: {mine} here, {value} there"
                )

    def _start_fetch(self, outcome: Outcome, payloads: Mapping[str, Any]) -> None:
        assert outcome.donor is not None
        self.backlog, self.backlog_steps = [], outcome.step - self.replica.step
        self.fetch = Fetch(payloads[outcome.donor]["state"], self.generation, self.config.secret)

    def _await_state(self) -> None:
        """At the start all members wait for the first one's weights, as DDP does."""
        assert self.link is not None
        assert self.fetch is not None
        while not self.fetch.is_over:
            self.link.pump()
            if self.link.stop_asked:
                self.fetch = None
                self.fresh = True
                raise Warned
            self.fetch.wait(0.005)
        share = self.share
        self._settle()
        self.share = share

    def _share_again(self, outcome: Outcome, new: NewGeneration, payloads: Mapping[str, Any]) -> None:
        """Deals the micro-batches of the running step that nobody in the group holds any more."""
        held: dict[str, frozenset[int]] = {}
        left: dict[str, int] = {}
        for member in new.members:
            report = new.reports[member]
            if report.applied == outcome.step and payloads[member]["ks"] is not None:
                held[member] = frozenset(payloads[member]["ks"])
                left[member] = int(payloads[member]["left"])
        if not held or outcome.step >= self.config.total_steps:
            self.share = None
            return
        able = [m for m in new.members if m not in self.shadows]
        speeds = {m: s for m in able if (s := self.replica.balancer.speed_of(m)) is not None}
        num = self.config.plan.micro_batches
        extra = redeal(held, able, num_micro_batches=num, speeds=speeds, remaining=left)
        assigned = {m: tuple(sorted(held.get(m, frozenset()) | set(extra.get(m, ())))) for m in new.members}
        mine = self._with_samples(extra.get(self.config.me, ()))
        if self.share is None:
            self.exchange.begin_step()
            self.extras = Extras()
            self.share = Share(assigned=assigned, pending=mine)
        else:
            self.share.assigned = assigned
            self.share.pending += mine
        self._adopt_scale(outcome.step, new, payloads)
        dealt = sum(len(ks) for ks in extra.values())
        if dealt:
            self.reason = f"{dealt} micro-batches of step {outcome.step} were dealt again to those who go on"
            self.observers.on_split(self.step, {m: len(ks) for m, ks in assigned.items()}, self.reason)

    def _adopt_scale(self, step: int, new: NewGeneration, payloads: Mapping[str, Any]) -> None:
        """In fixed point, a step that some members have begun to run again on another scale is run so by all."""
        told = [p for m, p in payloads.items() if new.reports[m].applied == step and p["fixed"] is not None]
        best = max(told, key=lambda p: int(p["redone"]), default=None)
        if best is None or best["redone"] <= self.redone or not isinstance(self.exchange, FixedExchange):
            return
        self.exchange.scale = FixedPointScale(tuple(best["fixed"]))
        self.exchange.begin_step()
        self.redone = int(best["redone"])
        if self.share is not None:
            self._run_share_again(self.share)

    def finish(self) -> None:
        """All steps are committed here: stays answerable until every member is as far, so that none is left behind."""
        if self.link is None:
            return
        self.link.done()
        while not self.link.all_done:
            self.link.pump(0.05)
            if self.link.stop_asked:
                self._abandon()
                self.link.stopped(self.report())
                self._await_generation()


def _is_first(fresh: frozenset[str], new: NewGeneration) -> bool:
    return set(new.members) <= fresh


def _vote_step(payload: Mapping[str, Any]) -> int:
    return int(payload["vote"]["step"]) if payload["vote"] else -1


def _vote_to_json(vote: Vote | None) -> dict[str, Any] | None:
    if vote is None:
        return None
    members = [[m, v.compute_us, v.micro_batches, v.is_ready] for m, v in vote.members]
    return {"step": vote.step, "count": vote.count, "inf": vote.found_inf, "loss": vote.loss, "members": members}


def _vote_from_json(values: Mapping[str, Any]) -> Vote:
    from plait.train.vote import MemberVote

    members = tuple(
        (m, MemberVote(compute_us=us, micro_batches=n, is_ready=ready)) for m, us, n, ready in values["members"]
    )
    return Vote(
        step=values["step"], count=values["count"], found_inf=values["inf"], loss=values["loss"], members=members
    )
