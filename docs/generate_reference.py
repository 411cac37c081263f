"""Writes ``docs/reference/generated/*.md`` from the code: verbs, keys of the YAML files, support tables.

Each build of the documentation runs it (see ``conf.py``); run it by hand to read the pages without a build.
"""

import importlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
PAGES = Path(__file__).parent / "reference" / "generated"


def write() -> None:
    """Writes every page whose text has changed."""
    PAGES.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        path = PAGES / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Returns the text of each generated page by its name."""
    from plait.spec.schema import schema

    return {
        "cli": "\n".join(cli_page()),
        "job": "\n".join(schema_page(schema("job"))),
        "cluster": "\n".join(schema_page(schema("cluster"))),
        "support": "\n".join(support_page()),
    }


def cli_page() -> Iterator[str]:
    """Yields the lines of the page of verbs, in the order of ``plait --help``."""
    import typer.main

    from plait.cli.main import VERBS, application

    group: Any = typer.main.get_command(application())
    yield f"{group.help}\n"
    for panel in dict.fromkeys(panel for panel, _, _ in VERBS):
        yield f"## {panel}\n"
        for other, verb, example in VERBS:
            if other != panel:
                continue
            command = group.commands[verb.__name__]
            arguments = [name for name in (_argument(each) for each in command.params) if name]
            yield f"### plait {command.name}\n"
            yield f"{command.help}\n"
            yield f"```console\n$ plait {' '.join([command.name, '[OPTIONS]', *arguments])}\n$ {example}\n```\n"
            yield from _table(("Option", "Meaning"), [_option_row(each) for each in command.params])


def schema_page(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of the page of one YAML file: a table of keys for the file and for each section of it."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    if schema.get("description"):
        yield f"{_one_line(schema['description'])}\n"
    for title, section in [("Top level", schema), *definitions.items()]:
        if not section.get("properties"):
            continue
        yield f"## {title}\n"
        if section is not schema and section.get("description"):
            yield f"{_one_line(section['description'])}\n"
        required = set(section.get("required", ()))
        rows = [
            (f"`{key}`", _form(each), "required" if key in required else _default(each), _one_line(_meaning(each)))
            for key, each in section["properties"].items()
        ]
        yield from _table(("Key", "Value", "Default", "Meaning"), rows)


def support_page() -> Iterator[str]:
    """Yields the lines of the page of plug-ins: what each engine can do, which policies there are."""
    engines = _plug_ins("plait.engines")
    abilities = sorted(
        {ability for engine in engines.values() for ability in engine.abilities}, key=lambda one: one.name
    )
    yield "## Engines\n"
    names = [ability.name.lower().replace("_", " ") for ability in abilities]
    rows = [
        (f"`{name}`", *("yes" if one in kind.abilities else "" for one in abilities)) for name, kind in engines.items()
    ]
    yield from _table(("Engine", *names), rows)
    yield from _table(
        ("Ability", "The engine ..."), [(name, one.value) for name, one in zip(names, abilities, strict=True)]
    )
    yield "## Policies\n"
    policies = [(f"`{name}`", _one_line(kind.__doc__ or "")) for name, kind in _plug_ins("plait.policies").items()]
    yield from _table(("Policy", "What it does"), policies)


def _plug_ins(group: str) -> dict[str, Any]:
    """Returns the plug-ins that the project file declares, by name, so that an old installation does not matter."""
    declared: dict[str, str] = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"][group]
    found = {}
    for name, target in sorted(declared.items()):
        module, _, attribute = target.partition(":")
        found[name] = getattr(importlib.import_module(module), attribute)
    return found


def _argument(parameter: Any) -> str:
    if parameter.param_type_name != "argument":
        return ""
    shown: str = (parameter.metavar or parameter.name).strip("[]")
    return shown if parameter.required else f"[{shown}]"


def _option_row(parameter: Any) -> tuple[str, str]:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or parameter.name}`"
    else:
        name = ", ".join(f"`{option}`" for option in parameter.opts)
        if parameter.metavar:
            name += f" `{parameter.metavar}`"
    return name, _one_line(parameter.help or "") + (f" Environment: `{parameter.envvar}`." if parameter.envvar else "")


def _form(node: Mapping[str, Any]) -> str:
    """Returns the kind of value in words: ``list of text``, ``one of a, b``, a link to a section."""
    if "$ref" in node:
        name = str(node["$ref"]).rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "enum" in node:
        return "one of " + ", ".join(f"`{one}`" for one in node["enum"])
    choices = node.get("anyOf") or node.get("oneOf") or node.get("allOf")
    if choices:
        return " or ".join(dict.fromkeys(_form(each) for each in choices if each.get("type") != "null"))
    return f"`{node['const']}`" if "const" in node else _plain_form(node)


def _plain_form(node: Mapping[str, Any]) -> str:
    kind = str(node.get("type", "any"))
    if kind == "array":
        return f"list of {_form(node.get('items', {}))}"
    if kind == "object":
        values = node.get("additionalProperties")
        return f"map of text to {_form(values)}" if isinstance(values, Mapping) else "map"
    if node.get("examples"):
        return f"such as `{node['examples'][0]}`"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    return words.get(kind, kind)


def _default(node: Mapping[str, Any]) -> str:
    if "default" not in node or node["default"] is None:
        return ""
    value = node["default"]
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value not in ([], {}, "") and not isinstance(value, dict) else ""


def _meaning(node: Mapping[str, Any]) -> str:
    return str(node.get("description", ""))


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


if __name__ == "__main__":
    write()
