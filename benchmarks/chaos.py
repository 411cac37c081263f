"""A long run under random faults: it must finish, use every sample exactly once, and leave nothing behind.

Four workers train one epoch, a step every 0.36 s, and save checkpoints to a directory. Every 20 s a random member is
killed (alone or with all it started), frozen, given notice, or has its cable pulled; frozen and cut members are let go
again and must end by themselves; each time a new member joins in place of the one that was lost.

``finished``: 1 if the epoch came to its end on all members that were there then, each with exit code 0 and with the
same parameters bit for bit, and every victim and every new member did what it must. ``duplicates``, ``lost_samples``:
read from a ledger among the parameters themselves, to which every sample adds its own gradient. ``leaks``: processes,
files being written, shared memory and sockets of savers that are there after the end and were not before.
"""

import contextlib
import json
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any

from fleet import (
    TORCH_MODULES,
    Nursery,
    Ports,
    Worker,
    clean_end,
    plait_environment,
    signal_session,
    signal_worker,
    tails,
    wait_for,
)
from links import Hosts, NoNamespaces
from report import BenchmarkFailed, arguments, finish

MEMBERS = 4
GLOBAL_BATCH, MICRO_BATCHES, STEP_S = 48, 24, 0.2
PACE_S = 0.36
"""Steps have a time-table, so that the epoch lasts as long as the faults; after a fault the group catches up."""

PERIOD_S, HOLD_S, PATIENCE_S = 20.0, 4.0, 60.0
CAUSES = ("kill", "kill all", "freeze", "notice", "link")


@dataclass
class Member:
    """A worker and where it lives."""

    name: str
    worker: Worker
    host: int
    address: str
    log: Path

    def rows(self, event: str) -> list[dict[str, Any]]:
        """Returns what it has written down of one kind, from the last part of its log."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 4096))
            lines = file.read().decode().split("\n")[:-1]
        rows = []
        for line in lines:
            with contextlib.suppress(ValueError):  # the first may be cut
                rows.append(json.loads(line))
        return [row for row in rows if row["event"] == event]

    @property
    def step(self) -> int:
        found = self.rows("step")
        return int(found[-1]["step"]) if found else -1


@dataclass
class Run:
    """The group, its faults so far, and what went wrong."""

    nursery: Nursery
    directory: Path
    ports: Ports
    hosts: Hosts | None
    steps: int
    seed: int
    heartbeat_timeout_s: float = 1.0
    pace_s: float = PACE_S
    begun_s: float = field(default_factory=time.monotonic)
    members: list[Member] = field(default_factory=list)
    struck: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    count: int = 0

    def spawn(self, name: str, host: int, known: dict[str, str], *, joins: bool) -> Member:
        """Starts a worker; ``known`` are the addresses of those it is to find, its own included at the start."""
        address = known.get(name) or self.new_address(host)
        log = self.directory / f"{name}.steps"
        environment = {
            **plait_environment(name, address, known, self.directory / "run", joins),
            "BENCH_STEPS": str(log),
            "BENCH_BATCH": str(GLOBAL_BATCH),
            "BENCH_MICRO": str(MICRO_BATCHES),
            "BENCH_STEPS_TOTAL": str(self.steps),
            "BENCH_SAMPLE_S": str(STEP_S * MEMBERS / GLOBAL_BATCH),
            "BENCH_SEED": str(self.seed),
            "BENCH_SAVE": str(self.directory / "saved"),
            "BENCH_PACE_S": str(self.pace_s),
            "BENCH_BEGUN_S": str(self.begun_s),
            "BENCH_HEARTBEAT_S": str(self.heartbeat_timeout_s),
        }
        if self.hosts is not None:
            environment["GLOO_SOCKET_IFNAME"] = "eth0"
        space = None if self.hosts is None else self.hosts.namespace(host)
        output = self.directory / f"{name}.log"
        worker = self.nursery.spawn(f"chaos-{name}", "recovery_plait.py", environment, output, space)
        return Member(name, worker, host, address, log)

    def new_address(self, host: int) -> str:
        where = "127.0.0.1" if self.hosts is None else self.hosts.address(host)
        return f"{where}:{self.ports.pair()}"

    def start(self) -> None:
        addresses = {f"w{index}": self.new_address(index) for index in range(MEMBERS)}
        self.members = [self.spawn(name, i, addresses, joins=False) for i, name in enumerate(addresses)]
        self.count = MEMBERS
        if not wait_for(lambda: all(member.step >= 1 for member in self.members), PATIENCE_S * 2):
            raise BenchmarkFailed(f"the group did not start\n{self.tails()}")

    def tails(self) -> str:
        return tails([member.worker for member in self.members])

    def strike(self, cause: str, victim: Member) -> None:
        """Does one fault, sees that its victim ends and that the others go on, and has a new member join."""
        self.struck[cause] = self.struck.get(cause, 0) + 1
        worker = victim.worker
        staying = [member for member in self.members if member is not victim]
        before = max(member.step for member in self.members)
        if cause == "kill all":
            signal_session(worker, SIGKILL)
        elif cause == "link" and self.hosts is not None:
            self.hosts.pull(victim.host)
        else:
            signal_worker(worker, {"kill": SIGKILL, "freeze": SIGSTOP, "notice": SIGTERM}[cause])
        on = wait_for(lambda: min(member.step for member in staying) > before + 1, PATIENCE_S, 0.05)
        if not on:
            self.problems.append(f"the others did not go on after {cause} of {victim.name}\n{self.tails()}")
        if cause in {"freeze", "link"}:
            time.sleep(HOLD_S)
        if cause == "freeze":
            signal_session(worker, SIGCONT)
        elif cause == "link" and self.hosts is not None:
            self.hosts.plug(victim.host)
        if not worker.exited.wait(PATIENCE_S):
            self.problems.append(f"{victim.name} runs on after {cause}\n{worker.log_tail()}")
        elif cause == "notice" and worker.exit_code != 0:
            self.problems.append(f"{victim.name} ended with {worker.exit_code} after its notice\n{worker.log_tail()}")
        self.members = staying
        name = f"w{self.count}"
        self.count += 1
        known = {member.name: member.address for member in staying}
        joiner = self.spawn(name, victim.host, known, joins=True)
        self.members = [*staying, joiner]
        if not wait_for(lambda: joiner.step >= 0 or joiner.worker.exited.is_set(), PATIENCE_S, 0.05):
            self.problems.append(f"{name} did not join after {cause}\n{joiner.worker.log_tail()}")

    def is_over(self) -> bool:
        return any(member.worker.exited.is_set() for member in self.members)


def traces(directory: Path) -> set[str]:
    """Returns what could be left behind: processes of this run, shared memory, savers' sockets, unfinished files."""
    found = {f"/dev/shm/{path.name}" for path in Path("/dev/shm").iterdir() if "plait" in path.name}
    mark = f"={directory}".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                found.add(f"process {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()[:120]}")
    sockets = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    found |= {line.rpartition("@")[2] for line in sockets if "@plait-saver-" in line}
    found |= {str(path) for path in directory.rglob(".writing-*")}
    return found


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=None, help="how long faults go on; 30")
    parser.add_argument("--pace", type=float, default=PACE_S, metavar="S", help="a step begins each so many seconds")
    parser.add_argument("--heartbeat-timeout", type=float, default=1.0, metavar="S", help="silence that is death; 1")
    options = parser.parse_args()
    minutes = options.minutes or (0.5 if options.quick else 30.0)
    chance = random.Random(f"chaos {options.seed}")
    figures: dict[str, float | None] = {}
    with ExitStack() as stack:
        directory = stack.enter_context(clean_end())
        before = traces(directory)
        nursery = stack.enter_context(Nursery([*TORCH_MODULES, "plait.train.session"]))
        hosts: Hosts | None = None
        try:
            hosts = stack.enter_context(Hosts(MEMBERS))
        except NoNamespaces as refusal:
            print(f"without pulled cables: {refusal}")
        steps = round(minutes * 60.0 / options.pace)
        run = Run(nursery, directory, Ports(), hosts, steps, options.seed, options.heartbeat_timeout, options.pace)
        run.start()
        end_s = time.monotonic() + minutes * 60.0
        causes = [cause for cause in CAUSES if cause != "link" or hosts is not None]
        period_s = PERIOD_S / 2 if options.quick else PERIOD_S
        while time.monotonic() + period_s < end_s and not run.is_over():
            time.sleep(period_s)
            if run.is_over():
                break
            cause, victim = chance.choice(causes), chance.choice(run.members)
            run.strike(cause, victim)
            at_s, step = minutes * 60.0 - (end_s - time.monotonic()), run.members[0].step
            problems = len(run.problems)
            print(f"  {at_s:6.0f} s  {cause:8s} {victim.name:5s} step {step}  problems {problems}", flush=True)
            if run.problems:
                break
        struck = {member.name for member in run.members if member.worker.exited.is_set()}
        if lost := struck - {m.name for m in run.members if m.worker.exit_code == 0}:
            run.problems.append(f"{sorted(lost)} ended though nothing was done to them\n{run.tails()}")
        lasted_s = minutes * 60.0 - (end_s - time.monotonic())
        ended = wait_for(lambda: all(m.worker.exited.is_set() for m in run.members), minutes * 120.0 + 120.0, 0.2)
        codes = {member.name: member.worker.exit_code for member in run.members}
        ends = [row for member in run.members for row in member.rows("end")]
        if not ended or any(codes.values()) or len(ends) != len(run.members):
            run.problems.append(f"members ended with {codes}\n{run.tails()}")
        if len({row["hash"] for row in ends}) > 1:
            run.problems.append("the members' parameters differ at the end")
        if any(row["step"] != run.steps for row in ends):
            run.problems.append(f"the epoch ended at {[row['step'] for row in ends]}, not {run.steps}")
        nursery.end([member.worker for member in run.members])
        wait_for(lambda: not traces(directory) - before, 15.0, 0.2)  # savers end two seconds after their last trainer
        left = traces(directory) - before
        total = GLOBAL_BATCH * run.steps
        figures = {
            "finished": float(not run.problems),
            "duplicates": max((int(row["again"]) for row in ends), default=None),
            "lost_samples": max((total - int(row["used"]) for row in ends), default=None),
            "leaks": len(left),
            "faults": sum(run.struck.values()),
            "steps": run.steps,
            "heartbeat_timeout_s": options.heartbeat_timeout,
            "minutes": round(lasted_s / 60.0, 1),
        }
        print("  faults: " + ", ".join(f"{cause} {count}" for cause, count in run.struck.items()))
        for line in [*run.problems, *(f"left: {one}" for one in sorted(left))]:
            print(f"  ! {line}")
    reasons = {name: "no member came to the end" for name, value in figures.items() if value is None}
    finish("chaos", options.quick, figures, reasons, options.json)
    return 0 if figures["finished"] == 1.0 and not figures["leaks"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
