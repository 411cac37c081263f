"""What pydantic found, in the words of a person who looks at the file."""

import re
from collections.abc import Callable
from typing import Any

from pydantic_core import ErrorDetails

from plait.spec.document import Document
from plait.spec.fields import WANTS_TEXT
from plait.spec.keys import KeyCheck, allowed_keys
from plait.spec.tree import At, Mapping, Node, Path, Report, Scalar, Trap, odd_number, trap_reading
from plait.spec.units import shown
from plait.words import did_you_mean

_KEY_MARK = "[key]"

# Names that other programs have for what is meant here.
_SLIPS = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
} | {
    "bfloat16": "bf16",
    "float8": "fp8",
    "no": "none",
    "off": "none",
}


def tell(error: ErrorDetails, root: Node, keys: KeyCheck, report: Report) -> None:
    """Adds one finding of pydantic to the report, at its place in the file."""
    location = error["loc"]
    is_key = bool(location) and location[-1] == _KEY_MARK
    path: Path = location[:-1] if is_key else location
    at, place = _find(root, path)
    if is_key:
        parent, _ = _find(root, path[:-1])
        key = next((entry for entry, _ in parent.entries() if entry.key == path[-1]), None)
        place = key.key_place if key is not None else place
    if error["type"] == "missing":
        if path not in keys.excused:
            report.add(place, path, "this key is missing")
        return
    report.add(place, path, _message(error, at.node, keys.forms.get(path)))


def _find(root: Node, path: Path) -> tuple[At, Any]:
    at = At(root)
    for part in path:
        following = at.key(part) if isinstance(part, str) else None
        if isinstance(part, int):
            items = at.items()
            following = items[part] if part < len(items) else None
        if following is None:
            break
        at = following
    return at, at.place


def _message(error: ErrorDetails, node: Node, form: type[Document] | None) -> str:
    context = error.get("ctx", {})
    got = _written(node)
    says: dict[str, Callable[[], str]] = {
        "value_error": lambda: str(context["error"]),
        WANTS_TEXT: lambda: _wants_text(node),
        "literal_error": lambda: _wants_word(str(context["expected"]), node),
        "model_type": lambda: _wants_mapping(node, form),
        "dict_type": lambda: _wants_mapping(node, form),
        "list_type": lambda: _wants_list(node),
        "bool_type": lambda: f"expected true or false; got {got}{_truth(node)}",
        "int_type": lambda: _wants_number(node, "a whole number"),
        "float_type": lambda: _wants_number(node, "a number"),
        "finite_number": lambda: _wants_number(node, "a number"),
        "greater_than_equal": lambda: f"must be at least {context['ge']:g}; got {got}",
        "less_than_equal": lambda: f"must be at most {context['le']}; got {got}",
        "too_short": lambda: "this list must not be empty",
    }
    say = says.get(error["type"])
    return say() if say is not None else f"{error['msg'][:1].lower()}{error['msg'][1:]}; got {got}"


def _wants_mapping(node: Node, form: type[Document] | None) -> str:
    these = f" with keys {', '.join(allowed_keys(form))}" if form is not None else " (name: value)"
    return f"expected a mapping{these}; got {_written(node)}"


def _wants_list(node: Node) -> str:
    hint = f"; did you mean [{node.text}]?" if isinstance(node, Scalar) and _is_word(node) else ""
    return f"expected a list; got {_written(node)}{hint}"


def _written(node: Node) -> str:
    """Returns a value as the file has it."""
    if not isinstance(node, Scalar):
        return "a mapping" if isinstance(node, Mapping) else "a list"
    if node.is_empty:
        return "nothing"
    if not node.plain:
        return f"the text {shown(node.text)}"
    return shown(node.text) if isinstance(node.value(), str) else shown(node.text).strip("'\"")


def _is_word(node: Scalar) -> bool:
    return type(node.value()) is str and re.fullmatch(r"[\w./-]+", node.text) is not None


def _wants_text(node: Node) -> str:
    if not isinstance(node, Scalar) or node.is_empty:
        return f"expected text; got {_written(node)}"
    value = node.value()
    reading = trap_reading(node.text) or ("nothing" if value is None else shown(value))
    reader = "YAML 1.1" if isinstance(value, Trap) else "YAML"
    return f'write "{node.text}" in quotes; unquoted, {reader} reads it as {reading}'


def _wants_word(expected: str, node: Node) -> str:
    words = re.findall(r"'([^']*)'", expected)
    listed = words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if not isinstance(node, Scalar) or node.is_empty:
        return f"expected {listed}; got {_written(node)}"
    slip = _SLIPS.get(node.text.casefold())
    hint = f"; did you mean {slip!r}?" if slip in words else did_you_mean(node.text, words)
    return f"expected {listed}; got {shown(node.text)}{hint}"


def _truth(node: Node) -> str:
    if isinstance(node, Scalar):
        text = node.text.casefold()
        if text in {"yes", "on", "true", "1", "y"}:
            return "; did you mean true?"
        if text in {"no", "off", "false", "0", "n"}:
            return "; did you mean false?"
    return ""


def _wants_number(node: Node, what: str) -> str:
    hint = _number_hint(node, what) if isinstance(node, Scalar) else ""
    return f"expected {what}; got {_written(node)}{hint}"


def _number_hint(node: Scalar, what: str) -> str:
    value, number = node.value(), odd_number(node.text)
    hint = ""
    if isinstance(value, Trap) and number is not None:
        decimal = re.sub(r"[_+]", "", node.text).lstrip("0") or "0"
        is_octal = decimal.isdecimal() and str(number) != decimal
        hint = f", which YAML 1.1 reads as {number}; write {decimal} or {number}" if is_octal else f"; write {number}"
    elif node.plain and re.fullmatch(r"[-+]?[1-9][0-9]{17,}", node.text):
        hint = "; it is too large"
    elif isinstance(value, float) and value.is_integer() and what == "a whole number":
        hint = f"; did you mean {int(value)}?" if abs(value) < 10**15 else ""
    elif not node.plain and re.fullmatch(r"-?[0-9]{1,18}", node.text):
        hint = "; write it without quotes"
    return hint
