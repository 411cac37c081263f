"""``plait plan``: what would run where and when, without doing it."""

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from plait.cli.failures import OK
from plait.cli.options import ClusterOption, JobFileArgument, JsonOption, StateOption
from plait.cli.output import print_json, print_reasons, print_table, say

if TYPE_CHECKING:
    from plait.controller.answers import PlanAnswer, PlannedTask
    from plait.spec.cluster import Cluster
    from plait.spec.job import Job


def plan(
    file: JobFileArgument, cluster: ClusterOption = None, state: StateOption = None, as_json: JsonOption = False
) -> int:
    """Tell what would run where and when, with reasons.

    Nothing is changed. With --cluster it is planned on that cluster, idle; otherwise on the running controller's as it
    is now.
    """
    from plait.cli.connection import connect
    from plait.spec.load import load_cluster, load_job

    if cluster is not None:
        description = load_cluster(cluster)
        answer = plan_idle(load_job(file, description), description)
    else:
        answer = connect(state).plan(load_job(file))
    if as_json:
        print_json(answer)
        return OK
    for task in answer["tasks"]:
        _print_task(task)
    for line in answer["preempts"]:
        say(line)
    return OK


def plan_idle(job: "Job", cluster: "Cluster") -> "PlanAnswer":
    """Returns the plan on the cluster of a file with all its nodes up and nothing running."""
    from plait.controller.plan import plan_on
    from plait.engines.registry import load_engine
    from plait.schedule import machine
    from plait.schedule.events import NodeJoined

    state, event_id, now_s = machine.initial(cluster), 1, time.time()
    with tempfile.TemporaryDirectory(prefix="plait-") as directory:
        nodes = load_engine(cluster, Path(directory)).discover()
    for node in nodes:
        state, _ = machine.apply(state, NodeJoined(id=event_id, at_s=now_s, node=node))
        event_id += 1
    return plan_on(state, job, f"{job.name}-1", event_id=event_id, now_s=now_s)


def _print_task(task: "PlannedTask") -> None:
    after = " and ".join(task["after"])
    if not task["workers"]:
        when = "would wait"
    elif task["starts_now"]:
        when = f"would start now with {len(task['workers'])} workers"
    else:
        when = f"would start with {len(task['workers'])} workers once {after} succeeded"
    say(f"{task['task']}: {when}")
    print_reasons(task["reasons"])
    if task["workers"]:
        rows = [
            (worker["worker_id"], worker["rank"], " ".join(worker["device_ids"]), worker["accelerator_type"])
            for worker in task["workers"]
        ]
        print_table(("  WORKER", ">RANK", "DEVICES", "TYPE"), [("  " + str(row[0]), *row[1:]) for row in rows])
