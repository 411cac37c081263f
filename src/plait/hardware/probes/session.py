"""Measures this machine, keeps the figures, and hands them to the matrix."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.hardware.affinity import AffinityMatrix, PairFigure
from plait.hardware.affinity.build import HOST
from plait.hardware.affinity.links import endpoints_of
from plait.hardware.catalog import UnknownAccelerator, capability
from plait.hardware.probes.child import MeasuringProgram
from plait.hardware.probes.plan import Plan, Task, plan
from plait.hardware.probes.results import Figure, Results, driver_versions, keep, kept, machine_hash, verdict
from plait.hardware.topology import Component, Fragment
from plait.hardware.values import UNKNOWN, Source, Value

_SIZE_BYTES = {"cpu": 64 << 20, "other": 256 << 20}
_MOST_BYTES = 200 * 10**9
_CHECK_S = 10.0
_PRECISIONS = {"cpu": ("fp32",), "other": ("bf16", "fp16", "fp32")}

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured, where it is kept, and what a person should know of it."""

    results: Results
    path: Path | None
    notes: tuple[str, ...]


def measure(
    node: str,
    fragment: Fragment,
    matrix: AffinityMatrix,
    *,
    budget_s: float,
    directory: Path | None,
    progress: Progress,
    is_forced: bool = False,
    program: MeasuringProgram | None = None,
) -> Measured:
    """Measures one node and keeps the figures; figures that were kept and still hold are checked, not measured again.

    Args:
        node: Its name.
        fragment: What is known of it.
        matrix: What is expected of it, by the name ``node``.
        budget_s: Seconds for all measurements; starting the program is not counted.
        directory: Where to keep the figures, ``None`` for nowhere.
        progress: Called with the number done, the number in all, and what comes next.
        is_forced: Measure everything, whatever was kept.
        program: The measuring program; the usual one unless given. It is closed.

    Raises:
        MeasuringFailed: the measuring program does not start, hangs or dies.
    """
    machine, drivers = machine_hash(fragment), driver_versions(fragment)
    before = None if is_forced or directory is None else kept(machine, directory)
    with program or MeasuringProgram() as child:
        progress(0, 1, "starting")
        workers = match_workers(node, fragment, child.devices())
        kind = "cpu" if all(name.startswith("cpu") for name in workers.values()) else "other"
        todo = plan(
            matrix,
            workers,
            budget_s=budget_s,
            budget_bytes=_MOST_BYTES,
            size_bytes=_SIZE_BYTES[kind],
            precisions=_PRECISIONS[kind],
        )
        keys = {name: device for device, name in workers.items()}
        holds = verdict(before, machine=machine, drivers=drivers, now_s=time.time())
        if before is not None and not holds.is_stale:
            checks = _spot_checks(child, node, keys, todo, progress)
            holds = verdict(before, machine=machine, drivers=drivers, now_s=time.time(), checks=checks)
            if not holds.is_stale:
                return Measured(before, None, (f"{holds.reason}; a check of {len(checks)} agrees",))
        book = _Notebook(node, keys, todo, progress)
        stopped = child.run(todo.tasks, budget_s=budget_s, on_result=book.note)
    results = Results(machine=machine, drivers=drivers, measured_at_s=time.time(), figures=tuple(book.figures))
    why = () if is_forced else (f"measured, as {holds.reason}",)
    notes = (*why, todo.reason, *book.notes, *([stopped] if stopped else []), *_efficiencies(results, fragment))
    return Measured(results, keep(results, directory) if directory is not None else None, notes)


def _spot_checks(
    child: MeasuringProgram, node: str, keys: Mapping[str, str], todo: Plan, progress: Progress
) -> tuple[Figure, ...]:
    """Returns a few quick figures: one of each sort, of what is likeliest to change."""
    chosen: dict[str, Task] = {}
    for task in todo.tasks:
        if task.do in {"copy", "host", "memory"}:
            chosen.setdefault(task.do, task)
    checks = Plan(tasks=tuple(chosen.values()), reason="a check of what was kept")
    book = _Notebook(node, keys, checks, progress)
    child.run(checks.tasks, budget_s=_CHECK_S, on_result=book.note)
    return tuple(book.figures)


def match_workers(node: str, fragment: Fragment, seen: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the measuring program's name of each device, by the device's key ``node/component``.

    PCI addresses and UUIDs decide; where the program tells neither, its numbering counts only if both sides know
    equally many devices.
    """
    devices = endpoints_of(fragment)
    if all(device.kind == "cpu" for device in devices):
        return _match_processors(node, devices, {str(entry["name"]) for entry in seen})
    others = [entry for entry in seen if entry["kind"] != "cpu"]
    found: dict[str, str] = {}
    for device in devices:
        entry = next((entry for entry in others if _is_same(device, entry)), None)
        if entry is not None:
            found[f"{node}/{device.key}"] = str(entry["name"])
    if not found and len(others) == len(devices):
        found = {f"{node}/{d.key}": str(entry["name"]) for d, entry in zip(devices, others, strict=True)}
    return found


def _match_processors(node: str, devices: Sequence[Component], seen: set[str]) -> dict[str, str]:
    if len(devices) == 1:
        return {f"{node}/{devices[0].key}": "cpu"}
    homes = {d.key: d.locality.numa_nodes for d in devices}
    names = {key: f"cpu:{nodes[0]}" for key, nodes in homes.items() if nodes}
    return {f"{node}/{key}": name for key, name in names.items() if name in seen}


def pair_figures(results: Results) -> tuple[PairFigure, ...]:
    """Returns the figures of pairs, of own memory and of host memory in the matrix's form."""
    found = []
    for figure in results.figures:
        value = Value(figure.value, Source.MEASURED, figure.detail, figure.relative_error)
        latency = UNKNOWN if figure.latency_s is None else Value(figure.latency_s, Source.MEASURED, figure.detail)
        if figure.what in {"copy", "node"}:
            found.append(PairFigure(a=figure.a, b=figure.b, bytes_per_s=value, latency_s=latency))
        elif figure.what == "memory":
            found.append(PairFigure(a=figure.a, b=figure.a, bytes_per_s=value))
        elif figure.what == "host":
            found.append(PairFigure(a=figure.a, b=HOST, bytes_per_s=value))
    return tuple(found)


def _is_same(device: Component, entry: Mapping[str, Any]) -> bool:
    if device.pci_address and entry["pci_address"]:
        return device.pci_address == str(entry["pci_address"])
    return bool(device.uuid and entry["uuid"] and str(entry["uuid"]).casefold() in device.uuid.casefold())


@dataclass(slots=True)
class _Notebook:
    """Turns answers into figures and sentences as they come."""

    node: str
    keys: Mapping[str, str]
    todo: Plan
    progress: Progress
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: int = 0

    def note(self, task: Task, answer: Mapping[str, Any]) -> None:
        self.done += 1
        total = len(self.todo.tasks)
        self.progress(self.done, total, self.todo.tasks[self.done].why if self.done < total else "done")
        ends = [self.keys[name] for name in task.devices]
        if "error" in answer:
            self.notes.append(f"{task.why} {' to '.join(ends)} could not be measured: {answer['error']}")
            return
        if answer.get("is_corrupt"):
            self.notes.append(f"copies {' to '.join(ends)} arrive WRONG one way: {answer['detail']}")
        what = f"matmul_{task.precision}" if task.do == "matmul" else task.do
        if task.do == "together":
            what, ends = f"together: {task.why}", [self.node]
        latency = answer.get("latency_s")
        self.figures.append(
            Figure(
                what=what,
                a=ends[0],
                b=ends[1] if len(ends) > 1 else "",
                value=float(answer["value"]),
                latency_s=None if latency is None else float(latency),
                relative_error=float(answer["relative_error"]),
                detail=str(answer["detail"]),
            )
        )


def _efficiencies(results: Results, fragment: Fragment) -> tuple[str, ...]:
    """Returns one sentence for each matrix product: what it sustains, over the published peak where there is one."""
    types = {device.key: device.accelerator_type for device in endpoints_of(fragment)}
    told = []
    for figure in results.figures:
        if not figure.what.startswith("matmul_"):
            continue
        precision = figure.what.removeprefix("matmul_")
        name = types.get(figure.a.split("/", 1)[-1])
        peak = None
        if name is not None:
            try:
                peak = getattr(capability(name), f"{precision}_tflops", None)
            except UnknownAccelerator:
                peak = None
        share = f", {figure.value / 1e12 / peak:.0%} of the published {peak:g}" if peak else ""
        told.append(f"{figure.a} sustains {figure.value / 1e12:.3g} TFLOPS in {precision}{share}")
    return tuple(told)
