"""``job.yaml`` and ``cluster.yaml`` to frozen values; every fault of a file is told at once, each with its place."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from plait.errors import SpecError
from plait.spec.cluster import Cluster
from plait.spec.cluster_document import ClusterDocument
from plait.spec.cluster_rules import check_cluster
from plait.spec.compose import MAX_BYTES, compose
from plait.spec.convert import to_cluster, to_job, to_scenario
from plait.spec.document import Document
from plait.spec.explain import tell
from plait.spec.job import Job
from plait.spec.job_document import JobDocument
from plait.spec.job_rules import check_job, text
from plait.spec.keys import KeyCheck, allowed_keys
from plait.spec.scenario import Scenario
from plait.spec.scenario_document import ScenarioDocument
from plait.spec.scenario_rules import check_scenario
from plait.spec.tree import At, Mapping, Place, Report, Sequence
from plait.spec.units import shown

D = TypeVar("D", bound=Document)


def load_job(path: str | Path, cluster: Cluster | None = None) -> Job:
    """Returns the job of a file; with a cluster also its price windows are checked.

    Raises:
        SpecError: the file cannot be read or is wrong; it names every fault, one line each.
    """
    return _job(_read(path), str(path), cluster)


def load_cluster(path: str | Path) -> Cluster:
    """Returns the cluster of a file.

    Raises:
        SpecError: the file cannot be read or is wrong; it names every fault, one line each.
    """
    return _cluster(_read(path), str(path))


def load_scenario(path: str | Path) -> Scenario:
    """Returns the scenario of a file.

    Raises:
        SpecError: the file cannot be read or is wrong; it names every fault, one line each.
    """
    return to_scenario(_document(_read(path), str(path), ScenarioDocument, check_scenario))


def parse_job(source: str | bytes, name: str, cluster: Cluster | None = None) -> Job:
    """Returns the job of a YAML text; messages call the text ``name``."""
    return _job(_bytes(source), name, cluster)


def parse_cluster(source: str | bytes, name: str) -> Cluster:
    """Returns the cluster of a YAML text; messages call the text ``name``."""
    return _cluster(_bytes(source), name)


def _job(data: bytes, name: str, cluster: Cluster | None) -> Job:
    return to_job(_document(data, name, JobDocument, lambda root, report: check_job(root, report, cluster)))


def _cluster(data: bytes, name: str) -> Cluster:
    return to_cluster(_document(data, name, ClusterDocument, check_cluster))


def _bytes(source: str | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.encode("utf-8", errors="surrogatepass")


def _read(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError((f"{path}: the file cannot be read: {reason}",)) from None


def _document(data: bytes, name: str, form: type[D], check: Callable[[At, Report], None]) -> D:
    report = Report()
    document = _checked(data, form, check, report)
    if report or document is None:
        raise SpecError(report.lines(name))
    return document


def _checked(data: bytes, form: type[D], check: Callable[[At, Report], None], report: Report) -> D | None:
    root = compose(data, report)
    if root is None or not isinstance(root, Mapping):
        if not report:
            found = "a list" if isinstance(root, Sequence) else "one value"
            is_empty = root is None or root.value() is None
            said = "the file is empty" if is_empty else f"expected a mapping (key: value); got {found}"
            report.add(
                root.place if root is not None else Place(1, 1), (), f"{said}; a file starts with apiVersion: v1"
            )
        return None
    if _is_foreign(At(root), form, report):
        return None
    keys = KeyCheck(report)
    node = keys.clean(root, form)
    document = None
    try:
        document = form.model_validate(node.value())
    except ValidationError as error:
        for finding in error.errors(include_url=False):
            tell(finding, node, keys, report)
    check(At(node), report)
    return document


def _is_foreign(root: At, form: type[Document], report: Report) -> bool:
    """Reports a file of another kind or version, of which nothing else can be said."""
    version = text(root, "apiVersion")
    at = root.key("apiVersion")
    if at is not None and version is not None and version != "v1" and re.fullmatch(r"v[0-9]+\w*", version):
        report.add(at.place, at.path, f"unknown apiVersion {shown(version)}; this Plait reads v1")
        return True
    if form is ScenarioDocument:
        return False
    other, said = (
        (ClusterDocument, "this is a cluster file, not a job")
        if form is JobDocument
        else (JobDocument, "this is a job file, not a cluster")
    )
    own, foreign = set(allowed_keys(form)), set(allowed_keys(other))
    keys = [entry for entry, _ in root.entries()]
    names = {entry.key for entry in keys}
    if names & (foreign - own) and not names & (own - foreign):
        first = next(entry for entry in keys if entry.key in foreign - own)
        report.add(first.key_place, (first.key,), said)
        return True
    return False
