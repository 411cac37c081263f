"""JSON Schema of the YAML files, for editors: keys, types, patterns and what each key means."""

import ast
import importlib.resources
from typing import Any, Literal

from plait.spec.document import ClusterDocument, Document, JobDocument
from plait.spec.units import DURATION, SIZE, duration_text, size_text

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_FORMS: dict[str, type[Document]] = {"job": JobDocument, "cluster": ClusterDocument}
_TITLES = {"job": "Plait job", "cluster": "Plait cluster"}


def schema(kind: Literal["job", "cluster"]) -> dict[str, Any]:
    """Returns the JSON Schema of ``job.yaml`` or ``cluster.yaml``.

    It holds for single values; what several keys say together only the loader checks.
    """
    made = _FORMS[kind].model_json_schema(by_alias=True)
    docs = _attribute_docs()
    for name, form in (*made.get("$defs", {}).items(), (_FORMS[kind].__name__, made)):
        aliases = {field.alias or key: key for key, field in _form(name).model_fields.items()}
        for key, field in form["properties"].items():
            field.pop("title", None)
            _drop_null(field)
            _write_default(field)
            if "patternProperties" in field:
                # The pattern says all of the names; a name that does not match it is refused.
                field["additionalProperties"] = False
                field.pop("propertyNames", None)
            words = docs[name][aliases[key]].replace("``", "`")
            form["properties"][key] = {"description": words, **field}
        form.pop("title", None)
    description = made.pop("description")
    return {"$schema": _DIALECT, "title": _TITLES[kind], "description": description, **made}


def _form(name: str) -> type[Document]:
    return next(form for form in Document.__subclasses__() if form.__name__ == name)


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
    for quantity, text in ((DURATION, duration_text), (SIZE, size_text)):
        if quantity.pattern in patterns and isinstance(field.get("default"), (int, float)):
            field["default"] = text(field["default"])


def _attribute_docs() -> dict[str, dict[str, str]]:
    """Returns the docstring below each attribute of each document class.

    Read from the source only here, as it is slow and nobody else needs it.
    """
    source = importlib.resources.files("plait.spec").joinpath("document.py").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        docs = found.setdefault(node.name, {})
        for statement, following in zip(node.body, node.body[1:], strict=False):
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            doc = following.value if isinstance(following, ast.Expr) else None
            if isinstance(target, ast.Name) and isinstance(doc, ast.Constant):
                docs[target.id] = str(doc.value)
    return found
