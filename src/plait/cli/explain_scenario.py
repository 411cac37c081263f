"""``plait explain --scenario``: why jobs wait on a cluster that a file describes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plait.cli.failures import FAILED, OK
from plait.cli.output import print_json, print_reasons, say
from plait.errors import PlaitError
from plait.words import did_you_mean

if TYPE_CHECKING:
    from plait.schedule.on_paper import Told


def explain_scenario(file: Path, job: str, *, as_json: bool) -> int:
    """Tells what is known of the jobs of a scenario, and whether it is what the file expects."""
    from plait.schedule.on_paper import played, told, unmet
    from plait.spec.load import load_scenario

    scenario = load_scenario(file)
    names = [one.job.name for one in scenario.jobs]
    if job and job not in names:
        raise PlaitError(f"{file}: the scenario has no job {job!r}{did_you_mean(job, names)}")
    all_told = told(scenario, played(scenario))
    faults = unmet(scenario, all_told)
    shown = [one for one in all_told if job in {"", one.job}]
    if as_json:
        print_json({"scenario": scenario.name, "tasks": [_document(one) for one in shown], "unmet": list(faults)})
    else:
        _print(shown)
        for fault in faults:
            say(f"not as expected: {fault}")
        if scenario.expect and not faults:
            say(f"as expected: {len(scenario.expect)} of {len(scenario.expect)}")
    return FAILED if faults else OK


def _print(shown: "Sequence[Told]") -> None:
    for one in shown:
        task = one.explanation
        say(f"{one.job}/{task.task}: {task.state}")
        if task.constraint is not None:
            also = f" (also: {', '.join(task.constraint.also)})" if task.constraint.also else ""
            say(f"  waits for: {task.constraint.kind}{also}: {task.constraint.reason}")
            say(f"  when: {task.starts}")
        if task.waiting and (task.constraint is None or task.waiting != task.constraint.reason):
            say(f"  why now: {task.waiting}")
        if task.placement:
            say("  why there:")
            print_reasons(task.placement, "    ")
        if task.history:
            say("  what happened:")
            print_reasons(task.history, "    ")


def _document(one: "Told") -> dict[str, object]:
    task = one.explanation
    return {
        "job": one.job,
        "task": task.task,
        "state": task.state,
        "constraint": task.constraint.kind if task.constraint is not None else None,
        "reason": task.constraint.reason if task.constraint is not None else task.waiting,
        "also": list(task.constraint.also) if task.constraint is not None else [],
        "starts_in_s": task.starts_in_s,
        "starts": task.starts,
        "placement": list(task.placement),
        "history": list(task.history),
    }
