"""The ``plait`` command: the table of verbs, and how their errors become one sentence and an exit code."""

import gc
import os
import re
import sys
from collections.abc import Callable, Sequence

import typer

from plait.cli.agent import agent
from plait.cli.cancel import cancel
from plait.cli.checkpoints import checkpoints
from plait.cli.devices import devices
from plait.cli.drain import drain
from plait.cli.explain import explain
from plait.cli.failures import FAILED, INTERRUPTED, OK, USAGE, exit_code_of
from plait.cli.inject import inject
from plait.cli.logs import logs
from plait.cli.nodes import nodes
from plait.cli.output import print_json, warn
from plait.cli.plan import plan
from plait.cli.resize import resize
from plait.cli.resume import resume
from plait.cli.run import run
from plait.cli.schema import schema
from plait.cli.serve import serve
from plait.cli.simulate import simulate
from plait.cli.status import status
from plait.cli.submit import submit
from plait.cli.topology import topology
from plait.cli.validate import validate
from plait.errors import ControllerUnreachable, PlaitError, SpecError

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a wrong command line; it lives in a private module in some versions, in click in others."""

GARBAGE_THRESHOLD = 50_000
"""Objects between two collections: Python's own 700 costs a sixth of the time that a short verb takes."""

Verb = Callable[..., int]
VERBS: tuple[tuple[str, Verb, str], ...] = (
    ("Jobs", run, "plait run job.yaml --cluster cluster.yaml"),
    ("Jobs", submit, "plait submit job.yaml"),
    ("Jobs", status, "plait status"),
    ("Jobs", logs, "plait logs resnet50-1 --rank 0 --follow"),
    ("Jobs", explain, "plait explain resnet50-1"),
    ("Jobs", resize, "plait resize resnet50-1 --workers 4:8"),
    ("Jobs", cancel, "plait cancel resnet50-1"),
    ("Jobs", inject, "plait inject resnet50-1 w2 kill"),
    ("Jobs", checkpoints, "plait checkpoints runs/first/checkpoint verify"),
    ("Before you submit", validate, "plait validate job.yaml cluster.yaml"),
    ("Before you submit", plan, "plait plan job.yaml --cluster cluster.yaml"),
    ("Before you submit", simulate, "plait simulate jobs.csv --cluster V100:3x4,P100:3x4 --policy sia --against fifo"),
    ("Before you submit", schema, "plait schema job > job.schema.json"),
    ("Cluster", devices, "plait devices"),
    ("Cluster", nodes, "plait nodes"),
    ("Cluster", topology, "plait topology --svg wiring.svg"),
    ("Cluster", drain, "plait drain a100-box"),
    ("Cluster", resume, "plait resume a100-box"),
    ("Cluster", serve, "plait serve --cluster cluster.yaml"),
    ("Cluster", agent, "plait agent --name a100-box --accelerator A100:2 --controller 10.0.0.1:9401"),
)
"""Every verb with its panel in ``plait --help`` and an example."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from plait import __version__

        sys.stdout.write(f"plait {__version__}\n")
        raise typer.Exit


def application(chosen: str | None = None) -> typer.Typer:
    """Returns the typer application with all verbs, or with the chosen one, which takes typer less time to prepare."""
    app = typer.Typer(
        name="plait",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog="Example: plait run job.yaml --cluster cluster.yaml")(plait)
    names = {verb.__name__ for _, verb, _ in VERBS}
    for panel, verb, example in VERBS:
        if chosen in names and verb.__name__ != chosen:
            continue
        app.command(epilog=f"Example: {example}", rich_help_panel=panel)(verb)
    return app


def plait(
    *,
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Train one model on a cluster of unequal devices, at the sum of their speeds, and let nothing stop it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``plait`` with these arguments (those of the process unless given) and exits with the verb's code."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(execute(given))


def execute(arguments: Sequence[str]) -> int:
    """Runs one verb and returns its exit code; errors are told in the form that the verb was asked to speak."""
    as_json = "--json" in arguments
    try:
        app = application(arguments[0] if arguments else None)
        return int(app(args=list(arguments), prog_name="plait", standalone_mode=False) or OK)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if os.environ.get("PLAIT_TRACEBACK"):
            raise
        return _tell(error, _exit_code(error), as_json)


def _exit_code(error: Exception) -> int:
    if isinstance(error, _USAGE_ERROR):
        return USAGE
    return exit_code_of(error) if isinstance(error, PlaitError) else FAILED


def _tell(error: Exception, exit_code: int, as_json: bool) -> int:
    message = _sentence(error)
    if not message:  # plait without a verb has printed its help
        return exit_code
    if as_json:
        document: dict[str, object] = {"error": message, "kind": type(error).__name__, "exit_code": exit_code}
        if isinstance(error, SpecError):
            document["problems"] = list(error.problems)
        print_json(document)
    else:
        warn(message if isinstance(error, SpecError) else f"plait: {message}")
    return exit_code


def _sentence(error: Exception) -> str:
    if isinstance(error, ControllerUnreachable):
        return f"{error}; start one with `plait serve`, or name its directory with --state"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{(error.strerror or str(error)).lower()}"
    shape = getattr(error, "format_message", None)
    if shape is None:
        is_defect = not isinstance(error, PlaitError)
        return f"a defect in Plait: {error!r}; PLAIT_TRACEBACK=1 shows where" if is_defect else str(error)
    text = " ".join(str(shape()).split()).removeprefix("Invalid value: ")
    text = text[:1].lower() + text[1:]
    text = re.sub(r" \(Possible options: (.*)\)", r"; did you mean \1?", text)
    return text.replace(". Did you mean", "; did you mean").rstrip(".")


if __name__ == "__main__":
    main()
