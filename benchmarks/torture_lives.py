"""Lives of one training job against one store, while faults strike: each restores, claims, saves, and dies.

After each life the newest checkpoint is restored and held against what was really trained: it must be, bit for bit, the
state of one step of the surviving history, and no older than the last save that was acknowledged.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable

from fault_proxy import FaultProxy
from faulty_stores import Death, FaultyStore, Killed
from plait.errors import PlaitError
from plait.train.checkpoint.commit import Retention
from plait.train.checkpoint.repository import CheckpointFenced, Claim, Repository
from plait.train.checkpoint.retry import Backoff
from plait.train.checkpoint.stores import Store, StoreFailed, StoreRefused, open_store
from torture_states import Verdicts, is_whole, save, state_at

FAULTS = (
    "kill", "no_space", "server_errors", "lost_answers", "truncation", "bit_flip", "zombie", "clock", "two_controllers",
)  # fmt: skip


class Run:
    """One chain of lives against one store."""

    def __init__(  # noqa: PLR0917 - what a run is made of
        self, store: Store, seed: int, fault: str, verdicts: Verdicts, where: str, proxy: FaultProxy | None = None
    ) -> None:
        self.store, self.fault, self.verdicts = store, fault, verdicts
        self.proxy = proxy if fault in {"server_errors", "lost_answers"} else None
        self.random = random.Random(seed)
        self.name = f"{where} seed {seed} {fault}"
        self.lineage: tuple[int, ...] = ()
        self.step = 0
        self.acknowledged = 0
        self.legal: dict[int, tuple[int, ...]] = {}
        """The lineage that each step of the surviving history was trained in."""
        self.zombies: list[tuple[Repository, Claim, tuple[int, ...], int]] = []

    def repository(self, store: Store) -> Repository:
        return Repository(
            store,
            retention=Retention(last=self.random.choice((1, 2, 3))),
            backoff=Backoff(first_s=0.0, most_s=0.0, attempts=8),
            sleep=lambda _s: None,
            lease_settle_s=0.0,
        )

    def go(self, lives: int) -> None:
        for life in range(lives):
            self.restore(f"before life {life}")
            with contextlib.suppress(Killed, StoreFailed, StoreRefused, CheckpointFenced, PlaitError):
                self.live(life)
            if self.proxy is not None:
                self.proxy.strike(None)
            self.act_as_zombies()
        if self.fault == "bit_flip":
            self.flip()
        self.restore("at the end")

    def restore(self, when: str) -> None:
        """Restores through a store without faults and judges the state."""
        from plait.train.checkpoint.nearest import load

        self.verdicts.restores += 1
        try:
            found = load(self.repository(self.store))
        except PlaitError as error:
            self.wrong(f"{when}: not restored: {error}")
            return
        if found is None:
            if self.acknowledged:
                self.wrong(f"{when}: nothing found, though step {self.acknowledged} was acknowledged")
            self.step, self.lineage = 0, ()
            return
        state, step = found.state, found.step
        lineage = self.legal.get(step)
        if lineage is None or not is_whole(state, lineage, step):
            self.wrong(f"{when}: step {step} is not of the surviving history")
        elif step < self.acknowledged:
            self.wrong(f"{when}: step {step} restored, though {self.acknowledged} was acknowledged")
        self.step, self.lineage = step, tuple(state["lineage"])

    def wrong(self, text: str) -> None:
        self.verdicts.wrong.append(f"{self.name}: {text}")

    def live(self, life: int) -> None:
        chance = {"server_errors": 0.25, "lost_answers": 0.25, "no_space": 0.1}.get(self.fault, 0.0)
        kill_at = self.random.randrange(1, 90) if self.fault == "kill" else None
        if self.proxy is not None:  # the faults come by the wire, and the client must make sense of them
            self.proxy.strike(self.fault, chance)
            repository = self.repository(open_store(self.store.url, {"endpoint": self.proxy.endpoint}))
        else:
            repository = self.repository(FaultyStore(self.store, self.random, self.fault, Death(kill_at), chance))
        claim = repository.claim(self.step or None)
        repository.sweep()
        lineage = (*self.lineage, life)
        if self.fault == "two_controllers":
            self.contend(claim, life)
            return
        start = self.step
        # From here on only this life's steps follow the base.
        self.legal = {step: line for step, line in self.legal.items() if step <= start}
        for step in range(start + 1, start + 1 + self.random.randrange(1, 6)):
            state = state_at(lineage, step)
            self.legal[step] = lineage
            jump = self.random.uniform(-1e9, 1e9) if self.fault == "clock" else 0.0
            try:
                save(repository, claim, state, step, time.time() + jump)
            except (StoreFailed, StoreRefused, PlaitError):
                continue
            self.acknowledged = step
            repository.retain(claim)
        if self.fault == "zombie":
            self.zombies.append((repository, claim, (*lineage, -1), start))

    def contend(self, first: Claim, life: int) -> None:
        """Two controllers start the job at once; whoever claims last is the one that counts."""
        repositories = [self.repository(self.store) for _ in range(2)]
        claims: list[Claim | None] = [None, None]

        def claim(number: int) -> None:
            with contextlib.suppress(CheckpointFenced):
                claims[number] = repositories[number].claim(self.step or None)

        threads = [threading.Thread(target=claim, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = [(c.writer, number) for number, c in enumerate(claims) if c is not None and c != first]
        winner = max(held)[1]
        base, self.legal = self.step, {s: line for s, line in self.legal.items() if s <= self.step}
        for number in self.random.sample(range(2), 2):
            owned = claims[number]
            if owned is None:
                continue
            for step in range(base + 1, base + 4):
                lineage = (*self.lineage, life * 10 + number)
                if number == winner:
                    self.legal[step] = lineage
                with contextlib.suppress(CheckpointFenced):
                    save(repositories[number], owned, state_at(lineage, step), step, time.time())
                    if number == winner:
                        self.acknowledged = step
                        repositories[number].retain(owned)

    def act_as_zombies(self) -> None:
        """Lets former lives go on: the newest of them is no zombie yet, as nobody has claimed after it."""
        for repository, claim, lineage, start in self.zombies[:-1]:
            for step in range(start + 20, start + 22):
                with contextlib.suppress(PlaitError, Killed):
                    late = _LateCheck(repository, self.random)
                    with late:
                        save(repository, claim, state_at(lineage, step), step, time.time())
                    repository.retain(claim)

    def flip(self) -> None:
        """Flips one bit of an object that the newest checkpoint needs; a verification of it must fail."""
        repository = self.repository(self.store)
        names = repository.names()
        if not names:
            return
        manifest = repository.manifest(names[0])
        receipt = manifest.receipts[0]
        key = self.random.choice((receipt.data_key, receipt.data_key, receipt.index_key, names[0].key))
        data = bytearray(self.store.get(key))
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        self.store.delete([key])
        self.store.put(key, bytes(data), len(data))
        self.verdicts.flips += 1
        if repository.verify(names[0]) is not None:
            self.verdicts.flips_found += 1
        others = [name.step for name in names[1:]]
        if others:
            self.acknowledged = max(others)
        else:  # nothing to fall back to, by choice of keep = 1: the fault must be told, not passed over
            self.store.delete([entry.key for entry in self.store.list("")])
            self.acknowledged = 0


class _LateCheck:
    """Makes half of a zombie's saves pass the check before the commit, as if the claim had come right after it."""

    def __init__(self, repository: Repository, chance: random.Random) -> None:
        self._repository = repository
        self._skips = chance.random() < 0.5

    def __enter__(self) -> None:
        if self._skips:
            self._repository.check = _agrees  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        if self._skips:
            del self._repository.check


def _agrees(claim: Claim, *, insists: bool = True) -> bool:
    del claim, insists
    return True


def simulated(  # noqa: PLR0917 - what a run is made of
    runs: int,
    seed: int,
    make: Callable[[int], Store],
    verdicts: Verdicts,
    where: str,
    proxy: FaultProxy | None = None,
    *,
    lives: int = 4,
) -> None:
    """Runs the faults in turn, each run at a fresh place."""
    for number in range(runs):
        fault = FAULTS[number % len(FAULTS)]
        Run(make(number), seed * 1_000_003 + number, fault, verdicts, where, proxy).go(lives=lives)
        verdicts.runs += 1
        verdicts.by_fault[fault] += 1
        verdicts.by_store[where] += 1
