"""Which link a pair of devices uses: of several the best, and where no source names one, what the PCI tree says."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from plait.hardware.affinity.routes import Pair, ancestors
from plait.hardware.cost_model import architecture, architecture_by_id
from plait.hardware.topology import Component, Fragment, Link, LinkKind
from plait.hardware.values import Source

ACCELERATORS = frozenset({"gpu", "npu"})
_RANK: dict[str, int] = {
    "nvlink": 9, "xgmi": 9, "hccs": 9, "sio": 9, "ub": 9, "mx": 9, "xelink": 9, "mdf": 9, "mtlink": 9, "mlulink": 9,
    "c2c": 8, "pix": 7, "pxb": 6, "phb": 5, "node": 4, "pcie": 3, "nvb": 3, "sys": 2, "net": 1, "self": -1,
}  # fmt: skip

_COUNTED = {"nvlink": "NV", "mx": "MX", "mtlink": "MT", "xelink": "XL"}
_CELL = re.compile(r"[A-Z][A-Z0-9_]{1,8}\*?", re.ASCII)


def endpoints_of(fragment: Fragment) -> tuple[Component, ...]:
    """Returns what computes on a node, in the order of its numbers or PCI addresses; CPUs where nothing else does.

    Of a package and its parts (GCDs, dies) the parts count where links name them, else the package; slices without
    links of their own (MIG) do not count.
    """
    present = {c.key for c in fragment.components}
    found = [
        c for c in fragment.components if c.kind in ACCELERATORS and c.extra.get("virtual_function_of") not in present
    ]
    linked = {key for link in fragment.links for key in (link.a, link.b) if link.a != link.b}
    keys = {c.key for c in found}
    whole = [c for c in found if c.parent not in keys]
    parts = [c for c in found if c.parent in keys and (c.key in linked or _is_die(c))]
    split = {c.parent for c in parts}
    chosen = [c for c in whole if c.key not in split] + parts
    if not chosen:
        processors = [c for c in fragment.components if c.kind == "cpu"]
        # Discovery tells of all processors together as one device; the kernel of each package besides.
        chosen = [c for c in processors if c.accelerator_type is not None] or processors
    return tuple(sorted(chosen, key=_order))


def names_of(devices: Sequence[Component]) -> tuple[str, ...]:
    """Returns what people call these devices: their names, and a number where the source gives an address alone."""
    names = []
    for number, device in enumerate(devices):
        bare = device.name in {device.pci_address, device.uuid}
        count = device.index if device.index is not None else number
        names.append(f"{device.kind.upper()}{count}" if bare else device.name)
    if len(set(names)) == len(names):
        return tuple(names)
    return tuple(device.name for device in devices)


def links_between(fragment: Fragment, ends: Sequence[Component], others: Sequence[Component]) -> dict[Pair, Link]:
    """Returns the link that each ordered pair uses, as seen from its first member (``bytes_per_s`` is first to second).

    Of several links direct ones win over PCI Express. A pair that no source names gets the path through the PCI tree
    where the tree holds both, and is absent where it does not.
    """
    wanted = {(a.key, b.key) for a in ends for b in others if a.key != b.key}
    found: dict[Pair, Link] = {}
    for link in fragment.links:
        for pair, seen in (((link.a, link.b), link), ((link.b, link.a), turned(link))):
            if pair in wanted:
                found[pair] = _better(found[pair], seen) if pair in found else seen
    refused = {
        pair for link in fragment.links if link.p2p == "refused" for pair in ((link.a, link.b), (link.b, link.a))
    }
    for a in ends:
        for b in others:
            pair = (a.key, b.key)
            if pair in wanted and (pair not in found or found[pair].kind == "unknown"):
                kind = _kind_by_tree(fragment, a, b)
                if kind is not None:
                    old = found.get(pair)
                    found[pair] = Link(a=a.key, b=b.key, kind=kind, p2p=old.p2p if old else "unknown", raw="PCI tree")
            if pair in refused and pair in found and found[pair].p2p != "refused":
                found[pair] = _with_p2p_refused(found[pair])
    return found


def link_word(link: Link) -> str:
    """Returns a link as topology tools print it (``NV12``, ``SYS``, ``XGMI x2``), empty for one of unknown kind."""
    if link.kind == "unknown":
        return ""
    if _CELL.fullmatch(link.raw):
        return link.raw
    prefix = _COUNTED.get(link.kind)
    if prefix is not None:
        return f"{prefix}{link.count}"
    return link.kind.upper() + (f" x{link.count}" if link.count > 1 else "")


def turned(link: Link) -> Link:
    """Returns the link as seen from its other end."""
    back = link.reverse_bytes_per_s if link.reverse_bytes_per_s.value is not None else link.bytes_per_s
    return replace(link, a=link.b, b=link.a, bytes_per_s=back, reverse_bytes_per_s=link.bytes_per_s)


def processor_of(fragment: Fragment) -> str | None:
    """Returns the generation of a node's processors, ``None`` where nothing tells."""
    for component in fragment.components:
        if component.kind not in {"cpu", "numa"}:
            continue
        era = architecture(component.model)
        extra = {key.casefold().replace("_", ""): value for key, value in component.extra.items()}
        ids = [extra.get(key, "") for key in ("familyid", "modelid")]
        if era is None and all(re.fullmatch(r"\d+", text) for text in ids):
            era = architecture_by_id(component.vendor or extra.get("vendor", ""), int(ids[0]), int(ids[1]))
        if era is None and "arm" in extra.get("arch", "").casefold():
            era = "arm"
        if era is not None:
            return era
    return None


def _order(component: Component) -> tuple[int, int, str, str]:
    vendor_first = 0 if component.kind in ACCELERATORS else 1
    index = component.index if component.index is not None else 1_000_000
    return vendor_first, index, component.pci_address or "", component.key


def _is_die(component: Component) -> bool:
    words = f"{component.name} {component.extra.get('part', '')}".casefold()
    return "gcd" in words or "die" in words


def _rank(link: Link) -> tuple[bool, int, int]:
    is_stated = link.bytes_per_s.value is not None and link.bytes_per_s.source >= Source.USER
    return is_stated, _RANK.get(link.kind, 0), link.count


def _better(one: Link, other: Link) -> Link:
    """Returns the link that is used; a rate told of the pair without a kind is that of the kind told beside it."""
    best, rest = (one, other) if _rank(one) >= _rank(other) else (other, one)
    if best.kind == "unknown" and rest.kind != "unknown":
        p2p = rest.p2p if rest.p2p != "unknown" else best.p2p
        latency = best.latency_s if best.latency_s.value is not None else rest.latency_s
        there, back = best.bytes_per_s, best.reverse_bytes_per_s
        return replace(rest, bytes_per_s=there, reverse_bytes_per_s=back, latency_s=latency, p2p=p2p)
    return best


def _with_p2p_refused(link: Link) -> Link:
    return replace(link, p2p="refused")


def _kind_by_tree(fragment: Fragment, a: Component, b: Component) -> LinkKind | None:
    kinds: Mapping[str, str] = {c.key: c.kind for c in fragment.components}
    above_a = [key for key in ancestors(fragment, a.key) if kinds.get(key) in {"bridge", "switch"}]
    above_b = [key for key in ancestors(fragment, b.key) if kinds.get(key) in {"bridge", "switch"}]
    common = next((key for key in above_a if key in above_b), None)
    if common is not None:
        hops = max(above_a.index(common), above_b.index(common))
        return "pix" if hops <= 1 else "pxb"
    if not (a.pci_address and b.pci_address):
        return None
    homes_a, homes_b = a.locality.numa_nodes, b.locality.numa_nodes
    if homes_a and homes_b:
        near = fragment.numa_distances.get((homes_a[0], homes_b[0]))
        is_same_socket = homes_a == homes_b or (near is not None and near < 16)
        return "node" if is_same_socket else "sys"
    numa_nodes = [c for c in fragment.components if c.kind == "numa"]
    return "node" if len(numa_nodes) == 1 else None
