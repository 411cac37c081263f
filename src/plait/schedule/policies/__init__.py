"""Scheduling policies by name: those of Plait, and installed ones through the entry point group ``plait.policies``."""

from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, cast

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


def policy(name: str) -> Policy:
    """Returns the policy of this name; only its own module is imported.

    Raises:
        UnknownPolicy: There is none; the message has the nearest name.
    """
    target = BUILT_IN.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return cast("Policy", getattr(import_module(module), attribute)())
    for point in entry_points(group=GROUP):
        if point.name == name:
            return cast("Policy", point.load()())
    known = policy_names()
    hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
    raise UnknownPolicy(f"there is no scheduling policy {name!r}{hint}")


@lru_cache(maxsize=8)  # looked up at each event; policies keep nothing between rounds
def policy_or_default(name: str) -> tuple[Policy, str | None]:
    """Returns the policy of this name, or the default one and a sentence that says so where it is not installed.

    Work must go on where a cluster's file names a policy that this installation lacks.
    """
    try:
        return policy(name), None
    except UnknownPolicy as error:
        return policy(DEFAULT), f"{error}; {DEFAULT} decides instead"
