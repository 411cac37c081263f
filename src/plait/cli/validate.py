"""``plait validate``: every error of job and cluster files at once."""

import re
from pathlib import Path
from typing import Annotated

import typer

from plait.cli.failures import OK, USAGE
from plait.cli.options import JsonOption
from plait.cli.output import print_json, say, warn
from plait.errors import SpecError

JOB_KEYS = frozenset({"name", "project", "priority", "tasks", "precision", "communication", "batching", "data"})
CLUSTER_KEYS = frozenset({"engine", "nodes", "policy", "price_windows", "store", "listen", "monitor"})
_TOP_KEY = re.compile(r"^([A-Za-z_]+)\s*:", re.MULTILINE)


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Job and cluster files, told apart by keys.")],
    as_json: JsonOption = False,
) -> int:
    """Check job and cluster files and print all their errors, each with line, column and the nearest right word."""
    reports = [(path, *_check(path)) for path in files]
    if as_json:
        print_json(
            [{"file": str(path), "kind": kind, "ok": not bad, "problems": list(bad)} for path, kind, bad in reports]
        )
    else:
        for path, kind, problems in reports:
            if not problems:
                say(f"{path}: ok ({kind})")
            for problem in problems:
                warn(problem)
    return USAGE if any(problems for _, _, problems in reports) else OK


def kind_of(text: str) -> str:
    """Returns ``job`` or ``cluster``, whichever has more of its own top-level keys in this YAML text."""
    keys = set(_TOP_KEY.findall(text))
    return "cluster" if len(keys & CLUSTER_KEYS) > len(keys & JOB_KEYS) else "job"


def _check(path: Path) -> tuple[str, tuple[str, ...]]:
    from plait.spec.load import load_cluster, load_job

    try:
        kind = kind_of(path.read_text(encoding="utf-8"))
    except OSError as error:
        return "file", (f"{path}: {(error.strerror or str(error)).lower()}",)
    except UnicodeDecodeError as error:
        return "file", (f"{path}: not UTF-8 text (byte {error.start})",)
    try:
        load_cluster(path) if kind == "cluster" else load_job(path)
    except SpecError as error:
        return kind, error.problems
    return kind, ()
