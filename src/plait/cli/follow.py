"""Follows one job to its end and shows what happens to it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plait.cli.failures import FAILED, INTERRUPTED, OK
from plait.cli.log_reader import ENDED, LogReader
from plait.cli.narrator import Narrator

if TYPE_CHECKING:
    from plait.cli.connection import ControllerClient
    from plait.cli.screen import Screen
    from plait.controller.answers import JobAnswer

POLL_S = 0.2
TAIL_LINES = 20
"""How much of a failed worker's log is shown."""
_BLAME = {"failed": 0, "lost": 1}
"""Whose log tells most about a failed task; a worker that was only stopped tells least."""


@dataclass(slots=True)
class Follower:
    """Polls the controller and shows journal lines and progress; time is an argument of each look.

    Attributes:
        after: Events up to this id are old news.
        nodes: Nodes that are known already.
        elastic: Tasks whose workers have opened a session and told of steps.
    """

    client: "ControllerClient"
    job_id: str
    screen: "Screen"
    after: int = 0
    nodes: frozenset[str] = frozenset()
    narrator: Narrator = field(init=False)
    elastic: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.narrator = Narrator(self.job_id, set(self.nodes))

    def look(self, now_s: float) -> "JobAnswer":
        """Shows everything that is new and returns the job as it was before that, so that an end is told last."""
        job = self.client.job(self.job_id)
        self._events()
        for task in job["tasks"]:
            for text in self.narrator.waiting(task["task"], task["state"], task["reason"]):
                self.screen.line(text)
        progress = self.client.progress(self.job_id)
        self.elastic |= {line["task"] for line in progress}
        for line in progress:
            for text in self.narrator.split(line["task"], line["split"], line["reason"]):
                self.screen.line(text)
        self.screen.progress(progress, now_s)
        return job

    def _events(self) -> None:
        while True:
            answer = self.client.events(self.after)
            for record in answer["events"]:
                for text in self.narrator.tell(record):
                    self.screen.line(text)
            if answer["next"] <= self.after or not answer["events"]:
                return
            self.after = answer["next"]


def follow(follower: Follower, is_asked_to_stop: Callable[[], bool]) -> "JobAnswer":
    """Follows the job to its end; asks once for its cancellation when ``is_asked_to_stop`` says so."""
    has_cancelled = False
    with follower.screen:
        while True:
            job = follower.look(time.monotonic())
            if job["state"] in ENDED:
                for text in unchanged_scripts(job, follower.elastic):
                    follower.screen.line(text)
                return job
            if is_asked_to_stop() and not has_cancelled:
                has_cancelled = True
                follower.screen.line("cancelling; press Ctrl-C again to leave at once")
                follower.client.cancel(follower.job_id)
            time.sleep(POLL_S)


def unchanged_scripts(job: "JobAnswer", elastic: set[str]) -> list[str]:
    """Returns a line for each task of several workers that ran without Plait's session."""
    plain = [task["task"] for task in job["tasks"] if len(task["placement"]) > 1 and task["task"] not in elastic]
    return [
        f"{name}: no worker opened a plait.session: it ran as under torchrun, without elasticity; the loss of a worker"
        " would have begun it anew"
        for name in plain
    ]


def exit_code_of_job(job: "JobAnswer", *, was_interrupted: bool) -> int:
    """Returns the code that ``plait run`` ends with: the job's own where it has one that a process can have."""
    if job["state"] == "succeeded":
        return OK
    if job["state"] == "cancelled" and was_interrupted:
        return INTERRUPTED
    code = job["exit_code"]
    return code if code is not None and 0 < code < 256 else FAILED


def last_words(client: "ControllerClient", job: "JobAnswer") -> list[str]:
    """Returns the end of the log of the worker that each failed task failed for, for people."""
    shown: list[str] = []
    for task in job["tasks"]:
        if task["state"] != "failed" or not task["placement"]:
            continue
        worker = min(task["placement"], key=lambda one: (_BLAME.get(one["state"], len(_BLAME)), one["rank"]))
        reader = LogReader(client, job["job_id"], frozenset({task["task"]}), worker["worker_id"])
        lines = reader.read(job)[-TAIL_LINES:]
        if lines:
            shown.append(f"the end of the log of {task['task']}/{worker['worker_id']}:")
            shown.extend(f"  {line.text}" for line in lines)
    return shown
