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
        "accelerators": "\n".join(accelerators_page()),
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
    yield from _vendors()
    yield from _codecs()


def _vendors() -> Iterator[str]:
    from plait.hardware.vendors import VENDORS

    yield "## Vendors of devices\n"
    rows = [
        (
            f"`{vendor.name}`",
            ", then ".join(vendor.ways),
            ", ".join(vendor.finds),
            ", ".join(f"`{variable}`" for variable in vendor.visibility),
        )
        for vendor in VENDORS
    ]
    yield from _table(("Vendor", "Asks", "Finds", "Visible devices"), rows)


def _codecs() -> Iterator[str]:
    from plait.train.compression import CODECS

    yield "## Codecs\n"
    values = 2**20
    rows = []
    for name, make in CODECS.items():
        codec = make()
        size = codec.wire_bytes(values)
        keeps = "yes" if codec.feeds_back else ""
        forms = (codec.forms.get(kind, "") for kind in ("cpu", "cuda"))
        rows.append((f"`{name}`", str(codec.code), f"{size:,}", f"{4 * values / size:.1f}", keeps, *forms))
    head = ("Codec", "Number", "Bytes for 2^20 values", "Times fewer than fp32", "Error fed back", "On processors")
    yield from _table((*head, "On graphics devices"), rows)


def accelerators_page() -> Iterator[str]:
    """Yields the lines of the page of accelerators: one table a vendor, types with their forms below them."""
    from plait.hardware.catalog import capability, known_types, known_variants

    rows: dict[str, list[tuple[str, ...]]] = {}
    sources: list[tuple[str, ...]] = []
    for kind in known_types():
        for name in (kind, *known_variants(kind)):
            figures = capability(name)
            rows.setdefault(figures.vendor, []).append(_accelerator(name, figures))
            sources.append((f"`{name}`", *_sources(figures)))
    for vendor, each in rows.items():
        yield f"## {vendor if vendor != 'any' else 'Processors'}\n"
        head = ("Type", "fp32", "tf32", "fp16", "bf16", "fp8", "Memory", "Memory GB/s", "PCIe")
        yield from _table((*head, "Links: GB/s one direction", "W", "Lasting", "Grade"), each)
    yield "## Sources\n"
    yield from _table(("Type", "Source", "Figures with another source", "Note"), sources)


def _accelerator(name: str, figures: Any) -> tuple[str, ...]:
    rates = [getattr(figures, f"{word}_tflops") for word in ("fp32", "tf32", "fp16", "bf16", "fp8")]
    sizes = " or ".join(f"{size / 2**30:g}" for size in figures.memory_options_bytes)
    port, links = figures.pcie, figures.peer_links
    wire = ""
    if links is not None:
        total = f" {links.bytes_per_s / 1e9:g}" if links.bytes_per_s else ""
        pair = f", a pair {links.pair_bytes_per_s / 1e9:g}" if links.pair_bytes_per_s else ""
        wire = f"{links.name}{total}{pair}"
    part = f" (1 of {figures.devices_per_package})" if figures.devices_per_package > 1 else ""
    return (
        f"`{name}`{part}",
        *(f"{rate:g}" if rate is not None else "" for rate in rates),
        f"{sizes} GiB" if sizes else "",
        f"{figures.memory_bytes_per_s / 1e9:g}" if figures.memory_bytes_per_s else "",
        f"gen{port.max_generation} x{port.max_lanes}" if port.max_generation else "",
        wire,
        f"{figures.tdp_w:g}" if figures.tdp_w else "",
        ", ".join(f"{word} {ratio:.0%}" for word, ratio in figures.sustained_ratios.items()),
        figures.source.removeprefix("grade ")[:1],
    )


def _sources(figures: Any) -> tuple[str, str, str]:
    others = "; ".join(f"{figure} ({each.grade}): {each.source}" for figure, each in figures.sources.items())
    return figures.source.partition(": ")[2], others, figures.note


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
