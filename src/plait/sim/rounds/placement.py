"""Where tasks go in the neutral setting: the same greedy rule for every policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Slots = tuple[tuple[int, int], ...]
"""Devices as (node, device) pairs of one type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A task that wants ``number`` devices of a type; ``had`` are those it holds if its (type, number) is unchanged."""

    job_id: str
    accelerator_type: str
    number: int
    had: Slots = ()


def place_round(nodes: Mapping[str, Sequence[int]], wanted: Sequence[Wanted]) -> dict[str, Slots]:
    """Returns the devices of each task that found room, by job id.

    Size classes, largest first. In a class first those stay whose (type, number) is unchanged, if they are
    consolidated and their devices are free; then the others best fit into the fullest node that holds all; else they
    are split over the emptiest nodes. A task that fits nowhere is left out.
    """
    free = {
        name: {(node, device) for node, count in enumerate(counts) for device in range(count)}
        for name, counts in nodes.items()
    }
    placed: dict[str, Slots] = {}
    for number in sorted({task.number for task in wanted}, reverse=True):
        some = [task for task in wanted if task.number == number]
        for task in some:
            if task.had and free[task.accelerator_type].issuperset(task.had) and _is_packed(task, nodes):
                placed[task.job_id] = task.had
                free[task.accelerator_type].difference_update(task.had)
        for task in some:
            if task.job_id in placed:
                continue
            found = _find(free[task.accelerator_type], number)
            if found:
                placed[task.job_id] = found
                free[task.accelerator_type].difference_update(found)
    return placed


def _is_packed(task: Wanted, nodes: Mapping[str, Sequence[int]]) -> bool:
    return len({node for node, _ in task.had}) <= fewest_nodes(nodes[task.accelerator_type], task.number)


def fewest_nodes(counts: Sequence[int], number: int) -> int:
    """Returns how many of these nodes it takes to hold ``number`` devices when all are idle."""
    held = 0
    for index, count in enumerate(sorted(counts, reverse=True), start=1):
        held += count
        if held >= number:
            return index
    return len(counts) + 1


def _find(free: set[tuple[int, int]], number: int) -> Slots:
    if len(free) < number:
        return ()
    on: dict[int, list[int]] = {}
    for node, device in sorted(free):
        on.setdefault(node, []).append(device)
    holding = [node for node, devices in on.items() if len(devices) >= number]
    if holding:
        node = min(holding, key=lambda node: (len(on[node]), node))
        return tuple((node, device) for device in on[node][:number])
    taken: list[tuple[int, int]] = []
    for node in sorted(on, key=lambda node: (-len(on[node]), node)):
        taken.extend((node, device) for device in on[node][: number - len(taken)])
        if len(taken) == number:
            break
    return tuple(taken)
