"""The generated pages of the documentation say what the code says."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plait.cli.main import VERBS
from plait.hardware.catalog import capability, known_types, known_variants
from plait.hardware.vendors import VENDORS
from plait.spec.schema import schema
from plait.train.compression import CODECS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_verb_has_its_options_on_the_page(generator: ModuleType) -> None:
    page = "\n".join(generator.cli_page())
    for _, verb, example in VERBS:
        section = page.partition(f"### plait {verb.__name__}\n")[2].partition("\n### ")[0]
        assert f"$ {example}" in section
        assert "`--json`" in section


@pytest.mark.parametrize("kind", ["job", "cluster"])
def test_every_key_of_a_file_is_on_its_page_with_a_meaning(generator: ModuleType, kind: Any) -> None:
    described = schema(kind)
    rows = [line for line in generator.schema_page(described) if line.startswith("| `")]
    sections = [described, *described["$defs"].values()]
    keys = [key for section in sections for key in section.get("properties", {})]
    assert sorted(re.findall(r"^\| `(\w+)`", "\n".join(rows), re.MULTILINE)) == sorted(keys)
    assert all(row.rsplit("|", 2)[1].strip() for row in rows)


def test_every_declared_plug_in_is_on_the_page(generator: ModuleType) -> None:
    page = "\n".join(generator.support_page())
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for group in ("plait.engines", "plait.policies"):
        for name in project["entry-points"][group]:
            assert f"| `{name}` |" in page


def test_every_vendor_and_accelerator_is_on_its_page(generator: ModuleType) -> None:
    support = "\n".join(generator.support_page())
    for vendor in VENDORS:
        assert f"| `{vendor.name}` | {', then '.join(vendor.ways)} |" in support
    page = "\n".join(generator.accelerators_page())
    for name in (*known_types(), *known_variants()):
        rows = re.findall(rf"^\| `{re.escape(name)}`.*$", page, re.MULTILINE)
        assert len(rows) == 2, "one row of figures, one of sources"
        source = capability(name).source.partition(": ")[2]
        assert source in rows[1]
    assert "| 0 |" not in page


def test_every_codec_is_on_the_page_with_its_size(generator: ModuleType) -> None:
    page = "\n".join(generator.support_page())
    for name, make in CODECS.items():
        assert f"| `{name}` | {make().code} | {make().wire_bytes(2**20):,} |" in page


def test_links_between_pages_lead_somewhere() -> None:
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(DOCS)} links to {target}"
