"""All ways to run all tasks of a round, as arrays: configurations are columns, tasks of one kind share a row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from plait.schedule.policy import ClusterView, Configuration, Rate, TaskView

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

LARGEST_SIZES = 12
"""So many sizes a type at most are tried for a task whose rates nobody listed: powers of two, and its limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A configuration together with the devices that a worker takes of each of its types."""

    configuration: Configuration
    devices_each: tuple[int, ...]

    @property
    def devices(self) -> tuple[tuple[str, int], ...]:
        """Devices by type."""
        return tuple(
            (name, number * each)
            for (name, number), each in zip(self.configuration.counts, self.devices_each, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The tasks that can run somewhere, and how.

    Attributes:
        tasks: In the order given.
        types: Accelerator types of the cluster.
        capacity: (types,). Devices of each.
        columns: All configurations of all tasks.
        uses: (columns, types). Devices that each takes.
        kinds: (tasks,). Index of each task's kind.
        rates: (kinds, columns). Work a second; 0.0 where the kind does not run so.
        gang_rates: (kinds, types). Work a second with the fewest workers, consolidated.
        gang_devices: (kinds, types). Devices that takes.
        present: (tasks,). Column in which each task runs now, or -1.
    """

    tasks: tuple[TaskView, ...]
    types: tuple[str, ...]
    capacity: Floats
    columns: tuple[Column, ...]
    uses: Floats
    kinds: Ints
    rates: Floats
    gang_rates: Floats
    gang_devices: Floats
    present: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Tasks that run alike: by configuration what they do a second."""

    rates: Mapping[Column, float]
    gang_rates: tuple[float, ...]
    gang_devices: tuple[float, ...]


def options_of(cluster: ClusterView, tasks: Sequence[TaskView]) -> Options:
    """Returns the options of the tasks that run in at least one configuration; others are left out."""
    types = tuple(name for name, number in cluster.total.items() if number > 0)
    kinds: dict[object, int] = {}
    made: list[_Kind] = []
    kept: list[TaskView] = []
    kind_of: list[int] = []
    for task in tasks:
        key = _kind_key(task)
        index = kinds.get(key)
        if index is None:
            index = kinds[key] = len(made)
            made.append(_kind(cluster, task, types))
        if made[index].rates:
            kept.append(task)
            kind_of.append(index)
    columns = list(dict.fromkeys(column for kind in made for column in kind.rates))
    at = {column: index for index, column in enumerate(columns)}
    rates = np.zeros((len(made), len(columns)))
    for row, kind in enumerate(made):
        for column, rate in kind.rates.items():
            rates[row, at[column]] = rate
    uses = np.zeros((len(columns), len(types)))
    for row, column in enumerate(columns):
        for name, number in column.devices:
            uses[row, types.index(name)] = number
    return Options(
        tasks=tuple(kept),
        types=types,
        capacity=np.array([float(cluster.total[name]) for name in types]),
        columns=tuple(columns),
        uses=uses,
        kinds=np.array(kind_of, dtype=np.intp),
        rates=rates,
        gang_rates=np.array([kind.gang_rates for kind in made]).reshape(len(made), len(types)),
        gang_devices=np.array([kind.gang_devices for kind in made]).reshape(len(made), len(types)),
        present=np.array([_present(cluster, task, at) for task in kept], dtype=np.intp),
    )


def _kind_key(task: TaskView) -> object:
    rates = id(task.rates) if task.rates else tuple(task.speeds.items())
    requests = tuple((request.accelerator, request.count) for request in task.resources.any_of)
    # What runs without listed rates may stand anywhere in its range, and where it stands is an option too.
    stands = None if task.rates or task.allocation is None else task.allocation.counts
    limits = (task.workers.min, task.workers.max, task.resources.mix)
    return (rates, limits, requests, tuple(task.slots.items()), stands)


def _kind(cluster: ClusterView, task: TaskView, types: Sequence[str]) -> _Kind:
    found: dict[Column, float] = {}
    for configuration, rate in _listed(task) if task.rates else _guessed(task, types):
        if rate > 0 and _is_allowed(cluster, task, configuration):
            each = tuple(task.devices_per_worker(name) for name, _ in configuration.counts)
            found[Column(configuration=configuration, devices_each=each)] = rate
    fewest = task.workers.min
    holds = [task.slots.get(name, 0) >= fewest for name in types]
    return _Kind(
        rates=found,
        gang_rates=tuple(_alone(task, name) if fits else 0.0 for name, fits in zip(types, holds, strict=True)),
        gang_devices=tuple(float(fewest * task.devices_per_worker(name)) for name in types),
    )


def _alone(task: TaskView, name: str) -> float:
    """Returns work a second with the fewest workers of one type, together."""
    known = task.rates.get(Configuration(counts=((name, task.workers.min),)))
    return hoped(known) if known is not None else task.rate(name, task.workers.min)


def _listed(task: TaskView) -> Iterator[tuple[Configuration, float]]:
    """Placement keeps workers together where it can, so nobody counts on being spread where that would be faster."""
    for configuration, rate in task.rates.items():
        together = task.rates.get(Configuration(counts=configuration.counts)) if configuration.is_spread else None
        yield configuration, hoped(rate) if together is None else min(hoped(rate), hoped(together))


def hoped(rate: Rate) -> float:
    """Returns work a second with its error on top: what is not measured yet is worth a try.

    A try costs one restart, and then the rate is known; a fast device that is never tried costs as long as the task
    runs. The value of the present configuration bounds the tries: a change must pay back its restart.
    """
    return rate.per_s * (1.0 + (rate.relative_error or 0.0))


def _guessed(task: TaskView, types: Sequence[str]) -> Iterator[tuple[Configuration, float]]:
    """Without listed rates a unit does the sum of what its workers do; slow ones may always be left out."""
    sizes = _sizes(task)
    for name in types:
        for number in sizes:
            yield Configuration(counts=((name, number),)), task.rate(name, number)
    if not task.resources.mix:
        return
    by_speed = sorted(types, key=lambda name: -task.speeds.get(name, 0.0))
    for fast, slow in pairwise(by_speed):
        for number in sizes:
            for more in sizes:
                counts = tuple(sorted(((fast, number), (slow, more))))
                yield Configuration(counts=counts), task.rate(fast, number) + task.rate(slow, more)
    for number in sizes:
        yield from _filled(task, by_speed, number)
    have = task.allocation.counts if task.allocation is not None else ()
    if len(have) > 1:
        yield Configuration(counts=have), sum(task.rate(name, number) for name, number in have)


def _filled(task: TaskView, by_speed: Sequence[str], number: int) -> Iterator[tuple[Configuration, float]]:
    """The fastest types first, each as far as it goes: how a unit larger than any type can be run at all."""
    counts, left = [], number
    for name in by_speed:
        taken = min(left, task.slots.get(name, 0))
        if taken > 0:
            counts.append((name, taken))
            left -= taken
    if left == 0 and len(counts) > 1:
        yield Configuration(counts=tuple(sorted(counts))), sum(task.rate(name, taken) for name, taken in counts)


def _sizes(task: TaskView) -> tuple[int, ...]:
    fewest, most = task.workers.min, task.workers.max
    doubling = [2**power for power in range(LARGEST_SIZES) if fewest < 2**power < most]
    have = [number for _, number in task.allocation.counts] if task.allocation is not None else []
    small = [1, 2, 4] if task.resources.mix else []  # parts of a unit may be smaller than the whole
    return tuple(sorted({fewest, most, *doubling[-LARGEST_SIZES:], *have, *small}))


def _is_allowed(cluster: ClusterView, task: TaskView, configuration: Configuration) -> bool:
    counts = configuration.counts
    if not task.workers.min <= configuration.num_workers <= task.workers.max:
        return False
    if len(counts) > 1 and not task.resources.mix:
        return False
    if any(number > task.slots.get(name, 0) or not cluster.total.get(name, 0) for name, number in counts):
        return False
    if not configuration.is_spread:
        return True
    return all(number > 1 for _, number in counts) and len(counts) == 1


def _present(cluster: ClusterView, task: TaskView, at: Mapping[Column, int]) -> int:
    if task.allocation is None or task.state == "waiting":
        return -1
    counts = tuple(sorted((name, number) for name, number in task.allocation.counts if number > 0))
    each = tuple(task.devices_per_worker(name) for name, _ in counts)
    packed = Column(configuration=Configuration(counts=counts), devices_each=each)
    spread = Column(configuration=Configuration(counts=counts, is_spread=True), devices_each=each)
    is_spread = task.num_nodes > sum(_fewest_nodes(cluster, column) for column in packed.devices)
    return at.get(spread if is_spread and spread in at else packed, -1)


def _fewest_nodes(cluster: ClusterView, devices: tuple[str, int]) -> int:
    name, number = devices
    nodes = 0
    for size in cluster.on_nodes.get(name, ()):
        if number <= 0:
            break
        number -= size
        nodes += 1
    return max(nodes, 1)
