"""How a verb reaches the controller: its state directory, and what of the client it relies on."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from plait.cli.failures import unknown

if TYPE_CHECKING:
    from plait.controller.answers import (
        EventsAnswer,
        ExplainAnswer,
        JobAnswer,
        NodeAnswer,
        PlanAnswer,
        ProgressAnswer,
        StatusAnswer,
        SubmitAnswer,
    )
    from plait.controller.client import LogChunk
    from plait.spec.job import Job


class ControllerClient(Protocol):
    """What verbs ask of a controller; ``plait.controller.client.Client`` in earnest, a fake in tests."""

    def status(self) -> "StatusAnswer":
        """Returns the controller, all nodes and all jobs."""
        ...

    def submit(self, job: "Job", directory: Path | str) -> "SubmitAnswer":
        """Submits a job whose relative commands run in ``directory``."""
        ...

    def job(self, job_id: str) -> "JobAnswer":
        """Returns one job."""
        ...

    def cancel(self, job_id: str) -> "JobAnswer":
        """Asks for the end of a job."""
        ...

    def resize(self, job_id: str, task: str, fewest: int, most: int) -> "JobAnswer":
        """Gives a task another elastic range."""
        ...

    def inject(self, job_id: str, task: str, worker: str, deed: str) -> "JobAnswer":
        """Has a fault done to a running worker, where the cluster file allows drills."""
        ...

    def nodes(self) -> "list[NodeAnswer]":
        """Returns all nodes."""
        ...

    def drain(self, node: str) -> "NodeAnswer":
        """Sends no new work to the node."""
        ...

    def resume(self, node: str) -> "NodeAnswer":
        """Lets a drained node take work again."""
        ...

    def explain(self, job_id: str) -> "ExplainAnswer":
        """Returns the reasons of a job."""
        ...

    def progress(self, job_id: str) -> "list[ProgressAnswer]":
        """Returns the newest progress of each attempt."""
        ...

    def plan(self, job: "Job") -> "PlanAnswer":
        """Returns what would run where."""
        ...

    def events(self, after: int = 0) -> "EventsAnswer":
        """Returns journal records after this id."""
        ...

    def logs(
        self, job_id: str, *, task: str, worker: str | None = None, attempt: int | None = None, offset: int = 0
    ) -> "LogChunk":
        """Returns a piece of a worker's log."""
        ...


def state_directory(given: Path | None) -> Path:
    """Returns the directory that was given, or the user's own."""
    return given if given is not None else Path.home() / ".local" / "state" / "plait"


def connect(given: Path | None, *, patience_s: float = 0.0) -> ControllerClient:
    """Returns a client of the controller of this state directory; whether it answers shows on the first call."""
    from plait.controller.client import Client

    return Client(state_directory(given), patience_s=patience_s)


def answers(client: ControllerClient) -> bool:
    """Tells whether a controller answers."""
    from plait.errors import ControllerUnreachable

    try:
        client.status()
    except ControllerUnreachable:
        return False
    return True


def task_of(job: "JobAnswer", given: str | None) -> str:
    """Returns the task that was asked for, or the only one of the job."""
    names = [task["task"] for task in job["tasks"]]
    if given is None:
        if len(names) != 1:
            raise typer.BadParameter(f"job {job['job_id']!r} has several tasks; choose one with --task {_or(names)}")
        return names[0]
    if given not in names:
        raise unknown("task", given, names)
    return given


def _or(names: Iterable[str]) -> str:
    return " | ".join(names)
