"""``plait run``: submit a job, follow it, and exit with its code."""

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import ClusterOption, JobFileArgument, JsonOption, StateOption
from plait.cli.output import human_duration, print_json, say

if TYPE_CHECKING:
    from plait.cli.connection import ControllerClient
    from plait.cli.private_controller import PrivateController
    from plait.cli.screen import Screen
    from plait.controller.answers import JobAnswer, StatusAnswer
    from plait.spec.cluster import Cluster
    from plait.spec.job import Job


def run(
    file: JobFileArgument,
    cluster: ClusterOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the private state directory after success.")] = False,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Submit a job, follow it to its end, and exit with its code.

    Where no controller runs, a private one is started on this machine and stopped at the end. Ctrl-C cancels the job.
    """
    from plait.cli.connection import answers, connect
    from plait.cli.private_controller import PrivateController
    from plait.spec.load import load_cluster, load_job

    description = load_cluster(cluster) if cluster is not None else None
    job = load_job(file, description)
    client = connect(state, patience_s=10.0)
    if answers(connect(state)):
        if cluster is not None:
            raise typer.BadParameter("a controller with its own cluster runs already; use another --state")
        return _submit_and_follow(client, job, as_json, None)[1]
    with PrivateController(state=state, cluster=cluster) as private:
        client = connect(private.state)
        _await_nodes(private, client, description)
        _refuse_impossible(client, job)
        result, code = _submit_and_follow(client, job, as_json, private)
    _part(private, result, keep, as_json)
    return code


def _await_nodes(private: "PrivateController", client: "ControllerClient", cluster: "Cluster | None") -> None:
    from plait.errors import ControllerUnreachable

    expected = max(1, len(cluster.nodes) if cluster is not None else 1)

    def has_nodes() -> bool:
        try:
            return sum(node["is_connected"] for node in client.nodes()) >= expected
        except ControllerUnreachable:
            return False

    private.wait_until(has_nodes)


def _refuse_impossible(client: "ControllerClient", job: "Job") -> None:
    """A private cluster has all its nodes from the start: what it cannot hold now would wait for ever."""
    from plait.errors import PlacementImpossible

    for task in client.plan(job)["tasks"]:
        if task["is_impossible"]:
            why = "; ".join(task["reasons"]).removesuffix("; waits for more devices")
            raise PlacementImpossible(
                f"task {task['task']} is {why}; name the nodes with --cluster, or submit to a controller that has them"
            )


def _submit_and_follow(
    client: "ControllerClient", job: "Job", as_json: bool, private: "PrivateController | None"
) -> "tuple[JobAnswer, int]":
    from plait.cli.follow import Follower, exit_code_of_job, follow, last_words

    screen = _screen(as_json)
    before = client.status()
    if not as_json:
        _introduce(before, private)
    with ExitStack() as stack:
        interrupts = _Interrupts(stack)
        job_id = client.submit(job, Path.cwd())["job_id"]
        nodes = frozenset(node["node"] for node in before["nodes"])
        follower = Follower(client, job_id, screen, after=before["controller"]["last_event"], nodes=nodes)
        result = follow(follower, lambda: interrupts.count > 0)
    code = exit_code_of_job(result, was_interrupted=interrupts.count > 0)
    if as_json:
        print_json({**result, "progress": client.progress(job_id)})
        return result, code
    for line in last_words(client, result):
        say(line)
    took = human_duration((result["finished_at_s"] or result["submitted_at_s"]) - result["submitted_at_s"])
    why = f": {result['reason']}" if result["reason"] and result["state"] != "succeeded" else ""
    say(f"job {job_id} {result['state']} after {took}, exit code {code}{why}")
    return result, code


def _introduce(found: "StatusAnswer", private: "PrivateController | None") -> None:
    from plait.cli.nodes import print_devices

    if private is not None:
        say(f"private controller; from another terminal: plait status --state {private.state}")
    print_devices(found["nodes"])
    for limitation in found["controller"]["limitations"]:
        say(f"not emulated: {limitation}")


def _part(private: "PrivateController", result: "JobAnswer", keep: bool, as_json: bool) -> None:
    """Removes a temporary state directory, but never what a job left in it."""
    outputs = private.state / "jobs" / result["job_id"] / "run"
    has_outputs = outputs.is_dir() and any(outputs.iterdir())
    if has_outputs and not as_json:
        say(f"what the job wrote is in {outputs}")
    if not private.is_temporary:
        return
    if keep or has_outputs or result["state"] != "succeeded":
        if not as_json:
            say(f"logs and history are in {private.state}")
    else:
        private.forget()


def _screen(as_json: bool) -> "Screen":
    from plait.cli.screen import LiveScreen, PlainScreen, SilentScreen

    if as_json:
        return SilentScreen()
    return LiveScreen() if sys.stdout.isatty() else PlainScreen()


class _Interrupts:
    """Counts Ctrl-C; the second one ends the program as usual."""

    def __init__(self, stack: ExitStack) -> None:
        self.count = 0
        before = signal.signal(signal.SIGINT, self._take)
        stack.callback(signal.signal, signal.SIGINT, before)

    def _take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
