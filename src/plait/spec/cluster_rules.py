"""What several keys of ``cluster.yaml`` say together; each rule looks only at values that are right by themselves."""

import math
from collections.abc import Sequence

from plait.spec.cluster_document import Quarantine
from plait.spec.fields import check_time_of_day
from plait.spec.job_rules import find, items, named, tell_repeats, text
from plait.spec.tree import At, Report
from plait.spec.units import duration_text, parse_duration, shown
from plait.words import did_you_mean

POLICY_WEIGHTS: dict[str, tuple[str, ...]] = {
    "fifo_backfill": (),
    "fifo": (),
    "finish_time_fairness": (),
    "gandiva": (),
    "isolated": (),
    "las": (),
    "max_min_fairness": (),
    "max_min_water_filling": (),
    "max_sum_throughput": (),
    "max_sum_throughput_by_cost": (),
    "min_cost_slo": (),
    "min_makespan": (),
    "pollux": (),
    "sia": (),
    "srtf": (),
    "multi_objective": ("fairness", "throughput", "cost", "deadline"),
}
"""Policies of Plait by published name, with the goals that each weighs; others come as plug-ins."""

PLUG_INS = "plait.policies"
"""Entry-point group that other packages add policies to."""

_DAY_S = 24 * 3600


def check_cluster(root: At, report: Report) -> None:
    """Adds every contradiction between keys of a cluster to the report."""
    _nodes(root, report)
    _policy(root, report)
    _windows(items(root, "price_windows"), report)
    _projects(items(root, "projects"), report)
    _racks(root, report)
    _quarantine(root, report)
    tell_repeats(named(items(root, "reservations"), "name"), "the reservation name", report)


def _nodes(root: At, report: Report) -> None:
    tell_repeats(named(items(root, "nodes"), "name"), "the node name", report)
    engine, nodes = text(root, "engine"), find(root, "nodes")
    if nodes is not None and nodes.items() and engine in {"slurm", "ray", "kubernetes"}:
        report.add(nodes.place, nodes.path, f"only engine local emulates nodes; the engine is {engine}")


def _quarantine(root: At, report: Report) -> None:
    usual = Quarantine()
    cool_at, longest_at = find(root, "quarantine", "cool_down"), find(root, "quarantine", "longest")
    cool_down = cool_at.parsed(parse_duration) if cool_at is not None else usual.cool_down
    longest = longest_at.parsed(parse_duration) if longest_at is not None else usual.longest
    at = cool_at or longest_at
    if at is None or cool_down is None or longest is None or cool_down <= longest:
        return
    left = duration_text(cool_down) + ("" if cool_at is not None else ", the default")
    right = duration_text(longest) + ("" if longest_at is not None else ", the default")
    report.add(at.place, at.path, f"cool_down ({left}) is more than longest ({right})")


def _racks(root: At, report: Report) -> None:
    racks = find(root, "racks")
    seen: dict[str, str] = {}
    for entry, at in racks.entries() if racks is not None else ():
        for item in at.items():
            node = item.text()
            if node is not None and node in seen:
                report.add(item.place, item.path, f"node {shown(node)} is in rack {shown(seen[node])} already")
            elif node is not None:
                seen[node] = entry.key


def _projects(projects: Sequence[At], report: Report) -> None:
    tell_repeats(named(projects, "name"), "the project name", report)
    for project in projects:
        limit = find(project, "limit")
        most = {entry.key: at.node.value() for entry, at in limit.entries()} if limit is not None else {}
        quota = find(project, "quota")
        for entry, at in quota.entries() if quota is not None else ():
            value, top = at.node.value(), most.get(entry.key)
            if isinstance(value, int) and isinstance(top, int) and value > top:
                report.add(at.place, at.path, f"a quota of {value} {entry.key} is above the project's limit of {top}")


def _policy(root: At, report: Report) -> None:
    at, weights = find(root, "policy", "name"), find(root, "policy", "weights")
    name = "fifo_backfill" if at is None else at.text()
    goals = POLICY_WEIGHTS.get(name) if name is not None else None
    if at is not None and name is not None and goals is None and name not in _plug_ins():
        known = (*POLICY_WEIGHTS, *_plug_ins())
        near = did_you_mean(name, known) or f"; known are {', '.join(known)}"
        report.add(at.place, at.path, f"unknown policy {shown(name)}{near}")
    if weights is None or not weights.entries():
        return
    if goals == ():
        report.add(weights.place, weights.path, f"policy {name} takes no weights")
        return
    _weights(weights, name, goals, report)


def _weights(weights: At, name: str | None, goals: tuple[str, ...] | None, report: Report) -> None:
    total = 0.0
    are_right = True
    for entry, at in weights.entries():
        if goals is not None and entry.key not in goals:
            near = did_you_mean(entry.key, goals) or f"; it weighs {', '.join(goals)}"
            report.add(entry.key_place, at.path, f"policy {name} does not know the weight {shown(entry.key)}{near}")
        value = at.node.value()
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            are_right = False
        else:
            total += value
    if are_right and not math.isclose(total, 1.0, abs_tol=1e-6):
        report.add(weights.place, weights.path, f"weights must sum to 1; these sum to {total:g}")


def _plug_ins() -> tuple[str, ...]:
    # Only a name that is not ours pays for this search through all installed packages.
    from importlib.metadata import entry_points

    return tuple(sorted({point.name for point in entry_points(group=PLUG_INS)} - set(POLICY_WEIGHTS)))


def _windows(windows: Sequence[At], report: Report) -> None:
    tell_repeats(named(windows, "name"), "the window name", report)
    earlier: list[tuple[At, int, int]] = []
    for window in windows:
        from_at, to_at = window.key("from"), window.key("to")
        if from_at is None or to_at is None:
            continue
        start, end = from_at.parsed(check_time_of_day), to_at.parsed(check_time_of_day)
        if start is None or end is None:
            continue
        if start % _DAY_S == end % _DAY_S and (start, end) != (0, _DAY_S):
            said = 'from and to are the same; a whole day is from "00:00" to "24:00"'
            report.add(to_at.place, to_at.path, said)
            continue
        for other, other_start, other_end in earlier:
            if _overlap((start, end), (other_start, other_end)):
                said = f"this window overlaps {_window_name(other)} ({_clock(other_start)} to {_clock(other_end)})"
                report.add(window.place, window.path, said)
        earlier.append((window, start, end))


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return any(max(a, c) < min(b, d) for a, b in _pieces(*one) for c, d in _pieces(*other))


def _pieces(start: int, end: int) -> list[tuple[int, int]]:
    return [(start, end)] if start < end else [(start, _DAY_S), (0, end)]


def _window_name(window: At) -> str:
    name = text(window, "name")
    return shown(name) if name is not None else f"the one at line {window.place.line}"


def _clock(time_s: int) -> str:
    return f"{time_s // 3600:02}:{time_s % 3600 // 60:02}"
