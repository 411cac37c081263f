"""When a stated fact and a derived one are the same: normalisation, key by key, written apart from the importers.

A stated string is normalised by rules of its own (CPU lists as sets, ``N/A`` as unknown), so that a fault in a reader
cannot hide behind the same fault here.
"""

import re
from collections.abc import Callable, Mapping, Sequence

_UNKNOWN = frozenset({"", "-1", "N/A", "n/a", "NA", "[N/A]"})


def equal(key: str, stated: object, derived: object) -> bool:
    """Returns whether both say the same; keys without a rule of their own are compared value by value."""
    rule = RULES.get(key)
    return rule(stated, derived) if rule is not None else same(stated, derived)


def same(stated: object, derived: object) -> bool:
    """Values alike: numbers by value, sequences in order, mappings by key, strings without outer blanks."""
    if isinstance(stated, bool) or isinstance(derived, bool) or stated is None or derived is None:
        return stated is derived
    if isinstance(stated, int | float) and isinstance(derived, int | float):
        return abs(stated - derived) <= 1e-9 * max(1.0, abs(stated))
    if isinstance(stated, str) and isinstance(derived, str):
        return stated.strip() == derived.strip()
    if isinstance(stated, Mapping) and isinstance(derived, Mapping):
        return stated.keys() == derived.keys() and all(same(stated[k], derived[k]) for k in stated)
    if isinstance(stated, Sequence) and isinstance(derived, Sequence) and not isinstance(stated, str):
        return len(stated) == len(derived) and all(same(a, b) for a, b in zip(stated, derived, strict=True))
    return False


def numbers_of(printed: str) -> frozenset[int] | None:
    """Returns the set of a printed list (``0-3,8``), ``None`` for unknown and for what is no list."""
    if printed.strip() in _UNKNOWN or not re.fullmatch(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*", printed.strip()):
        return None
    members: set[int] = set()
    for part in printed.split(","):
        first, _, last = part.strip().partition("-")
        members.update(range(int(first), int(last or first) + 1))
    return frozenset(members)


def _cpu(stated: object, derived: object) -> bool:
    if not isinstance(stated, Mapping) or not isinstance(derived, Mapping):
        return False
    lists = {name: numbers_of(str(printed)) for name, printed in stated.items()}
    return {name: cpus for name, cpus in lists.items() if cpus is not None} == dict(derived)


def _nodes(stated: object, derived: object) -> bool:
    """Nodes as sets; a range from 0 that is all that the machine ever prints is unknown."""
    if not isinstance(stated, Mapping) or not isinstance(derived, Mapping):
        return False
    printed = {name: str(value).strip() for name, value in stated.items()}
    said = {value for value in printed.values() if value not in _UNKNOWN}
    hidden = {value for value in said if re.fullmatch(r"0-\d+", value) and said == {value}}
    known = {name: numbers_of(value) for name, value in printed.items() if value not in hidden}
    return {name: nodes for name, nodes in known.items() if nodes is not None} == {
        name: frozenset(nodes) for name, nodes in derived.items()
    }


def _signed(stated: object, derived: object) -> bool:
    """NUMA nodes as whole numbers; negative is unknown."""
    if not isinstance(stated, Mapping) or not isinstance(derived, Mapping):
        return False
    return {k: v for k, v in stated.items() if v >= 0} == {k: v for k, v in derived.items() if v >= 0}


def _addresses(stated: object, derived: object) -> bool:
    """PCI addresses without regard to case and to leading zeros of the domain."""
    if not isinstance(stated, Sequence) or not isinstance(derived, Sequence):
        return False
    return [_address(a) for a in stated] == [_address(a) for a in derived]


def _address_set(stated: object, derived: object) -> bool:
    if not isinstance(stated, Sequence) or not isinstance(derived, Sequence):
        return False
    return sorted(str(_address(a)) for a in stated) == sorted(str(_address(a)) for a in derived)


def _address(printed: object) -> object:
    match = re.fullmatch(r"0*([0-9a-f]{1,8}):([0-9a-f:.]+)", str(printed).lower())
    return f"{int(match[1], 16):04x}:{match[2]}" if match and match[2].count(":") else str(printed).lower()


def _memory(stated: object, derived: object) -> bool:
    """``81920 MiB`` against bytes; an empty string against unknown."""
    if not isinstance(stated, Sequence) or not isinstance(derived, Sequence):
        return False
    return [_mib(str(text)) for text in stated] == list(derived)


def _mib(printed: str) -> int | None:
    match = re.fullmatch(r"(\d+)\s*MiB", printed.strip())
    return int(match[1]) * 2**20 if match else None


def _ports(stated: object, derived: object) -> bool:
    """``["4", "16x"]`` against generation and lanes."""
    if not isinstance(stated, Sequence) or not isinstance(derived, Sequence):
        return False
    return [[int(part.rstrip("x")) if part.rstrip("x").isdigit() else None for part in pair] for pair in stated] == [
        list(pair) for pair in derived
    ]


def _some(stated: object, derived: object) -> bool:
    """The facts name a few pairs of many; a pair is the same in either order."""
    if not isinstance(stated, Mapping) or not isinstance(derived, Mapping):
        return False
    return all(_either_way(pair, derived) == said for pair, said in stated.items())


def _either_way(pair: str, derived: Mapping[str, object]) -> object:
    return derived.get(pair, derived.get("|".join(reversed(pair.split("|")))))


def _same_root(stated: object, derived: object) -> bool:
    if not isinstance(stated, Sequence) or not isinstance(derived, Mapping):
        return False
    return all(a in derived and derived.get(a) == derived.get(b) for a, b in stated)


def _different_root(stated: object, derived: object) -> bool:
    if not isinstance(stated, Sequence) or not isinstance(derived, Mapping):
        return False
    return all(a in derived and b in derived and derived[a] != derived[b] for a, b in stated)


def _matrices(stated: object, derived: object) -> bool:
    """Every stated table of rates, in order, and no other one; blanks in titles do not count."""
    if not isinstance(stated, Sequence) or not isinstance(derived, Sequence) or len(stated) != len(derived):
        return False
    return all(_matrix(a, b) for a, b in zip(stated, derived, strict=True))


def _matrix(stated: Mapping[str, object], derived: Mapping[str, object]) -> bool:
    titles = [" ".join(str(table["title"] or "").split()) for table in (stated, derived)]
    return titles[0] == titles[1] and same(stated["cols"], derived["cols"]) and same(stated["rows"], derived["rows"])


def _unit(stated: object, derived: object) -> bool:
    """The unit as printed; what the facts add in brackets is for readers."""
    return str(stated).split(" as printed")[0].strip() == str(derived).strip()


def _last(stated: object, derived: object) -> bool:
    if not isinstance(stated, Sequence) or not isinstance(derived, Sequence) or len(stated) != len(derived):
        return False
    return str(stated[0]) == str(derived[0]) and same(float(str(stated[1])), derived[1])


RULES: dict[str, Callable[[object, object], bool]] = {
    "cpu": _cpu,
    "numa": _nodes,
    "gpu_numa_id": _nodes,
    "numa_node": _signed,
    "numa_aff": _signed,
    "bus": _addresses,
    "gpu_bdf": _address_set,
    "nic_bdf": _address_set,
    "gpu_bdf_suffix": _address_set,
    "nic_bdf_suffix": _address_set,
    "mem": _memory,
    "pcie": _ports,
    "link": _some,
    "parent": _some,
    "same_root": _same_root,
    "different_root": _different_root,
    "matrices": _matrices,
    "unit": _unit,
    "last": _last,
}
"""Rules by the name of a fact; another kind may add its own."""
