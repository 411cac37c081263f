"""The JSON Schemas as golden files; what the schema takes, the loader takes.

After a wanted change: ``plait schema job > tests/golden/job.schema.json``, and the same for ``cluster`` and
``scenario``.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from plait.spec.schema import Kind, forms, schema
from plait.spec.units import DURATION, RATE, SIZE

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
CORPUS = HERE.parent / "data" / "bad_specs"

SCENARIOS = HERE / "scenarios"

KINDS: tuple[Kind, ...] = get_args(Kind)


def matches(value: Any, form: dict[str, Any], root: dict[str, Any]) -> bool:
    """Checks a value against the part of JSON Schema that our schemas use."""
    if "$ref" in form:
        form = {**root["$defs"][form["$ref"].rpartition("/")[2]], **{k: v for k, v in form.items() if k != "$ref"}}
    kinds: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    kinds |= {"array": list, "object": dict}
    wanted = form.get("type")
    if wanted is not None and (
        not isinstance(value, kinds[wanted]) or (isinstance(value, bool) and wanted != "boolean")
    ):
        return False
    rules: dict[str, Callable[[Any], bool]] = {
        "const": lambda rule: value == rule,
        "enum": lambda rule: value in rule,
        "pattern": lambda rule: re.search(rule, value) is not None,
        "minimum": lambda rule: value >= rule,
        "maximum": lambda rule: value <= rule,
        "exclusiveMinimum": lambda rule: value > rule,
        "minProperties": lambda rule: len(value) >= rule,
        "minItems": lambda rule: len(value) >= rule,
        "items": lambda rule: all(matches(item, rule, root) for item in value),
        "required": lambda rule: all(key in value for key in rule),
        "properties": lambda rule: all(matches(value[key], rule[key], root) for key in rule if key in value),
        "propertyNames": lambda rule: all(matches(key, rule, root) for key in value),
        "anyOf": lambda rule: any(matches(value, option, root) for option in rule),
        "allOf": lambda rule: all(matches(value, option, root) for option in rule),
        "if": lambda rule: not matches(value, rule, root) or matches(value, form["then"], root),
        "then": lambda _: True,
        "type": lambda _: True,
        "patternProperties": lambda rule: all(
            matches(item, next(iter(rule.values())), root)
            for key, item in value.items()
            if re.search(next(iter(rule)), key)
        ),
    }
    texts = {"description", "title", "examples", "default", "$schema", "$defs", "additionalProperties"}
    assert set(form) <= set(rules) | texts
    return all(rules[key](rule) for key, rule in form.items() if key in rules) and _has_no_more_keys(value, form, root)


def _has_no_more_keys(value: Any, form: dict[str, Any], root: dict[str, Any]) -> bool:
    rest = form.get("additionalProperties")
    if rest is None or not isinstance(value, dict):
        return True
    patterns = form.get("patternProperties", {})
    own = form.get("properties", {})
    more = [key for key in value if key not in own and not any(re.search(pattern, key) for pattern in patterns)]
    return not more if rest is False else all(matches(value[key], rest, root) for key in more)


def described(form: Any) -> list[dict[str, Any]]:
    if not isinstance(form, dict):
        return []
    return [*form.get("properties", {}).values(), *(item for part in form.values() for item in described(part))]


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_golden_file(kind: Kind) -> None:
    golden = json.loads((HERE / f"{kind}.schema.json").read_text(encoding="utf-8"))
    assert schema(kind) == golden


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_described(kind: Kind) -> None:
    keys = described(schema(kind))
    assert len(keys) > 10
    assert all(key["description"].endswith(".") for key in keys)


@pytest.mark.parametrize("kind", ["job", "cluster"])
def test_takes_the_good_example(kind: Kind) -> None:
    form = schema(kind)
    example = yaml.safe_load((EXAMPLES / f"{kind}.yaml").read_text(encoding="utf-8"))
    assert matches(example, form, form)


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.yaml")), ids=lambda file: file.stem)
def test_takes_the_scenarios(file: Path) -> None:
    form = schema("scenario")
    assert matches(yaml.safe_load(file.read_text(encoding="utf-8")), form, form)


@pytest.mark.parametrize(("key", "value"), [("constraint", "wether"), ("starts_in", "soon"), ("day", "monday")])
def test_refuses_wrong_scenarios(key: str, value: str) -> None:
    form = schema("scenario")
    good = yaml.safe_load((SCENARIOS / "priority-preempted.yaml").read_text(encoding="utf-8"))
    good["expect"][0][key] = value
    assert not matches(good, form, form)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("job", "unknown_keys"),
        ("job", "missing_keys"),
        ("job", "bad_words"),
        ("job", "durations"),
        ("job", "sizes"),
        ("job", "cache_tiers"),
        ("job", "environment"),
        ("job", "accelerators"),
        ("job", "urls"),
        ("cluster", "cluster_words"),
        ("cluster", "cluster_prices"),
        ("cluster", "cluster_rates"),
        ("cluster", "cluster_times"),
    ],
)
def test_refuses_wrong_files(kind: Kind, name: str) -> None:
    form = schema(kind)
    wrong = yaml.safe_load((CORPUS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert not matches(wrong, form, form)


def test_defaults_and_examples_fit_their_own_patterns() -> None:
    quantities = {quantity.pattern for quantity in (DURATION, SIZE, RATE)}
    seen = 0
    for kind in KINDS:
        for key in described(schema(kind)):
            if "pattern" not in key:
                continue
            for text in [*key.get("examples", []), *([key["default"]] if "default" in key else [])]:
                assert re.search(key["pattern"], text), key
                seen += key["pattern"] in quantities
    assert seen > 10


def test_every_form_has_an_attribute_docstring_for_every_field() -> None:
    for form in forms():
        assert form.__doc__
        assert form.model_fields
