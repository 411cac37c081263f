"""``plait explain placement``: which devices of some machines a group would be made of, and why not others."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plait.cli.failures import OK, unknown
from plait.cli.output import counted, print_json, print_table, say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plait.hardware.affinity import AffinityMatrix
    from plait.hardware.grouping import Group


def explain_placement(
    files: Sequence[str], num_devices: int, free: str | None, *, model: str | None, cpu: str | None, as_json: bool
) -> int:
    """Prints the best group of ``num_devices``, its slowest link, and why other ways to choose lose."""
    from plait.hardware.affinity import build
    from plait.hardware.gather import from_files, this_host, with_hints
    from plait.hardware.grouping import best_group

    nodes = with_hints(from_files(files) if files else this_host(), model, cpu)
    matrix = build(nodes)
    names = _names(matrix)
    places = _free(names, free)
    group = best_group(_speeds(matrix), places, num_devices, labels=names)
    if as_json:
        print_json(_document(matrix, names, places, group))
    else:
        _show(matrix, names, places, group)
    return OK


def _names(matrix: "AffinityMatrix") -> tuple[str, ...]:
    """Returns what people call the devices; with the node's name where there are several nodes."""
    if len(matrix.nodes) == 1:
        return matrix.names
    return tuple(f"{matrix.nodes[node]}/{name}" for node, name in zip(matrix.node_of, matrix.names, strict=True))


def _free(names: Sequence[str], given: str | None) -> tuple[int, ...]:
    """Reads ``0,3,5`` or ``GPU0,GPU3``; every device unless given."""
    if given is None:
        return tuple(range(len(names)))
    found = []
    for word in (part.strip() for part in given.split(",")):
        if word in names:
            found.append(names.index(word))
        elif word.isdecimal() and int(word) < len(names):
            found.append(int(word))
        else:
            raise unknown("device", word, names)
    return tuple(sorted(set(found)))


def _speeds(matrix: "AffinityMatrix") -> "NDArray[np.float64]":
    """Returns bytes a second; where only the least is known (the model is not), that."""
    import numpy as np

    return np.where(np.isnan(matrix.bytes_per_s), matrix.low_bytes_per_s, matrix.bytes_per_s)


def _is_least(matrix: "AffinityMatrix", link: tuple[int, int]) -> bool:
    return not bool(matrix.known[link] and matrix.known[link[::-1]])


def _link_kind(matrix: "AffinityMatrix", link: tuple[int, int]) -> str | None:
    return str(matrix.kinds[link]) or None


def _show(matrix: "AffinityMatrix", names: Sequence[str], places: Sequence[int], group: "Group") -> None:
    say(f"{counted(len(group.devices), 'device')} of {len(places)} free: {', '.join(names[d] for d in group.devices)}")
    if group.bottleneck is not None:
        kind, least = _link_kind(matrix, group.bottleneck), _is_least(matrix, group.bottleneck)
        how = "".join((f" ({kind})" if kind else "", ", at least" if least and group.value_bytes_per_s else ""))
        link = "-".join(names[d] for d in group.bottleneck)
        say(f"  ring: {' - '.join(names[d] for d in group.ring)}")
        say(f"  slowest link: {link}{how}: {_told(group.value_bytes_per_s)}")
    say(f"  why: {group.reason}")
    if not group.is_exact:
        say(f"  bound: {_told(group.bound_bytes_per_s)}; found by a search, as more than 16 devices are free")
    if group.alternatives:
        say("")
        print_table(
            ("OTHER CHOICES", "DEVICES", ">GB/s", "WHY NOT"),
            [
                (a.name, ", ".join(names[d] for d in a.devices), _giga(a.value_bytes_per_s), a.reason)
                for a in group.alternatives
            ],
        )


def _told(bytes_per_s: float | None) -> str:
    return "unknown" if bytes_per_s is None else f"{bytes_per_s / 1e9:.4g} GB/s"


def _giga(bytes_per_s: float | None) -> str | None:
    return None if bytes_per_s is None else f"{bytes_per_s / 1e9:.4g}"


def _document(
    matrix: "AffinityMatrix", names: Sequence[str], places: Sequence[int], group: "Group"
) -> dict[str, object]:
    link = group.bottleneck
    return {
        "free": [names[d] for d in places],
        "devices": [names[d] for d in group.devices],
        "ring": [names[d] for d in group.ring],
        "bottleneck": None
        if link is None
        else {
            "a": names[link[0]],
            "b": names[link[1]],
            "kind": _link_kind(matrix, link),
            "bytes_per_s": group.value_bytes_per_s,
            "is_lower_bound": _is_least(matrix, link),
        },
        "bytes_per_s": group.value_bytes_per_s,
        "bound_bytes_per_s": group.bound_bytes_per_s,
        "total_bytes_per_s": group.total_bytes_per_s,
        "is_exact": group.is_exact,
        "reason": group.reason,
        "alternatives": [
            {
                "name": a.name,
                "devices": [names[d] for d in a.devices],
                "bytes_per_s": a.value_bytes_per_s,
                "reason": a.reason,
            }
            for a in group.alternatives
        ],
    }
