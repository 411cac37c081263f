"""CPU seconds of one round of ``multi_objective`` with placement on large clusters, and how far from optimal it is.

The cluster has the node sizes of a public list of 10,412 GPUs of six types; its tasks run on 1 to 32 workers with
synthetic goodputs. A round is all that a scheduler does: values, prices, choice, reasons, and which node holds which
gang. Measured are a first round (all tasks wait) and a later one (most run, some are new); the slower one counts.
The gap is measured against an exact solution of random instances by a mixed-integer solver.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import report
from plait.schedule.allocation import Program, solve
from plait.schedule.allocation.reference import solve_exactly
from plait.schedule.domain import Decision, TaskKey
from plait.schedule.placement.seating import Gang, Hall, Part, Seated, seat_all
from plait.schedule.policies.multi_objective import MultiObjective
from plait.schedule.policy import NOTHING_REMEMBERED, ClusterView, Configuration, Rate, TaskView
from plait.spec.job import DeviceRequest, Resources, WorkerRange

NODES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "A10": ((2494, 1),),
    "A100": ((432, 8),),
    "A800": ((22, 8),),
    "H800": ((219, 8),),
    "S1": ((902, 1), (10, 4), (77, 8)),
    "S2": ((122, 8),),
}
"""(nodes, devices each) by type."""
SPEED = {"A10": 1.0, "A100": 3.0, "A800": 2.9, "H800": 5.0, "S1": 0.8, "S2": 1.6}
PRICE = {"A10": 0.6, "A100": 2.2, "A800": 2.0, "H800": 4.5, "S1": 0.4, "S2": 1.0}
SIZES = (1, 2, 4, 8, 16, 32)
NUM_KINDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The nodes by type, and how a policy sees them."""

    nodes: Mapping[str, Mapping[str, int]]
    view: ClusterView


def cluster(scale: int) -> Cluster:
    """Returns ``scale`` times the public list."""
    nodes = {
        name: {
            f"{name}-{group}-{index}": devices
            for group, (number, devices) in enumerate(groups)
            for index in range(number * scale)
        }
        for name, groups in NODES.items()
    }
    total = {name: sum(on.values()) for name, on in nodes.items()}
    sizes = {name: tuple(sorted(on.values(), reverse=True)) for name, on in nodes.items()}
    view = ClusterView(
        now_s=0.0,
        total=total,
        free=total,
        prices_per_hour=PRICE,
        on_nodes=sizes,
        free_on_nodes=sizes,
        hands_over=True,
    )
    return Cluster(nodes=nodes, view=view)


def kinds(draw: np.random.Generator) -> list[Mapping[Configuration, Rate]]:
    """Returns tables of goodput: type speed times exp(N(0, 0.35)), n^U(0.5, 1), 0.85 beyond 8 workers."""
    tables: list[Mapping[Configuration, Rate]] = []
    for _ in range(NUM_KINDS):
        power = draw.uniform(0.5, 1.0)
        table = {}
        for name, speed in SPEED.items():
            factor = speed * math.exp(draw.normal(0.0, 0.35))
            for number in SIZES:
                per_s = factor * number**power * (0.85 if number > 8 else 1.0)
                table[Configuration(counts=((name, number),))] = Rate(per_s=per_s)
        tables.append(table)
    return tables


def tasks(num_jobs: int, view: ClusterView, draw: np.random.Generator) -> list[TaskView]:
    """Returns waiting tasks of all ages, elastic from 1 to 32 workers."""
    tables = kinds(draw)
    resources = Resources(any_of=tuple(DeviceRequest(accelerator=name) for name in SPEED), mix=False)
    slots = dict(view.total)
    ages_s, lengths_s = draw.uniform(0, 36000, num_jobs), draw.lognormal(9.0, 1.0, num_jobs)
    return [
        TaskView(
            key=TaskKey(job_id=f"j{index:06d}", task="train"),
            project="default",
            priority=0,
            submitted_at_s=-float(ages_s[index]),
            state="waiting",
            workers=WorkerRange(min=1, max=32),
            resources=resources,
            slots=slots,
            free_slots=slots,
            rates=tables[index % NUM_KINDS],
            remaining_work=float(lengths_s[index]),
            done_work=0.0,
            restart_cost_s=45.0,
        )
        for index in range(num_jobs)
    ]


def seats_of(where: Cluster, decisions: Sequence[Decision], before: Mapping[TaskKey, Seated]) -> list[Seated | None]:
    """Places what was decided; who keeps its allocation keeps its nodes."""
    gangs = []
    for decision in decisions:
        counts = decision.allocation.counts if decision.allocation is not None else ()
        had = before.get(decision.task)
        parts = []
        for index, (name, number) in enumerate(counts):
            there = had.seats[index] if had is not None and len(had.seats) > index else ()
            is_same = sum(n for _, n in there) == number and all(node in where.nodes[name] for node, _ in there)
            parts.append(Part(accelerator_type=name, num_workers=number, present=there if is_same else ()))
        gangs.append(Gang(parts=tuple(parts)))
    return seat_all(Hall(where.nodes), gangs)


def rounds(num_jobs: int, scale: int, seed: int) -> tuple[float, float, int, int]:
    """Returns CPU seconds of the first and a later round, tasks placed, and devices they hold."""
    draw = np.random.default_rng(seed)
    where = cluster(scale)
    policy = MultiObjective()
    waiting = tasks(num_jobs, where.view, draw)
    began_s = time.process_time()
    decisions, memory = policy.decide_remembering(where.view, waiting, NOTHING_REMEMBERED)
    seated = seat_all_of(where, decisions, {})
    first_s = time.process_time() - began_s
    later = []
    for task, decision in zip(waiting, decisions, strict=True):
        held = decision.allocation
        is_new = draw.random() < 0.05
        if held is None or is_new or decision.task not in seated:
            later.append(task)
            continue
        rate = task.rate(*held.counts[0])
        left = max(1.0, (task.remaining_work or 0.0) - 60.0 * rate)
        later.append(
            replace(task, state="running", allocation=held, remaining_work=left, done_work=60.0 * rate, num_nodes=1)
        )
    view = replace(where.view, now_s=60.0)
    began_s = time.process_time()
    decisions, _ = policy.decide_remembering(view, later, memory)
    seated = seat_all_of(where, decisions, seated)
    later_s = time.process_time() - began_s
    devices = sum(number for one in seated.values() for part in one.seats for _, number in part)
    return first_s, later_s, len(seated), devices


def seat_all_of(
    where: Cluster, decisions: Sequence[Decision], before: Mapping[TaskKey, Seated]
) -> dict[TaskKey, Seated]:
    """Returns where each task that found room is."""
    found = seats_of(where, decisions, before)
    return {
        decision.task: seated
        for decision, seated in zip(decisions, found, strict=True)
        if seated is not None and seated.seats
    }


def random_program(draw: np.random.Generator) -> Program:
    """Returns a small instance: a few types, gangs of powers of two, some units of two types, some limited projects."""
    num_types, num_jobs = int(draw.integers(1, 5)), int(draw.integers(1, 60))
    sizes = 2 ** np.arange(int(draw.integers(1, 5)))
    rows = [np.eye(num_types)[kind] * size for kind in range(num_types) for size in sizes]
    if num_types > 1 and draw.random() < 0.4:
        rows.extend((np.eye(num_types)[0] + np.eye(num_types)[1]) * size for size in sizes)
    uses = np.array(rows, dtype=np.float64)
    capacity = draw.integers(1, 24, num_types).astype(np.float64)
    speed = draw.lognormal(0, 0.7, (num_jobs, num_types)) @ uses.T
    values = draw.lognormal(0, draw.uniform(0, 1.5), (num_jobs, 1)) * (
        speed / speed.max(axis=1, keepdims=True)
    ) ** draw.uniform(0.3, 1.2)
    values *= draw.random(values.shape) < draw.uniform(0.3, 1.0)
    if draw.random() < 0.6:
        return Program(values=values, uses=uses, capacity=capacity)
    num_groups = int(draw.integers(1, 4))
    limits = draw.integers(0, 12, (num_groups, num_types)).astype(np.float64)
    limits[draw.random(limits.shape) < 0.5] = np.inf
    groups = draw.integers(0, num_groups, num_jobs).astype(np.intp)
    return Program(values=values, uses=uses, capacity=capacity, groups=groups, group_capacity=limits)


def gaps(number: int, seed: int) -> tuple[float, float, float]:
    """Returns the largest gap to the exact solution, the largest certified gap, and mean CPU seconds of a solve."""
    draw = np.random.default_rng(seed + 1)
    worst = certified = spent_s = 0.0
    for _ in range(number):
        program = random_program(draw)
        best = program.value_of(solve_exactly(program))
        began_s = time.process_time()
        solution = solve(program)
        spent_s += time.process_time() - began_s
        worst = max(worst, 1.0 - solution.value / best if best > 0 else 0.0)
        certified = max(certified, solution.gap_ratio)
    return worst, certified, spent_s / number


def main() -> None:
    options = report.arguments(__doc__ or "").parse_args()
    repeats = 1 if options.quick else 3
    sizes = {"round_s_2k_10k": (2048, 1), "round_s_8k_10k": (8192, 1), "round_s_100k": (20480, 10)}
    figures: dict[str, float | None] = {}
    print(f"{'tasks':>6} {'devices':>8} {'first s':>8} {'later s':>8} {'placed':>7} {'devices used':>13}")
    rounds(256, 1, options.seed)  # imports and caches
    for name, (num_jobs, scale) in sizes.items():
        slower = []
        for repeat in range(repeats):
            first_s, later_s, placed, used = rounds(num_jobs, scale, options.seed + repeat)
            total = sum(cluster(scale).view.total.values())
            print(f"{num_jobs:6d} {total:8d} {first_s:8.3f} {later_s:8.3f} {placed:7d} {used:13d}")
            slower.append(max(first_s, later_s))
        figures[name] = float(np.median(slower))
    for num_jobs in (512, 1024, 4096):
        first_s, later_s, placed, used = rounds(num_jobs, 1, options.seed)
        total = sum(cluster(1).view.total.values())
        print(f"{num_jobs:6d} {total:8d} {first_s:8.3f} {later_s:8.3f} {placed:7d} {used:13d}")
    number = 60 if options.quick else 300
    worst, certified, mean_s = gaps(number, options.seed)
    print(
        f"{number} random instances: largest gap {worst:.5f}, certified {certified:.5f}, {1e3 * mean_s:.1f} ms a solve"
    )
    figures["gap_max"] = worst
    report.finish("sched_scale", options.quick, figures, json_path=options.json)


if __name__ == "__main__":
    main()
