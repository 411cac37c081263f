"""The ledger owes each agent exactly what the journal decided."""

from dataclasses import replace
from pathlib import Path

from plait.controller.journal import Record, Registration, Report, Submission
from plait.controller.ledger import Ledger
from plait.controller.orders import start_message
from plait.hardware.device import Device, Node
from plait.schedule.commands import ResizeTask, StartTask, StopTask
from plait.schedule.domain import Placement, TaskKey, WorkerPlacement
from plait.schedule.events import JobSubmitted, NodeJoined, NodeLost, Tick, WorkerExited, WorkerStarted
from plait.spec.job import Checkpoint, Job, Task, WorkerRange
from plait.train.checkpoint.peers import peers_from_environment, run_key
from plait.wire import Codec

ATTEMPT = "digits-1/train/1"
JOB = Job(
    name="digits",
    tasks=(
        Task(
            name="train",
            command=("python", "train.py"),
            workers=WorkerRange(min=1, max=4),
            environment=(("RANK", "9"), ("SEED", "3")),
            working_directory="src",
        ),
    ),
)


def worker(number: int, node: str, local_rank: int = 0) -> WorkerPlacement:
    return WorkerPlacement(
        worker_id=f"w{number}",
        rank=number,
        local_rank=local_rank,
        node=node,
        device_ids=(f"{node}/{local_rank}",),
        accelerator_type="T4",
        address="127.0.0.1",
        port=21000 + 2 * number,
    )


def node(name: str) -> Node:
    device = Device(id=f"{name}/0", node=name, index=0, accelerator_type="T4")
    return Node(id=name, address="127.0.0.1", devices=(device,))


def started(*workers: WorkerPlacement, number: int = 2) -> Record:
    command = StartTask(
        cause=number,
        attempt_id=ATTEMPT,
        task=TaskKey(job_id="digits-1", task="train"),
        placement=Placement(workers=workers),
    )
    return Record(event=Tick(id=number, at_s=0.0), commands=(command,))


def ledger_with(*records: Record) -> Ledger:
    ledger = Ledger()
    submission = Submission(request_id="r1", directory="/home/me/digits", digest="d")
    first = Record(event=JobSubmitted(id=1, at_s=0.0, job_id="digits-1", job=JOB), note=submission)
    for record in (first, *records):
        ledger.apply(record)
    return ledger


def test_an_order_stands_until_its_workers_end_is_known() -> None:
    ledger = ledger_with(started(worker(0, "n0"), worker(1, "n1")))
    assert [order.worker.worker_id for order in ledger.of_node("n1")] == ["w1"]
    ledger.apply(Record(event=WorkerStarted(id=3, at_s=0.0, attempt_id=ATTEMPT, worker_id="w1")))
    order = ledger.order(ATTEMPT, "w1")
    assert order is not None
    assert order.is_up
    stop = StopTask(cause=4, attempt_id=ATTEMPT, reason="cancelled", grace_s=3.0)
    ledger.apply(Record(event=Tick(id=4, at_s=0.0), commands=(stop,)))
    order = ledger.order(ATTEMPT, "w1")
    assert order is not None
    assert order.stop is not None
    assert order.stop.grace_s == 3.0
    for number, name in ((5, "w0"), (6, "w1")):
        ended = WorkerExited(id=number, at_s=0.0, attempt_id=ATTEMPT, worker_id=name, exit_code=0)
        ledger.apply(Record(event=ended))
    assert not list(ledger.all_orders())
    assert set(ledger.gangs["digits-1/train"].ends) == {"w0", "w1"}


def test_workers_of_a_lost_node_are_to_end_and_a_new_agent_counts_its_reports_anew() -> None:
    ledger = ledger_with(started(worker(0, "n0"), worker(1, "n1")))
    ledger.apply(Record(event=NodeJoined(id=3, at_s=0.0, node=node("n0")), note=Registration(incarnation="a")))
    up = WorkerStarted(id=4, at_s=0.0, attempt_id=ATTEMPT, worker_id="w0")
    ledger.apply(Record(event=up, note=Report(incarnation="a", number=12)))
    assert ledger.agents["n0"].number == 12
    ledger.apply(Record(event=NodeJoined(id=5, at_s=0.0, node=node("n0")), note=Registration(incarnation="a")))
    assert ledger.agents["n0"].number == 12
    ledger.apply(Record(event=NodeLost(id=6, at_s=0.0, node="n0", reason="dead")))
    assert not ledger.agents["n0"].is_present
    stops = {order.worker.worker_id: order.stop is not None for order in ledger.all_orders()}
    assert stops == {"w0": True, "w1": False}
    ledger.apply(Record(event=NodeJoined(id=7, at_s=0.0, node=node("n0")), note=Registration(incarnation="b")))
    assert ledger.agents["n0"].number == 0
    assert ledger.agents["n0"].is_present


def test_the_ledger_comes_back_from_its_dump() -> None:
    ledger = ledger_with(started(worker(0, "n0"), worker(1, "n1")))
    ledger.apply(Record(event=NodeJoined(id=3, at_s=0.0, node=node("n0")), note=Registration(incarnation="a")))
    assert Ledger.load(ledger.dump()) == ledger


def test_job_ids_count_up_by_name() -> None:
    ledger = ledger_with()
    assert ledger.next_job_id("digits") == "digits-2"
    assert ledger.next_job_id("other") == "other-1"
    assert ledger.job_of_request("r1") == "digits-1"
    assert ledger.job_of_request("r2") is None


def test_workers_get_torchruns_environment_and_their_own_entries_never_override_it() -> None:
    ledger = ledger_with(started(worker(0, "n0"), worker(1, "n1"), worker(2, "n1", local_rank=1)))
    order = ledger.order(ATTEMPT, "w2")
    assert order is not None
    message = start_message(order, JOB, ledger, Path("/state"))
    environment = dict(message.environment)
    assert message.working_directory == "/home/me/digits/src"
    assert message.log_directory == "/state/jobs/digits-1/logs/train/1"
    expected = {
        "RANK": "2",
        "SEED": "3",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "21001",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "PLAIT_ATTEMPT": ATTEMPT,
        "PLAIT_MEMBER": "w2",
        "PLAIT_LISTEN": "127.0.0.1:21004",
        "PLAIT_SEEDS": "w0@127.0.0.1:21000,w1@127.0.0.1:21002,w2@127.0.0.1:21004",
        "PLAIT_DEVICE_IDS": "n1/1",
        "PLAIT_RUN_DIR": "/state/jobs/digits-1/run",
    }
    assert {key: environment[key] for key in expected} == expected
    assert "PLAIT_JOIN" not in environment
    codec: Codec[Job] = Codec(Job)
    assert codec.decode(environment["PLAIT_JOB"]) == JOB


def test_a_gang_is_told_of_all_its_members_even_after_one_has_ended() -> None:
    ledger = ledger_with(started(worker(0, "n0"), worker(1, "n1")))
    ended = WorkerExited(id=3, at_s=0.0, attempt_id=ATTEMPT, worker_id="w0", exit_code=1, failure="user")
    ledger.apply(Record(event=ended))
    order = ledger.order(ATTEMPT, "w1")
    assert order is not None
    environment = dict(start_message(order, JOB, ledger, Path("/state")).environment)
    assert environment["WORLD_SIZE"] == "2"
    assert environment["MASTER_PORT"] == "21001"


def test_a_joiner_meets_those_that_run_and_stay() -> None:
    ledger = ledger_with(started(worker(0, "n0"), worker(1, "n1")))
    resize = ResizeTask(cause=3, attempt_id=ATTEMPT, add=(worker(2, "n1", local_rank=1),), remove=("w0",))
    ledger.apply(Record(event=Tick(id=3, at_s=0.0), commands=(resize,)))
    joiner, leaver = ledger.order(ATTEMPT, "w2"), ledger.order(ATTEMPT, "w0")
    assert joiner is not None
    assert leaver is not None
    assert leaver.stop is not None
    assert joiner.task == TaskKey(job_id="digits-1", task="train")
    environment = dict(start_message(joiner, JOB, ledger, Path("/state")).environment)
    assert environment["PLAIT_JOIN"] == "1"
    assert environment["PLAIT_SEEDS"] == "w1@127.0.0.1:21002"


def test_only_jobs_that_ask_for_copies_are_told_where_they_go() -> None:
    ledger = ledger_with(started(worker(0, "n0"), worker(1, "n1")))
    order = ledger.order(ATTEMPT, "w0")
    assert order is not None
    copies = {"n0": "10.0.0.1:1", "n1": "10.0.0.2:2"}
    plain = start_message(order, JOB, ledger, Path("/state"), b"token", copies=copies)
    assert not any(name.startswith("PLAIT_PEERS") for name, _ in plain.environment)
    wants = replace(JOB, checkpoint=Checkpoint(url="s3://b/x", peer_interval_s=60.0))
    message = start_message(order, wants, ledger, Path("/state"), b"token", copies=copies)
    peers = peers_from_environment(dict(message.environment))
    assert peers is not None
    assert peers.others == (("n1", "10.0.0.2:2"),)
    assert (peers.run, peers.key) == ("digits-1", run_key(b"token", "digits-1"))
