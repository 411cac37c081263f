"""Joins what several sources tell of one machine; the more believable figure wins, and what disagrees is kept.

Things are the same where their PCI addresses agree, else their UUIDs, else kind and name. Where one source numbers the
accelerators of a vendor and another knows their addresses, and both know equally many, the numbers go by address, as
the vendors' tools number them.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from plait.errors import PlaitError
from plait.hardware.topology import CapacityGroup, Component, Conflict, Fragment, Link, Locality, PciPort
from plait.hardware.values import Source, Value

_ACCELERATORS = frozenset({"gpu", "npu"})
_ON_PCIE = frozenset({"pix", "pxb", "phb", "node", "sys", "pcie"})


_OTHER_NAMES = ("rdma_device", "infiniband", "net")
"""Keys in ``extra`` under which sources give further names of a NIC."""

_NUMBERED_NIC = re.compile(r"NIC\d+")


class NothingToMerge(PlaitError):
    """There is no fragment to merge."""


def merge(fragments: Sequence[Fragment]) -> Fragment:
    """Returns one fragment of one node.

    Nothing is overwritten silently: of two values that differ the one of the higher source stays, of equal ones the
    first, and both are told in ``conflicts``.

    Raises:
        NothingToMerge: there are no fragments.
    """
    if not fragments:
        raise NothingToMerge("there is no description of the machine to merge")
    if len(fragments) == 1:
        return fragments[0]
    ranked = sorted(fragments, key=lambda fragment: -fragment.source)
    names = _identities(ranked)
    conflicts = [conflict for fragment in fragments for conflict in fragment.conflicts]
    components = _components(ranked, names, conflicts)
    return Fragment(
        origin=", ".join(dict.fromkeys(fragment.origin for fragment in fragments)),
        format="+".join(dict.fromkeys(fragment.format for fragment in fragments)),
        components=components,
        links=_links(ranked, names, conflicts),
        groups=_groups(ranked, conflicts),
        numa_distances=_table([f.numa_distances for f in ranked], "NUMA distance", conflicts),
        measurements=tuple(m for fragment in fragments for m in fragment.measurements),
        conflicts=tuple(dict.fromkeys(conflicts)),
        unread=tuple(line for fragment in fragments for line in fragment.unread),
        hides=_still_hidden(fragments),
        warnings=tuple(dict.fromkeys(line for fragment in fragments for line in fragment.warnings)),
        error="; ".join(fragment.error for fragment in fragments if fragment.error) or None,
        tables=_tables(ranked, names, conflicts),
        source=ranked[0].source,
    )


def _identities(fragments: Sequence[Fragment]) -> list[dict[str, str]]:
    """Returns for each fragment the common key of each of its keys."""
    known: dict[tuple[str, ...], str] = {}
    addresses: dict[str, str] = {}
    found: list[dict[str, str]] = []
    by_number = _by_number(fragments)
    for number, fragment in enumerate(fragments):
        keys: dict[str, str] = {}
        taken: set[str] = set()
        for component in fragment.components:
            address = component.pci_address or by_number.get((number, component.key))
            marks = _marks(component, address)
            candidates = (known[mark] for mark in marks if mark in known)
            # Two things of one source are two things, and so are those of one name at different addresses.
            fitting = (c for c in candidates if c not in taken and address in {None, addresses.get(c, address)})
            common = next(fitting, None) or _free(address or component.key, taken)
            keys[component.key] = common
            taken.add(common)
            if address is not None:
                addresses[common] = address
            for mark in marks:
                known.setdefault(mark, common)
        found.append(keys)
    return found


def _free(key: str, taken: set[str]) -> str:
    while key in taken:
        key += "'"
    return key


def _marks(component: Component, address: str | None) -> list[tuple[str, ...]]:
    marks: list[tuple[str, ...]] = []
    if address:
        marks.append(("pci", address))
    if component.uuid:
        marks.append(("uuid", component.uuid.casefold()))
    if component.kind in _ACCELERATORS and component.index is not None and component.parent is None:
        marks.append(("index", component.kind, str(component.vendor), str(component.index)))
    marks.append(("name", component.kind, component.name))
    marks += [("name", component.kind, component.extra[key]) for key in _OTHER_NAMES if key in component.extra]
    marks.append(("key", component.kind, component.key))
    return marks


def _by_number(fragments: Sequence[Fragment]) -> dict[tuple[int, str], str]:
    """Returns addresses for accelerators that have only a number, where another fragment has as many addresses."""
    addressed: set[str] = set()
    numbered: dict[int, list[Component]] = {}
    for place, fragment in enumerate(fragments):
        whole = [c for c in fragment.components if _is_top(c, fragment)]
        addressed |= {c.pci_address for c in whole if c.pci_address}
        plain = [c for c in whole if not c.pci_address and not c.uuid and c.index is not None]
        if plain and len(plain) == len(whole):
            numbered[place] = sorted(plain, key=lambda c: c.index or 0)
    order = sorted(addressed, key=_address_order)
    return {
        (place, component.key): address
        for place, plain in numbered.items()
        if len(plain) == len(order)
        for component, address in zip(plain, order, strict=True)
    }


def _is_top(component: Component, fragment: Fragment) -> bool:
    if component.kind not in _ACCELERATORS:
        return False
    above = fragment.component(component.parent) if component.parent else None
    return above is None or above.kind not in _ACCELERATORS


def _address_order(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))


def _components(
    fragments: Sequence[Fragment], names: Sequence[Mapping[str, str]], conflicts: list[Conflict]
) -> tuple[Component, ...]:
    merged: dict[str, tuple[Component, Source]] = {}
    for fragment, keys in zip(fragments, names, strict=True):
        for component in fragment.components:
            key = keys[component.key]
            parent = None if component.parent is None else keys.get(component.parent, component.parent)
            renamed = dataclasses.replace(component, key=key, parent=parent)
            if key in merged:
                other, source = merged[key]
                renamed = _one_component((other, source), (renamed, fragment.source), conflicts)
            merged[key] = (renamed, max(fragment.source, merged[key][1]) if key in merged else fragment.source)
    return tuple(component for component, _ in merged.values())


def _one_component(
    one: tuple[Component, Source], other: tuple[Component, Source], conflicts: list[Conflict]
) -> Component:
    (a, source_a), (b, source_b) = one, other
    subject = a.name

    def pick(field: str, first: Any, second: Any) -> Any:
        return _pick(f"{field} of {subject}", (first, source_a), (second, source_b), conflicts)

    fields: dict[str, Any] = {}
    for field in ("vendor", "model", "accelerator_type", "pci_address", "uuid", "parent", "index", "health"):
        fields[field] = pick(field, getattr(a, field), getattr(b, field))
    for field in ("memory_bytes", "memory_bytes_per_s", "rate_bytes_per_s"):
        fields[field] = _value(f"{field} of {subject}", getattr(a, field), getattr(b, field), conflicts)
    fields["pci"] = _record(a.pci, b.pci, pick, PciPort)
    fields["locality"] = _record(a.locality, b.locality, pick, Locality)
    # A bare address, or the number of a column, is a poorer name than the one that people know the thing by.
    is_poor = a.name == a.pci_address or _NUMBERED_NIC.fullmatch(a.name) is not None
    name = b.name if is_poor and b.name != b.pci_address else a.name
    kind = a.kind if a.kind != "other" else b.kind
    return dataclasses.replace(a, name=name, kind=kind, extra={**b.extra, **a.extra}, **fields)


def _record(a: Any, b: Any, pick: Callable[[str, Any, Any], Any], shape: type[Any]) -> Any:
    fields = {}
    for field in dataclasses.fields(shape):
        first, second = getattr(a, field.name), getattr(b, field.name)
        if field.name in {"why_unknown", "is_idle_reading"}:
            continue
        fields[field.name] = pick(field.name, first, second)
    if shape is PciPort:
        reader = a if a.generation is not None else b
        fields["is_idle_reading"] = reader.is_idle_reading
    else:
        is_known = fields["cpus"] is not None and fields["numa_nodes"] is not None
        fields["why_unknown"] = "" if is_known else a.why_unknown or b.why_unknown
    return shape(**fields)


def _pick(subject: str, one: tuple[Any, Source], other: tuple[Any, Source], conflicts: list[Conflict]) -> Any:
    (first, source), (second, other_source) = one, other
    if first is None:
        return second
    if second is None or first == second or _says_the_same(first, second):
        return first
    said = (f"{_words(first)} ({source.name.lower()})", f"{_words(second)} ({other_source.name.lower()})")
    conflicts.append(Conflict(subject=subject, said=said))
    return first


def _says_the_same(first: Any, second: Any) -> bool:
    if isinstance(first, str) and isinstance(second, str):
        short, long = sorted((_folded(first), _folded(second)), key=len)
        return short in long  # NVIDIA H100 80GB HBM3 and H100 80GB HBM3; a cut name
    return False


def _folded(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _words(value: Any) -> str:
    if isinstance(value, (frozenset, tuple)):
        return ",".join(str(item) for item in sorted(value))
    return str(value)


def _value(subject: str, one: Value[Any], other: Value[Any], conflicts: list[Conflict]) -> Value[Any]:
    first, second = one.value, other.value
    if first is None or second is None:
        return one if second is None else other
    best, rest = (one, other) if one.source >= other.source else (other, one)
    if abs(first - second) > 0.01 * max(abs(first), abs(second)):
        said = tuple(
            f"{v.value:.6g} ({v.source.name.lower()}{': ' + v.detail if v.detail else ''})" for v in (best, rest)
        )
        conflicts.append(Conflict(subject=subject, said=said))
    return best


def _links(
    fragments: Sequence[Fragment], names: Sequence[Mapping[str, str]], conflicts: list[Conflict]
) -> tuple[Link, ...]:
    merged: dict[tuple[frozenset[str], str], Link] = {}
    paths: dict[frozenset[str], tuple[str, Source]] = {}
    for fragment, keys in zip(fragments, names, strict=True):
        own: dict[tuple[frozenset[str], str], Link] = {}
        for link in fragment.links:
            renamed = dataclasses.replace(link, a=keys.get(link.a, link.a), b=keys.get(link.b, link.b))
            ends = frozenset((renamed.a, renamed.b))
            if link.kind in _ON_PCIE and link.kind != "pcie":
                told = paths.setdefault(ends, (link.kind, fragment.source))
                if told[0] != link.kind and (ends, link.kind) not in own:
                    said = (f"{told[0]} ({told[1].name.lower()})", f"{link.kind} ({fragment.source.name.lower()})")
                    conflicts.append(Conflict(subject=f"path {_pair(renamed)}", said=said))
                    continue
            own.setdefault((ends, link.kind), renamed)
        for mark, link in own.items():
            merged[mark] = _one_link(merged[mark], link, conflicts) if mark in merged else link
    return tuple(merged.values())


def _one_link(one: Link, other: Link, conflicts: list[Conflict]) -> Link:
    turned = one.a != other.a
    forth, back = other.bytes_per_s, other.reverse_bytes_per_s
    if turned:
        forth, back = back, forth
    if one.count != other.count:
        said = (f"{one.count} links", f"{other.count} links")
        conflicts.append(Conflict(subject=f"{one.kind} {_pair(one)}", said=said))
    p2p = one.p2p if one.p2p != "unknown" else other.p2p
    if "unknown" not in {one.p2p, other.p2p} and one.p2p != other.p2p:
        conflicts.append(Conflict(subject=f"peer access {_pair(one)}", said=(one.p2p, other.p2p)))
    subject = f"rate of {one.kind} {_pair(one)}"
    return dataclasses.replace(
        one,
        bytes_per_s=_value(subject, one.bytes_per_s, forth, conflicts),
        reverse_bytes_per_s=_value(f"{subject}, back", one.reverse_bytes_per_s, back, conflicts),
        latency_s=_value(f"latency of {_pair(one)}", one.latency_s, other.latency_s, conflicts),
        p2p=p2p,
        shared_by=tuple(dict.fromkeys((*one.shared_by, *other.shared_by))),
        raw=one.raw or other.raw,
    )


def _pair(link: Link) -> str:
    return f"{link.a} - {link.b}"


def _groups(fragments: Sequence[Fragment], conflicts: list[Conflict]) -> tuple[CapacityGroup, ...]:
    merged: dict[str, CapacityGroup] = {}
    for fragment in fragments:
        for group in fragment.groups:
            other = merged.get(group.id)
            if other is None:
                merged[group.id] = group
                continue
            value = _value(f"capacity of {group.id}", other.bytes_per_s, group.bytes_per_s, conflicts)
            merged[group.id] = dataclasses.replace(other, bytes_per_s=value)
    return tuple(merged.values())


def _table(tables: Iterable[Mapping[Any, Any]], title: str, conflicts: list[Conflict]) -> dict[Any, Any]:
    merged: dict[Any, Any] = {}
    for table in tables:
        for pair, cell in table.items():
            if merged.setdefault(pair, cell) != cell:
                conflicts.append(
                    Conflict(subject=f"{title} {pair[0]} - {pair[1]}", said=(str(merged[pair]), str(cell)))
                )
    return merged


def _tables(
    fragments: Sequence[Fragment], names: Sequence[Mapping[str, str]], conflicts: list[Conflict]
) -> dict[str, dict[Any, Any]]:
    titles = dict.fromkeys(title for fragment in fragments for title in fragment.tables)
    renamed = [
        {
            title: {(keys.get(a, a), keys.get(b, b)): cell for (a, b), cell in table.items()}
            for title, table in fragment.tables.items()
        }
        for fragment, keys in zip(fragments, names, strict=True)
    ]
    return {title: _table((tables.get(title, {}) for tables in renamed), title, conflicts) for title in titles}


def _still_hidden(fragments: Sequence[Fragment]) -> tuple[str, ...]:
    """Returns what every source hides: what one hides another may show."""
    shown = {link.kind for fragment in fragments for link in fragment.links}
    hidden = dict.fromkeys(item for fragment in fragments for item in fragment.hides)
    return tuple(item for item in hidden if item not in shown)
