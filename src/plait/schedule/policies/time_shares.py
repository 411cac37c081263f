"""Gavel's rounds (Narayanan et al., OSDI 2020, section 5): time shares x of tasks by types become turns on devices.

Each round every type goes to the tasks that have had least of their share there: priority ``x_ij / f_ij``, where f is
the time that task i got on type j since the last solve. Gangs that do not fit are passed over, so nothing stays idle
and large gangs may wait long. Shares are solved anew when tasks came or went, but not sooner than ``resolve_after_s``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Final

from plait.schedule.domain import Allocation, Decision, TaskKey
from plait.schedule.policies.central_path import Floats
from plait.schedule.policies.gangs import Gangs, gangs_of
from plait.schedule.policies.rounds import Plan, in_rounds
from plait.schedule.policies.shares import listed
from plait.schedule.policy import ClusterView, Memory, TaskView

SHARE: Final = "share"
TIME: Final = "time_s"
DEFICIT: Final = "deficit_s"
CLOCK: Final = "clock"
RAN: Final = "ran_before_s"
SOLVED: Final = "solved"

Solve = Callable[[Gangs, ClusterView, Memory], tuple[Floats, Memory]]
"""Returns the shares (tasks, types) and the ledgers that the policy adds to the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How shares become turns.

    Attributes:
        round_s: Least time between two rounds; the published 360 s are a compromise with the cost of restarts.
        resolve_after_s: Least time between two solves.
        type_order_seed: Types pick in an order drawn anew each round, as Gavel does for policies that know no types;
            None: in the cluster's order.
        needs_priority: Tasks without a share on a type do not even fill its free devices.
        as_published: The oddities of Gavel's own scheduler: among equal priorities the task goes first that lacks most
            of its past shares (otherwise: the latest); tasks that came since the last solve wait for the next one,
            though devices that they could fill are kept for them; a solve at time 0 counts as none.
    """

    round_s: float = 360.0
    resolve_after_s: float = 1920.0
    type_order_seed: int | None = None
    needs_priority: bool = False
    as_published: bool = False


def take_turns(
    cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory, turns: Turns, solve: Solve
) -> tuple[Sequence[Decision], Memory]:
    """Returns the decisions of a round in which tasks take turns by their shares."""

    def plan(cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory) -> Plan:
        return _plan(cluster, tasks, memory, turns, solve)

    planned_at_s = memory.get(CLOCK, {}).get("planned_at_s")
    is_over = planned_at_s is None or turns.as_published or cluster.now_s - planned_at_s >= turns.round_s - 1e-6
    return in_rounds(replace(cluster, is_round=cluster.is_round and is_over), tasks, memory, plan)


def _plan(cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory, turns: Turns, solve: Solve) -> Plan:
    gangs = gangs_of(cluster, tasks)
    memory = _booked(cluster, tasks, memory)
    if _must_solve(cluster, gangs, memory, turns):
        memory = _solved(cluster, gangs, memory, solve)
    chosen = _choose(cluster, gangs, memory, turns)
    clock = memory.get(CLOCK, {})
    ran = {f"{task.key}|{chosen[task.key]}": task.runtime_s for task in gangs.tasks if task.key in chosen}
    memory = {
        **memory,
        RAN: ran,
        CLOCK: {**clock, "rounds": clock.get("rounds", 0.0) + 1.0, "planned_at_s": cluster.now_s},
    }
    targets, reasons = {}, {}
    for task in gangs.tasks:
        name = chosen.get(task.key)
        shares = {t: memory[SHARE].get(f"{task.key}|{t}", 0.0) for t in gangs.types}
        told = ", ".join(f"{t} {share:.0%}" for t, share in shares.items())
        if name is not None:
            targets[task.key] = Allocation(counts=((name, task.workers.min),))
            reasons[task.key] = f"its turn on {listed({name: task.workers.min})}; its shares of the time: {told}"
        else:
            reasons[task.key] = f"not its turn in this round; its shares of the time: {told}"
    return Plan(targets=targets, reasons=reasons, memory=memory)


def _must_solve(cluster: ClusterView, gangs: Gangs, memory: Memory, turns: Turns) -> bool:
    solved_at_s = memory.get(CLOCK, {}).get("solved_at_s")
    if solved_at_s is None or (turns.as_published and solved_at_s == 0):
        return bool(gangs.tasks)
    same = memory.get(SOLVED, {}).keys() == {str(task.key) for task in gangs.tasks}
    return bool(gangs.tasks) and not same and cluster.now_s - solved_at_s >= turns.resolve_after_s


def _solved(cluster: ClusterView, gangs: Gangs, memory: Memory, solve: Solve) -> Memory:
    """Solves for new shares; what tasks got so far counts only as the deficit that breaks ties."""
    clock, credit_s = memory.get(CLOCK, {}), cluster.round_s / 2
    since_s = cluster.now_s - clock.get("solved_at_s", cluster.now_s)
    entries = [f"{task.key}|{name}" for task in gangs.tasks for name in gangs.types]
    old, time_s, deficit = memory.get(SHARE, {}), memory.get(TIME, {}), memory.get(DEFICIT, {})
    shares, ledgers = solve(gangs, cluster, memory)
    return {
        **memory,
        **ledgers,
        CLOCK: {**clock, "solved_at_s": cluster.now_s},
        SOLVED: {str(task.key): 1.0 for task in gangs.tasks},
        SHARE: dict(zip(entries, (float(share) for share in shares.ravel()), strict=True)),
        TIME: dict.fromkeys(entries, credit_s),
        DEFICIT: {
            entry: deficit.get(entry, 0.0) + old.get(entry, 0.0) * since_s - (time_s.get(entry, credit_s) - credit_s)
            for entry in entries
        },
    }


def _choose(cluster: ClusterView, gangs: Gangs, memory: Memory, turns: Turns) -> Mapping[TaskKey, str]:
    """Returns the type that each task gets; types pick one after another, each its best entries first."""
    chosen: dict[TaskKey, str] = {}
    order = list(range(len(gangs.types)))
    if turns.type_order_seed is not None:
        order = list(_type_order(turns.type_order_seed, int(memory.get(CLOCK, {}).get("rounds", 0)), len(order)))
    share, time_s, deficit = (memory.get(name, {}) for name in (SHARE, TIME, DEFICIT))
    for j in order:
        name, left = gangs.types[j], float(gangs.capacity[j])
        rows = []
        for i, task in enumerate(gangs.tasks):
            entry = f"{task.key}|{name}"
            x = share.get(entry, 0.0)
            priority = x / time_s.get(entry, cluster.round_s / 2) if gangs.rates[i, j] > 0 else 0.0
            key = (priority, deficit.get(entry, 0.0), x, -i) if turns.as_published else (priority, x, i, 0)
            rows.append((key, i, task))
        for key, i, task in sorted(rows, key=lambda row: row[0], reverse=True):
            if task.key in chosen or gangs.rates[i, j] <= 0 or gangs.devices[i, j] > left:
                continue
            if turns.needs_priority and key[0] <= 0:
                continue
            chosen[task.key] = name
            left -= float(gangs.devices[i, j])
    if turns.as_published:
        solved = memory.get(SOLVED, {})
        chosen = {key: name for key, name in chosen.items() if str(key) in solved}
    return chosen


def _booked(cluster: ClusterView, tasks: Sequence[TaskView], memory: Memory) -> Memory:
    """Books the time that tasks ran since the last round on the type that they had, and forgets tasks that are gone."""
    runtime_s = {str(task.key): task.runtime_s for task in tasks}
    kept: dict[str, Mapping[str, float]] = dict(memory)
    for ledger in (SHARE, TIME, DEFICIT):
        kept[ledger] = {
            entry: value for entry, value in memory.get(ledger, {}).items() if entry.rpartition("|")[0] in runtime_s
        }
    time_s = dict(kept[TIME])
    for entry, before_s in memory.get(RAN, {}).items():
        now_s = runtime_s.get(entry.rpartition("|")[0])
        if now_s is not None:
            time_s[entry] = time_s.get(entry, cluster.round_s / 2) + now_s - before_s
    return {**kept, TIME: time_s}


@lru_cache(maxsize=64)
def _type_orders(seed: int, num_types: int, number: int) -> tuple[tuple[int, ...], ...]:
    """Returns the first ``number`` shuffles of the types by one generator."""
    random = Random(seed)
    orders = []
    for _ in range(number):
        order = list(range(num_types))
        random.shuffle(order)
        orders.append(tuple(order))
    return tuple(orders)


def _type_order(seed: int, number: int, num_types: int) -> tuple[int, ...]:
    """Returns the ``number``-th shuffle: a function of its arguments alone."""
    block = 1024
    return _type_orders(seed, num_types, (number // block + 1) * block)[number]
