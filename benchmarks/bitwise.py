"""Bitwise mode: do the same weights come out, whoever did the work and whatever happened meanwhile?

Fifty Adam steps of a conv net with dropout, twelve micro-batches a step: six splits over one to three ranks, forced by
``PLAIT_SPLIT``, and three histories in which members are killed and join. ``distinct_hashes`` counts the different
hashes of the final weights over all members of all nine runs; it must be 1. The ordinary mode is run on some of the
splits beside it, to show that the equality is not free.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from fleet import TORCH_MODULES, Nursery, Ports, Worker, clean_end, plait_environment, tails, wait_for
from report import BenchmarkFailed, arguments, finish
from step_records import read

STEPS = 50
SPLITS = ((12,), (6, 6), (8, 4), (4, 4, 4), (7, 3, 2), (1, 11))
PAUSE_S = 0.004


@dataclass(frozen=True)
class History:
    """A run with faults: ``joins`` gives, for each new member, the step of ``watched`` at which it is started."""

    title: str
    members: int
    faults: str
    joins: tuple[tuple[str, str, int], ...]


HISTORIES = (
    History("3 members, w2 killed", 3, "kill w2@15:exchange", ()),
    History("3 members, w0 killed, w3 joins", 3, "kill w0@10:compute", (("w3", "w1", 14),)),
    History("2 members, w2 joins, w1 killed", 2, "kill w1@34:commit", (("w2", "w0", 6),)),
)


class Runs:
    """Starts the runs, one after the other, and collects the hashes of their members."""

    def __init__(self, nursery: Nursery, directory: Path, ports: Ports) -> None:
        self._nursery = nursery
        self._directory = directory
        self._ports = ports
        self._count = 0

    def with_split(self, split: Sequence[int], exact: bool) -> dict[str, str]:
        names = [f"w{rank}" for rank in range(len(split))]
        forced = ",".join(f"{name}:{share}" for name, share in zip(names, split, strict=True))
        return self._run(names, {"PLAIT_SPLIT": forced}, exact=exact)

    def with_history(self, history: History) -> dict[str, str]:
        names = [f"w{rank}" for rank in range(history.members)]
        lost = history.faults.split()[1].split("@")[0]
        return self._run(
            names, {"PLAIT_FAULTS": history.faults}, exact=True, pause_s=PAUSE_S, lost=lost, joins=history.joins
        )

    def _run(
        self,
        names: list[str],
        extra: dict[str, str],
        *,
        exact: bool,
        pause_s: float = 0.0,
        lost: str = "",
        joins: tuple[tuple[str, str, int], ...] = (),
    ) -> dict[str, str]:
        self._count += 1
        directory = self._directory / f"run{self._count}"
        directory.mkdir()
        extra |= {"BENCH_BITWISE": "1" if exact else "0", "BENCH_PAUSE_S": str(pause_s)}
        addresses = {name: f"127.0.0.1:{self._ports.pair()}" for name in names}
        workers = {name: self._spawn(directory, name, addresses, extra, False) for name in names}
        try:
            for newcomer, watched, step in joins:
                if not wait_for(lambda at=(watched, step): read(directory / f"{at[0]}.steps").last_step >= at[1], 60.0):  # type: ignore[misc]
                    raise BenchmarkFailed(f"{watched} did not reach step {step}\n{tails(list(workers.values()))}")
                known = {name: address for name, address in addresses.items() if not workers[name].exited.is_set()}
                known[newcomer] = f"127.0.0.1:{self._ports.pair()}"
                workers[newcomer] = self._spawn(directory, newcomer, known, extra, True)
            return self._collect(directory, workers, lost)
        finally:
            self._nursery.end(list(workers.values()))

    def _spawn(
        self, directory: Path, name: str, addresses: dict[str, str], extra: dict[str, str], joins: bool
    ) -> Worker:
        known = {member: address for member, address in addresses.items() if not joins or member != name}
        environment = {
            **plait_environment(name, addresses[name], known, directory / "run", joins),
            **extra,
            "BENCH_STEPS": str(directory / f"{name}.steps"),
        }
        return self._nursery.spawn(
            f"{directory.name}-{name}", "bitwise_plait.py", environment, directory / f"{name}.log"
        )

    def _collect(self, directory: Path, workers: dict[str, Worker], lost: str) -> dict[str, str]:
        hashes = {}
        for name, worker in workers.items():
            if not worker.exited.wait(60.0):
                raise BenchmarkFailed(f"{name} did not end\n{tails(list(workers.values()))}")
            records = read(directory / f"{name}.steps")
            end = records.end
            if name == lost:
                if worker.exit_code != -SIGKILL:
                    raise BenchmarkFailed(f"{name} was to be killed but ended with {worker.exit_code}")
                continue
            if len(records.commits) < 5:
                raise BenchmarkFailed(f"{name} took part in {len(records.commits)} steps only")
            if end is None or end["step"] != STEPS or worker.exit_code != 0:
                raise BenchmarkFailed(f"{name} ended with {worker.exit_code}, {end}\n{tails(list(workers.values()))}")
            hashes[name] = str(end["hash"])
        return hashes


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    found: set[str] = set()
    ordinary: set[str] = set()
    try:
        with clean_end() as directory, Nursery([*TORCH_MODULES, "plait.train.session"]) as nursery:
            runs = Runs(nursery, directory, Ports())
            for split in SPLITS:
                hashes = runs.with_split(split, exact=True)
                found |= set(hashes.values())
                print(f"  split {split!s:12s}                     {hashes}", flush=True)
            for history in HISTORIES:
                hashes = runs.with_history(history)
                found |= set(hashes.values())
                print(f"  {history.title:38s}{hashes}", flush=True)
            for split in SPLITS[:2] if options.quick else SPLITS:
                ordinary |= set(runs.with_split(split, exact=False).values())
    except BenchmarkFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    print(f"different hashes: bitwise mode {len(found)} (9 runs), ordinary mode {len(ordinary)}")
    finish("bitwise", options.quick, {"distinct_hashes": len(found)}, None, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
