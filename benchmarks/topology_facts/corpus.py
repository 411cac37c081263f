"""A directory of samples with their facts: which are read right, and what damaged copies do to the importers."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from plait.hardware.importers import read_dump, slurm_gres, slurm_yaml
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.topology import Fragment
from topology_facts import text_kinds, tree_kinds
from topology_facts.compare import equal
from topology_facts.damaged_archive import damaged_archive
from topology_facts.mutate import invented, mutated
from topology_facts.tree_rules import TREE_RULES

KINDS: Mapping[str, Callable[[Fragment], dict[str, object]]] = text_kinds.KINDS | tree_kinds.KINDS
_FREE_NAMES = frozenset({"nic", "switch", "node", "other"})
_FREE_FILES = _FREE_NAMES | {"gpu", "npu"}
NOTHING = Fragment(origin="", format="")


@dataclass(frozen=True, slots=True)
class Sample:
    """One file with what a right reading of it yields; ``kind`` is the directory it is in."""

    file: str
    kind: str
    data: bytes
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one damaged copy: the exception that got out, what was invented, whether it was refused."""

    crash: str = ""
    invented: tuple[str, ...] = ()
    is_refused: bool = False


def samples(directory: Path) -> Iterator[Sample]:
    """Yields the files that ``facts.jsonl`` names, in its order."""
    for line in (directory / "facts.jsonl").read_text(encoding="utf-8").splitlines():
        if line.strip():
            entry = json.loads(line)
            file = entry["file"]
            yield Sample(file, Path(file).parts[0], (directory / file).read_bytes(), entry["facts"])


def wrong(sample: Sample) -> tuple[str, ...]:
    """Returns what is wrong in the reading of a sample, one sentence a fact; empty where all of it is right.

    A file that has to be refused has facts that say nothing is there, and a refusal says that too.
    """
    if sample.kind not in KINDS:
        return (f"no facts are derived for the kind {sample.kind}",)
    try:
        fragment = read_dump(sample.data, sample.file)
    except UnreadableDump as error:
        if any(value not in (0, None, "", [], {}) for value in sample.facts.values()):
            return (f"refused: {error}",)
        fragment = NOTHING
    derived = KINDS[sample.kind](fragment)
    return tuple(
        f"{key}: {str(stated)[:200]} stated, {str(derived.get(key, 'nothing'))[:200]} read"
        for key, stated in sample.facts.items()
        if not _agree(key, stated, derived)
    )


def _agree(key: str, stated: object, derived: Mapping[str, object]) -> bool:
    rule = TREE_RULES.get(key)
    if rule is not None:
        return rule(stated, derived.get(key))
    return key in derived and equal(key, stated, derived[key])


def read_or_nothing(sample: Sample) -> Fragment:
    """Returns the fragment of a whole sample, an empty one where it is refused."""
    try:
        return read_dump(sample.data, sample.file)
    except UnreadableDump:
        return NOTHING


def after_damage(sample: Sample, truth: Fragment, seed: int) -> Outcome:
    """Reads a damaged copy of a sample and says what it did."""
    damaged = damaged_archive(sample.data, seed) if sample.kind == "sysfs" else mutated(sample.data, seed)[0]
    try:
        fragment = read_dump(damaged, sample.file)
    except UnreadableDump:
        return Outcome(is_refused=True)
    except Exception as error:  # noqa: BLE001 - any other exception is what is looked for
        return Outcome(crash=f"{type(error).__name__}: {error}"[:200])
    if truth is NOTHING:
        return Outcome()  # a file that is refused as a whole says nothing that a part of it could be held against
    return Outcome(invented=invented(truth, _with_known_names(truth, fragment)))


def _with_known_names(truth: Fragment, found: Fragment) -> Fragment:
    """Returns the fragment with cut names replaced by the true ones they were cut from.

    Names of nodes, switches, NICs and device files are free: ``leaf1`` cut from ``leaf10``, or ``mx5_0``, is another
    right name that no reader can tell from the true one. Addresses and other names of accelerators have no such excuse.
    """
    kinds = _FREE_FILES if found.format == slurm_gres.NAME else _FREE_NAMES
    free = {c.name: c for c in truth.components if c.kind in kinds}
    free |= {c.key: c for c in free.values()}
    known = {identity for c in truth.components for identity in (c.key, c.name, c.pci_address) if identity}
    renamed: dict[str, str] = {}
    for component in found.components:
        if component.kind in kinds and not known & {component.key, component.name, component.pci_address}:
            names = (component.name, component.key)
            origin = next((c for name, c in free.items() if any(is_cut_from(n, name) for n in names)), None)
            if origin is not None:
                renamed[component.key] = origin.key
    if found.format == slurm_yaml.NAME:
        # Where the lines of one switch are separate, a line lost or moved makes another network that is as right.
        found = replace(found, links=())
    if not renamed:
        return found
    return replace(
        found,
        components=tuple(c for c in found.components if c.key not in renamed),
        links=tuple(link for link in found.links if not {link.a, link.b} & renamed.keys()),
    )


def is_cut_from(name: str, other: str) -> bool:
    """Returns whether ``name`` is what is left of ``other`` when characters are lost."""
    letters = iter(other)
    return 0 < len(name) < len(other) and all(letter in letters for letter in name)
