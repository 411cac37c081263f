"""What ``plait topology`` shows: the matrix, its NICs, groups, warnings, conflicts; as tables or as one document."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plait.cli.output import PIPED_COLUMNS, console, counted, print_table, say
from plait.hardware.affinity import AffinityMatrix
from plait.hardware.affinity.links import endpoints_of
from plait.hardware.nics import fabric_of, link_state, nics_of, other_names
from plait.hardware.topology import Component, Fragment
from plait.hardware.values import Source

_MARKS = {
    Source.MEASURED: "",
    Source.USER: "u",
    Source.LIBRARY: "l",
    Source.CLI: "c",
    Source.SYSFS: "s",
    Source.CATALOGUE: "k",
    Source.DEFAULT: "~",
}
_LEGEND = "~ estimated, k catalogue, s kernel, c tool, l library, u stated by you, no mark: measured, ? unknown"
_LEGEND_OF_RANGES = "a-b: somewhere between, by generation"
_CELL_WIDTH = 9
_MOST_PAIRS = 24
_MOST_ALIKE = 3


def show(nodes: Mapping[str, Fragment], matrix: AffinityMatrix, warnings: Sequence[str], notes: Sequence[str]) -> None:
    """Prints everything for people."""
    for name, fragment in nodes.items():
        if fragment.format != "peer":
            _show_devices(name, fragment, matrix)
    if len(matrix.devices) > 1:
        _show_matrix(matrix)
    if len(matrix.nodes) > 1:
        _show_fabric(matrix)
    _show_nics(nodes, matrix)
    for fragment in nodes.values():
        _show_measurements(fragment)
    _show_groups(matrix)
    _show_list("warnings", warnings)
    _show_list("sources that differ", [f"{c.subject}: {' against '.join(c.said)}" for c in matrix.conflicts])
    unread = [line for fragment in nodes.values() for line in fragment.unread]
    _show_list("not understood", unread)
    _show_list("notes", notes)


def document(
    nodes: Mapping[str, Fragment], matrix: AffinityMatrix, warnings: Sequence[str], notes: Sequence[str]
) -> dict[str, Any]:
    """Returns everything for programs: arrays with their axes, unknown as null, bytes/s of one direction."""
    arrays = {name: _plain(getattr(matrix, name)) for name in AffinityMatrix.AXES}
    arrays["source"] = [[Source(s).name.lower() for s in row] for row in matrix.source.tolist()]
    arrays["node_source"] = [[Source(s).name.lower() for s in row] for row in matrix.node_source.tolist()]
    pairs = itertools.product(matrix.devices, repeat=2)
    return {
        "axes": {name: list(matrix.axis(name)) for name in ("device", "numa", "nic", "node")},
        "devices": [
            {
                "key": key,
                "name": matrix.names[i],
                "node": matrix.nodes[matrix.node_of[i]],
                "model": matrix.models[i],
            }
            for i, key in enumerate(matrix.devices)
        ],
        "arrays": {name: {"axes": list(axes), "values": arrays[name]} for name, axes in AffinityMatrix.AXES.items()},
        "details": [
            {"from": a, "to": b, "detail": matrix.details[a, b]} for a, b in pairs if matrix.details.get((a, b))
        ],
        "nics": [
            {
                "key": f"{node}/{nic.key}",
                "name": nic.name,
                "other_names": list(other_names(nic)),
                "fabric": fabric_of(nic),
                "is_up": link_state(nic),
                "rate_bytes_per_s": nic.rate_bytes_per_s.value,
            }
            for node, fragment in nodes.items()
            for nic in nics_of(fragment)
        ],
        "groups": [
            {
                "id": group.id,
                "kind": group.kind,
                "bytes_per_s": group.bytes_per_s.value,
                "duplex_factor": group.duplex_factor,
                "detail": group.bytes_per_s.detail,
            }
            for group in matrix.groups.values()
        ],
        "all_pairs_bytes_per_s": None if _unknown_groups(matrix) else _all_pairs(matrix),
        "measurements": [
            {
                "node": node,
                "title": table.title,
                "unit": table.unit,
                "columns": list(table.columns),
                "rows": [{"name": row, "values": list(values)} for row, values in table.rows],
                "figures": dict(table.figures),
            }
            for node, fragment in nodes.items()
            for table in fragment.measurements
        ],
        "warnings": list(warnings),
        "conflicts": [{"subject": c.subject, "said": list(c.said)} for c in matrix.conflicts],
        "unread": [line for fragment in nodes.values() for line in fragment.unread],
        "notes": list(notes),
    }


def _show_devices(name: str, fragment: Fragment, matrix: AffinityMatrix) -> None:
    rows: list[tuple[object, ...]] = []
    for device in endpoints_of(fragment):
        i = matrix.index(f"{name}/{device.key}")
        memory = matrix.bytes_per_s[i, i]
        rows.append(
            (
                matrix.names[i],
                device.accelerator_type or device.model or "?",
                device.pci_address or "-",
                _numa(device),
                _port(device),
                _rate(matrix.host_bytes_per_s[i]),
                _rate(memory) + (_MARKS[Source(matrix.source[i, i])] if not np.isnan(memory) else ""),
            )
        )
    title = f"{name}: {_contents(fragment, len(rows))} ({fragment.format})"
    if not rows:
        _title(title)
        return
    _table(title, ("DEVICE", "MODEL", "PCI", "NUMA", "PORT", ">HOST GB/s", ">MEMORY GB/s"), rows)
    distances = fragment.numa_distances
    numbers = sorted({a for a, _ in distances})
    if len(numbers) > 1:
        table = [(f"node {a}", *(distances.get((a, b)) for b in numbers)) for a in numbers]
        _table("NUMA distance", ("NUMA", *(f">{b}" for b in numbers)), table)


def _contents(fragment: Fragment, devices: int) -> str:
    """Returns ``8 devices, 4 NICs, 2 switches``."""
    found = Counter(component.kind for component in fragment.components)
    found["nic"] = len(nics_of(fragment))
    words = {"nic": "NIC", "numa": "NUMA node", "switch": "switch", "node": "node"}
    told = [counted(found[kind], word) for kind, word in words.items() if found[kind]]  # type: ignore[index]
    return ", ".join((counted(devices, "device"), *told)) if devices or not told else ", ".join(told)


def _show_measurements(fragment: Fragment) -> None:
    rows = [
        (
            table.title or "matrix",
            table.unit,
            f"{counted(len(table.rows), 'row')} of {len(table.columns)}",
            ", ".join(f"{key} {_plain_figure(value)}" for key, value in table.figures.items()),
        )
        for table in fragment.measurements
    ]
    if len(rows) > 1 or any(table.figures for table in fragment.measurements):
        _table("Tables of measurements", ("TITLE", "UNIT", "TABLE", "FIGURES"), rows)


def _plain_figure(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"


def _show_matrix(matrix: AffinityMatrix) -> None:
    count = len(matrix.devices)
    room = console().width
    labels = [_label(matrix, i) for i in range(count)]
    if max(map(len, labels)) + 2 + count * _CELL_WIDTH > max(room, PIPED_COLUMNS // 2):
        say(f"\n{count} devices are too many for a table here: --svg draws them, --json lists them")
        return
    from rich.table import Table

    _title("GB/s from row to column")
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for label in labels:
        table.add_column(label, justify="right", min_width=5)
    for i, label in enumerate(labels):
        table.add_row(label, *(_cell(matrix, i, j) for j in range(count)))
    console().print(table)
    say(_LEGEND)
    off = ~np.eye(count, dtype=bool)
    if (~matrix.known & off & ~np.isnan(matrix.low_bytes_per_s)).any():
        say(_LEGEND_OF_RANGES)
    if (~matrix.known & off & (matrix.links != "")).any() and None in matrix.models:
        say("the files name no model, and a link's rate depends on it: give --model A100, or whatever it is")


def _cell(matrix: AffinityMatrix, i: int, j: int) -> str:
    if i == j:
        return "-"
    rate = matrix.bytes_per_s[i, j]
    kind, link = str(matrix.kinds[i, j]), str(matrix.links[i, j])
    mark = "" if np.isnan(rate) else _MARKS[Source(matrix.source[i, j])]
    shown = _rate(rate) if not np.isnan(rate) else _range(matrix.low_bytes_per_s[i, j], matrix.high_bytes_per_s[i, j])
    # A pair whose copies pass through host memory has a link all the same.
    words = [link, kind] if link and kind == "staged" else [link or kind or "unknown"]
    return "\n".join((f"{shown}{mark}", *(f"[dim]{word}[/dim]" for word in words)))


def _show_fabric(matrix: AffinityMatrix) -> None:
    rows = []
    for a, b in itertools.permutations(matrix.nodes, 2):
        cell = matrix.node_cell(a, b)
        i, j = matrix.nodes.index(a), matrix.nodes.index(b)
        mark = "" if cell.value is None else _MARKS[cell.source]
        latency = matrix.node_latency_s[i, j]
        micros = "?" if np.isnan(latency) else f"{latency * 1e6:.3g}"
        rows.append((a, b, f"{_rate(cell.value)}{mark}", micros, cell.kind or "?", cell.detail))
    _table("Between nodes", ("FROM", "TO", ">GB/s", ">LATENCY us", "FABRIC", "WHY"), rows[:_MOST_PAIRS])


def _show_nics(nodes: Mapping[str, Fragment], matrix: AffinityMatrix) -> None:
    columns = {key: j for j, key in enumerate(matrix.nics)}
    rows = []
    for node, fragment in nodes.items():
        for nic in nics_of(fragment):
            kinds = matrix.nic_kinds[:, columns[f"{node}/{nic.key}"]]
            near = [matrix.names[i] for i, kind in enumerate(kinds) if str(kind) in {"pix", "pxb", "phb"}]
            names = " ".join(dict.fromkeys((nic.name, *other_names(nic))))
            where = f"{node}/{names}" if len(nodes) > 1 else names
            rate = _rate(nic.rate_bytes_per_s.value)
            state = {True: "up", False: "down", None: "?"}[link_state(nic)]
            rows.append((where, fabric_of(nic) or "?", rate, state, _numa(nic), ", ".join(near[:8]) or "-"))
    if rows:
        _table("NICs", ("NIC", "FABRIC", ">LINE GB/s", "STATE", "NUMA", "NEAR"), rows)


def _show_groups(matrix: AffinityMatrix) -> None:
    shared = [group for group in matrix.groups.values() if group.kind not in {"port", "nic"}]
    rows = [
        (
            group.id,
            group.kind.replace("_", " "),
            _rate(group.bytes_per_s.value),
            _rate(group.scatter_bytes_per_s.value) if group.scatter_bytes_per_s.value else "-",
            group.bytes_per_s.detail,
        )
        for group in shared
    ]
    if rows:
        columns = ("GROUP", "KIND", ">GB/s", ">SCATTERED WRITES", "WHY")
        _table("What pairs share, one direction", columns, rows)
    together = _all_pairs(matrix)
    if together is not None:
        flows = matrix.all_pairs()
        best = matrix.achievable(flows, unknown="raise")
        alone = sum(matrix.bandwidth(f.source, f.target, unknown="raise") for f in flows) / len(flows)
        each = f"{_rate(together / len(flows))} each ({_rate(alone)} alone)"
        unknown = _unknown_groups(matrix)
        most, reason = "", best.reason
        if unknown:
            most, reason = "at most ", f"the capacity of {unknown} of the ports and links that they share is not known"
        say(f"all {len(flows)} pairs at once: {most}{_rate(together)} GB/s together, {each}: {reason}")


def _unknown_groups(matrix: AffinityMatrix) -> int:
    """Returns how many groups that pairs load have no known capacity: then the worst group is not known either."""
    loaded = {load.group for loads in matrix.routes.values() for load in loads}
    return sum(matrix.groups[name].bytes_per_s.value is None for name in loaded if name in matrix.groups)


def _all_pairs(matrix: AffinityMatrix) -> float | None:
    off = ~np.eye(len(matrix.devices), dtype=bool)
    if len(matrix.devices) < 3 or not matrix.known[off].all():
        return None
    return matrix.achievable(matrix.all_pairs(), unknown="raise").bytes_per_s


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    _title(title)
    print_table(columns, rows)


def _title(words: str) -> None:
    from rich.text import Text

    console().print(Text(f"\n{words}", style="bold"))


def _show_list(title: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    say(f"\n{title}:")
    alike: dict[str, list[str]] = {}
    for line in lines:
        alike.setdefault(re.sub(r"[0-9a-fA-F]*\d[0-9a-fA-F]*", "0", line), []).append(line)
    for members in alike.values():
        shown = members if len(members) <= _MOST_ALIKE + 1 else members[:_MOST_ALIKE]
        for line in shown:
            say(f"  {line}")
        if len(shown) < len(members):
            say(f"  and {len(members) - len(shown)} more like this")


def _label(matrix: AffinityMatrix, i: int) -> str:
    return f"{matrix.nodes[matrix.node_of[i]]}/{matrix.names[i]}" if len(matrix.nodes) > 1 else matrix.names[i]


def _rate(value: float | None) -> str:
    if value is None or np.isnan(value):
        return "?"
    return f"{value / 1e9:.0f}" if value >= 1e12 else f"{value / 1e9:.3g}"


def _range(low: float, high: float) -> str:
    """Returns ``150-530``, to two digits; ``?`` where nothing bounds the rate."""
    if np.isnan(low) or np.isnan(high):
        return "?"
    return "-".join(f"{float(f'{bound / 1e9:.2g}'):g}" for bound in (low, high))


def _numa(component: Component) -> str:
    nodes = component.locality.numa_nodes
    return "?" if nodes is None else ",".join(str(n) for n in nodes) or "none"


def _port(component: Component) -> str:
    port = component.pci
    if port.generation is None and port.max_generation is None:
        return "?"
    idle = " idle" if port.is_idle_reading else ""
    return f"PCIe {port.generation or port.max_generation} x{port.lanes or port.max_lanes or '?'}{idle}"


def _plain(array: np.ndarray[Any, Any]) -> Any:
    return _without_nan(array.tolist())


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
