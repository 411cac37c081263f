"""How tasks stand: age, work done and left, and what an equal share of the cluster would have given them.

The finish-time fairness of a task (Mahajan et al., NSDI 2020) is ``rho = (age + start + left / best) / (fair + left /
even)``: the time it takes when it runs on its best type from now on, over the time that its work takes on an equal
share, of the cluster as it was for the work done and as it is now for the work left. ``start`` is what a start costs,
for those that do not run: to a task of minutes that is the larger part.
"""

from dataclasses import dataclass

import numpy as np

from plait.schedule.policies.objective.options import Floats, Options
from plait.schedule.policies.objective.remaining import lengths
from plait.schedule.policy import ClusterView, Memory

FAIR = "fair_s"
"""Ledger: seconds that the work done so far would have taken on the equal shares of its time."""
DONE = "done"
"""Ledger: work done when the policy was last asked, in the task's unit."""
RUNNING = "running_s"
"""Ledger: of tasks that ran when the policy was last asked, the seconds at their best rate that they have had."""
ENDED = "ended_s"
"""Ledger: the same of the tasks that ended last, by a running number."""
ASKED = "asked"
"""Ledger: when the policy was last asked."""

MOST_ENDED = 256
LEAST_RHO = 0.1
EVEN_FLOOR = 1e-12
RESTART_S = 45.0
"""Assumed where nobody says what a start costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One number a task, in the order of ``Options.tasks``.

    Attributes:
        left_s: Seconds that it still runs at its best rate; learnt from others where nobody says.
        best: Its best rate with the fewest workers, in its unit a second.
        rho: Its finish-time fairness if it runs at its best rate from now on.
        age_s: Seconds since it was submitted.
        fair_total_s: How long its work, done and left, takes on an equal share.
        is_guess: Whether ``left_s`` is a guess.
        restart_s: Seconds without progress that a start or a change costs.
    """

    left_s: Floats
    best: Floats
    rho: Floats
    age_s: Floats
    fair_total_s: Floats
    is_guess: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    restart_s: Floats


def standing_of(cluster: ClusterView, options: Options, memory: Memory) -> tuple[Standing, Memory]:
    """Returns how the tasks stand, and the ledgers to remember; these hold open tasks only, and the last that ended."""
    tasks = options.tasks
    keys = [str(task.key) for task in tasks]
    gang, most = options.gang_rates.max(axis=1, initial=0.0), options.rates.max(axis=1, initial=0.0)
    best = np.maximum(np.where(gang > 0, gang, most), EVEN_FLOOR)
    best = best[options.kinds]
    even = _even_rates(options)
    done, gained = _work(cluster, options, memory, keys)
    fair_s = _from(memory, FAIR, keys) + gained / even
    served_s = done / best
    ended = _ended(memory, {str(task.key) for task in tasks})
    left_s, is_guess = _left(options, best, served_s, ended)
    age_s = np.array([cluster.now_s - task.submitted_at_s for task in tasks])
    total_s = np.maximum(fair_s + left_s * best / even, EVEN_FLOOR)
    restart_s = np.array([RESTART_S if task.restart_cost_s is None else task.restart_cost_s for task in tasks])
    start_s = np.where(options.present >= 0, 0.0, restart_s)
    standing = Standing(
        left_s=left_s,
        best=best,
        rho=np.maximum((age_s + start_s + left_s) / total_s, LEAST_RHO),
        age_s=age_s,
        fair_total_s=total_s,
        is_guess=is_guess,
        restart_s=restart_s,
    )
    ledgers = {
        FAIR: dict(zip(keys, fair_s.tolist(), strict=True)),
        DONE: dict(zip(keys, done.tolist(), strict=True)),
        RUNNING: {
            key: served
            for key, served, task in zip(keys, served_s.tolist(), tasks, strict=True)
            if task.state == "running" and served > 0
        },
        ENDED: ended,
        ASKED: {"now_s": cluster.now_s},
    }
    return standing, ledgers


def _even_rates(options: Options) -> Floats:
    """Returns work a second under an equal share ``x_ij = W_j w_i / (sum w) / s_i``, rows scaled down to at most 1."""
    weights = np.array([max(task.weight, 1e-9) for task in options.tasks])
    share = weights / weights.sum() if len(weights) else weights
    rates, devices = options.gang_rates[options.kinds], options.gang_devices[options.kinds]
    shares = share[:, None] * options.capacity / devices
    even: Floats = (shares * rates).sum(axis=1) / np.maximum(shares.sum(axis=1), 1.0)
    return np.maximum(even, EVEN_FLOOR)


def _work(cluster: ClusterView, options: Options, memory: Memory, keys: list[str]) -> tuple[Floats, Floats]:
    """Returns the work done so far and since the last time; counted from rates where it is not reported."""
    before = _from(memory, DONE, keys)
    asked_s = memory.get(ASKED, {}).get("now_s", cluster.now_s)
    passed_s = max(0.0, cluster.now_s - asked_s)
    runs = options.present >= 0
    rate = np.where(runs, options.rates[options.kinds, np.maximum(options.present, 0)], 0.0)
    reported = np.array([np.nan if task.done_work is None else task.done_work for task in options.tasks])
    done: Floats = np.where(np.isnan(reported), before + rate * passed_s, reported)
    return done, np.maximum(done - before, 0.0)


def _from(memory: Memory, ledger: str, keys: list[str]) -> Floats:
    known = memory.get(ledger, {})
    return np.array([known.get(key, 0.0) for key in keys])


def _ended(memory: Memory, present: set[str]) -> dict[str, float]:
    """Returns the lengths of tasks that ended: those seen before, and those that ran last time and are gone."""
    ended = dict(memory.get(ENDED, {}))
    number = max((int(key) for key in ended), default=-1) + 1
    for key, served in memory.get(RUNNING, {}).items():
        if key not in present:
            ended[str(number)] = served
            number += 1
    return {str(index): ended[str(index)] for index in range(max(0, number - MOST_ENDED), number)}


def _left(
    options: Options, best: Floats, served_s: Floats, ended: dict[str, float]
) -> tuple[Floats, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    known = np.array([np.nan if task.remaining_work is None else task.remaining_work for task in options.tasks])
    is_guess = np.isnan(known)
    left_s: Floats = np.maximum(known, 0.0) / best
    if is_guess.any():
        guess = lengths(list(ended.values()), served_s.tolist()).residual_s(served_s)
        left_s = np.where(is_guess, guess, left_s)
    return left_s, is_guess
