"""Checkpoints under faults: no restore may be wrong or impossible, and every flipped bit must be found.

A run is a chain of lives of one training job: each life restores, claims, and saves several steps while faults strike;
then it dies, and perhaps goes on writing as a zombie while its successor trains. After each life the newest checkpoint
is restored and held against what was really trained: it must be, bit for bit, the state of one step of the surviving
history, and no older than the last save that was acknowledged. Faults: death at a random byte or request, a full disk,
server errors, lost answers, truncated objects, flipped bits, zombies, clocks that jump, and two controllers at once.

Most runs go against a store in memory; others against files, with real SIGKILLs, and against real S3 servers, SeaweedFS
and rclone, which ignores If-None-Match. There, server errors and lost answers come from a proxy on the wire.
"""

import contextlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_proxy import FaultProxy, fault_proxy
from faulty_stores import FaultyStore, Killed, MemoryStore
from object_server import ServerMissing, environment, rclone, seaweedfs
from plait.errors import PlaitError
from plait.train.checkpoint.commit import Retention
from plait.train.checkpoint.repository import CheckpointFenced, Claim, Repository
from plait.train.checkpoint.retry import Backoff
from plait.train.checkpoint.stores import (
    FileStore,
    Store,
    StoreFailed,
    StoreRefused,
    open_store,
)
from report import arguments, finish

FAULTS = (
    "kill", "no_space", "server_errors", "lost_answers", "truncation", "bit_flip", "zombie", "clock", "two_controllers",
)  # fmt: skip
VALUES = 3000


def state_at(lineage: tuple[int, ...], step: int) -> dict[str, Any]:
    """Returns the state that a history of lives reaches: every value tells life and step, so a mix shows."""
    import torch

    mark = float(hash((lineage, step)) % 1_000_003)
    return {
        "weights": torch.full((VALUES,), mark),
        "moments": {"m": torch.full((VALUES // 2,), mark, dtype=torch.float64), "n": torch.full((7,), mark)},
        "lineage": list(lineage),
        "step": step,
    }


def save(repository: Repository, claim: Claim, state: dict[str, Any], step: int, written_s: float) -> None:
    """Saves as the saver does."""
    from plait.train.checkpoint.arena import state_layout
    from plait.train.checkpoint.index import Index
    from plait.train.checkpoint.tree import raw_bytes

    layout, tensors, values = state_layout(state)
    data = bytearray(layout.image.num_bytes)
    data[: len(layout.image.header)] = layout.image.header
    for tensor, offset in zip(tensors, layout.image.offsets, strict=True):
        raw = raw_bytes(tensor)
        data[offset : offset + len(raw)] = raw
    index = Index(form=layout.index.form, values=tuple(values), tensors=layout.index.tensors)
    prefix = repository.prefix(claim, step)
    receipt = repository.write(prefix, 0, index, data, len(data))
    repository.commit(claim, step, prefix, [receipt], written_s=written_s)


def is_whole(state: dict[str, Any], lineage: tuple[int, ...], step: int) -> bool:
    """Returns whether a restored state is, bit for bit, the one of this history and step."""
    import torch

    wanted = state_at(lineage, step)
    pairs = ((state["weights"], wanted["weights"]), (state["moments"]["m"], wanted["moments"]["m"]),
             (state["moments"]["n"], wanted["moments"]["n"]))  # fmt: skip
    return state["step"] == step and tuple(state["lineage"]) == lineage and all(torch.equal(a, b) for a, b in pairs)


@dataclass(slots=True)
class Verdicts:
    """What came of all runs."""

    runs: int = 0
    restores: int = 0
    wrong: list[str] = field(default_factory=list)
    flips: int = 0
    flips_found: int = 0
    by_fault: Counter[str] = field(default_factory=Counter)
    by_store: Counter[str] = field(default_factory=Counter)


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
            repository = self.repository(FaultyStore(self.store, self.random, self.fault, kill_at, chance))
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
            self._repository.check = lambda claim: None  # type: ignore[method-assign] # noqa: ARG005

    def __exit__(self, *_: object) -> None:
        if self._skips:
            del self._repository.check


WRITER = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torture
from plait.train.checkpoint.nearest import load
from plait.train.checkpoint.repository import Repository
from plait.train.checkpoint.stores import open_store
torture.VALUES = 400_000
repository = Repository(open_store(sys.argv[2]))
found = load(repository)
step = found.step if found else 0
claim = repository.claim(step or None)
print("ready", flush=True)
while True:
    step += 1
    torture.save(repository, claim, torture.state_at((0,), step), step, 0.0)
    print(step, flush=True)
    repository.retain(claim)
"""


def killed_writers(url: str, count: int, chance: random.Random, verdicts: Verdicts, where: str) -> None:
    """Kills real writer processes at random moments, one after another at one place; VALUES is larger there."""
    global VALUES  # noqa: PLW0603 - the size of the states of these writers
    from plait.train.checkpoint.nearest import load

    before, VALUES, acknowledged = VALUES, 400_000, 0
    variables = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), url]
    for number in range(count):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                verdicts.wrong.append(f"{where} kill {number}: the writer did not start")
            timer = threading.Timer(chance.uniform(0.0, 0.5), process.send_signal, (signal.SIGKILL,))
            timer.start()
            for line in process.stdout:
                acknowledged = int(line)
            timer.join()
        verdicts.runs += 1
        verdicts.restores += 1
        verdicts.by_fault["real SIGKILL"] += 1
        verdicts.by_store[where] += 1
        found = load(Repository(open_store(url)))
        step = found.step if found else 0
        if step < acknowledged or (found and not _plausible(found.state, step)):
            verdicts.wrong.append(f"{where} kill {number}: step {step} restored, {acknowledged} acknowledged")
    VALUES = before


def _plausible(state: dict[str, Any], step: int) -> bool:
    """Returns whether all values of a state agree: other processes hash otherwise, so the mark itself is not known."""
    marks = {float(tensor.min()) for tensor in (state["weights"], state["moments"]["m"], state["moments"]["n"])}
    marks |= {float(tensor.max()) for tensor in (state["weights"], state["moments"]["m"], state["moments"]["n"])}
    return len(marks) == 1 and state["step"] == step


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


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="plait-torture-", dir=os.environ.get("PLAIT_BENCH_DIR", "/var/tmp")))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def on_servers(runs: int, kills: int, seed: int, verdicts: Verdicts, reasons: list[str]) -> None:
    """Runs against SeaweedFS, and against rclone, which ignores If-None-Match."""
    for where, server in (("SeaweedFS", seaweedfs), ("rclone", rclone)):
        try:
            with server() as endpoint:
                os.environ.update(environment(endpoint))
                with fault_proxy(endpoint, seed) as proxy:
                    simulated(runs, seed, lambda number: open_store(f"s3://ckpt/run{number}"), verdicts, where, proxy)
                    struck = sum(proxy.struck.values())
                    print(f"  {where}: {struck} requests failed by the wire: {dict(proxy.struck)}")
                if where == "SeaweedFS":
                    killed_writers("s3://ckpt/kills", kills, random.Random(seed), verdicts, f"{where}, processes")
        except ServerMissing as error:
            reasons.append(f"{where}: {error}")


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=None, help="runs against the store in memory; 1000")
    parser.add_argument("--no-servers", action="store_true", help="leave S3 servers out")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers end with us
    runs = options.runs or (180 if options.quick else 1000)
    verdicts, reasons = Verdicts(), list[str]()
    stores: dict[int, MemoryStore] = {}

    def in_memory(number: int) -> Store:
        # Every ninth round of faults meets a store that ignores If-None-Match.
        stores.clear()
        return stores.setdefault(number, MemoryStore(honours_create=number // len(FAULTS) % 3 != 2))

    simulated(runs, options.seed, in_memory, verdicts, "memory")
    with _directory() as directory:
        simulated(
            9 if options.quick else 90, options.seed, lambda n: FileStore(directory / f"run{n}"), verdicts, "files"
        )
        kills = 6 if options.quick else 60
        killed_writers(f"file://{directory}/kills", kills, random.Random(options.seed), verdicts, "files, processes")
    if not options.no_servers:
        on_servers(9 if options.quick else 45, 2 if options.quick else 20, options.seed, verdicts, reasons)
    print(f"  {verdicts.runs} runs, {verdicts.restores} restores, {len(verdicts.wrong)} wrong or impossible")
    print("  by store: " + ", ".join(f"{name} {count}" for name, count in verdicts.by_store.items()))
    print("  by fault: " + ", ".join(f"{name} {count}" for name, count in verdicts.by_fault.items()))
    print(f"  flipped bits found: {verdicts.flips_found} of {verdicts.flips}")
    for line in [*verdicts.wrong[:20], *reasons]:
        print(f"  ! {line}")
    figures: dict[str, float | None] = {
        "runs": verdicts.runs,
        "wrong_restores": len(verdicts.wrong),
        "flips_found_share": verdicts.flips_found / verdicts.flips if verdicts.flips else None,
        "runs_on_servers": sum(
            count for name, count in verdicts.by_store.items() if name.startswith(("Sea", "rclone"))
        ),
    }
    why = {"flips_found_share": "no bit was flipped"} if not verdicts.flips else None
    finish("torture", options.quick, figures, why, options.json)
    return 1 if verdicts.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
