"""Projects: what they are guaranteed, what they may borrow, and fairness among them that remembers.

- A *limit* is a row of the program: a project's tasks together never hold more of a type.
- Tasks that fit a project's *quota* choose first, within it, so that those who borrowed give it back in the next
  round. Which tasks that are is decided by priority and claim.
- Beyond quotas the claim of a project's tasks is multiplied by (its part by weight / its part of recent use)^f. Use is
  device-time at the price of the devices (20 T4 are not 20 A100), halved every ``HALF_LIFE_S``.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plait.schedule.allocation.program import Ints
from plait.schedule.policies.objective.options import Floats, Options
from plait.schedule.policy import ClusterView, Memory, ProjectTerms

USED = "project_used_s"
"""Ledger: recent use by project, in seconds of a device of mean price."""
SEEN = "project_seen"
"""Ledger: when use was last counted."""

HALF_LIFE_S = 24 * 3600.0
MOST_FACTOR = 4.0
PATIENCE_S = 3600.0
"""Parts of use are compared only beyond about this much of the whole cluster's time, so that a start tips nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projects:
    """The projects of the tasks at hand.

    Attributes:
        names: Of all projects that have tasks here.
        of_task: (tasks,). Index of each task's project.
        quota: (projects, types). Devices guaranteed.
        limit: (projects, types). Devices at most; infinite where there is no limit.
        factors: (projects,). By what the claims of its tasks count more or less.
    """

    names: tuple[str, ...]
    of_task: Ints
    quota: Floats
    limit: Floats
    factors: Floats


def projects_of(
    cluster: ClusterView, options: Options, prices: Floats, memory: Memory, fairness: float
) -> tuple[Projects, Memory]:
    """Returns the projects of the tasks, and the ledgers of use to remember.

    Args:
        cluster: With the terms of projects.
        options: The tasks.
        prices: (columns,). Price of each configuration, in devices of mean price.
        memory: With the ledgers of last time.
        fairness: The exponent ``f``.
    """
    names = tuple(sorted({task.project for task in options.tasks}))
    index = {name: row for row, name in enumerate(names)}
    of_task = np.array([index[task.project] for task in options.tasks], dtype=np.intp)
    terms = [cluster.projects.get(name, ProjectTerms()) for name in names]
    used = _used(cluster, options, prices, memory)
    projects = Projects(
        names=names,
        of_task=of_task,
        quota=np.array([[float(one.quota.get(t, 0)) for t in options.types] for one in terms]),
        limit=np.array([[float(one.limit.get(t, np.inf)) for t in options.types] for one in terms]),
        factors=_factors(terms, [used.get(name, 0.0) for name in names], options, fairness),
    )
    return projects, {USED: used, SEEN: {"now_s": cluster.now_s}}


def _used(cluster: ClusterView, options: Options, prices: Floats, memory: Memory) -> dict[str, float]:
    passed_s = max(0.0, cluster.now_s - memory.get(SEEN, {}).get("now_s", cluster.now_s))
    decay = 0.5 ** (passed_s / HALF_LIFE_S)
    used = {name: value * decay for name, value in memory.get(USED, {}).items() if value * decay > 1.0}
    held = (prices if prices.any() else options.uses.sum(axis=1)) * passed_s
    for task, column in zip(options.tasks, options.present.tolist(), strict=True):
        if column >= 0 and passed_s > 0:
            used[task.project] = used.get(task.project, 0.0) + float(held[column])
    return used


def _factors(terms: list[ProjectTerms], used: list[float], options: Options, fairness: float) -> Floats:
    weights = np.array([max(one.weight, 1e-9) for one in terms])
    part = weights / weights.sum() if len(weights) else weights
    slack = PATIENCE_S * float(options.capacity.sum())
    recent = np.array(used)
    had = (recent + slack * part) / (recent.sum() + slack) if len(weights) else recent
    factors: Floats = np.clip(part / np.maximum(had, 1e-9), 1.0 / MOST_FACTOR, MOST_FACTOR) ** fairness
    # A project of twice the weight claims twice as much from the start.
    return factors * weights / weights.mean() if len(weights) else factors


def within_quota(options: Options, projects: Projects, values: Floats) -> npt.NDArray[np.bool_]:
    """Returns the tasks that their projects' quotas hold: by priority, then by claim, each at its best that fits."""
    within = np.zeros(len(options.tasks), dtype=np.bool_)
    if not projects.quota.any():
        return within
    left = projects.quota.copy()
    best = values.max(axis=1, initial=0.0)
    priority = np.array([task.priority for task in options.tasks])
    for row in np.lexsort((-best, -priority)).tolist():
        project = projects.of_task[row]
        fits = (options.uses <= left[project]).all(axis=1) & (values[row] > 0)
        if fits.any():
            left[project] -= options.uses[int(np.where(fits, values[row], -np.inf).argmax())]
            within[row] = True
    return within
