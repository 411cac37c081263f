"""JSON Schema of the YAML files, for editors: keys, types, patterns and what each key means."""

import ast
import importlib.resources
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from plait.spec.cluster_document import ClusterDocument
from plait.spec.document import Document
from plait.spec.job_document import JobDocument
from plait.spec.scenario_document import ScenarioDocument
from plait.spec.units import (
    DURATION,
    SIZE,
    TIME_OF_DAY_PATTERN,
    duration_text,
    size_text,
    time_of_day_text,
)

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
Kind = Literal["job", "cluster", "scenario"]

_FORMS: dict[Kind, type[Document]] = {"job": JobDocument, "cluster": ClusterDocument, "scenario": ScenarioDocument}
_TITLES: dict[Kind, str] = {"job": "Plait job", "cluster": "Plait cluster", "scenario": "Plait scenario"}


def schema(kind: Kind) -> dict[str, Any]:
    """Returns the JSON Schema of ``job.yaml``, ``cluster.yaml`` or a file for ``plait explain --scenario``.

    It holds for single values; what several keys say together only the loader checks.
    """
    made = _FORMS[kind].model_json_schema(by_alias=True)
    docs = _attribute_docs()
    for name, form in (*made.get("$defs", {}).items(), (_FORMS[kind].__name__, made)):
        described = _form(name)
        aliases = {field.alias or key: key for key, field in described.model_fields.items()}
        for key, field in form["properties"].items():
            field.pop("title", None)
            _drop_null(field)
            _write_default(field)
            if "patternProperties" in field:
                # The pattern says all of the names; a name that does not match it is refused.
                field["additionalProperties"] = False
                field.pop("propertyNames", None)
            words = _words(docs, described, aliases[key]).replace("``", "`")
            form["properties"][key] = {"description": words, **field}
        form.pop("title", None)
    description = made.pop("description")
    return {"$schema": _DIALECT, "title": _TITLES[kind], "description": description, **made}


def _form(name: str) -> type[Document]:
    return next(form for form in forms() if form.__name__ == name)


def forms(of: type[Document] = Document) -> Iterator[type[Document]]:
    """Goes over all forms, those that extend another one included."""
    for form in of.__subclasses__():
        yield form
        yield from forms(form)


def _words(docs: Mapping[str, Mapping[str, str]], form: type[Document], key: str) -> str:
    """Returns what a key means: what the form says of it, else the form that it extends."""
    return next(docs[one.__name__][key] for one in form.__mro__ if key in docs.get(one.__name__, {}))


def _drop_null(field: dict[str, Any]) -> None:
    """Leaves out the null that stands for a missing key: a key without value is refused."""
    options = [option for option in field.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1 and len(field["anyOf"]) == 2:
        del field["anyOf"]
        field.update(options[0])
    if field.get("default", 0) is None:
        del field["default"]


def _write_default(field: dict[str, Any]) -> None:
    """Writes the default of a quantity with its unit, as the file would have it."""
    patterns = {option.get("pattern") for option in (field, *field.get("anyOf", ()))}
    written: tuple[tuple[str, Callable[[Any], str]], ...] = (
        (DURATION.pattern, duration_text),
        (SIZE.pattern, size_text),
        (TIME_OF_DAY_PATTERN, time_of_day_text),
    )
    for pattern, text in written:
        if pattern in patterns and isinstance(field.get("default"), (int, float)):
            field["default"] = text(field["default"])


def _attribute_docs() -> dict[str, dict[str, str]]:
    """Returns the docstring below each attribute of each document class.

    Read from the source only here, as it is slow and nobody else needs it.
    """
    sources = [f"{kind}_document.py" for kind in ("job", "cluster", "scenario")]
    folder = importlib.resources.files("plait.spec")
    trees = [ast.parse(folder.joinpath(name).read_text(encoding="utf-8")) for name in sources]
    found: dict[str, dict[str, str]] = {}
    for node in (node for tree in trees for node in tree.body):
        if not isinstance(node, ast.ClassDef):
            continue
        docs = found.setdefault(node.name, {})
        for statement, following in zip(node.body, node.body[1:], strict=False):
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            doc = following.value if isinstance(following, ast.Expr) else None
            if isinstance(target, ast.Name) and isinstance(doc, ast.Constant):
                docs[target.id] = str(doc.value)
    return found
