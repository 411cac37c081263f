"""When a stated fact of a tree kind and a derived one are the same; written apart from the importers."""

import re
from collections.abc import Callable, Mapping, Sequence

from topology_facts.compare import numbers_of, same
from topology_facts.either import Either

_UNKNOWN = frozenset({None, "", "-1", "N/A"})


def _rows(stated: object, derived: object) -> bool:
    """Rows in order; an address without regard to case, a negative number as unknown."""
    if not isinstance(stated, Sequence) or not isinstance(derived, Sequence) or len(stated) != len(derived):
        return False
    return all(list(map(_plain, a)) == list(map(_plain, b)) for a, b in zip(stated, derived, strict=True))


def _plain(cell: object) -> object:
    if cell in _UNKNOWN:
        return None
    return cell.lower() if isinstance(cell, str) else cell


def _nets(stated: object, derived: object) -> bool:
    """Name, speed in Mb/s, NUMA node; NCCL writes a speed of 0 or less for unknown."""
    if not isinstance(stated, Sequence) or not isinstance(derived, Sequence):
        return False
    return _rows([[name, None if _is_no_speed(speed) else speed, node] for name, speed, node in stated], derived)


def _is_no_speed(speed: object) -> bool:
    return speed is None or re.fullmatch(r"-\d+|0+|", str(speed)) is not None


def _pairs(stated: object, derived: object) -> bool:
    """Links by pair; a count that is not written is one."""
    if not isinstance(stated, Mapping) or not isinstance(derived, Mapping):
        return False
    return {pair: str(said).replace("None", "1") for pair, said in stated.items()} == dict(derived)


def _cpus(stated: object, derived: object) -> bool:
    if not isinstance(stated, Mapping) or not isinstance(derived, Mapping):
        return False
    return {k: members(v) for k, v in stated.items()} == {k: members(v) for k, v in derived.items()}


def members(printed: object) -> frozenset[int]:
    """Returns the numbers of a list or of a mask as Linux prints it; nothing printed is the empty set."""
    text = "" if printed is None else str(printed).strip()
    words = text.split(",")
    if re.fullmatch(r"0*", text) and text != "0":
        return frozenset()
    if any(len(word) == 8 for word in words) or re.search("[a-f]", text):
        mask = int("".join(word.zfill(8) for word in words), 16)
        return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
    return numbers_of(text) or frozenset()


def _devices(stated: object, derived: object) -> bool:
    """PCI functions by address: class and vendor as printed, node unknown where negative, CPUs as sets."""
    if not isinstance(stated, Mapping) or not isinstance(derived, Mapping) or stated.keys() != derived.keys():
        return False
    return all(_device(stated[address]) == _device(derived[address]) for address in stated)


def _device(said: Mapping[str, object]) -> list[object]:
    return [_plain(said["cls"]), _plain(said["vendor"]), _plain(said["numa"]), members(said["local_cpulist"])]


def _counts(stated: object, derived: object) -> bool:
    if isinstance(derived, Either):
        return any(same(stated, value) for value in derived.values)
    return same(stated, derived)


def _lines(stated: object, derived: object) -> bool:
    """The rest of a switch's line without comments and superfluous blanks; of a fabric, how many there are."""
    if not isinstance(stated, Mapping) or not isinstance(derived, Mapping):
        return same(stated, derived)
    return {k: " ".join(str(v).partition("#")[0].split()) for k, v in stated.items()} == dict(derived)


def _prose(_stated: object, _derived: object) -> bool:
    return True


TREE_RULES: dict[str, Callable[[object, object], bool]] = {
    "gpus": _rows,
    "nets": _nets,
    "pairs": _pairs,
    "node_cpus": _cpus,
    "display_or_accel": _devices,
    "pci_numa": _counts,
    "switches": _lines,
    "note": _prose,
}
