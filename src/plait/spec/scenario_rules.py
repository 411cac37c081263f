"""What several keys of a scenario file say together."""

from plait.spec.cluster_rules import check_cluster
from plait.spec.job_rules import check_job, find, items, named, tell_repeats, text
from plait.spec.tree import At, Report
from plait.spec.units import shown
from plait.words import did_you_mean

ABOUT_NODES = ("drain", "resume", "lose")
ABOUT_TASKS = ("finish", "fail", "cancel")


def check_scenario(root: At, report: Report) -> None:
    """Adds every contradiction between keys of a scenario to the report."""
    cluster = find(root, "cluster")
    if cluster is not None:
        check_cluster(cluster, report)
    jobs = items(root, "jobs")
    for job in jobs:
        check_job(job, report, None)
    tell_repeats(named(jobs, "name"), "the job name", report)
    tasks = {
        name: [task for task, _ in named(items(job, "tasks"), "name")]
        for job in jobs
        if (name := text(job, "name")) is not None
    }
    nodes = [name for name, _ in named(items(root, "cluster", "nodes"), "name")]
    for event in items(root, "events"):
        _event(event, nodes, tasks, report)
    for one in items(root, "expect"):
        _expectation(one, tasks, report)


def _event(event: At, nodes: list[str], tasks: dict[str, list[str]], report: Report) -> None:
    keys = [entry.key for entry, _ in event.entries() if entry.key != "ago"]
    if len(keys) != 1:
        told = f"; got {', '.join(keys)}" if keys else ""
        known = ", ".join((*ABOUT_NODES, *ABOUT_TASKS, "price"))
        report.add(event.place, event.path, f"an event tells one thing: one of {known}{told}")
    for key in ABOUT_NODES:
        at, name = find(event, key), text(event, key)
        if at is not None and name is not None and name not in nodes:
            hint = did_you_mean(name, nodes) or f"; there are {', '.join(nodes)}"
            report.add(at.place, at.path, f"the scenario has no node {shown(name)}{hint}")
    for key in ABOUT_TASKS:
        at, name = find(event, key), text(event, key)
        if at is not None and name is not None:
            job, _, task = name.partition("/")
            _known(at, job, task or None, tasks, report)


def _expectation(one: At, tasks: dict[str, list[str]], report: Report) -> None:
    job, task = text(one, "job"), text(one, "task")
    at = find(one, "job")
    if at is None or job is None:
        return
    _known(at, job, task, tasks, report)
    if task is None and len(tasks.get(job, ())) > 1:
        report.add(at.place, at.path, f"job {shown(job)} has several tasks; say which: {', '.join(tasks[job])}")


def _known(at: At, job: str, task: str | None, tasks: dict[str, list[str]], report: Report) -> None:
    if job not in tasks:
        hint = did_you_mean(job, tasks) or f"; there are {', '.join(tasks)}"
        report.add(at.place, at.path, f"the scenario has no job {shown(job)}{hint}")
    elif task is not None and task not in tasks[job]:
        hint = did_you_mean(task, tasks[job]) or f"; it has {', '.join(tasks[job])}"
        report.add(at.place, at.path, f"job {shown(job)} has no task {shown(task)}{hint}")
