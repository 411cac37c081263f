"""Scheduling policies by name: those of Plait, and installed ones through the entry point group ``plait.policies``."""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from plait.errors import PlaitError
from plait.schedule.policy import Policy
from plait.words import did_you_mean

GROUP: Final = "plait.policies"
BUILT_IN: Final = {
    "fifo": "plait.schedule.policies.fifo:Fifo",
    "fifo_backfill": "plait.schedule.policies.fifo_backfill:FifoBackfill",
    "finish_time_fairness": "plait.schedule.policies.finish_time_fairness:FinishTimeFairness",
    "gandiva": "plait.schedule.policies.gandiva:Gandiva",
    "isolated": "plait.schedule.policies.isolated:Isolated",
    "las": "plait.schedule.policies.las:Las",
    "max_min_fairness": "plait.schedule.policies.max_min_fairness:MaxMinFairness",
    "max_min_water_filling": "plait.schedule.policies.max_min_water_filling:MaxMinWaterFilling",
    "max_sum_throughput": "plait.schedule.policies.max_sum_throughput:MaxSumThroughput",
    "max_sum_throughput_by_cost": "plait.schedule.policies.max_sum_throughput:MaxSumThroughputByCost",
    "min_cost_slo": "plait.schedule.policies.min_cost_slo:MinCostSlo",
    "min_makespan": "plait.schedule.policies.min_makespan:MinMakespan",
    "multi_objective": "plait.schedule.policies.multi_objective:MultiObjective",
    "pollux": "plait.schedule.policies.pollux:Pollux",
    "sia": "plait.schedule.policies.sia:Sia",
    "srtf": "plait.schedule.policies.srtf:Srtf",
}
DEFAULT: Final = "fifo_backfill"


class UnknownPolicy(PlaitError):
    """No policy of this name is installed."""


def policy_names() -> tuple[str, ...]:
    """Returns the names of all policies, sorted."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))


def policy(name: str, weights: tuple[tuple[str, float], ...] = ()) -> Policy:
    """Returns the policy of this name, with these weights if any; only its own module is imported.

    Raises:
        UnknownPolicy: There is none; the message has the nearest name.
    """
    target = BUILT_IN.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return _made(getattr(import_module(module), attribute), weights)
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _made(point.load(), weights)
    known = policy_names()
    hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
    raise UnknownPolicy(f"there is no scheduling policy {name!r}{hint}")


def _made(factory: Callable[..., Policy], weights: tuple[tuple[str, float], ...]) -> Policy:
    return factory(dict(weights)) if weights else factory()


@lru_cache(maxsize=8)  # looked up at each event; policies keep nothing between rounds
def policy_or_default(name: str, weights: tuple[tuple[str, float], ...] = ()) -> tuple[Policy, str | None]:
    """Returns the policy of this name, or the default one and a sentence that says so where it is not installed.

    Work must go on where a cluster's file names a policy that this installation lacks.
    """
    try:
        return policy(name, weights), None
    except UnknownPolicy as error:
        return policy(DEFAULT), f"{error}; {DEFAULT} decides instead"
