"""``plait plan``: what would run where and when, without doing it."""

import time
from typing import TYPE_CHECKING

from plait.cli.failures import OK
from plait.cli.options import ClusterOption, JobFileArgument, JsonOption, StateOption
from plait.cli.output import counted, print_json, print_reasons, print_table, say

if TYPE_CHECKING:
    from plait.controller.answers import PlanAnswer, PlannedTask
    from plait.hardware.device import Node
    from plait.spec.cluster import Cluster
    from plait.spec.job import Job

ADDRESS = "127.0.0.1"
PORTS = (21000, 1000)
"""Where planned workers would listen; nobody does."""


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
    from plait.controller.plan import plan_told
    from plait.schedule import machine
    from plait.schedule.events import NodeJoined, Tick
    from plait.schedule.preview import preview

    now_s = time.time()
    clock = time.localtime(now_s)
    day_s = clock.tm_hour * 3600 + clock.tm_min * 60 + clock.tm_sec
    state, _ = machine.apply(machine.initial(cluster), Tick(id=1, at_s=now_s, day_s=day_s))
    nodes = idle_nodes(cluster)
    for number, node in enumerate(nodes, start=2):
        state, _ = machine.apply(state, NodeJoined(id=number, at_s=now_s, node=node))
    return plan_told(preview(state, job, f"{job.name}-1", event_id=len(nodes) + 2, now_s=now_s))


def idle_nodes(cluster: "Cluster") -> "tuple[Node, ...]":
    """Returns the nodes of a cluster file, or this machine where it names none; raises PlaitError for other engines."""
    from plait.engines.this_machine import emulated_node, local_node
    from plait.errors import PlaitError

    if cluster.engine != "local":
        raise PlaitError(f"what engine {cluster.engine!r} offers is known only to a controller; plan without --cluster")
    if not cluster.nodes:
        return (local_node(ADDRESS, PORTS),)
    have_quotas = any(node.cpu_quota is not None for node in cluster.nodes)
    return tuple(emulated_node(node, ADDRESS, PORTS, others_have_quotas=have_quotas) for node in cluster.nodes)


def _print_task(task: "PlannedTask") -> None:
    after = " and ".join(task["after"])
    workers = counted(len(task["workers"]), "worker")
    if not task["workers"]:
        when = "would wait"
    elif task["starts_now"]:
        when = f"would start now with {workers}"
    else:
        when = f"would start with {workers} once {after} succeeded"
    say(f"{task['task']}: {when}")
    print_reasons(task["reasons"])
    if task["workers"]:
        rows = [
            (f"  {worker['worker_id']}", worker["rank"], " ".join(worker["device_ids"]), worker["accelerator_type"])
            for worker in task["workers"]
        ]
        print_table(("  WORKER", ">RANK", "DEVICES", "TYPE"), rows)
