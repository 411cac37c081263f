"""``plait explain``: every reason behind a job's state, or behind a choice of devices."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.failures import OK
from plait.cli.options import JsonOption, StateOption
from plait.cli.output import print_json, print_reasons, say

if TYPE_CHECKING:
    from plait.controller.answers import TaskExplanation


SubjectArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB|placement",
        help="Id of a job, as `plait status` lists it; or the word placement.",
        show_default=False,
    ),
]
FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NODE=]FILE...",
        help="With placement: what tools printed of the machines; this one unless given. With comm: one job or file.",
        show_default=False,
    ),
]
DevicesOption = Annotated[
    int | None,
    typer.Option("--devices", metavar="K", min=1, help="With placement: devices in the group.", show_default=False),
]
FreeOption = Annotated[
    str | None,
    typer.Option(
        "--free", metavar="0,3,5", help="With placement: devices that are free, by number or name.", show_default=False
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="With placement: model of accelerators that the files leave unnamed.", show_default=False
    ),
]
CpuOption = Annotated[
    str | None,
    typer.Option("--cpu", metavar="NAME", help="With placement: processor where no file names it.", show_default=False),
]
ScenarioOption = Annotated[
    Path | None,
    typer.Option(
        "--scenario", metavar="FILE", help="Ask a cluster on paper, described by a file, instead of a controller.",
        show_default=False,
    ),
]  # fmt: skip


def explain(
    subject: SubjectArgument = "",
    files: FilesArgument = None,
    *,
    devices: DevicesOption = None,
    free: FreeOption = None,
    model: ModelOption = None,
    cpu: CpuOption = None,
    scenario: ScenarioOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Tell why a job waits, runs where it does, or was retried; or which devices a group would be made of.

    Of a running job also why each worker gets the share of a step that it gets. With the word placement instead of a
    job, and --devices K: which K devices of a machine have the fastest ring, and why others lose, without a controller.

    Of a waiting job also which constraint keeps it, and when it will probably start. With --scenario all jobs of the
    file, or one of them; what the file expects is compared, and the exit code is 1 where it is not so.
    """
    if scenario is not None:
        from plait.cli.explain_scenario import explain_scenario

        return explain_scenario(scenario, subject, as_json=as_json)
    if not subject:
        raise typer.BadParameter("name a job, or a file with --scenario")
    if subject == "placement":  # no job is called that: the ids of jobs end with a number
        from plait.cli.explain_placement import explain_placement

        if devices is None:
            raise typer.BadParameter("`plait explain placement` needs --devices K, the size of the group")
        return explain_placement(files or (), devices, free, model=model, cpu=cpu, as_json=as_json)
    if subject == "comm":
        from plait.cli.explain_comm import explain_comm

        if files is None or len(files) != 1:
            raise typer.BadParameter(f"`plait explain comm` takes one job, folder or file; got {len(files or ())}")
        return explain_comm(files[0], state, as_json=as_json)
    if files or devices is not None or free is not None or model is not None or cpu is not None:
        raise typer.BadParameter("files, --devices, --free, --model and --cpu go with `plait explain placement`")
    return _explain_job(subject, state, as_json)


def _explain_job(job: str, state: Path | None, as_json: bool) -> int:
    from plait.cli.connection import connect

    answer = connect(state).explain(job)
    if as_json:
        print_json(answer)
        return OK
    say(f"{answer['job_id']} is {answer['state']}")
    for task in answer["tasks"]:
        _print_task(task)
    return OK


def _print_task(task: "TaskExplanation") -> None:
    say(f"\n{task['task']}: {task['state']}")
    if task["waiting"] and task["waiting"] not in task["placement"]:
        say(f"  why now: {task['waiting']}")
    if task["constraint"]:
        say(f"  waits for: {task['constraint']}: {task['constraint_reason']}")
        say(f"  when: {task['starts']}")
    if task["placement"]:
        say("  why there:")
        print_reasons(task["placement"], "    ")
    if task["split"]:
        say(f"  why this split: {task['split']}")
    if task["history"]:
        say("  what happened:")
        print_reasons(task["history"], "    ")
