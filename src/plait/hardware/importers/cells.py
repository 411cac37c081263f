"""What a cell of a topology matrix means, whoever printed it: classes of links, P2P states, CPU and NUMA affinities."""

import re

from plait.hardware.cpusets import cpus_of_list
from plait.hardware.topology import P2P, LinkKind

_FIXED: dict[str, LinkKind] = {
    "NVB": "nvb",
    "C2C": "c2c",
    "PIX": "pix",
    "PXB": "pxb",
    "PHB": "phb",
    "NODE": "node",
    "SYS": "sys",
    "SOC": "sys",  # what SYS was called before 2017
    "XGMI": "xgmi",
    "PCIE": "pcie",
    "HCCS": "hccs",
    "HCCS_SW": "hccs",
    "SIO": "sio",
    "UB": "ub",
    "MX": "mx",
    "MDF": "mdf",
    "XL*": "xelink",  # Intel: over the other tile and one Xe link
    "MLK": "mlulink",
    "ETH": "net",
}
_COUNTED: tuple[tuple[str, LinkKind], ...] = (("NV", "nvlink"), ("MX", "mx"), ("MT", "mtlink"), ("XL", "xelink"))
_COUNT = re.compile(r"(NV|MX|MT|XL)([1-9][0-9]{0,2})", re.ASCII)
_UNKNOWN = frozenset({"NA", "N/A", "XXXX", "-", "?", "UNKNOWN", "UNK"})
_LONGEST_CELL = 8
_SELF = frozenset({"X", "S", "SELF"})
_P2P: dict[str, P2P] = {
    "OK": "ok",
    "CNS": "refused",
    "GNS": "refused",
    "TNS": "refused",
    "NS": "refused",
    "DR": "refused",
    "U": "unknown",
}
_PIECES = re.compile(r"NV[1-9][0-9]?(?![0-9])|NODE|SYS|SOC|PHB|PXB|PIX|NVB|C2C|HCCS(?:_SW)?|SIO|XGMI|PCIE|X", re.ASCII)
_AFFINITY = re.compile(r"[0-9][0-9,:/-]*|N/A|-1", re.ASCII | re.IGNORECASE)


def link_of(cell: str) -> tuple[LinkKind, int] | None:
    """Returns the kind and the number of links of a cell such as ``NV12``, ``PIX``; ``None`` where it names no link."""
    word = cell.upper()
    if (kind := _FIXED.get(word)) is not None:
        return kind, 1
    match = _COUNT.fullmatch(word)
    if match is None:
        return None
    return dict(_COUNTED)[match[1]], int(match[2])


def p2p_of(cell: str) -> P2P | None:
    """Returns what a cell of ``topo -p2p`` says of peer access, ``None`` where it is no such cell."""
    return _P2P.get(cell.upper())


def is_self(cell: str) -> bool:
    """Returns whether the cell stands on the diagonal."""
    return cell.upper() in _SELF


def is_unknown(cell: str) -> bool:
    """Returns whether the tool itself says that it does not know."""
    return cell.upper() in _UNKNOWN


def is_affinity(cell: str) -> bool:
    """Returns whether the cell looks like a CPU list, a NUMA node or ``N/A`` rather than like a link."""
    return _AFFINITY.fullmatch(cell) is not None


def pieces_of(cell: str) -> list[str] | None:
    """Returns the cells of a run whose separators were lost (``NV1NV1SOC``), ``None`` where it is none or not sure.

    What follows them glued (``NODE0-310N/A``: CPU list, node and own node) cannot be told apart and is left out.
    """
    word = cell.upper()
    found: list[str] = []
    at = 0
    while (match := _PIECES.match(word, at)) is not None:
        found.append(match[0])
        at = match.end()
    is_run = len(found) > 1 and found.count("X") < 2 and (at == len(word) or word[at].isdigit())
    return found if is_run else None


def is_damaged_cell(word: str) -> bool:
    """Returns whether a word may be a cell that lost or changed characters (``SY#``), and not a word put in between."""
    left = re.sub(r"[^A-Z0-9]", "", word.upper())
    return 0 < len(left) <= len(word) <= _LONGEST_CELL and any(
        _is_part(left, cell) for cell in (*_FIXED, "NV12", "NV18")
    )


def _is_part(part: str, whole: str) -> bool:
    rest = iter(whole)
    return all(character in rest for character in part)


def cpus_of_cell(cell: str) -> frozenset[int] | None:
    """Returns the CPUs of an affinity cell, ``None`` for empty, ``N/A`` and what is no list."""
    return cpus_of_list(cell) if cell else None


def numa_nodes_of_cell(cell: str, others: frozenset[str]) -> tuple[tuple[int, ...] | None, str]:
    """Returns the NUMA nodes of a cell and, where they are unknown, why.

    Args:
        cell: As printed: a number, a list, a range, ``N/A``, ``-1`` or empty.
        others: What the whole column holds. A range from 0 that is all the column ever says is every node of the
            machine: the hypervisor hides which one.
    """
    if cell in {"", "-1"} or is_unknown(cell):
        return None, f"printed as {cell!r}" if cell else "not printed"
    nodes = cpus_of_list(cell)
    if nodes is None:
        return None, f"{cell!r} is no list of NUMA nodes"
    if re.fullmatch(r"0-[0-9]+", cell) and others <= {cell} and len(nodes) > 1:
        return None, f"{cell!r} is every node: the machine does not say which one (a virtual machine?)"
    return tuple(sorted(nodes)), ""
