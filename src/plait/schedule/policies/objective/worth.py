"""What each configuration is worth to each task in this round: claim times progress, less what it costs.

``value = claim * progress * thrift * fair * start * stay``, with

- ``claim``: weight * (left at best)^-alpha * devices^gamma * rho^k * (rho / 0.75)^late * deadline pressure. Short
  remaining work goes first; a gang a little more than one for one, for its end gives its devices to several others;
  and so does who falls behind its equal share, steeply from rho 0.75 to 1, where that still helps.
- ``progress``: ``g rate - mu price``, where ``g`` makes the best of all 1; so a task gives up a fast device, or the
  last of its devices, if the time it saves is not worth its price. A task of several sizes looks at the price more.
- ``thrift``: (progress per price, over the best one)^lambda: what is saved by a cheaper device, whatever the task.
- ``fair``: (0.85 / rho in this configuration)^f where that is below 1, over the best one: cheap must not mean late.
- ``start``: to a change, rates count with the restart on top: the less work is left, the less a fast device gains.
- ``stay``: more for the present configuration, for a change costs a restart and must pay back before the work ends.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plait.schedule.policies.objective.goals import Goals
from plait.schedule.policies.objective.options import Floats, Options
from plait.schedule.policies.objective.standing import Standing
from plait.schedule.policy import ClusterView

Flags = npt.NDArray[np.bool_]

SHORT_EXPONENT = 0.4
SHORT_FLOOR_S = 1800.0
LEAST_LEFT_S = 1.0
LATE_FROM, LATE_TO = 0.75, 1.0
"""Between these values of rho claims rise steeply. Who is late already has lost; others can still be kept from it."""
FAIR_BELOW = 0.85
"""A little below 1: how long others stay is not known, and who is late by little is late."""
GANG_EXPONENT = 0.15
STAY = 1.07
"""Beyond what a restart costs: how many tasks there are, and so what is best, changes every few minutes."""
RESTART_WEIGHT = 0.5
ELASTIC_PRICE = 3.8
"""So many times as much counts the price to a task of several sizes: how many devices it takes is its choice."""
HORIZON_S = 6000.0
"""A change is expected to hold this long at most: by then other tasks have come and gone."""
MOST_PRESSURE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """(tasks, columns) values and (tasks,) claims; ``progress`` (kinds, columns) without claim and stay."""

    values: Floats
    claims: Floats
    progress: Floats


def worth_of(cluster: ClusterView, options: Options, standing: Standing, goals: Goals, factors: Floats) -> Worth:
    """Returns the values of all options, in units of the mean claim; ``factors`` (tasks,) multiply the claims."""
    progress = _progress(options, prices_of(cluster, options), goals)
    claims = _claims(cluster, options, standing, goals) * factors
    claims = claims / claims.mean() if len(claims) else claims
    values = claims[:, None] * progress[options.kinds]
    if goals.fair_exponent > 0:
        values *= _fair(options, standing) ** goals.fair_exponent
    values *= _start(options, standing)
    runs = np.flatnonzero(options.present >= 0)
    values[runs, options.present[runs]] *= _stay(standing)[runs]
    return Worth(values=values, claims=claims, progress=progress)


def prices_of(cluster: ClusterView, options: Options) -> Floats:
    """Returns the price of each configuration, in units of the mean price of a device; zero where none is known."""
    prices = np.array([cluster.prices_per_hour.get(name, 0.0) for name in options.types])
    mean = float(prices @ options.capacity) / max(float(options.capacity.sum()), 1.0)
    of_columns: Floats = options.uses @ (prices / mean if mean > 0 else prices)
    return of_columns


def _progress(options: Options, prices: Floats, goals: Goals) -> Floats:
    """Returns (kinds, columns), zero where a kind does not run so."""
    runs = options.rates > 0
    rates = np.where(runs, options.rates, 1.0)
    weight = np.where(_is_elastic(options, runs)[:, None], ELASTIC_PRICE, 1.0)
    mu = goals.price_weight * weight * np.sqrt(_fewest(options))[:, None]
    per_work = np.where(runs, (1.0 + mu * prices) / rates, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    net = np.where(runs, np.maximum(per_work * rates - mu * prices, 0.0), 0.0)
    has_price = runs & (prices > 0)
    cost = np.where(has_price, prices / rates, np.inf)
    least = cost.min(axis=1, keepdims=True, initial=np.inf)
    thrift = np.where(has_price, least / np.where(has_price, cost, 1.0), 1.0) ** goals.thrift_exponent
    progress: Floats = net * thrift
    return progress


def _fewest(options: Options) -> Floats:
    """Returns (kinds,): the fewest devices with which a kind runs."""
    fewest = np.where(options.gang_devices > 0, options.gang_devices, np.inf).min(axis=1, initial=np.inf)
    known: Floats = np.where(np.isfinite(fewest), fewest, 1.0)
    return known


def _is_elastic(options: Options, runs: Flags) -> Flags:
    """Returns (kinds,), whether a kind runs with more than one number of devices."""
    devices = options.uses.sum(axis=1)
    fewest = np.where(runs, devices, np.inf).min(axis=1, initial=np.inf)
    most = np.where(runs, devices, 0.0).max(axis=1, initial=0.0)
    several: Flags = most > fewest
    return several


def _claims(cluster: ClusterView, options: Options, standing: Standing, goals: Goals) -> Floats:
    weights = np.array([max(task.weight, 1e-9) for task in options.tasks])
    claims = weights * np.maximum(standing.left_s, SHORT_FLOOR_S) ** -SHORT_EXPONENT
    claims = claims * _fewest(options)[options.kinds] ** GANG_EXPONENT * standing.rho**goals.rho_exponent
    claims = claims * (np.clip(standing.rho, LATE_FROM, LATE_TO) / LATE_FROM) ** goals.late_exponent
    pressed: Floats = claims * _pressure(cluster, options, standing) ** goals.deadline_exponent
    return pressed


def _pressure(cluster: ClusterView, options: Options, standing: Standing) -> Floats:
    """Returns 1 without a deadline, up to 10 as the time to it runs out; 1 again once it cannot be met any more."""
    until_s = np.array(
        [np.inf if task.deadline_at_s is None else task.deadline_at_s - cluster.now_s for task in options.tasks]
    )
    share = standing.left_s / np.maximum(until_s, 1e-9)
    pressure: Floats = np.where(share <= 1.0, 1.0 / (1.0 - np.minimum(share, MOST_PRESSURE)), 1.0)
    return pressure


def _fair(options: Options, standing: Standing) -> Floats:
    """Returns (tasks, columns): how near each configuration comes to a fair finish, at most 1 for the best one.

    All that leave rho below ``FAIR_BELOW`` are as good.
    """
    rates = np.maximum(options.rates, 1e-12)[options.kinds]
    work_left = (standing.left_s * standing.best)[:, None]
    rho = (standing.age_s[:, None] + work_left / rates) / standing.fair_total_s[:, None]
    late: Floats = np.maximum(rho, FAIR_BELOW)
    fair: Floats = late.min(axis=1, keepdims=True) / late
    return fair


def _start(options: Options, standing: Standing) -> Floats:
    """Returns (tasks, columns): what the restart leaves of the difference in rates, 1 for the present configuration.

    A change takes ``restart + left / rate``; compared with the rates alone, slow devices gain on the best one.
    """
    share = (standing.restart_s / np.maximum(standing.left_s, LEAST_LEFT_S))[:, None]
    start: Floats = (1.0 + share) / (1.0 + share * options.rates[options.kinds] / standing.best[:, None])
    rows = np.flatnonzero(options.present >= 0)
    start[rows, options.present[rows]] = 1.0
    return start


def _stay(standing: Standing) -> Floats:
    """Returns by how much the present configuration counts more than another one.

    Moving pays if the gain, over the time that it lasts, exceeds what the restart loses.
    """
    cost_s = RESTART_WEIGHT * standing.restart_s
    lasts_s = np.maximum(np.minimum(standing.left_s, HORIZON_S), 2.0 * np.maximum(cost_s, 1.0))
    stay: Floats = STAY / (1.0 - cost_s / lasts_s)
    return stay
