"""What several keys of ``job.yaml`` say together.

Each rule reads the tree and looks only at values that are right by themselves, so that it speaks whatever else is
wrong in the file, and says nothing that another message says already.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from plait.hardware.catalog import capability, known_types
from plait.spec import units
from plait.spec.cluster import Cluster
from plait.spec.fields import check_name
from plait.spec.job import Precision
from plait.spec.job_document import Checkpoint, Heartbeat, LocalCheckpoints, PeerCopies
from plait.spec.tree import At, Place, Report
from plait.spec.units import duration_text, shown, size_text
from plait.words import did_you_mean, nearest

_PRECISIONS = get_args(Precision)
_WITHOUT_WARMUP = ("none", "fp16")
_TIERS_WITH_PATH, _TIERS_WITH_SIZE = ("nvme", "shared"), ("device", "nvme")


def check_job(root: At, report: Report, cluster: Cluster | None) -> None:
    """Adds every contradiction between keys of a job to the report."""
    tasks = items(root, "tasks")
    _task_names(tasks, report)
    _needs(tasks, report)
    for task in tasks:
        _program(task, report)
        _worker_range(task, report)
        _requests(task, report)
        if cluster is not None:
            _window(task, cluster, report)
    _precisions(root, tasks, report)
    _batching(root, report)
    _heartbeat(root, report)
    _compression(root, report)
    _near_tiers(root, report)
    _local_disk(root, report)
    for tier in items(find(root, "data"), "cache"):
        _cache_tier(tier, report)


def find(at: At | None, *keys: str) -> At | None:
    """Returns what lies under these keys, if all of them are there."""
    for key in keys:
        at = at.key(key) if at is not None else None
    return at


def items(at: At | None, *keys: str) -> list[At]:
    """Returns the items of the list under these keys; none where there is no list."""
    found = find(at, *keys)
    return found.items() if found is not None else []


def text(at: At | None, *keys: str) -> str | None:
    """Returns the text under these keys, if there is one."""
    found = find(at, *keys)
    return found.text() if found is not None else None


def whole(at: At | None, *keys: str) -> int | None:
    """Returns the positive whole number under these keys, if there is one."""
    found = find(at, *keys)
    return found.whole(1) if found is not None else None


def tell_repeats(named: Sequence[tuple[str, At]], what: str, report: Report) -> None:
    """Reports each name that is given before; ``what`` says what kind of name."""
    first: dict[str, Place] = {}
    for name, at in named:
        if name in first:
            report.add(at.place, at.path, f"{what} {shown(name)} is given twice; first at line {first[name].line}")
        else:
            first[name] = at.place


def named(ats: Sequence[At], key: str) -> list[tuple[str, At]]:
    """Returns the texts under ``key`` of each mapping, with their places."""
    found = [(item.text(), item) for at in ats if (item := at.key(key)) is not None]
    return [(name, item) for name, item in found if name is not None]


def _task_names(tasks: Sequence[At], report: Report) -> None:
    tell_repeats(named(tasks, "name"), "the task name", report)


class _Need(NamedTuple):
    task: str
    needed: str
    at: At


def _needs(tasks: Sequence[At], report: Report) -> None:
    names = [text(task, "name") for task in tasks]
    known = [name for name in names if name is not None]
    all_named = len(known) == len(tasks)
    edges: list[_Need] = []
    for name, task in zip(names, tasks, strict=True):
        others = [other for other in dict.fromkeys(known) if other != name]
        needs = [(needed, item) for item in items(task, "needs") if (needed := item.text()) is not None]
        tell_repeats(needs, "the task", report)
        for needed, item in needs:
            if needed in known and needed == name:
                report.add(item.place, item.path, f"the task {shown(name)} needs itself")
            elif needed in known:
                edges.extend([_Need(name, needed, item)] if name is not None else [])
            # A task without a name may be the one that is meant, unless another name is near.
            elif all_named or nearest(needed, others):
                near = did_you_mean(needed, others) or f"; other tasks: {', '.join(others) or 'none'}"
                report.add(item.place, item.path, f"there is no task {shown(needed)}{near}")
    _cycles(edges, report)


def _cycles(edges: Sequence[_Need], report: Report) -> None:
    """Reports the edges that close a circle: without them the rest has none."""
    kept: dict[str, list[str]] = {}
    for edge in edges:
        back = _way(kept, edge.needed, edge.task)
        if back is None:
            kept.setdefault(edge.task, []).append(edge.needed)
        else:
            circle = " -> ".join([edge.task, *back])
            report.add(edge.at.place, edge.at.path, f"tasks need each other in a circle: {circle}")


def _way(graph: dict[str, list[str]], start: str, goal: str) -> list[str] | None:
    came_from: dict[str, str | None] = {start: None}
    queue = [start]
    for node in queue:
        if node == goal:
            way: list[str] = []
            step: str | None = node
            while step is not None:
                way.append(step)
                step = came_from[step]
            return way[::-1]
        for following in graph.get(node, []):
            if following not in came_from:
                came_from[following] = node
                queue.append(following)
    return None


def _program(task: At, report: Report) -> None:
    program = next(iter(items(task, "command")), None)
    if program is not None and program.text() == "":
        report.add(program.place, program.path, "the name of the program is empty")


def _worker_range(task: At, report: Report) -> None:
    low, high = whole(task, "workers", "min"), whole(task, "workers", "max")
    at = find(task, "workers", "max")
    if low is not None and high is not None and at is not None and high < low:
        report.add(at.place, at.path, f"max ({high}) is below min ({low})")


def _requests(task: At, report: Report) -> None:
    seen: dict[tuple[str, int | None, int | None], Place] = {}
    for request in items(task, "resources", "any_of"):
        kind = _accelerator(request, "accelerator")
        if kind is None:
            continue
        memory = request.key("memory")
        size = memory.parsed(units.parse_size) if memory is not None else None
        figures = capability(kind)
        sold = figures.memory_options_bytes
        if memory is not None and size is not None and sold and size > sold[-1]:
            sizes = " or ".join(size_text(option) for option in sold)
            parts = figures.devices_per_package
            share = f" (a package is {parts} devices)" if parts > 1 else ""
            report.add(memory.place, memory.path, f"{kind} has {sizes} of memory{share}; got {size_text(size)}")
        key = (kind, size, whole(request, "count"))
        if key in seen:
            report.add(request.place, request.path, f"{kind} is given twice; first at line {seen[key].line}")
        elif (memory is None) == (size is None):
            seen[key] = request.place


def _window(task: At, cluster: Cluster, report: Report) -> None:
    window = task.key("run_during")
    name = window.parsed(check_name) if window is not None else None
    known = [price_window.name for price_window in cluster.price_windows]
    if window is not None and name is not None and name not in known:
        names = f"; windows are {', '.join(known)}" if known else "; it has none"
        near = did_you_mean(name, known) or names
        report.add(window.place, window.path, f"the cluster has no price window {shown(name)}{near}")


def _precisions(root: At, tasks: Sequence[At], report: Report) -> None:
    entries = items(root, "precision", "device_specific")
    types = [(kind, at) for kind, at in named(entries, "type") if kind in known_types()]
    tell_repeats(types, "the type", report)
    for entry in entries:
        kind, at = _accelerator(entry, "type"), entry.key("precision")
        precision = _precision(at)
        if kind is not None and at is not None and precision is not None:
            _lack(kind, precision, at, "", report)
        ops = [(op, item) for item in items(entry, "custom_ops") if (op := item.text()) is not None]
        tell_repeats(ops, "the operator", report)
    # A wrong word in an entry's type may mean any of the types asked for.
    own = {kind for kind, _ in types}
    meant = {near for kind, _ in named(entries, "type") if (near := nearest(kind, known_types())) is not None}
    chosen = find(root, "precision", "global")
    precision = _precision(chosen)
    if chosen is not None and precision is not None:
        for kind in sorted(set(_asked_for(tasks)) - own - meant):
            _lack(kind, precision, chosen, f"; give {kind} its own entry in device_specific", report)


def _asked_for(tasks: Sequence[At]) -> Iterator[str]:
    for task in tasks:
        for request in items(task, "resources", "any_of"):
            kind = _accelerator(request, "accelerator")
            if kind is not None:
                yield kind


def _accelerator(at: At, key: str) -> str | None:
    kind = text(at, key)
    return kind if kind in known_types() else None


def _precision(at: At | None) -> str | None:
    word = at.text() if at is not None else None
    return word if word in _PRECISIONS else None


def _lack(kind: str, precision: str, at: At, advice: str, report: Report) -> None:
    has = capability(kind).precisions
    if precision not in has:
        listed = ", ".join(word for word in _PRECISIONS if word in has)
        report.add(at.place, at.path, f"{kind} does not compute in {precision}; it has {listed}{advice}")


def _batching(root: At, report: Report) -> None:
    samples, pieces = whole(root, "batching", "global_batch_size"), whole(root, "batching", "micro_batches")
    at = find(root, "batching", "micro_batches")
    if samples is not None and pieces is not None and at is not None and samples % pieces:
        near = max(number for number in range(1, min(pieces, samples) + 1) if samples % number == 0)
        report.add(at.place, at.path, f"{pieces} micro-batches do not divide global_batch_size {samples}; {near} would")


def _heartbeat(root: At, report: Report) -> None:
    beat = find(root, "failure", "heartbeat")
    interval_at, timeout_at = find(beat, "interval"), find(beat, "timeout")
    default = Heartbeat()
    interval = interval_at.parsed(units.parse_duration) if interval_at is not None else default.interval
    timeout = timeout_at.parsed(units.parse_duration) if timeout_at is not None else default.timeout
    at = interval_at or timeout_at
    if at is None or interval is None or timeout is None or interval < timeout:
        return
    left = duration_text(interval) + ("" if interval_at is not None else ", the default")
    right = duration_text(timeout) + ("" if timeout_at is not None else ", the default")
    report.add(at.place, at.path, f"interval ({left}) must be below timeout ({right})")


def _near_tiers(root: At, report: Report) -> None:
    """Tells where a tier that is nearer than the store would be written no more often than the store."""
    checkpoint = find(root, "checkpoint")
    last = find(checkpoint, "interval")
    if text(checkpoint, "interval") == "auto":
        return
    whole = last.parsed(units.parse_duration) if last is not None else Checkpoint.model_fields["interval"].default
    for name, default in (("local", LocalCheckpoints(path="-").interval), ("peer", PeerCopies().interval)):
        tier = find(checkpoint, name)
        own = find(tier, "interval")
        interval = own.parsed(units.parse_duration) if own is not None else default
        at = own or tier
        if at is None or interval is None or whole is None or interval < whole:
            continue
        left = duration_text(interval) + ("" if own is not None else ", the default")
        right = duration_text(whole) + ("" if last is not None else ", the default")
        report.add(at.place, at.path, f"interval ({left}) must be below that of checkpoint.interval ({right})")


def _local_disk(root: At, report: Report) -> None:
    at = find(root, "checkpoint", "local", "path")
    told = at.text() if at is not None else None
    if at is not None and told is not None and not told.startswith("/"):
        report.add(at.place, at.path, f"expected an absolute path, such as /var/cache/plait; got {told!r}")


def _compression(root: At, report: Report) -> None:
    compression = find(root, "communication", "compression")
    algorithm = text(compression, "algorithm") if find(compression, "algorithm") is not None else "none"
    warmup = find(compression, "warmup_steps")
    if warmup is not None and warmup.whole(1) is not None and algorithm in _WITHOUT_WARMUP:
        report.add(warmup.place, warmup.path, f"warmup_steps has no meaning with algorithm {algorithm}")
    bitwise = find(root, "batching", "bitwise")
    lossy = algorithm in {"fp16", "onebit_adam", "powersgd", "topk"}
    if bitwise is not None and bitwise.node.value() is True and lossy:
        report.add(bitwise.place, bitwise.path, f"bitwise needs compression algorithm none; got {algorithm}")


def _cache_tier(tier: At, report: Report) -> None:
    kind = text(tier, "tier")
    if kind in _TIERS_WITH_PATH and find(tier, "path") is None:
        report.add(tier.place, (*tier.path, "path"), f"this key is missing; tier {kind} needs it")
    if kind in _TIERS_WITH_SIZE and find(tier, "size") is None:
        report.add(tier.place, (*tier.path, "size"), f"this key is missing; tier {kind} needs it")
    path = find(tier, "path")
    if kind == "device" and path is not None:
        report.add(path.place, path.path, "tier device has no path")
