"""``plait validate``: every error of job and cluster files at once."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.failures import OK, USAGE
from plait.cli.options import JsonOption
from plait.cli.output import print_json, say, warn
from plait.errors import SpecError

if TYPE_CHECKING:
    from plait.spec.cluster import Cluster

JOB_KEYS = frozenset({"name", "project", "priority", "tasks", "precision", "communication", "batching", "data"})
CLUSTER_KEYS = frozenset({"engine", "nodes", "policy", "price_windows", "projects", "store", "listen", "monitor"})
_TOP_KEY = re.compile(r"^([A-Za-z_]+)\s*:", re.MULTILINE)


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Job and cluster files, told apart by keys.")],
    as_json: JsonOption = False,
) -> int:
    """Check job and cluster files; print every error.

    Each error has its line and column, and the nearest right word where there is one. Jobs that are checked together
    with one cluster file are also checked against that cluster.
    """
    kinds = {path: kind_of(path) for path in files}
    clusters = {path: _check_cluster(path) for path in files if kinds[path] == "cluster"}
    cluster = next((found for found, _ in clusters.values()), None) if len(clusters) == 1 else None
    problems = {path: clusters[path][1] if path in clusters else _check_job(path, cluster) for path in files}
    if as_json:
        print_json(
            [
                {"file": str(path), "kind": kinds[path], "ok": not problems[path], "problems": problems[path]}
                for path in files
            ]
        )
    else:
        for path in files:
            _print(path, kinds[path], problems[path])
    return USAGE if any(problems.values()) else OK


def kind_of(path: Path) -> str:
    """Returns ``job`` or ``cluster``, whichever has more of its own top-level keys in this file."""
    try:
        keys = set(_TOP_KEY.findall(path.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return "job"
    return "cluster" if len(keys & CLUSTER_KEYS) > len(keys & JOB_KEYS) else "job"


def _check_job(path: Path, cluster: "Cluster | None") -> tuple[str, ...]:
    from plait.spec.load import load_job

    try:
        load_job(path, cluster)
    except SpecError as error:
        return error.problems
    return ()


def _check_cluster(path: Path) -> "tuple[Cluster | None, tuple[str, ...]]":
    from plait.spec.load import load_cluster

    try:
        return load_cluster(path), ()
    except SpecError as error:
        return None, error.problems


def _print(path: Path, kind: str, problems: Iterable[str]) -> None:
    lines = list(problems)
    for line in lines:
        warn(line)
    if not lines:
        say(f"{path}: ok ({kind})")
