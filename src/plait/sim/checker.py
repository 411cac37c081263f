"""An independent look at a schedule: no device twice, gangs whole, sizes and types as asked, quotas kept.

Gangs are whole where nodes fail, too: what is left of one is stopped in the same moment, unless it is still a gang that
the job runs with. Devices of a node that is away are nobody's.

It knows nothing of policies, placement or the state machine; it reads only who held which devices when.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from plait.sim.jobs import SimJob
from plait.sim.outcome import Held, RunOutcome

TOUCH_S = 1e-6
"""Spans that overlap by less than this only touch: times are sums of floating-point numbers."""


def problems(run: RunOutcome, quotas: Mapping[str, Mapping[str, int]] | None = None) -> list[str]:
    """Returns every fault of the schedule as a sentence; none where it is right.

    Args:
        run: With its timeline (``keeps_timeline``), and the failures of nodes where there were some.
        quotas: By project and type, the devices that it may hold at once.
    """
    jobs = {one.job.id: one.job for one in run.jobs}
    by_job: dict[str, list[Held]] = defaultdict(list)
    for held in run.timeline:
        by_job[held.job_id].append(held)
    found = [*_twice(run.timeline), *_gangs(by_job, jobs), *_spans(run, by_job), *_absent(run)]
    if quotas is not None:
        found.extend(_over_quota(run.timeline, jobs, quotas))
    return found


def _twice(timeline: Sequence[Held]) -> Iterator[str]:
    by_device: dict[tuple[str, str, int], list[Held]] = defaultdict(list)
    for held in timeline:
        for device in held.devices:
            by_device[held.node, held.accelerator_type, device].append(held)
    for (node, name, device), spans in by_device.items():
        spans.sort(key=lambda held: (held.start_s, held.end_s))
        for first, second in pairwise(spans):
            if second.start_s < first.end_s - TOUCH_S:
                yield (
                    f"device {name} {device} of {node} is held by {first.job_id} until {first.end_s:g} s "
                    f"and by {second.job_id} from {second.start_s:g} s"
                )


def _gangs(by_job: Mapping[str, Sequence[Held]], jobs: Mapping[str, SimJob]) -> Iterator[str]:
    for job_id, spans in by_job.items():
        job = jobs.get(job_id)
        if job is None:
            yield f"{job_id} holds devices but is no job of the trace"
            continue
        fewest, most = job.size_range
        for start_s, end_s, number in _levels(spans):
            if end_s - start_s > TOUCH_S and number and not fewest <= number <= most:
                yield f"{job_id} holds {number} devices from {start_s:g} s on; it runs with {fewest} to {most}"
        names = {held.accelerator_type for held in spans}
        if job.allowed and not names <= set(job.allowed):
            yield f"{job_id} runs on {', '.join(sorted(names))}; it asked for {', '.join(job.allowed)}"


def _levels(spans: Sequence[Held]) -> Iterator[tuple[float, float, int]]:
    """Goes over the stretches between changes with the number of devices held."""
    changes: dict[float, int] = defaultdict(int)
    for held in spans:
        changes[held.start_s] += len(held.devices)
        changes[held.end_s] -= len(held.devices)
    level = 0
    for start_s, end_s in pairwise(sorted(changes)):
        level += changes[start_s]
        yield start_s, end_s, level


def _spans(run: RunOutcome, by_job: Mapping[str, Sequence[Held]]) -> Iterator[str]:
    for one in run.jobs:
        spans = by_job.get(one.job.id)
        if spans and min(held.start_s for held in spans) < one.job.submitted_at_s - TOUCH_S:
            yield f"{one.job.id} ran before it was submitted"
        if one.end_s is not None and spans and max(held.end_s for held in spans) > one.end_s + TOUCH_S:
            yield f"{one.job.id} holds devices after its end at {one.end_s:g} s"


def _absent(run: RunOutcome) -> Iterator[str]:
    """Nobody holds devices of a node that has failed."""
    if not run.away:
        return
    failures: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for away in run.away:
        failures[away.node].append((away.start_s, away.end_s))
    for spans in failures.values():
        spans.sort()
    for held in run.timeline:
        of_node = failures.get(held.node, [])
        after = bisect_left(of_node, (held.end_s - TOUCH_S,))
        if after and of_node[after - 1][1] > held.start_s + TOUCH_S:
            yield f"{held.job_id} holds devices of {held.node}, which failed at {of_node[after - 1][0]:g} s"


def _over_quota(
    timeline: Sequence[Held], jobs: Mapping[str, SimJob], quotas: Mapping[str, Mapping[str, int]]
) -> Iterator[str]:
    changes: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for held in timeline:
        project = jobs[held.job_id].project
        if held.accelerator_type in quotas.get(project, {}):
            changes[project, held.accelerator_type].append((held.start_s + TOUCH_S, len(held.devices)))
            changes[project, held.accelerator_type].append((held.end_s, -len(held.devices)))
    for (project, name), steps in changes.items():
        level, quota = 0, quotas[project][name]
        for at_s, change in sorted(steps):
            level += change
            if level > quota:
                yield f"project {project} holds {level} {name} at {at_s:g} s; its quota is {quota}"
                break
