"""Every link of the documentation that stays within the repository leads somewhere."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for folder in ("", "docs", "docs/guide", "docs/design", "docs/design/decisions", "docs/playbooks", "docs/reference",
                   "examples", "changelog.d")
    for path in (ROOT / folder).glob("*.md")
)  # fmt: skip
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```|:::).*?^\1$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")


def links_of(page: str) -> Iterator[str]:
    """Yields the targets of links, those in code left out."""
    prose = _CODE.sub("", _FENCE.sub("", page))
    for match in _LINK.finditer(prose):
        yield match[1]


@cache
def anchors_of(path: Path) -> frozenset[str]:
    """Returns the anchors of a page's headings, by GitHub's rule."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def fault_of(link: str, page: Path) -> str | None:
    """Returns what is wrong with a link of a page, ``None`` where it leads somewhere."""
    if re.match(r"[a-z]+:", link):
        return None
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return f"{name} does not exist"
    if not target.is_relative_to(ROOT):
        return f"{name} is outside the repository"
    if anchor and target.suffix == ".md" and anchor not in anchors_of(target):
        return f"{target.name} has no heading {anchor!r}"
    return None


def test_links_in_code_are_none() -> None:
    page = "[a](b.md) `[c](d.md)`\n```\n[e](f.md)\n```\n[](g.md#h)\n"
    assert list(links_of(page)) == ["b.md", "g.md#h"]


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("README.md", None),
        ("https://example.org/nothing", None),
        ("no-such-page.md", "no-such-page.md does not exist"),
        ("README.md#no-such-heading", "README.md has no heading 'no-such-heading'"),
    ],
)
def test_a_link_that_leads_nowhere_is_a_fault(link: str, fault: str | None) -> None:
    assert fault_of(link, ROOT / "CONTRIBUTING.md") == fault


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    faults = [f"{link}: {fault}" for link in links_of(text) if (fault := fault_of(link, page)) is not None]
    assert not faults, "\n".join(faults)


def test_the_readme_leads_to_every_guide() -> None:
    for name in ("README.md", "README.zh.md"):
        linked = {link.partition("#")[0] for link in links_of((ROOT / name).read_text(encoding="utf-8"))}
        missing = {f"docs/guide/{path.name}" for path in (ROOT / "docs" / "guide").glob("*.md")} - linked
        assert not missing, f"{name} does not lead to {sorted(missing)}"


def test_both_readmes_have_the_same_parts() -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
    for pattern in (r"^#+ ", r"^\|", r"^- ", r"^```\w*$", r"<!-- figures -->"):
        counts = [len(re.findall(pattern, text, re.MULTILINE)) for text in (english, chinese)]
        assert counts[0] == counts[1], f"{pattern}: {counts[0]} in English, {counts[1]} in Chinese"
    others = {"README.md", "README.zh.md"}
    assert set(links_of(english)) - others == set(links_of(chinese)) - others
