"""Walks every interleaving of messages, loss, silence, join and commit of small groups."""

from dataclasses import dataclass, replace

import pytest

from plait.train.membership import protocol as p
from plait.train.membership import speech as s
from plait.train.membership.outcome import decide

LAST_STEP = 2


@dataclass(frozen=True, slots=True)
class Worker:
    """The abstract worker: ``history`` names the generation in which each step committed."""

    history: tuple[s.Ballot, ...] | None
    voted: bool = False
    held: tuple[s.Ballot, int] | None = None
    generation: s.Ballot | None = None
    asked_to_stop: bool = False
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    members: tuple[tuple[str, p.Member | None], ...]
    workers: tuple[tuple[str, Worker], ...]
    queues: tuple[tuple[tuple[str, str], tuple[object, ...]], ...]
    votes: frozenset[tuple[s.Ballot, int, str]] = frozenset()
    deaths: int = 0
    silences: int = 0
    breaks: int = 0
    joins: tuple[str, ...] = ()


class Walk:
    """One model: explores from ``start`` and checks each world."""

    def __init__(
        self, seeds: tuple[str, ...], *, deaths: int, silences: int, breaks: int, joins: tuple[str, ...]
    ) -> None:
        members = {m: p.founder(m, seeds, s.Report(0)) for m in seeds}
        members = {m: replace(s, heard=frozenset(seeds) - {m}) for m, s in members.items()}
        world = World(
            members=tuple(members.items()),
            workers=tuple((m, Worker(())) for m in seeds),
            queues=(),
            deaths=deaths,
            silences=silences,
            breaks=breaks,
            joins=joins,
        )
        self.start = self.feed(world, seeds[0], s.Heard(seeds[-1]))

    def feed(self, world: World, me: str, event: s.Input) -> World:
        """Gives one input to one member and carries out its outputs."""
        members = dict(world.members)
        state = members[me]
        assert state is not None
        state, outputs = p.step(state, event)
        members[me] = state
        world = replace(world, members=tuple(sorted(members.items())))
        for output in outputs:
            world = self.carry_out(world, me, output)
        return world

    def carry_out(self, world: World, me: str, output: s.Output) -> World:
        if isinstance(output, s.Send):
            return self.enqueue(world, me, output.to, output.message)
        workers = dict(world.workers)
        worker = workers[me]
        if isinstance(output, s.StopWorker):
            workers[me] = replace(worker, asked_to_stop=True)
        if isinstance(output, s.GoOn):
            workers[me] = self.go_on(worker, me, output, world)
        return replace(world, workers=tuple(sorted(workers.items())))

    @staticmethod
    def enqueue(world: World, a: str, b: str, item: object) -> World:
        members = dict(world.members)
        if members.get(b) is None:
            return world
        queues = dict(world.queues)
        queues[a, b] = (*queues.get((a, b), ()), item)
        return replace(world, queues=tuple(sorted(queues.items(), key=lambda q: q[0])))

    @staticmethod
    def go_on(worker: Worker, me: str, output: s.GoOn, world: World) -> Worker:
        reports = dict(output.reports)
        outcome = decide(output.members, reports)
        history = worker.history
        if me in outcome.apply:
            assert history is not None
            assert worker.held is not None
            history = (*history, worker.held[0])
        if me in outcome.fetch:
            assert outcome.donor is not None
            donor = dict(world.workers)[outcome.donor]
            assert donor.history is not None
            history = donor.history[: outcome.step]
            if len(history) < outcome.step:  # the donor itself has yet to apply what it holds
                assert donor.held is not None
                history = (*donor.history, donor.held[0])
        assert history is not None
        assert len(history) == outcome.step
        return Worker(history=history, generation=output.ballot, members=output.members)

    def successors(self, world: World) -> list[World]:
        out: list[World] = []
        members = dict(world.members)
        queues = dict(world.queues)
        for (a, b), items in world.queues:
            rest = {**queues, (a, b): items[1:]}
            if not items[1:]:
                del rest[a, b]
            base = replace(world, queues=tuple(sorted(rest.items(), key=lambda q: q[0])))
            if members[b] is None:
                continue
            event = items[0] if isinstance(items[0], s.Died | s.Heard) else s.Received(a, items[0])  # type: ignore[arg-type]
            out.append(self.feed(base, b, event))
        for name, worker in world.workers:
            state = members[name]
            if state is None or state.worker == "out":
                continue
            out += self.worker_moves(world, name, worker, state)
        return out + self.faults(world)

    def worker_moves(self, world: World, name: str, worker: Worker, state: p.Member) -> list[World]:
        out: list[World] = []
        assert worker.history is not None or state.worker == "stopped"
        history = worker.history or ()
        at = len(history)
        g = worker.generation
        others = dict(world.workers)
        if worker.asked_to_stop:
            held = worker.held is not None and worker.held == (g, at)
            stopped = replace(worker, asked_to_stop=False, voted=False, generation=None)
            out.append(self.feed(self.with_worker(world, name, stopped), name, s.Stopped(s.Report(at, held=held))))
        if g is None:
            return out
        if not worker.voted and at < LAST_STEP and not worker.asked_to_stop:
            voting = replace(worker, voted=True, held=(g, at))
            out.append(replace(self.with_worker(world, name, voting), votes=world.votes | {(g, at, name)}))
            if world.breaks:
                broken = replace(worker, voted=False, generation=None)
                fewer = replace(self.with_worker(world, name, broken), breaks=world.breaks - 1)
                out.append(self.feed(fewer, name, s.ExchangeFailed(s.Report(at))))
        if worker.voted and all((g, at, m) in world.votes for m in worker.members):
            applied = replace(worker, history=(*history, g), voted=False)
            out.append(self.with_worker(world, name, applied))
        assert others
        return out

    @staticmethod
    def with_worker(world: World, name: str, worker: Worker) -> World:
        return replace(world, workers=tuple(sorted({**dict(world.workers), name: worker}.items())))

    def faults(self, world: World) -> list[World]:
        out: list[World] = []
        alive = [m for m, s in world.members if s is not None]
        if world.deaths and len(alive) > 1:
            for victim in alive:
                members = {**dict(world.members), victim: None}
                queues = {k: v for k, v in world.queues if k[1] != victim}
                dead = replace(
                    world,
                    members=tuple(sorted(members.items())),
                    queues=tuple(sorted(queues.items(), key=lambda q: q[0])),
                    deaths=world.deaths - 1,
                )
                for other in alive:
                    if other != victim:
                        dead = self.enqueue(dead, victim, other, s.Died(victim))
                out.append(dead)
        if world.silences:
            pairs = [(a, b) for a in alive for b in alive if a < b]
            for a, b in pairs:
                fewer = replace(world, silences=world.silences - 1)
                cut = self.feed(self.feed(fewer, a, s.Silent(b)), b, s.Silent(a))
                out.append(self.enqueue(self.enqueue(cut, a, b, s.Heard(a)), b, a, s.Heard(b)))
        for name in world.joins:
            members = {**dict(world.members), name: replace(p.joiner(name), heard=frozenset(alive))}
            joined = replace(
                world,
                members=tuple(sorted(members.items())),
                workers=tuple(sorted({**dict(world.workers), name: Worker(None)}.items())),
                joins=tuple(j for j in world.joins if j != name),
            )
            for other in alive:
                joined = self.enqueue(joined, name, other, s.Heard(name))
                joined = self.enqueue(joined, name, other, s.JoinAsk(frozenset(alive)))
            out.append(joined)
        return out

    def check(self, world: World) -> None:
        """No two members that may still act have diverged."""
        states = dict(world.members)
        live = [w.history for m, w in world.workers if states[m] is not None and w.history is not None]
        for a in live:
            for b in live:
                shared = min(len(a), len(b))
                in_play = a[:shared] == b[:shared]
                assert in_play or self.outsider(world), f"two histories: {a} and {b}"

    @staticmethod
    def outsider(world: World) -> bool:
        """A left-out member may have committed one step that the others commit again; it can never rejoin with it."""
        return any(s is not None and s.worker == "out" for _, s in world.members) or world_has_left_out(world)

    def check_end(self, world: World) -> None:
        """Where nothing more can happen, those who can reach one another have finished together."""
        states = [s for _, s in world.members if s is not None and s.worker != "out"]
        newest = max((s.installed for s in states if s.installed), key=lambda i: i.ballot)
        inside = [s for s in states if s.me in newest.members]
        for state in inside:
            assert state.installed == newest, f"{state.me} is stuck in {state.installed}, the group is in {newest}"
            assert state.worker == "running", f"{state.me} is {state.worker} for ever"
            history = dict(world.workers)[state.me].history
            assert history is not None
            assert len(history) == LAST_STEP, f"{state.me} stopped at step {len(history)}"


def world_has_left_out(world: World) -> bool:
    states = [s for _, s in world.members if s is not None and s.installed is not None]
    newest = max((s.installed for s in states if s.installed), key=lambda i: i.ballot, default=None)
    return newest is not None and any(s.me not in newest.members for s in states)


def explore(walk: Walk, limit: int) -> tuple[int, int]:
    """Returns (worlds, ends); fails where a check does."""
    seen = {walk.start}
    stack = [walk.start]
    ends = 0
    while stack:
        world = stack.pop()
        walk.check(world)
        following = walk.successors(world)
        if not following:
            ends += 1
            walk.check_end(world)
        for successor in following:
            if successor not in seen:
                seen.add(successor)
                stack.append(successor)
        assert len(seen) < limit, f"more than {limit} worlds"
    return len(seen), ends


@pytest.mark.parametrize(
    ("seeds", "deaths", "silences", "breaks", "joins"),
    [
        (("a", "b"), 0, 0, 0, ()),
        (("a", "b"), 1, 0, 0, ()),
        (("a", "b"), 0, 0, 1, ()),
        (("a", "b"), 0, 0, 0, ("c",)),
        (("a", "b", "c"), 1, 0, 0, ()),
        (("a", "b"), 1, 0, 0, ("c",)),
    ],
)
def test_every_interleaving_keeps_replicas_together(
    seeds: tuple[str, ...], deaths: int, silences: int, breaks: int, joins: tuple[str, ...]
) -> None:
    worlds, ends = explore(Walk(seeds, deaths=deaths, silences=silences, breaks=breaks, joins=joins), 3_000_000)
    assert worlds > 10
    assert ends > 0
