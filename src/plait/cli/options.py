"""Options and arguments that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="PLAIT_STATE",
        metavar="DIR",
        help="Directory of the controller's state; ~/.local/state/plait unless given.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of a job, as `plait status` lists it.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node, as `plait nodes` lists it.")]
JobFileArgument = Annotated[Path, typer.Argument(metavar="JOB.YAML", help="The job file.")]
ClusterOption = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="CLUSTER.YAML", help="The cluster file.", show_default=False),
]
