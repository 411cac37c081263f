"""Kills the controller at random moments while jobs run, and counts what is lost, doubled or left behind.

Five clients submit short jobs one after another: single workers, gangs over several nodes, and small DAGs. The
controller is killed with SIGKILL a random time after each start, also while it starts, and started again at once. Every
worker holds a kernel lock on its place (task and rank) while it lives and writes down its start and end, so a worker
that is started twice, or beside another one of its place, shows in any case. At the end everything is stopped, and
every process that carries this run's mark in its environment is an orphan.
"""

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import report
from plait.controller.client import Client, RequestRefused
from plait.controller.endpoint import read_endpoint
from plait.errors import ControllerUnreachable
from plait.spec.cluster import Cluster, EmulatedNode
from plait.spec.job import Job, Resources, Task, WorkerRange

CLIENTS = 5
EARLY_SHARE = 1 / 3
LONGEST_LIFE_S = 1.5
"""A controller that is not killed while it starts lives up to this long once it answers."""
PATIENCE_S = 120.0
STOP_S = 30.0
MARK = "PLAIT_BENCHMARK_MARK"

WORKER = """
import fcntl, json, os, sys, time
place = os.environ["PLAIT_ATTEMPT"].rpartition("/")[0].replace("/", "--") + "--" + os.environ["RANK"]
book = os.open(sys.argv[1] + "/book", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
lock = os.open(sys.argv[1] + "/" + place + ".lock", os.O_RDWR | os.O_CREAT, 0o644)
def note(what):
    line = {"what": what, "attempt": os.environ["PLAIT_ATTEMPT"], "worker": os.environ["PLAIT_MEMBER"],
            "place": place, "pid": os.getpid(), "at_s": time.time()}
    os.write(book, (json.dumps(line) + "\\n").encode())
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("beside another")
note("start")
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
time.sleep(float(sys.argv[2]))
note("end")
"""


@dataclass(slots=True)
class Account:
    """What the clients know: accepted jobs with the places that must have ended, and how each job ended."""

    places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Controllers:
    """One controller after another on the same state directory."""

    def __init__(self, state: Path, mark: str) -> None:
        self.state = state
        self.starts_s: list[float] = []
        self.killed_while_starting = 0
        self._environment = {**os.environ, MARK: mark}
        self._log = (state / "controller.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the next one."""
        command = [sys.executable, __file__, "--serve", str(self.state)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=self._environment)

    def start_and_wait(self) -> None:
        """Starts the first one and waits until it answers."""
        started_s = time.monotonic()
        self.start()
        while not self.answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() - started_s > PATIENCE_S:
                raise RuntimeError(f"the first controller does not answer: {self.last_words()}")
            time.sleep(0.01)
        self.starts_s.append(time.monotonic() - started_s)

    def live_and_die(self, chance: random.Random) -> None:
        """Starts one and kills it: a third of them at a random moment of their start, the others some time after it."""
        started_s = time.monotonic()
        self.start()
        assert self._process is not None
        usual_start_s = statistics.median(self.starts_s)
        is_early = chance.random() < EARLY_SHARE
        dies_s = started_s + chance.uniform(0.0, usual_start_s) if is_early else float("inf")
        after_s = chance.uniform(0.0, LONGEST_LIFE_S)
        has_answered = False
        while (now_s := time.monotonic()) < dies_s:
            if not has_answered and self.answers():
                has_answered = True
                self.starts_s.append(now_s - started_s)
                dies_s = min(dies_s, now_s + after_s)
            if self._process.poll() is not None:
                raise RuntimeError(f"the controller ended by itself: {self.last_words()}")
            time.sleep(min(0.01, max(0.0, dies_s - now_s)))
        self.killed_while_starting += not has_answered
        self.kill()

    def kill(self) -> None:
        """Ends the present one without a word."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def answers(self) -> bool:
        """Returns whether the controller that was started last has published its address."""
        assert self._process is not None
        try:
            return read_endpoint(self.state).pid == self._process.pid
        except ControllerUnreachable:
            return False

    def stop(self) -> bool:
        """Asks the controller to end with its agents; returns whether it did."""
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return self._process.returncode == 0

    def last_words(self) -> str:
        """Returns the end of the controllers' log."""
        return (self.state / "controller.log").read_text(encoding="utf-8", errors="replace")[-2000:]


def serve(state: Path) -> int:
    """Runs the controller: three nodes of four devices."""
    import logging

    from plait.controller.service import ServeOptions
    from plait.controller.service import serve as run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    nodes = tuple(EmulatedNode(name=f"n{number}", accelerator="T4", slots=4) for number in range(3))
    return run(Cluster(nodes=nodes), state, ServeOptions(ends_agents=True))


def make_job(chance: random.Random, records: Path) -> Job:
    """Returns a short job: one worker, a gang of up to four, or a DAG of two tasks."""

    def task(name: str, workers: int, needs: tuple[str, ...] = ()) -> Task:
        command = (sys.executable, "-S", "-E", "-c", WORKER, str(records), f"{chance.uniform(0.1, 1.5):.2f}")
        workers_range = WorkerRange(min=workers, max=workers)
        return Task(name=name, command=command, workers=workers_range, needs=needs, resources=Resources())

    shape = chance.choice(("single", "gang", "gang", "dag"))
    if shape == "dag":
        return Job(name="dag", tasks=(task("first", 1), task("second", chance.randint(1, 3), needs=("first",))))
    return Job(name=shape, tasks=(task("train", 1 if shape == "single" else chance.randint(2, 4)),))


def client(account: Account, state: Path, records: Path, seed: int, stop: threading.Event) -> None:
    """Submits one job after another and follows each to its end."""
    chance = random.Random(seed)
    calls = Client(state, timeout_s=10.0, patience_s=PATIENCE_S)
    while not stop.is_set():
        job = make_job(chance, records)
        try:
            job_id = calls.submit(job, records, request_id=uuid.uuid4().hex, patience_s=PATIENCE_S)["job_id"]
            with account.lock:
                if job_id in account.places:
                    account.faults.append(f"{job_id} was given to two submissions")
                account.places[job_id] = tuple(
                    f"{job_id}--{task.name}--{rank}" for task in job.tasks for rank in range(task.workers.min)
                )
            account.ends[job_id] = follow(calls, job_id)
        except (ControllerUnreachable, RequestRefused) as error:
            account.faults.append(str(error))


def follow(calls: Client, job_id: str) -> str:
    """Returns how the job ended."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        state = calls.job(job_id)["state"]
        if state in {"succeeded", "failed", "cancelled"}:
            return state
        time.sleep(0.1)
    return f"still {state} after {PATIENCE_S:.0f}s"


def marked(mark: str) -> list[int]:
    """Returns the processes that carry this run's mark, apart from this one."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def count(account: Account, records: Path) -> tuple[dict[str, float | None], list[str]]:
    """Returns the figures that the book of the workers and the clients' accounts give, and what to tell of them."""
    book = records / "book"
    lines = [json.loads(line) for line in book.read_text(encoding="utf-8").splitlines()] if book.exists() else []
    starts = Counter((line["attempt"], line["worker"]) for line in lines if line["what"] == "start")
    twice = [f"{attempt} {worker} started {number} times" for (attempt, worker), number in starts.items() if number > 1]
    beside = [f"{line['attempt']} {line['worker']} ran beside another" for line in lines if "beside" in line["what"]]
    ended = {line["place"] for line in lines if line["what"] == "end"}
    attempts = {line["attempt"] for line in lines}
    tasks = {attempt.rpartition("/")[0] for attempt in attempts}
    lost = []
    for job_id, places in account.places.items():
        missing = [place for place in places if place not in ended]
        if account.ends.get(job_id) != "succeeded" or missing:
            lost.append(f"{job_id}: {account.ends.get(job_id, 'no end was seen')}; not run to the end: {missing}")
    figures: dict[str, float | None] = {
        "jobs_accepted": len(account.places),
        "jobs_finished": sum(end == "succeeded" for end in account.ends.values()),
        "jobs_lost": len(lost),
        "attempts_doubled": len(twice) + len(beside),
        "attempts_started": len(attempts),
        "attempts_beyond_first": len(attempts) - len(tasks),
        "workers_started": sum(starts.values()),
    }
    return figures, [*account.faults, *lost, *twice, *beside]


def measure(kills: int, seed: int, state: Path, mark: str) -> tuple[dict[str, float | None], list[str]]:
    """Runs the jobs and the kills; returns figures and what to tell of them."""
    records = state / "records"
    records.mkdir()
    chance = random.Random(seed)
    controllers = Controllers(state, mark)
    account = Account()
    stop = threading.Event()
    clients = [
        threading.Thread(target=client, args=(account, state, records, seed * 1000 + number, stop), daemon=True)
        for number in range(CLIENTS)
    ]
    try:
        controllers.start_and_wait()
        for thread in clients:
            thread.start()
        controllers.kill()
        for number in range(1, kills):
            controllers.live_and_die(chance)
            if (number + 1) % 10 == 0:
                print(f"{number + 1} kills, {len(account.places)} jobs accepted", flush=True)
        controllers.start()
        stop.set()
        for thread in clients:
            thread.join(2 * PATIENCE_S)
    finally:
        stop.set()
        ended_well = controllers.stop()
    orphans = marked(mark)
    figures, told = count(account, records)
    if not ended_well:
        told.append(f"the last controller did not end when asked to: {controllers.last_words()}")
    figures["orphans"] = len(orphans)
    figures["kills"] = kills
    figures["kills_while_starting"] = controllers.killed_while_starting
    figures["restart_median_s"] = round(statistics.median(controllers.starts_s), 3)
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    return figures, told


def main() -> int:
    """Runs the benchmark."""
    if sys.argv[1:2] == ["--serve"]:
        return serve(Path(sys.argv[2]))
    parser = report.arguments(__doc__ or "")
    parser.add_argument("--kills", type=int, default=None, help="how often the controller is killed")
    parser.add_argument("--keep", action="store_true", help="keep the state directory")
    options = parser.parse_args()
    kills = options.kills or (12 if options.quick else 100)
    mark = uuid.uuid4().hex
    state = Path(tempfile.mkdtemp(prefix="plait-kill-"))
    try:
        figures, told = measure(kills, options.seed, state, mark)
    finally:
        if options.keep:
            print(f"state kept in {state}")
        else:
            shutil.rmtree(state, ignore_errors=True)
    for line in told:
        print(f"! {line}")
    for name, value in figures.items():
        print(f"{name:24} {value}")
    reasons = (
        {} if figures["restart_median_s"] is not None else {"restart_median_s": "none lived long enough to answer"}
    )
    report.finish("controller_kill", options.quick, figures, reasons, options.json)
    bad = figures["jobs_lost"] or figures["attempts_doubled"] or figures["orphans"] or told
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
