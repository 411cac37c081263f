"""What to measure within a budget: pure. One pair of every kind of link first, then the others, then all at once."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plait.hardware.affinity import AffinityMatrix

_REPETITIONS = 5
_OVERHEAD_S = 0.05
_UNKNOWN_BYTES_PER_S = 5e9
"""How fast a pair is taken to be, for the time it will need, where nothing is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One measurement.

    Attributes:
        do: ``copy`` (device to device), ``host`` (pinned memory to device and back), ``memory`` (within a device),
            ``matmul``, or ``together`` (several copies at once).
        devices: The worker's names of the devices: source and target, or one.
        flows: Of ``together``: the copies.
        size_bytes: Of one copy.
        repetitions: How often; the median counts.
        precision: Of ``matmul``.
        why: For people.
    """

    do: str
    devices: tuple[str, ...] = ()
    flows: tuple[tuple[str, str], ...] = ()
    size_bytes: int = 0
    repetitions: int = _REPETITIONS
    precision: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Tasks in the order in which they are worth doing, what was left out, and why."""

    tasks: tuple[Task, ...]
    reason: str


def plan(
    matrix: AffinityMatrix,
    workers: Mapping[str, str],
    *,
    budget_s: float,
    budget_bytes: int,
    size_bytes: int,
    precisions: Sequence[str],
) -> Plan:
    """Returns what to measure on one node.

    Args:
        matrix: What is expected.
        workers: The measuring program's name of each device of the matrix that it can use.
        budget_s: Seconds for everything.
        budget_bytes: Bytes moved by everything.
        size_bytes: Of one copy.
        precisions: Of the matrix products.
    """
    wanted = [*_singles(workers, size_bytes, precisions), *_pairs(matrix, workers, size_bytes)]
    tasks: list[Task] = []
    time_s, moved = 0.0, 0
    for task in wanted:
        cost_s, cost_bytes = _cost(task, matrix, workers)
        if time_s + cost_s > budget_s or moved + cost_bytes > budget_bytes:
            continue
        tasks.append(task)
        time_s, moved = time_s + cost_s, moved + cost_bytes
    left = len(wanted) - len(tasks)
    reason = f"{len(tasks)} measurements, about {time_s:.1f} s and {moved / 1e9:.3g} GB"
    if left:
        reason += f"; {left} left out to stay within {budget_s:g} s and {budget_bytes / 1e9:.3g} GB"
    return Plan(tasks=tuple(tasks), reason=reason)


def _singles(workers: Mapping[str, str], size_bytes: int, precisions: Sequence[str]) -> list[Task]:
    names = list(workers.values())
    accelerators = [name for name in names if not name.startswith("cpu")]
    tasks = [Task(do="host", devices=(name,), size_bytes=size_bytes, why="host memory") for name in accelerators]
    tasks += [Task(do="memory", devices=(name,), size_bytes=size_bytes, why="own memory") for name in names]
    tasks += [
        Task(do="matmul", devices=(name,), precision=precision, why=f"matrix product in {precision}")
        for name in names
        for precision in precisions
    ]
    return tasks


def _pairs(matrix: AffinityMatrix, workers: Mapping[str, str], size_bytes: int) -> list[Task]:
    """Returns one pair of each kind of link first, so that a short budget still says something of every kind."""
    first: dict[tuple[str, float], Task] = {}
    others: list[Task] = []
    for a, b in itertools.permutations(workers, 2):
        i, j = matrix.index(a), matrix.index(b)
        expected = float(np.nan_to_num(matrix.expected_bytes_per_s[i, j], nan=-1.0))
        look = (str(matrix.kinds[i, j]), round(expected / 1e9, 1))
        task = Task(do="copy", devices=(workers[a], workers[b]), size_bytes=size_bytes, why=f"{look[0] or 'pair'}")
        if look in first:
            others.append(task)
        else:
            first[look] = task
    together = []
    names = list(workers.values())
    if len(names) > 2:
        ring = tuple(zip(names, (*names[1:], names[0]), strict=True))
        everyone = tuple(itertools.permutations(names, 2))
        together = [
            Task(do="together", flows=ring, size_bytes=size_bytes, why="a ring at once"),
            Task(do="together", flows=everyone, size_bytes=max(1, size_bytes // len(names)), why="all pairs at once"),
        ]
    return [*first.values(), *together, *others]


def _cost(task: Task, matrix: AffinityMatrix, workers: Mapping[str, str]) -> tuple[float, int]:
    rounds = task.repetitions + 1  # one to warm up
    moved = task.size_bytes * rounds * max(1, len(task.flows)) * (2 if task.do == "host" else 1)
    rate = _UNKNOWN_BYTES_PER_S
    if task.do == "copy":
        of_worker = {name: device for device, name in workers.items()}
        i, j = (matrix.index(of_worker[name]) for name in task.devices)
        expected = float(matrix.expected_bytes_per_s[i, j])
        rate = _UNKNOWN_BYTES_PER_S if np.isnan(expected) else expected
        moved *= 2  # directly and through host memory
    return _OVERHEAD_S + moved / rate + (0.5 if task.do == "matmul" else 0.0), moved
