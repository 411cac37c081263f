"""From an order of the ledger to the message that an agent gets: command, directories, environment."""

import hmac
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from plait.agent.messages import StartWorker
from plait.controller.ledger import Ledger, Order
from plait.schedule.domain import WorkerPlacement
from plait.spec.job import Job, Task
from plait.train.checkpoint.peers import peer_environment
from plait.wire import Codec

_JOB: Codec[Job] = Codec(Job)


def job_directory(state_directory: Path, job_id: str) -> Path:
    """Returns where everything of a job lies."""
    return state_directory / "jobs" / job_id


def run_directory(state_directory: Path, job_id: str) -> Path:
    """Returns the directory for what a job itself makes."""
    return job_directory(state_directory, job_id) / "run"


def log_directory(state_directory: Path, attempt_id: str) -> Path:
    """Returns where the workers of an attempt (``JOB/TASK/N``) write their logs."""
    job_id, task, number = attempt_id.rsplit("/", 2)
    return job_directory(state_directory, job_id) / "logs" / task / number


def start_message(
    order: Order,
    job: Job,
    ledger: Ledger,
    state_directory: Path,
    token: bytes = b"",
    *,
    copies: Mapping[str, str] = MappingProxyType({}),
) -> StartWorker:
    """Returns the message that starts this worker; ``copies`` says where nodes take copies of snapshots.

    The word by which the workers of an attempt know one another follows from the controller's token, so it is the same
    after a restart and never written down.
    """
    task = job.task(order.task.task)
    submission = ledger.submissions.get(order.task.job_id)
    submitted_from = Path(submission.directory if submission else state_directory)
    return StartWorker(
        attempt_id=order.attempt_id,
        worker_id=order.worker.worker_id,
        rank=order.worker.rank,
        command=task.command,
        working_directory=str(submitted_from / (task.working_directory or "")),
        environment=(
            *worker_environment(order, job, ledger, state_directory).items(),
            ("PLAIT_SECRET", hmac.new(token, order.attempt_id.encode(), "sha256").hexdigest()),
            *_peers(order, job, token, copies).items(),
        ),
        device_ids=order.worker.device_ids,
        log_directory=str(log_directory(state_directory, order.attempt_id)),
    )


def _peers(order: Order, job: Job, token: bytes, copies: Mapping[str, str]) -> dict[str, str]:
    if job.checkpoint is None or job.checkpoint.peer_interval_s is None:
        return {}
    return peer_environment(order.task.job_id, order.worker.node, copies, token)


def worker_environment(order: Order, job: Job, ledger: Ledger, state_directory: Path) -> dict[str, str]:
    """Returns torchrun's variables and Plait's own; a job's own entries never override them."""
    task = job.task(order.task.task)
    gang = _gang(order, ledger)
    return {
        **dict(task.environment),
        **_torchrun(order, gang, ledger),
        "PLAIT_ATTEMPT": order.attempt_id,
        "PLAIT_MEMBER": order.worker.worker_id,
        "PLAIT_LISTEN": f"{order.worker.address}:{order.worker.port}",
        "PLAIT_SEEDS": ",".join(f"{peer.worker_id}@{peer.address}:{peer.port}" for peer in gang),
        **({"PLAIT_JOIN": "1"} if order.is_joiner else {}),
        **_task_variables(task, order, job),
        "PLAIT_RUN_DIR": str(run_directory(state_directory, order.task.job_id)),
    }


def _torchrun(order: Order, gang: tuple[WorkerPlacement, ...], ledger: Ledger) -> dict[str, str]:
    worker = order.worker
    nodes = list(dict.fromkeys(peer.node for peer in (*gang, worker)))
    first = min((*gang, worker), key=lambda peer: peer.rank)
    members = {peer.worker_id: peer for peer in (*gang, worker)}.values()
    return {
        "RANK": str(worker.rank),
        "WORLD_SIZE": str(max(len(members), worker.rank + 1)),
        "LOCAL_RANK": str(worker.local_rank),
        "LOCAL_WORLD_SIZE": str(sum(peer.node == worker.node for peer in members)),
        "GROUP_RANK": str(nodes.index(worker.node)),
        "MASTER_ADDR": first.address,
        "MASTER_PORT": str(first.port + 1),
        "TORCHELASTIC_RESTART_COUNT": str(max(0, ledger.starts.get(str(order.task), 1) - 1)),
        "TORCHELASTIC_RUN_ID": order.task.job_id,
    }


def _task_variables(task: Task, order: Order, job: Job) -> dict[str, str]:
    return {
        "PLAIT_JOB": _JOB.encode(job).decode(),
        "PLAIT_TASK": task.name,
        "PLAIT_ACCELERATOR_TYPE": order.worker.accelerator_type,
        "PLAIT_DEVICE_IDS": ",".join(order.worker.device_ids),
    }


def _gang(order: Order, ledger: Ledger) -> tuple[WorkerPlacement, ...]:
    """Returns the workers to meet: those the attempt starts with, or for a joiner those that run now."""
    if not order.is_joiner:
        gang = ledger.gangs.get(str(order.task))
        return gang.founders if gang is not None and gang.attempt_id == order.attempt_id else (order.worker,)
    peers = (peer for peer in ledger.of_attempt(order.attempt_id).values() if peer.key != order.key)
    running = (peer.worker for peer in peers if peer.stop is None and (peer.is_up or not peer.is_joiner))
    return tuple(sorted(running, key=lambda worker: worker.rank))
