"""Which accelerator type a device is, by what its driver calls it, how much memory it shows, and its PCI id.

A name alone is seldom enough: an A100 has 40 or 80 GB, tools cut names off (``NVIDIA GeForce RTX 2080 ...``), memory is
reported in MiB and below the label, and an RTX 3090 Ti is no RTX 3090. What does not fit together gives no type.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from plait.hardware.catalog.rows import load, types, variants
from plait.hardware.device import DeviceCapability

_GIB = 2**30

_LEAST_OF_LABEL = 0.90
"""Programs see less than the label: firmware, error correction (A10G: 22.2 of 24) and labels in 1e9 bytes."""
_LEAST_OF_SHARED = 0.80
"""Where host and device share the memory the kernel and the firmware keep more."""
_MOST_OF_LABEL = 1.01

_OTHER_PRODUCT = {"ti", "super", "d", "laptop", "mobile", "max", "embedded", "ada"}
"""Words right behind a GeForce or RTX name that make it another product."""

_VENDOR_WORDS = {"nvidia", "tesla", "geforce", "quadro", "amd", "radeon", "instinct", "intel", "huawei"}
_CUT = re.compile(r"\s*(\.{2,}|…)\s*$")
_SLICE = re.compile(r"\bMIG\s+\d+[cg]\S*", re.IGNORECASE)
_VIRTUAL = re.compile(r"^(?:NVIDIA\s+|GRID\s+)*[A-Z0-9]+-\d+[ABCQ]$|\bGRID\b", re.IGNORECASE)
_LABEL = re.compile(r"(?<![A-Za-z0-9])(\d{1,3})\s*GB?(?![a-z0-9])", re.IGNORECASE)


class ModelMatch(NamedTuple):
    """The row of the catalogue, ``None`` where none is sure, and why, in one sentence."""

    accelerator_type: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Name:
    """One way to write a product; ``row`` is ``None`` for a product that the catalogue does not hold."""

    text: str
    row: str | None
    needs_vendor: bool = False
    memory_gib: float | None = None

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.text.lower().split())


def match_model(
    name: str | None,
    *,
    memory_mib: float | None = None,
    pci_id: str | None = None,
    vendor: str | None = None,
    compute_units: int | None = None,
) -> ModelMatch:
    """Returns the type or the variant that a device is.

    Args:
        name: As the driver or a tool prints it, cut off or not; ``None`` where only the PCI id is known.
        memory_mib: Total memory as reported, in MiB.
        pci_id: ``vendor:device`` in hexadecimal (``10de:20b2``).
        vendor: Where it is known from elsewhere; short names such as C500 mean something only then.
        compute_units: Of the device (AMD), which tell an MI250X from an MI250.
    """
    by_id = _pci_rows().get((pci_id or "").lower().replace("0x", ""))
    text = " ".join((name or "").split())
    if not text:
        lack = (
            f"no name, and the PCI id {pci_id} is not in the catalogue"
            if pci_id
            else "neither a name nor a PCI id is told"
        )
        nameless = ModelMatch(None, lack)
        return nameless if by_id is None else _settle(by_id, f"PCI id {pci_id}", memory_mib)
    is_slice = _SLICE.search(text) is not None
    if _VIRTUAL.search(text) and not is_slice:
        return ModelMatch(None, f"{text!r} is a virtual GPU: a share of unknown size")
    found, said = _by_name(text, memory_mib, vendor, compute_units)
    if found is None:
        if by_id is None or not _may_be(text, by_id):
            return ModelMatch(None, said)
        return _settle(by_id, f"PCI id {pci_id}; of the name alone: {said}", memory_mib)
    return _of_row(found, text, None if is_slice else memory_mib, pci_id, by_id)


def _of_row(found: str, text: str, memory_mib: float | None, pci_id: str | None, by_id: str | None) -> ModelMatch:
    """Narrows what the name says by the PCI id, the form and the memory."""
    if by_id is not None and _row(by_id).family != _row(found).family:
        return ModelMatch(None, f"the name {text!r} says {found}, the PCI id {pci_id} says {by_id}")
    if by_id is not None and by_id in variants():
        return _settle(by_id, f"name {text!r} and PCI id {pci_id}", memory_mib)
    if found in variants():
        return _settle(found, f"name {text!r}", memory_mib)
    label = _LABEL.search(text)
    if label is not None and int(label[1]) * _GIB in _row(found).memory_options_bytes:
        if memory_mib is not None and not _fits(_row(found), memory_mib, int(label[1]) * _GIB):
            return ModelMatch(None, f"name {text!r} says {label[0].strip()}, but {memory_mib:g} MiB are reported")
        form = _form(found, text, int(label[1]) * 1024)
    else:
        form = _form(found, text, memory_mib)
    return _settle(form or found, f"name {text!r}", memory_mib)


def _row(name: str) -> DeviceCapability:
    return types().get(name) or variants()[name]


def _settle(found: str, why: str, memory_mib: float | None) -> ModelMatch:
    """Checks the memory of what was found: it is part of a device's identity."""
    row = _row(found)
    sizes = row.memory_options_bytes
    if memory_mib is None or not sizes:
        lack = f"; sold with {_sizes(sizes)}, and the memory was not reported" if len(sizes) > 1 else ""
        return ModelMatch(found, f"{why}{lack}")
    fitting = [size for size in sizes if _fits(row, memory_mib, size)]
    if not fitting:
        return ModelMatch(None, f"{why} says {found}, which has {_sizes(sizes)}, but {memory_mib:g} MiB are reported")
    return ModelMatch(found, f"{why}; {memory_mib:g} MiB fit {_sizes(fitting[:1])}")


def _fits(row: DeviceCapability, memory_mib: float, size_bytes: int | None = None) -> bool:
    least = _LEAST_OF_SHARED if row.shares_host_memory else _LEAST_OF_LABEL
    sizes = row.memory_options_bytes if size_bytes is None else (size_bytes,)
    return any(least <= memory_mib * 2**20 / size <= _MOST_OF_LABEL for size in sizes)


def _sizes(sizes: Iterable[int]) -> str:
    return " or ".join(f"{size / _GIB:g} GiB" for size in sizes)


def _by_name(
    text: str, memory_mib: float | None, vendor: str | None, compute_units: int | None
) -> tuple[str | None, str]:
    """Returns the row that the name says and ``""``, or ``None`` and why not."""
    known = [entry for entry in _names() if not entry.needs_vendor or _is_of(entry, vendor)]
    cut = _CUT.search(text)
    if cut:
        return _of_cut_name(text[: cut.start()], text[: cut.start(1)].endswith(" "), memory_mib, known)
    hits = [(entry, at) for entry in known if (at := _pattern(entry.text).search(text)) is not None]
    longest = max((len(entry.text) for entry, _ in hits), default=0)
    # Tools write two products in one name where they cannot tell them apart (MI250X/MI250).
    best = {entry.row: (entry, at) for entry, at in hits if not _is_inside(at, hits)}
    if not best:
        return None, f"no type of the catalogue is called {text!r}" if longest == 0 else f"{text!r} is not clear"
    rows = [row for row in best if row is not None]
    if compute_units is not None and len(rows) > 1:
        rows = [row for row in rows if _compute_units().get(row) in {None, compute_units}]
    if len(rows) == 1 and None not in best:
        entry, at = best[rows[0]]
        behind = re.match(r"[\s_-]+([A-Za-z]+)", text[at.end() :])
        if entry.words[0].startswith("rtx") and behind and behind[1].lower() in _OTHER_PRODUCT:
            return None, f"{text!r} is not {rows[0]}, and the catalogue does not hold it"
        return rows[0], ""
    if not rows:
        return None, f"{text!r} is not in the catalogue"
    return None, f"{text!r} may be {_or(rows)}"


def _is_inside(at: re.Match[str], hits: Iterable[tuple[_Name, re.Match[str]]]) -> bool:
    return any(
        other.start() <= at.start() and at.end() <= other.end() and other.span() != at.span() for _, other in hits
    )


def _of_cut_name(
    stem: str, ends_with_word: bool, memory_mib: float | None, known: Sequence[_Name]
) -> tuple[str | None, str]:
    words = [word for word in re.split(r"[\s_-]+", stem.lower()) if word and word not in _VENDOR_WORDS]
    if not any(character.isdigit() for character in "".join(words)):
        return None, f"the name {stem!r} is cut off before the model"
    ends = ends_with_word or stem[-1:] in " -_"
    possible = {entry.row or entry.text for entry in known if _can_go_on(words, ends, entry, memory_mib)}
    rows = {found for found in possible if found in types() or found in variants()}
    families = {_row(found).family for found in rows}
    if len(families) == 1 and rows == possible:
        return families.pop(), ""
    if not possible:
        return None, f"no type of the catalogue begins with {stem!r}" + (
            f" and has {memory_mib:g} MiB" if memory_mib is not None else ""
        )
    return None, f"the name {stem!r} is cut off; it may be {_or(sorted(possible))}"


def _can_go_on(words: Sequence[str], ends: bool, entry: _Name, memory_mib: float | None) -> bool:
    """Whether a name that begins with these words may be this one; the last word is whole only if ``ends``."""
    own = [word.lower() for word in entry.words if word.lower() not in _VENDOR_WORDS]
    if memory_mib is not None and not _may_have(entry, memory_mib):
        return False
    whole, part = (list(words), "") if ends else (list(words[:-1]), words[-1])
    if own[: len(whole)] != whole[: len(own)]:
        return False
    if len(own) > len(whole):
        return own[len(whole)].startswith(part)
    # All of the name is there, and more words follow: of GeForce cards those make other products.
    return not own[0].startswith(("rtx", "gtx"))


def _may_have(entry: _Name, memory_mib: float) -> bool:
    if entry.row is not None:
        row = _row(entry.row)
        return not row.memory_options_bytes or _fits(row, memory_mib)
    return entry.memory_gib is None or _LEAST_OF_SHARED <= memory_mib / 1024 / entry.memory_gib <= _MOST_OF_LABEL


def _form(family: str, text: str, memory_mib: float | None) -> str | None:
    """Returns the one variant of a type that the name's words and the memory leave, ``None`` where several are."""
    forms = [name for name, row in variants().items() if row.family == family]
    words = {word.lower() for word in re.split(r"[^A-Za-z0-9]+", text)}
    marked = [form for form in forms if any(mark.lower() in words for mark in _marks(form))]
    if marked:
        forms = marked
    if memory_mib is not None:
        forms = [form for form in forms if _fits(_row(form), memory_mib)]
    is_sure = len(forms) == 1 and (marked or memory_mib is not None) and not _has_unknown_form(words, forms[0])
    return forms[0] if is_sure else None


def _has_unknown_form(words: Iterable[str], form: str) -> bool:
    """Whether the name says another form (SXM3, DGXS) than this."""
    own = {mark.lower() for mark in _marks(form)}
    return any(re.fullmatch(r"sxm\d?|pcie|nvl|dgxs|fhhl", word) and word not in own for word in words)


def _may_be(text: str, row: str) -> bool:
    """Whether a name that says nothing by itself leaves room for what the PCI id says."""
    hits = [entry for entry in _names() if _pattern(entry.text).search(text)]
    return not hits or any(entry.row is not None and _row(entry.row).family == _row(row).family for entry in hits)


def _or(words: Iterable[str]) -> str:
    return " or ".join(words)


def _is_of(entry: _Name, vendor: str | None) -> bool:
    return vendor is not None and entry.row is not None and _row(entry.row).vendor.lower() in vendor.lower()


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    joined = r"[\s_-]*".join(re.escape(word) for word in name.split())
    return re.compile(rf"(?<![A-Za-z0-9]){joined}(?![A-Za-z0-9])", re.IGNORECASE)


@functools.cache
def _tables() -> dict[str, Any]:
    return load("names.toml")


def _marks(form: str) -> tuple[str, ...]:
    return tuple(_tables().get(form, {}).get("marks", ()))


@functools.cache
def _names() -> tuple[_Name, ...]:
    tables = _tables()
    found: list[_Name] = []
    for row in (*types(), *variants()):
        table = tables.get(row, {})
        default = [] if row == "CPU" or row in variants() or table.get("bare") else [row]
        found += [_Name(text, row) for text in (*default, *table.get("names", ()))]
        found += [_Name(text, row, needs_vendor=True) for text in table.get("bare", ())]
    for text, memory in tables["look-alikes"].items():
        found.append(_Name(text, None, memory_gib=memory))
    return tuple(found)


@functools.cache
def _pci_rows() -> dict[str, str]:
    return {pci: row for row, table in _tables().items() for pci in table.get("pci", ())}


@functools.cache
def _compute_units() -> dict[str, int]:
    return {row: table["compute_units"] for row, table in _tables().items() if "compute_units" in table}
