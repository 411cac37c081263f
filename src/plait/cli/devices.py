"""``plait devices``: what this machine, or a captured one, can compute with, and how each device was recognised."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.failures import OK
from plait.cli.options import JsonOption
from plait.cli.output import print_json, say

if TYPE_CHECKING:
    from plait.hardware.topology import Fragment

FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="TREE|DUMP",
        help="A captured tree or archive, a tool's output, or a directory of such; this machine unless given.",
        show_default=False,
    ),
]
CaptureOption = Annotated[
    Path | None,
    typer.Option(
        metavar="OUT.TAR",
        help="Write what the probes read here, without names, numbers and addresses of yours, for --from.",
        show_default=False,
    ),
]
LimitOption = Annotated[float, typer.Option(metavar="S", help="How long one vendor's driver may take.", min=0.1)]


def devices(
    source: FromOption = None,
    *,
    capture: CaptureOption = None,
    time_limit: LimitOption = 5.0,
    as_json: JsonOption = False,
) -> int:
    """List this machine's accelerators, processors and NICs, with types and why, and what could not be seen."""
    if capture is not None:
        if source is not None:
            raise typer.BadParameter("--capture writes what this machine is; it takes no --from")
        return _capture(capture, as_json)
    found, env = _found(source, time_limit)
    from plait.cli.devices_view import document, show

    if as_json:
        print_json(document(found, env))
    else:
        show(found, env)
    return OK


def _found(source: Path | None, limit_s: float) -> "tuple[Fragment, dict[str, str]]":
    if source is None:
        import os

        from plait.hardware.contexts import LiveContext
        from plait.hardware.discovery import discover

        return discover(LiveContext(time_limit_s=limit_s), limit_s=limit_s), dict(os.environ)
    from plait.hardware.captures import read_machine

    return read_machine(source), {}


def _capture(path: Path, as_json: bool) -> int:
    from plait.hardware.captures import write_capture
    from plait.hardware.contexts import LiveContext

    counts = write_capture(LiveContext(), path)
    if as_json:
        print_json({"capture": str(path), **counts})
    else:
        say(
            f"{path}: {counts['files']} files and the outputs of {counts['commands']} commands, scrubbed; "
            f"look through it, then try `plait devices --from {path}`"
        )
    return OK
