"""Who is in the group, as a pure state machine: input in, new state and outputs out. No clock, no socket, no torch.

One instance runs beside each worker (in its warden process). A *generation* is a set of members that exchange
gradients with one another; it is named by the ballot that installed it. When a member dies, falls silent, leaves or
asks to join, the lowest live member proposes the next generation:

1. ``Prepare(ballot, members)``: an acceptor that agrees stops its worker at its next safe point (the worker promises
   never to commit in the old generation again) and answers ``Accept(ballot, report)``. The report says how many steps
   the worker has applied and whether it holds the complete reduced gradient of the next one.
2. When every proposed member has accepted, ``Install(ballot, members, reports)``: each worker derives the same
   outcome from the same reports (see :func:`plait.train.membership.outcome.decide`) and goes on.

Safety. A step commits only when *all* members of a generation have contributed to its vote, so a generation in which
one member has promised to stop can commit nothing new. Two groups can never go on from the same generation, because an
acceptor refuses members that are no quorum of the generation it has installed *and* of every proposal that it has
accepted since (which may have been installed elsewhere). A quorum is a majority of those not known to be dead; of an
exact half, the one with the lowest member. ``tests/property/test_membership_exhaustive.py`` walks every interleaving of
loss, join and commit of small groups. The written protocol: ``docs/design/membership.md``. The scheme is that of
Viewstamped Replication's view change (Oki and Liskov 1988), with the gradient vote as its only log entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from plait.train.membership.speech import (
    Accept,
    AllDone,
    Ballot,
    Complaint,
    Died,
    Done,
    ExchangeFailed,
    Expelled,
    Finished,
    Gone,
    GoOn,
    Heard,
    Input,
    Install,
    JoinAsk,
    LeaveAsk,
    Output,
    Prepare,
    Proposal,
    Received,
    Refuse,
    Released,
    Report,
    Send,
    Silent,
    Stopped,
    StopWorker,
    WantsToLeave,
    Withdrawn,
)


@dataclass(frozen=True, slots=True)
class Member:
    """All that one member knows. ``installed`` None: it has never been in a generation (a joiner)."""

    me: str
    installed: Proposal | None
    accepted: Proposal | None = None
    gone: frozenset[str] = frozenset()
    heard: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    complaints: frozenset[tuple[str, str]] = frozenset()
    joiners: frozenset[tuple[str, frozenset[str]]] = frozenset()
    leaving: frozenset[str] = frozenset()
    done: frozenset[str] = frozenset()
    broken: bool = False
    worker: Literal["running", "stopping", "stopped", "out"] = "stopped"
    report: Report = field(default_factory=lambda: Report(None))
    proposal: Proposal | None = None
    awaited: frozenset[str] = frozenset()
    collected: tuple[tuple[str, Report], ...] = ()
    highest: int = 0
    refused: tuple[tuple[str, ...], frozenset[str]] | None = None

    @property
    def ballot(self) -> Ballot:
        """The ballot of the installed generation, or the lowest one."""
        return self.installed.ballot if self.installed else Ballot(-1, "")


Step = tuple[Member, tuple[Output, ...]]


def founder(me: str, seeds: tuple[str, ...], report: Report) -> Member:
    """A member of the first group: all seeds are taken to be in generation 0, stopped and reporting."""
    return Member(me=me, installed=Proposal(Ballot(0, ""), tuple(sorted(seeds))), report=report)


def joiner(me: str, report: Report | None = None) -> Member:
    """A member that asks a running group to take it in."""
    return Member(me=me, installed=None, report=report or Report(None))


def has_quorum(target: tuple[str, ...], base: tuple[str, ...], gone: frozenset[str]) -> bool:
    """True where ``target`` may go on from ``base``: a majority of those not known dead, or the half with the lowest.

    Args:
        target: members of the next generation.
        base: members of the generation (or accepted proposal) that it follows.
        gone: members that can never act again.
    """
    votes = sorted(set(base) - gone)
    kept = [member for member in votes if member in target]
    if 2 * len(kept) == len(votes):
        return bool(kept) and votes[0] == kept[0]
    return 2 * len(kept) > len(votes)


def step(state: Member, event: Input) -> Step:
    """Takes one input; returns the new state and what to do, in order."""
    if state.worker == "out":
        return state, ()
    state, outputs = _HANDLERS[type(event)](state, event)
    if state.me in state.leaving and not _staying(state):
        return replace(state, worker="out"), (*outputs, Released())
    state, more = _propose_if_needed(state)
    return state, outputs + more


def _staying(state: Member) -> list[str]:
    """Members of the installed generation that are neither lost nor leaving, sorted."""
    members = state.installed.members if state.installed else ()
    out = lost(state) | state.leaving
    return [member for member in members if member not in out]


def lost(state: Member) -> frozenset[str]:
    """Members that the next generation of this member's making would leave out (leavers apart)."""
    members = state.installed.members if state.installed else ()
    out = state.gone | state.silent
    pairs = {(a, b) for a, b in state.complaints if a not in out and b not in out and a in members and b in members}
    while pairs:
        named = sorted({m for pair in pairs for m in pair}, key=lambda m: (sum(m in p for p in pairs), m))
        worst = named[-1] if named[-1] != state.me else named[-2]
        out |= {worst}
        pairs = {pair for pair in pairs if worst not in pair}
    return out


def _propose_if_needed(state: Member) -> Step:  # noqa: PLR0911 - one return a reason not to propose
    if state.installed is None or state.worker == "out":
        return state, ()
    staying = _staying(state)
    if state.me != min(staying, default=""):
        return state, ()
    first = state.installed.ballot.number == 0
    if first and not set(state.installed.members) <= state.heard | lost(state) | {state.me}:
        return state, ()
    target = tuple(sorted({*staying, *_joining(state, staying)}))
    if not (first or _change_is_due(state, target)):
        return state, ()
    under_way = state.proposal is not None and state.proposal == Proposal(_latest(state), target)
    if under_way and not state.awaited & lost(state):  # a leaver may be gone before it has answered
        return state, ()
    if not _may_accept(state, (*target, *_leavers(state)), state.gone) or state.refused == (target, state.gone):
        return state, ()  # no quorum: wait for members to come back or to be known dead
    return _propose(state, target)


def _joining(state: Member, staying: list[str]) -> set[str]:
    """Those who ask to join and can be reached by everybody."""
    needed = set(staying)
    return {m for m, reaches in state.joiners if m in state.heard and needed <= reaches}


def _change_is_due(state: Member, target: tuple[str, ...]) -> bool:
    assert state.installed is not None
    if target != state.installed.members or state.broken:
        return True
    if state.accepted is None or state.accepted.ballot <= state.ballot:
        return False
    stranded = state.accepted.ballot.proposer in lost(state) | state.leaving
    return stranded or state.accepted.members != target


def _latest(state: Member) -> Ballot:
    return state.accepted.ballot if state.accepted and state.accepted.ballot > state.ballot else state.ballot


def _leavers(state: Member) -> tuple[str, ...]:
    """Members that leave and are asked to report first; they accept too, so they count for the quorum."""
    members = state.installed.members if state.installed else ()
    return tuple(sorted(m for m in state.leaving if m in members and m not in lost(state)))


def _may_accept(state: Member, acceptors: tuple[str, ...], gone: frozenset[str]) -> bool:
    bases = [p for p in (state.installed, state.accepted) if p is not None and p.ballot >= state.ballot]
    return all(has_quorum(acceptors, base.members, gone) for base in bases)


def _propose(state: Member, target: tuple[str, ...]) -> Step:
    assert state.installed is not None
    ballot = Ballot(max(state.highest, _latest(state).number) + 1, state.me)
    leavers = _leavers(state)
    message = Prepare(ballot, target, leavers, state.gone)
    asked = (set(target) | set(leavers)) - {state.me}
    state = replace(
        state,
        proposal=Proposal(ballot, target),
        awaited=frozenset(asked | {state.me}),
        collected=(),
        highest=ballot.number,
    )
    sends: tuple[Output, ...] = tuple(Send(member, message) for member in sorted(asked))
    state, outputs = _accept(state, message)
    return state, sends + outputs


def _accept(state: Member, message: Prepare) -> Step:
    state = replace(state, accepted=Proposal(message.ballot, message.members))
    if state.worker == "stopped":
        return _answer(state)
    if state.worker == "running":
        return replace(state, worker="stopping"), (StopWorker(),)
    return state, ()


def _answer(state: Member) -> Step:
    """Sends the report to the proposer of the accepted ballot; a proposer answers itself."""
    if state.accepted is None or state.accepted.ballot <= state.ballot:
        return state, ()
    ballot = state.accepted.ballot
    if ballot.proposer == state.me:
        return _collect(state, state.me, ballot, state.report)
    return state, (Send(ballot.proposer, Accept(ballot, state.report)),)


def _collect(state: Member, sender: str, ballot: Ballot, report: Report) -> Step:
    if state.proposal is None or state.proposal.ballot != ballot or sender not in state.awaited:
        return state, ()
    if _latest(state) != ballot:
        return state, ()  # this member has itself promised to a higher ballot since
    members = state.proposal.members
    awaited = state.awaited - {sender}
    collected = tuple(sorted((*state.collected, (sender, report)), key=lambda pair: pair[0]))
    state = replace(state, awaited=awaited, collected=collected)
    if awaited:
        return state, ()
    before = state.installed.members if state.installed is not None else ()
    message = Install(ballot, members, collected)
    told = {m for m, _ in collected} | set(members)
    sends: list[Output] = [Send(m, message) for m in sorted(told) if m != state.me]
    left_out = set(before) - told - state.gone
    notice = Refuse(ballot, ballot, Proposal(ballot, members), state.gone)
    sends += [Send(m, notice) for m in sorted(left_out)]
    state, outputs = _install(state, message)
    return state, (*sends, *outputs)


def _install(state: Member, message: Install) -> Step:
    proposal = Proposal(message.ballot, message.members)
    if state.accepted is None or state.accepted.ballot != message.ballot:
        return _note_installed(state, proposal)
    if state.me not in message.members:
        return replace(state, worker="out"), (Released(),)
    state = replace(
        state,
        installed=proposal,
        proposal=None,
        awaited=frozenset(),
        collected=(),
        broken=False,
        refused=None,
        worker="running",
        complaints=frozenset(),
        joiners=frozenset(pair for pair in state.joiners if pair[0] not in message.members),
        leaving=frozenset(m for m in state.leaving if m in message.members),
        highest=max(state.highest, message.ballot.number),
    )
    outputs: tuple[Output, ...] = (GoOn(message.ballot, message.members, message.reports),)
    return state, outputs + _complain(state) + _all_done(state)


def _note_installed(state: Member, proposal: Proposal) -> Step:
    """A generation with this member exists, but it has promised itself to a higher ballot since.

    Where that ballot's proposer is not in the generation it can come to nothing: the generation must propose anew.
    """
    promised = state.accepted
    if promised is None or not promised.ballot > proposal.ballot > state.ballot or state.me not in proposal.members:
        return state, ()
    state = replace(state, installed=proposal, complaints=frozenset())
    if promised.ballot.proposer in proposal.members:
        return state, ()
    others = [m for m in proposal.members if m != state.me]
    return state, tuple(Send(m, Complaint(proposal.ballot, None)) for m in others)


def _complain(state: Member) -> tuple[Output, ...]:
    """Tells the leader whom this member cannot hear; the leader may hear them well."""
    if state.installed is None:
        return ()
    outputs: list[Output] = []
    for silent in sorted(state.silent & set(state.installed.members)):
        outputs += [
            Send(m, Complaint(state.ballot, silent)) for m in state.installed.members if m not in {state.me, silent}
        ]
    return tuple(outputs)


def _all_done(state: Member) -> tuple[Output, ...]:
    if state.installed is None or state.me not in state.done:
        return ()
    return (AllDone(),) if set(state.installed.members) <= state.done | state.gone else ()


def _on_heard(state: Member, event: Heard) -> Step:
    if event.member in state.gone:
        return state, ()  # news of its death overtook it
    members = state.installed.members if state.installed is not None else ()
    was_silent = event.member in state.silent and event.member in members
    state = replace(state, heard=state.heard | {event.member}, silent=state.silent - {event.member})
    outputs: list[Output] = []
    if was_silent:
        others = [m for m in members if m not in {state.me, event.member}]
        outputs += [Send(m, Withdrawn(state.ballot, event.member)) for m in others]
    if state.me in state.done:
        outputs.append(Send(event.member, Done()))
    if state.gone:
        outputs.append(Send(event.member, Gone(state.gone)))
    if state.me in state.leaving:
        outputs.append(Send(event.member, LeaveAsk()))
    known = state.installed
    if known is not None and known.ballot.number > 0 and event.member not in known.members:
        outputs.append(Send(event.member, Refuse(known.ballot, known.ballot, known, state.gone)))
    return state, (*outputs, *_ask_to_join(state))


def _ask_to_join(state: Member) -> tuple[Output, ...]:
    if state.installed is not None:
        return ()
    return tuple(Send(m, JoinAsk(state.heard)) for m in sorted(state.heard - state.gone))


def _on_silent(state: Member, event: Silent) -> Step:
    if event.member in state.gone:
        return state, ()
    state = replace(state, silent=state.silent | {event.member}, heard=state.heard - {event.member})
    if state.installed is None or event.member not in state.installed.members:
        return state, ()
    complaint = Complaint(state.ballot, event.member)
    others = [m for m in state.installed.members if m not in {state.me, event.member} and m not in state.gone]
    return state, tuple(Send(m, complaint) for m in others)


def _on_died(state: Member, event: Died) -> Step:
    return _learn_gone(state, frozenset({event.member}))


def _learn_gone(state: Member, members: frozenset[str]) -> Step:
    news = members - state.gone - {state.me}
    if not news:
        return state, ()
    state = replace(
        state,
        gone=state.gone | news,
        heard=state.heard - news,
        silent=state.silent - news,
        joiners=frozenset(pair for pair in state.joiners if pair[0] not in news),
        leaving=state.leaving - news,
    )
    told: tuple[Output, ...] = tuple(Send(m, Gone(state.gone)) for m in sorted(state.heard))
    return state, told + _all_done(state)


def _on_stopped(state: Member, event: Stopped) -> Step:
    if state.worker == "stopped":
        return state, ()
    return _answer(replace(state, worker="stopped", report=event.report))


def _on_exchange_failed(state: Member, event: ExchangeFailed) -> Step:
    ballot = state.ballot
    others = state.installed.members if state.installed else ()
    if state.worker == "running":
        state = replace(state, broken=True)
    outputs: tuple[Output, ...] = tuple(Send(m, Complaint(ballot, None)) for m in others if m != state.me)
    state, answers = _on_stopped(state, Stopped(event.report))
    return state, outputs + answers


def _on_wants_to_leave(state: Member, event: WantsToLeave) -> Step:
    state = replace(state, leaving=state.leaving | {state.me})
    others = state.installed.members if state.installed else ()
    outputs: tuple[Output, ...] = tuple(Send(m, LeaveAsk()) for m in others if m != state.me)
    state, answers = _on_stopped(state, Stopped(event.report))
    return state, outputs + answers


def _on_finished(state: Member, _event: Finished) -> Step:
    state = replace(state, done=state.done | {state.me})
    others = state.installed.members if state.installed else ()
    outputs: tuple[Output, ...] = tuple(Send(m, Done()) for m in others if m != state.me)
    return state, outputs + _all_done(state)


def _on_received(state: Member, event: Received) -> Step:
    if event.sender in state.gone:
        return state, ()
    return _MESSAGES[type(event.message)](state, event.sender, event.message)


def _on_prepare(state: Member, sender: str, message: Prepare) -> Step:
    state, told = _learn_gone(state, message.gone)
    state = replace(state, highest=max(state.highest, message.ballot.number))
    named = state.me in message.members or state.me in message.leaving
    outsider = state.installed is not None and sender not in state.installed.members
    late = message.ballot <= _latest(state)
    acceptors = (*message.members, *message.leaving)
    if not named or outsider or late or not _may_accept(state, acceptors, state.gone):
        return state, (*told, Send(sender, Refuse(message.ballot, _latest(state), state.installed, state.gone)))
    state, outputs = _accept(state, message)
    return state, told + outputs


def _on_accept(state: Member, sender: str, message: Accept) -> Step:
    return _collect(state, sender, message.ballot, message.report)


def _on_refuse(state: Member, _sender: str, message: Refuse) -> Step:
    state = replace(state, highest=max(state.highest, message.seen.number))
    known = message.installed
    left_out = known is not None and state.installed is not None and state.me not in known.members
    if left_out and known is not None and known.ballot > state.ballot:
        return replace(state, worker="out"), (Expelled(known.ballot),)
    if state.proposal is None or state.proposal.ballot != message.ballot:
        return state, ()
    refused = (state.proposal.members, message.gone) if message.seen < message.ballot else None
    return replace(state, proposal=None, awaited=frozenset(), collected=(), refused=refused), ()


def _on_install(state: Member, _sender: str, message: Install) -> Step:
    return _install(state, message)


def _on_gone(state: Member, _sender: str, message: Gone) -> Step:
    return _learn_gone(state, message.members)


def _on_complaint(state: Member, sender: str, message: Complaint) -> Step:
    if message.ballot != state.ballot:
        return state, ()
    if message.silent is None:
        return replace(state, broken=True), ()
    if message.silent == state.me or message.silent in state.gone:
        return state, ()
    return replace(state, complaints=state.complaints | {(sender, message.silent)}), ()


def _on_withdrawn(state: Member, sender: str, message: Withdrawn) -> Step:
    return replace(state, complaints=state.complaints - {(sender, message.member)}), ()


def _on_join_ask(state: Member, sender: str, message: JoinAsk) -> Step:
    others = frozenset(pair for pair in state.joiners if pair[0] != sender)
    if state.installed is not None and sender in state.installed.members:
        return state, ()
    return replace(state, joiners=others | {(sender, message.reaches)}), ()


def _on_leave_ask(state: Member, sender: str, _message: LeaveAsk) -> Step:
    return replace(state, leaving=state.leaving | {sender}), ()


def _on_done(state: Member, sender: str, _message: Done) -> Step:
    state = replace(state, done=state.done | {sender})
    return state, _all_done(state)


_HANDLERS: dict[type, Callable[[Member, Any], Step]] = {
    Heard: _on_heard,
    Silent: _on_silent,
    Died: _on_died,
    Stopped: _on_stopped,
    ExchangeFailed: _on_exchange_failed,
    WantsToLeave: _on_wants_to_leave,
    Finished: _on_finished,
    Received: _on_received,
}
_MESSAGES: dict[type, Callable[[Member, str, Any], Step]] = {
    Prepare: _on_prepare,
    Accept: _on_accept,
    Refuse: _on_refuse,
    Install: _on_install,
    Gone: _on_gone,
    Complaint: _on_complaint,
    Withdrawn: _on_withdrawn,
    JoinAsk: _on_join_ask,
    LeaveAsk: _on_leave_ask,
    Done: _on_done,
}
