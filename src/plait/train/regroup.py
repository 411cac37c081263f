"""A member's standing in its group, and how it gets from one generation to the next."""

import json
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from plait.errors import ContractMismatch, MembershipLost
from plait.train.catch_up import CatchUp
from plait.train.collectives.fixed import FixedExchange
from plait.train.collectives.gloo import GlooGroup
from plait.train.collectives.mesh import MeshBroken
from plait.train.collectives.routes import Routes
from plait.train.collectives.sockets import reset
from plait.train.collectives.travel import Travel
from plait.train.comm.quiet import save_table
from plait.train.measuring import Measuring
from plait.train.membership.link import NewGeneration, WardenLink, Warned
from plait.train.membership.outcome import Outcome, decide
from plait.train.membership.speech import Report
from plait.train.redealing import share_again, take_scale
from plait.train.stalls import LEAST_RETRIES
from plait.train.transfer import Fetch, StateServer
from plait.train.vote import Vote

if TYPE_CHECKING:
    from plait.train.engine import StepEngine

MOST_BREAKS = 20
"""Exchanges of one step that may break without a member being lost before the error is passed on."""

MOST_SETTLING_S = 10.0
"""How long a member that was asked to leave stays for a step that sends what it owes."""


class Left(Exception):
    """This member has left the group."""


class SoloGroup:
    """The group of a member that is alone."""

    size = 1

    def all_reduce(self, tensor: Tensor, op: Any = None) -> Any:
        """Never called: nothing is exchanged in a group of one."""
        raise AssertionError(f"a group of one exchanged {tensor.numel()} values by {op}")

    def rest(self) -> None:
        """Nothing moves in a group of one."""


class Regroup:
    """Who this member works with, and the way to the next generation when that changes."""

    def __init__(self, engine: "StepEngine", link: WardenLink | None, server: StateServer | None) -> None:
        config = engine.config
        self._engine = engine
        self._link = link
        self._server = server
        self.generation = "0"
        self.members: tuple[str, ...] = (config.me,)
        self.group: GlooGroup | SoloGroup | None = SoloGroup()
        self.shadows: frozenset[str] = frozenset()
        self.types: dict[str, str] = {config.me: config.accelerator_type}
        self.islands: dict[str, str] = {config.me: config.island}
        self.caps: dict[str, int | None] = {config.me: config.most}
        self.measuring = Measuring(config.measures)
        self.measures_next = False
        self.wants_to_leave = False
        self._leave_by_s = math.inf
        self._fresh = link is not None
        self._breaks = 0
        self._break_s: float | None = None

    # What the engine asks and tells

    def must_stop(self) -> bool:
        """Whether the group is about to change, or this member is to leave."""
        if self._link is None:
            return self._leaves_now
        self._link.pump()
        return self._link.stop_asked or self._leaves_now

    @property
    def _leaves_now(self) -> bool:
        """Whether this member is to leave and has sent what it owes, or cannot wait for that any longer."""
        return self.wants_to_leave and (not self._engine.exchange.owes or time.monotonic() > self._leave_by_s)

    def ask_to_leave(self) -> None:
        """Makes this member leave at its next safe point; may be called from any thread."""
        if not self.wants_to_leave:
            self._leave_by_s = time.monotonic() + MOST_SETTLING_S
        self.wants_to_leave = True

    def progress(self, phase: str) -> None:
        """Lets the heartbeats say where this member is."""
        if self._link is not None:
            self._link.progress(self._engine.step, phase)

    def on_commit(self, vote: Vote) -> None:
        """A step is committed: whoever said that it has its state may be given work from now on."""
        self._breaks = 0
        self.shadows = frozenset(self.members) - vote.ready
        self.caps = vote.caps

    def on_resumed(self) -> None:
        """Work has gone on: a break, if there was one, is over. A held step that is applied in between ends none."""
        if self._break_s is not None and self.group is not None:
            self._engine.observers.on_resumed(time.monotonic() - self._break_s)
            self._break_s = None

    def heed(self) -> None:
        """Between chunks: leaves when asked to, and stops for a change of the group."""
        if self.must_stop():
            self.change(None)

    def form(self) -> None:
        """Enters the first generation, or a running group."""
        if self._link is None:
            return
        report = self._report()
        self._link.ready(Report(None, payload=report.payload) if self._engine.config.joins else report)
        self._await_generation()

    def change(self, error: Exception | None) -> None:
        """Stops, reports, and goes on in the next generation.

        Raises:
            MembershipLost: the group goes on without this member, or exchanges keep breaking.
            Left: this member has left as it was asked to.
        """
        if self._link is None and self._leaves_now:
            raise Left
        if self._link is None:
            raise error or MembershipLost("a session of one process cannot lose members")
        if self._break_s is None:
            self._break_s = time.monotonic()
        if error is not None:
            self._tell_break(error)
        broke = self.group is not None and not self._link.stop_asked and not self._leaves_now
        self._abandon()
        if self._leaves_now:
            self._link.leave(self._report())
        elif broke:
            if error is not None:
                self._count_break(error)
            self._link.failed(self._report())
        else:
            self._link.stopped(self._report())
        self._await_generation()

    def wants_measuring(self) -> bool:
        """Whether the network should be measured before the next step; the first member decides."""
        engine, group = self._engine, self._meshed()
        if group is None or engine.is_shadow or self.members[0] != engine.config.me:
            return False
        return self.measuring.is_due(group.routes, engine.step, engine.config.total_steps)

    def measure_if_due(self) -> None:
        """Measures the network with all members, if they have agreed on it with the last step.

        Raises:
            Warned: the group is about to change.
            RuntimeError: it failed.
        """
        is_due, self.measures_next = self.measures_next, False
        group = self._meshed()
        if is_due and group is not None:
            self.progress("measuring")
            self.measuring.measure(group, self._engine.exchange.codec, self.must_stop)
            self._tell_routes(group.routes)

    def observe(self, travel: Travel | None, vote: Vote) -> None:
        """A step's exchange came through: how long it took corrects what was measured, on all members alike."""
        group = self._meshed()
        if group is None or travel is None or vote.travel_s is None:
            return
        switches = group.routes.observe(travel, vote.travel_s)
        if switches:
            self._save_table(group.routes)
            self._engine.observers.on_switch(vote.step, switches)

    def _meshed(self) -> GlooGroup | None:
        """The group, if its members have direct connections."""
        return self.group if isinstance(self.group, GlooGroup) and self.group.mesh is not None else None

    def _tell_routes(self, routes: Routes) -> None:
        """What is measured is used: the first member writes down how."""
        if routes.tables is not None and self._save_table(routes):
            self._engine.observers.on_plan(self._engine.step, routes.tables[self._engine.exchange.codec])

    def _save_table(self, routes: Routes) -> bool:
        """Saves what is used if this is the first member; returns whether it is."""
        is_first = self.members[0] == self._engine.config.me
        if routes.tables is not None and is_first:
            save_table(routes.tables[self._engine.exchange.codec], routes.names, routes.switches)
        return is_first

    def stuck_connection(self) -> MeshBroken | None:
        """Returns what to say of a connection that gives no answer, if there is one."""
        group = self._meshed()
        return group.mesh.stuck(LEAST_RETRIES) if group is not None and group.mesh is not None else None

    def break_a_connection(self) -> None:
        """Breaks the connection to the next member, as a network might; both ends live on. For experiments."""
        group = self._meshed()
        if group is not None and (mesh := group.mesh) is not None:
            reset(mesh.peers[(mesh.rank + 1) % mesh.size].connection)

    def _tell_break(self, error: Exception) -> None:
        """Tells of a connection that broke; one that a member closes is told by what becomes of that member."""
        if isinstance(error, MeshBroken) and error.rank is not None:
            member = self.members[error.rank]
            self._engine.observers.on_break(self._engine.step, member, error.unsent_bytes, str(error))
        elif not isinstance(error, MeshBroken) and "reset" in str(error):  # as gloo writes
            self._engine.observers.on_break(self._engine.step, None, None, str(error))

    def _count_break(self, error: Exception) -> None:
        self._breaks += 1
        if self._breaks > MOST_BREAKS:
            step = self._engine.step
            raise MembershipLost(f"the exchange of step {step} broke {self._breaks} times: {error}") from error

    def leave(self) -> None:
        """Leaves the group at once, at a step boundary."""
        if self._link is None:
            return
        self.wants_to_leave = True
        self._leave_by_s = -math.inf
        try:
            self.change(None)
        except Left:
            return

    def finish(self) -> None:
        """All steps are committed here: stays answerable until every member is as far, so that none is left behind."""
        if self._link is None:
            return
        self._link.done()
        while not self._link.all_done:
            self._link.pump(0.05)
            if self._link.stop_asked:
                self._abandon()
                self._link.stopped(self._report())
                self._await_generation()

    # From one generation to the next

    def _report(self) -> Report:
        """Returns what this member can say for itself while it is stopped."""
        engine = self._engine
        share, exchange = engine.share, engine.exchange
        payload = {
            "fresh": self._fresh,
            "ks": list(share.assigned.get(engine.config.me, ())) if share is not None else None,
            "left": len(share.pending) if share is not None else 0,
            "vote": engine.last_vote.as_json() if engine.last_vote is not None else None,
            "contract": engine.config.contract,
            "state": self._server.address if self._server is not None else "",
            "type": engine.config.accelerator_type,
            "island": engine.config.island or (self._link.address.rsplit(":", 1)[0] if self._link is not None else ""),
            "shadows": sorted(self.shadows),
            "most": engine.most,
            "frozen": exchange.is_frozen,
            "settles": exchange.settles,
            "known": self.measuring.told() if engine.config.me in self.members[:2] else None,
            "redone": engine.redone,
            "fixed": exchange.scale.max_abs if isinstance(exchange, FixedExchange) else None,
        }
        applied = None if engine.is_shadow else engine.step
        return Report(applied, engine.held and not engine.is_shadow, json.dumps(payload))

    def _abandon(self) -> None:
        if isinstance(self.group, GlooGroup):
            self.group.abort()
        self.group = None
        if not self._engine.held:
            self._engine.exchange.abandon()

    def _await_generation(self) -> None:
        assert self._link is not None
        while True:
            self._link.pump(0.02)
            if self._link.released:
                raise Left
            if self._link.all_done:
                return  # all have committed the last step, and the others may have ended: no generation will come
            new = self._link.next_generation()
            if new is None:
                continue
            try:
                self._enter(new)
            except Warned:
                self._link.stopped(self._report())
            except RuntimeError as error:
                self._count_break(error)
                self._link.failed(self._report())
            else:
                if not self._leaves_now:
                    return
                self._abandon()
                self._link.leave(self._report())

    def _enter(self, new: NewGeneration) -> None:
        engine = self._engine
        payloads = {m: json.loads(r.payload) for m, r in new.reports.items()}
        fresh = frozenset(m for m, p in payloads.items() if p["fresh"])
        is_first = set(new.members) <= fresh
        outcome = decide(new.members, new.reports, fresh)
        self._check_contract(new.members, payloads, fresh)
        self._apply_held(outcome, payloads)
        before, me = self.members, engine.config.me
        self.members, self.generation = new.members, str(new.ballot)
        engine.stalls.addresses = {m: a for m, a in new.addresses.items() if m != me}
        self.types = {m: payloads[m]["type"] for m in new.members}
        self.islands = {m: payloads[m]["island"] for m in new.members}
        self.measuring.adopt(payloads[m]["known"] for m in new.members)
        self.caps = {m: payloads[m]["most"] for m in new.members}
        known = {m for p in payloads.values() if not p["fresh"] for m in p["shadows"]}
        shadows = set[str]() if is_first else (known | set(outcome.fetch)) & set(new.members)
        self.shadows = frozenset(shadows)
        if me in outcome.fetch:
            assert outcome.donor is not None
            fetch = Fetch(payloads[outcome.donor]["state"], self.generation, engine.config.secret)
            engine.catch_up = CatchUp(fetch, outcome.step)
            take_scale(engine, outcome.step, new, payloads)
            current = [payloads[m] for m in new.members if new.reports[m].applied == outcome.step]
            if any(payload["frozen"] for payload in current):
                engine.exchange.freeze()
            if any(payload["settles"] for payload in current):
                engine.exchange.settle()
        share_again(engine, outcome, new, payloads)
        if outcome.donor == me and self._server is not None:
            self._server.publish(self.generation, engine.replica.state(engine.exchange))
        self.measures_next = False
        if outcome.step < engine.config.total_steps:  # not this member's own step: all must connect, or none
            self._connect()
        if me in outcome.fetch and is_first:
            self._await_state()
        self._fresh = False
        gone = {m: new.lost.get(m, "it left") for m in before if m not in new.members}
        joined = [m for m in new.members if m not in before]
        engine.observers.on_membership(engine.step, self.generation, new.members, gone, joined)

    def _apply_held(self, outcome: Outcome, payloads: Mapping[str, Any]) -> None:
        """Commits the step that this member holds if somebody has, and drops it if nobody has."""
        engine = self._engine
        if engine.config.me in outcome.apply:
            votes = (p["vote"] for p in payloads.values() if p["vote"] is not None)
            engine.commit(Vote.from_json(next(v for v in votes if v["step"] == outcome.step - 1)))
        elif engine.held:
            engine.held = False
            engine.exchange.abandon()

    def _connect(self) -> None:
        assert self._link is not None
        if len(self.members) == 1:
            self.group = SoloGroup()
            return
        timeout_s = self._engine.config.exchange_timeout_s
        routes = Routes([self.islands[member] for member in self.members], self.measuring.known)
        self.group = GlooGroup.build(self._link, self.generation, self.members, routes, timeout_s)
        self._tell_routes(routes)

    def _check_contract(self, members: tuple[str, ...], payloads: Mapping[str, Any], fresh: frozenset[str]) -> None:
        """Refuses a group in which gradients would not fit together, before anything is exchanged."""
        config = self._engine.config
        reference = min((m for m in members if m not in fresh), default=members[0])
        theirs = payloads[reference]["contract"]
        for (name, mine), (_, value) in zip(config.contract, theirs, strict=True):
            if mine != value:
                raise ContractMismatch(f"{config.me} differs from {reference} in {name}: {mine} here, {value} there")

    def _await_state(self) -> None:
        """At the start all members wait for the first one's weights, as DDP does."""
        engine = self._engine
        assert engine.catch_up is not None
        while not engine.catch_up.is_ready():
            if self.must_stop():
                engine.catch_up = None
                raise Warned
            engine.catch_up.fetch.wait(0.005)
        engine.settle()
