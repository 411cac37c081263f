"""Walks every interleaving of messages, loss, silence, breaks, joins, leaving and commits of small groups.

A world is kept as numbers: whatever a member or worker can be is numbered when it is first met, and what one input
does to one member is worked out once. So a million worlds fit into a minute.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import pytest

from plait.train.membership import protocol as p
from plait.train.membership import speech as s
from plait.train.membership.outcome import decide

DEAD, ABSENT = -1, -2
"""In the place of a member's number: its process is gone; it has not come yet."""

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Worker:
    """The abstract worker: ``history`` names the generation in which each step was committed; ``end`` how it ended."""

    history: tuple[s.Ballot, ...] | None
    voted: bool = False
    held: tuple[s.Ballot, int] | None = None
    generation: s.Ballot | None = None
    members: tuple[str, ...] = ()
    asked_to_stop: bool = False
    leaves: bool = False
    finished: bool = False
    end: str = ""


class World(NamedTuple):
    """Everything at one moment; members, workers and what is on its way are numbers of the model's tables."""

    members: tuple[int, ...]
    workers: tuple[int, ...]
    queues: tuple[tuple[int, int, tuple[int, ...]], ...]
    votes: frozenset[tuple[s.Ballot, int, int]]
    budget: "Budget"


class Budget(NamedTuple):
    """What may still happen, and when is part of the walk; ``silences`` are pairs that lose sight of each other."""

    deaths: int = 0
    silences: tuple[str, ...] = ()
    breaks: int = 0
    joins: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()


class Table(Generic[T]):
    """Numbers for values."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


class Walk:
    """One model: a start, what can follow each world, and what must hold in each."""

    def __init__(
        self, seeds: Sequence[str], last_step: int, budget: Budget, *, formed: bool = False, ends: bool = True
    ) -> None:
        """Larger models are kept small in two ways.

        With ``formed`` the walk begins when the first generation is complete; without ``ends`` it is over when the last
        step is committed, and how processes then take leave of each other is not walked.
        """
        self.ends = ends
        self.names = tuple(sorted({*seeds, *budget.joins}))
        self.last_step = last_step
        self.common_steps = last_step if not budget.silences else 0 if budget.deaths else last_step - 1
        self.states: Table[p.Member] = Table()
        self.workers: Table[Worker] = Table()
        self.items: Table[s.Input] = Table()
        self._steps: dict[tuple[int, int], tuple[int, tuple[s.Output, ...]]] = {}
        members, workers = [], []
        for name in self.names:
            founder = p.founder(name, tuple(seeds), s.Report(0))
            founder = replace(founder, heard=frozenset(seeds) - {name})
            members.append(self.states.number(founder) if name in seeds else ABSENT)
            workers.append(self.workers.number(Worker(() if name in seeds else None)))
        world = World(tuple(members), tuple(workers), (), frozenset(), budget)
        first, last = self.names.index(min(seeds)), max(seeds)
        self.start = self.feed(world, first, s.Heard(last))
        while formed and self.start.queues:
            self.start = self.deliver(self.start, *self.start.queues[0])

    # What one input does

    def feed(self, world: World, at: int, event: s.Input) -> World:
        """Gives one input to one member and carries out its outputs."""
        key = (world.members[at], self.items.number(event))
        known = self._steps.get(key)
        if known is None:
            state, outputs = p.step(self.states.values[key[0]], event)
            known = self._steps[key] = (self.states.number(state), outputs)
        world = world._replace(members=_put(world.members, at, known[0]))
        for output in known[1]:
            world = self.carry_out(world, at, output)
        return world

    def carry_out(self, world: World, at: int, output: s.Output) -> World:
        worker = self.worker(world, at)
        match output:
            case s.Send(to, message):
                return self.send(world, at, self.names.index(to), s.Received(self.names[at], message))
            case s.StopWorker():
                return self.with_worker(world, at, replace(worker, asked_to_stop=True))
            case s.GoOn():
                return self.with_worker(world, at, self.go_on(world, worker, self.names[at], output))
            case s.Released():
                return self.with_worker(world, at, replace(worker, end="left"))
            case s.Expelled():
                return self.with_worker(world, at, replace(worker, end="expelled"))
            case s.AllDone():
                return self.with_worker(world, at, replace(worker, end="done"))

    def send(self, world: World, a: int, b: int, item: s.Input) -> World:
        if world.members[b] < 0 or self.states.values[world.members[b]].worker == "out":
            return world
        queues = {(x, y): items for x, y, items in world.queues}
        queues[a, b] = (*queues.get((a, b), ()), self.items.number(item))
        return world._replace(queues=_sorted(queues))

    def worker(self, world: World, at: int) -> Worker:
        return self.workers.values[world.workers[at]]

    def with_worker(self, world: World, at: int, worker: Worker) -> World:
        return world._replace(workers=_put(world.workers, at, self.workers.number(worker)))

    def go_on(self, world: World, worker: Worker, me: str, output: s.GoOn) -> Worker:
        outcome = decide(output.members, dict(output.reports))
        history = worker.history
        if me in outcome.apply:
            assert history is not None
            assert worker.held is not None
            history = (*history, worker.held[0])
        if me in outcome.fetch:
            assert outcome.donor is not None
            donor = self.worker(world, self.names.index(outcome.donor))
            assert donor.history is not None
            history = donor.history[: outcome.step]
            if len(history) < outcome.step:  # the donor itself has yet to apply what it holds
                assert donor.held is not None
                history = (*donor.history, donor.held[0])
        assert history is not None
        assert len(history) == outcome.step
        return replace(
            worker,
            history=history,
            voted=False,
            held=None,
            generation=output.ballot,
            members=output.members,
            asked_to_stop=False,
        )

    # What can follow

    def successors(self, world: World) -> Iterator[World]:
        for queue in world.queues:
            yield self.deliver(world, *queue)
        for at, number in enumerate(world.members):
            if number >= 0:
                yield from self.worker_moves(world, at)
        yield from self.faults(world)

    def deliver(self, world: World, a: int, b: int, items: tuple[int, ...]) -> World:
        queues = {(x, y): rest for x, y, rest in world.queues}
        queues[a, b] = items[1:]
        return self.feed(world._replace(queues=_sorted(queues)), b, self.items.values[items[0]])

    def worker_moves(self, world: World, at: int) -> Iterator[World]:
        worker = self.worker(world, at)
        if worker.end:  # it was told that it may, or must, end; so its process will
            yield self.gone(world, at)
            return
        step, g = len(worker.history or ()), worker.generation
        report = s.Report(step, held=worker.held is not None and worker.held == (g, step))
        stopped = replace(worker, asked_to_stop=False, voted=False, generation=None)
        if worker.asked_to_stop:
            yield self.feed(self.with_worker(world, at, stopped), at, s.Stopped(report))
        if g is None:
            return
        if self.names[at] in world.budget.leaves or worker.leaves:
            left = tuple(name for name in world.budget.leaves if name != self.names[at])
            leaving = self.with_worker(world, at, replace(stopped, leaves=True))
            leaving = leaving._replace(budget=world.budget._replace(leaves=left))
            yield self.feed(leaving, at, s.WantsToLeave(report))
            if worker.leaves:
                return  # it has gone along with a generation only to say so again
        if step == self.last_step and self.ends and not worker.finished:
            yield self.feed(self.with_worker(world, at, replace(worker, finished=True)), at, s.Finished())
        if not worker.voted and step < self.last_step and not worker.asked_to_stop:
            voting = self.with_worker(world, at, replace(worker, voted=True, held=(g, step)))
            yield voting._replace(votes=world.votes | {(g, step, at)})
            if world.budget.breaks:
                fewer = world.budget._replace(breaks=world.budget.breaks - 1)
                broken = self.with_worker(world, at, replace(stopped, held=None))
                yield self.feed(broken._replace(budget=fewer), at, s.ExchangeFailed(s.Report(step)))
        if worker.voted and all((g, step, self.names.index(m)) in world.votes for m in worker.members):
            assert worker.history is not None
            yield self.with_worker(world, at, replace(worker, history=(*worker.history, g), voted=False, held=None))

    def gone(self, world: World, at: int) -> World:
        """A process ends; everybody else notices when what it sent before has come."""
        queues = {(a, b): items for a, b, items in world.queues if b != at}
        world = world._replace(members=_put(world.members, at, DEAD), queues=_sorted(queues))
        for other in range(len(self.names)):
            world = self.send(world, at, other, s.Died(self.names[at]))
        return world

    def faults(self, world: World) -> Iterator[World]:
        budget = world.budget
        alive = [at for at, number in enumerate(world.members) if number >= 0]
        names = frozenset(self.names[at] for at in alive)
        if budget.deaths and len(alive) > 1:
            for victim in alive:
                fewer = world._replace(budget=budget._replace(deaths=budget.deaths - 1))
                dead = self.with_worker(fewer, victim, replace(self.worker(world, victim), end="died"))
                yield self.gone(dead, victim)
        for pair in budget.silences:
            a, b = (self.names.index(name) for name in pair)
            if a in alive and b in alive:
                rest = tuple(other for other in budget.silences if other != pair)
                fewer = world._replace(budget=budget._replace(silences=rest))
                cut = self.feed(self.feed(fewer, a, s.Silent(self.names[b])), b, s.Silent(self.names[a]))
                heard = self.send(cut, a, b, s.Heard(self.names[a]))
                yield self.send(heard, b, a, s.Heard(self.names[b]))
        for name in budget.joins:
            at = self.names.index(name)
            joiner = replace(p.joiner(name), heard=names)
            joined = world._replace(
                members=_put(world.members, at, self.states.number(joiner)),
                budget=budget._replace(joins=tuple(j for j in budget.joins if j != name)),
            )
            for other in alive:
                joined = self.send(joined, at, other, s.Heard(name))
                joined = self.send(joined, at, other, s.Received(name, s.JoinAsk(names)))
            yield joined

    # What must hold

    def check(self, world: World) -> None:
        """Those in the newest generation have one history; whoever it left out may differ by its last step alone."""
        states = {at: self.states.values[n] for at, n in enumerate(world.members) if n >= 0}
        installed = [state.installed for state in states.values() if state.installed is not None]
        if not installed:
            return
        newest = max(installed, key=lambda proposal: proposal.ballot)
        inside: list[tuple[s.Ballot, ...]] = []
        outside: list[tuple[s.Ballot, ...]] = []
        for at, state in states.items():
            history = self.worker(world, at).history
            if history is not None:
                is_in = state.me in newest.members and self.worker(world, at).end != "expelled"
                (inside if is_in else outside).append(history)
        for one in inside:
            for other in (*inside, *(history[:-1] for history in outside)):
                shared = min(len(one), len(other))
                assert one[:shared] == other[:shared], f"two histories: {one} and {other}"

    def check_end(self, world: World) -> None:
        """Where nothing more can happen everybody has come to an end, and those that finished have one history.

        Silence may leave out one that has seen a last vote; where all others have died, it also goes on from there.
        """
        finished = [w for at in range(len(self.names)) if (w := self.worker(world, at)).end == "done"]
        for worker in finished:
            assert worker.history is not None
            assert len(worker.history) == self.last_step, f"the run ended with {len(worker.history)} steps"
            for other in finished:
                known = self.last_step if worker.generation == other.generation else self.common_steps
                assert (other.history or ())[:known] == worker.history[:known], "the run ended in two histories"
        if not self.ends:
            self.check_standstill(world)
            return
        for at, name in enumerate(self.names):
            if world.members[at] < 0 or self.worker(world, at).end:
                continue
            state = self.states.values[world.members[at]]
            assert state.installed is None, f"{name} waits for ever: {state}"
            others = [n for i, n in enumerate(world.members) if i != at]
            assert all(n < 0 or self.states.values[n].worker == "out" for n in others), f"{name} was not let in"

    def check_standstill(self, world: World) -> None:
        """Where processes do not end, those in the newest generation have all steps and one history."""
        live = [at for at, number in enumerate(world.members) if number >= 0 and not self.worker(world, at).end]
        states = [self.states.values[world.members[at]] for at in live]
        if not states:
            return  # one was cut off, and then the last of the others died: only a checkpoint can help
        newest = max((x.installed for x in states if x.installed), key=lambda proposal: proposal.ballot)
        histories = set()
        for at, state in zip(live, states, strict=True):
            assert state.installed == newest, f"{state.me} is left in {state.installed}, the group is in {newest}"
            worker = self.worker(world, at)
            assert worker.generation == newest.ballot, f"{state.me} waits for ever: {state}"
            assert worker.history is not None
            assert len(worker.history) == self.last_step, f"{state.me} has {len(worker.history)} steps"
            histories.add(worker.history)
        assert len(histories) == 1, f"the group ends with {len(histories)} histories"

    def pruned(self, world: World) -> World:
        """Forgets votes that nobody will look at again."""
        open_ = set()
        for at, number in enumerate(world.members):
            worker = self.worker(world, at)
            if number >= 0 and worker.generation is not None:
                open_.add((worker.generation, len(worker.history or ())))
        return world._replace(votes=frozenset(v for v in world.votes if any(g == v[0] and t <= v[1] for g, t in open_)))


def _put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _sorted(queues: dict[tuple[int, int], tuple[int, ...]]) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    return tuple((a, b, items) for (a, b), items in sorted(queues.items()) if items)


def explore(walk: Walk) -> tuple[int, int]:
    """Returns how many worlds and how many ends there are; fails where a check does, with the way there."""
    parents: dict[World, World | None] = {walk.start: None}
    stack = [walk.start]
    ends = 0
    while stack:
        world = stack.pop()
        try:
            walk.check(world)
            following = {walk.pruned(successor) for successor in walk.successors(world)}
            if not following:
                ends += 1
                walk.check_end(world)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{way_to(walk, parents, world)}") from error
        for successor in following:
            if successor not in parents:
                parents[successor] = world
                stack.append(successor)
    return len(parents), ends


def way_to(walk: Walk, parents: dict[World, World | None], world: World) -> str:
    """Tells what changed from world to world on the way to this one."""
    way = [world]
    while (before := parents[way[-1]]) is not None:
        way.append(before)
    way.reverse()
    lines = []
    for one, other in pairwise(way):
        lines.append("--")
        for kind, table in (("members", walk.states), ("workers", walk.workers)):
            for name, a, b in zip(walk.names, getattr(one, kind), getattr(other, kind), strict=True):
                if a != b:
                    lines.append(f"{name}: {table.values[b] if b >= 0 else 'gone'}")
        old = {(a, b): items for a, b, items in one.queues}
        for a, b, items in other.queues:
            if items != old.get((a, b)):
                said = [walk.items.values[i] for i in items]
                lines.append(f"{walk.names[a]} to {walk.names[b]}: {said}")
    return "\n".join(lines[-120:])


SMALL = [
    ("ab", 2, Budget()),
    ("ab", 2, Budget(deaths=1)),
    ("ab", 2, Budget(breaks=1)),
    ("ab", 2, Budget(silences=("ab",))),
    ("ab", 1, Budget(silences=("ab",), deaths=1)),
    ("ab", 2, Budget(leaves=("a",))),
    ("ab", 2, Budget(leaves=("b",))),
    ("ab", 2, Budget(deaths=1, leaves=("a",))),
    ("ab", 1, Budget(leaves=("a", "b"))),
    ("abc", 1, Budget(deaths=1)),
    ("abc", 1, Budget(breaks=1)),
    ("abc", 1, Budget(leaves=("a",))),
    ("ab", 1, Budget(joins=("c",))),
]
LARGE = [
    ("ab", 2, Budget(joins=("c",))),
    ("abc", 2, Budget(deaths=1)),
    ("abc", 1, Budget(deaths=2)),
    ("abc", 1, Budget(deaths=1, breaks=1)),
    ("abc", 1, Budget(deaths=1, leaves=("a",))),
    ("ab", 1, Budget(deaths=1, joins=("c",))),
    ("ab", 1, Budget(breaks=1, joins=("c",))),
]
SILENT = [
    ("ab", 2, Budget(silences=("ab",), deaths=1)),
    ("abc", 1, Budget(silences=("bc",))),
    ("abc", 1, Budget(silences=("ab",))),
]


def name_of(value: object) -> str:
    return "".join(str(value).split()) if not isinstance(value, Budget) else "+".join(told(value)) or "nothing"


def told(budget: Budget) -> list[str]:
    return [f"{name}={value}" for name, value in budget._asdict().items() if value]


@pytest.mark.parametrize(("seeds", "last_step", "budget"), SMALL, ids=name_of)
def test_every_interleaving_keeps_replicas_together(seeds: str, last_step: int, budget: Budget) -> None:
    worlds, ends = explore(Walk(seeds, last_step, budget))
    assert worlds > 10
    assert ends > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("seeds", "last_step", "budget"), LARGE, ids=name_of)
def test_every_interleaving_after_the_group_has_formed(seeds: str, last_step: int, budget: Budget) -> None:
    worlds, ends = explore(Walk(seeds, last_step, budget, formed=True))
    assert worlds > 10_000
    assert ends > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("seeds", "last_step", "budget"), SILENT, ids=name_of)
def test_every_interleaving_with_silence_until_the_last_step(seeds: str, last_step: int, budget: Budget) -> None:
    worlds, ends = explore(Walk(seeds, last_step, budget, formed=True, ends=False))
    assert worlds > 1000
    assert ends > 0


def test_the_walk_finds_a_broken_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its quorum rule the protocol lets two halves go on apart, and the walk must see it."""
    monkeypatch.setattr(p, "has_quorum", lambda *_: True)
    with pytest.raises(AssertionError):
        explore(Walk("ab", 2, Budget(silences=("ab",))))
